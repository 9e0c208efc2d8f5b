"""Runs work whose source or target is remote: fetches before it, uploads after it.

Cuts, conversions and repairs read and write files. So a remote source is copied to this machine
first, and a remote target is made here and sent when it is whole; neither stays here. This is the
one place of these verbs that tells a URI from a folder.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from demoreel.errors import ArgumentError
from demoreel.storage.commit.files import refuse_existing, refuse_overlap
from demoreel.storage.remote.fetch import local_copy, name_of, part_of, remote_state
from demoreel.storage.remote.folder import RemoteFolder
from demoreel.storage.remote.send import (
    Sent,
    refuse_remote_overlap,
    refuse_remote_target,
    remote_target,
)
from demoreel.storage.store import is_uri

PathLike = str | os.PathLike[str]
Place = PathLike | RemoteFolder
Report = Callable[[float], None]


class Called(Protocol):
    """A report of what was made, which names places."""

    def called(self, names: Mapping[str, str]) -> Self:
        """Return the same with URIs in the place of the copies on this machine."""
        ...


Made = TypeVar("Made", bound=Called)


def is_here(*places: object) -> bool:
    """Whether all places are on this machine."""
    return not any(isinstance(place, RemoteFolder) or is_uri(place) for place in places)


def refuse_remote(
    places: Sequence[object], what: str, *, hint: str = "fetch it first: demoreel pull"
) -> None:
    """Refuse to do what needs these places on this machine."""
    for place in places:
        if not is_here(place):
            raise ArgumentError(what, hint=hint, uri=place)


def refuse_target(sources: Sequence[str], target: str, *, overwrite: bool, made: bool) -> None:
    """Refuse a target that overlaps a source, or where something is that is not ``made`` before."""
    for source in sources:
        refuse_remote_overlap(source, target)
        if is_here(source, target):
            refuse_overlap(source, Path(target))
    if not is_here(target):
        refuse_remote_target(target, overwrite=overwrite)
    elif not made:
        refuse_existing(Path(target))


def folder_state(root: Path) -> str:
    """Return a text that changes when a file of a folder does: by names, sizes and times."""
    digest = hashlib.sha256(os.path.realpath(root).encode())
    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted(files):
            try:
                status = os.stat(os.path.join(folder, name))
            except OSError:
                continue  # gone again, or a link that leads nowhere
            place = os.path.relpath(os.path.join(folder, name), root)
            digest.update(repr((place, status.st_size, status.st_mtime_ns)).encode())
    return digest.hexdigest()


def made_anywhere(
    sources: Sequence[Place],
    target: PathLike | None,
    make: Callable[[list[Path], Path | None], Made],
    *,
    work: tuple[object, ...],
    needed: Callable[[int], Collection[str] | None] = lambda _: None,
    note: Callable[[Made], Mapping[str, Any]] | None = None,
    noted: Callable[[dict[str, Any]], Made] | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    fetching: Report | None = None,
    sending: Report | None = None,
) -> tuple[Made, Sent | None]:
    """Make a dataset of others, wherever they are.

    Args:
        sources: The datasets.
        target: What to make; None if there is none.
        make: Given the sources' folders and the one to make, makes it.
        work: What is made of the sources; the same only if the same would come out.
        needed: The files that are needed of a source, by its number; None is all.
        note: What is noted of a remote target that is made, and is not sent yet.
        noted: What ``make`` had returned, from such a note. Without it, it is made again.
        overwrite: Of a URI: replace the dataset that is there.
        dry_run: Whether nothing is to be written.
        storage_options: Of URIs: as for ``demoreel.open``.
        fetching: Called with the share that is fetched.
        sending: Called with the share that is sent.

    Returns:
        What ``make`` returned, and what was sent to a URI.
    """

    def make_here(place: Path | None) -> Made:
        with _local_folders(sources, needed, storage_options, fetching) as folders:
            names = {
                str(folder): _name(source)
                for folder, source in zip(folders, sources, strict=True)
                if not is_here(source)
            }
            if not is_here(target):
                nothing = folders[0].absolute().parent / "dry-run" / name_of(str(target))
                place = Path(os.path.abspath(place or nothing))
                names[str(place)] = str(target)
            return make(folders, place).called(names)

    if is_here(target):
        return make_here(None if target is None else Path(target)), None
    for source in sources:
        refuse_remote_overlap(_name(source), target)
    if dry_run:
        refuse_remote_target(str(target), overwrite=overwrite, storage_options=storage_options)
        return make_here(None), None
    states = [
        text for source in sources for text in (_name(source), _state(source, storage_options))
    ]
    with remote_target(
        str(target), *work, *states, overwrite=overwrite, storage_options=storage_options
    ) as out:
        before = out.made()
        if before is not None and noted is not None:
            made = noted(before)
        else:
            made = make_here(out.folder)
            if note is not None:
                out.note_made(note(made))
        return made, out.send(sending)


@contextmanager
def _local_folders(
    sources: Sequence[Place],
    needed: Callable[[int], Collection[str] | None],
    storage_options: Mapping[str, Any] | None,
    report: Report | None,
) -> Iterator[list[Path]]:
    """Yield a folder of this machine for each source; copies are gone when the block ends."""
    remote = [number for number, source in enumerate(sources) if not is_here(source)]
    folders = {}
    with ExitStack() as copies:
        for place, number in enumerate(remote):
            source = sources[number]
            copy = local_copy(
                source if isinstance(source, RemoteFolder) else str(source),
                names=needed(number),
                storage_options=storage_options,
                report=part_of(report, place / len(remote), (place + 1) / len(remote)),
            )
            folders[number] = copies.enter_context(copy)
        yield [folders.get(n) or Path(_name(source)) for n, source in enumerate(sources)]


def _name(source: Place) -> str:
    return source.uri if isinstance(source, RemoteFolder) else os.fspath(source)


def _state(source: Place, storage_options: Mapping[str, Any] | None) -> str:
    """Return a text that changes when a file of a dataset does."""
    if is_here(source):
        return folder_state(Path(_name(source)))
    return remote_state(
        source if isinstance(source, RemoteFolder) else str(source), storage_options
    )
