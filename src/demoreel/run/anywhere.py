"""Work on folders where source or target may be remote: fetched before, sent after.

Conversions, cuts and repairs read and write files. So a remote source is copied to this machine
first, and a remote target is made here and sent when it is whole; neither stays here.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from demoreel.storage.remote.fetch import local_copy, remote_state
from demoreel.storage.remote.send import (
    Sent,
    refuse_remote_overlap,
    refuse_remote_target,
    remote_target,
)
from demoreel.storage.store import is_uri

PathLike = str | os.PathLike[str]
Report = Callable[[float], None]
Made = TypeVar("Made")


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
    source: PathLike,
    target: PathLike | None,
    make: Callable[[Path, Path | None], Made],
    *,
    work: tuple[object, ...],
    note: Callable[[Made], Mapping[str, Any]] | None = None,
    noted: Callable[[dict[str, Any]], Made] | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    fetching: Report | None = None,
    sending: Report | None = None,
) -> tuple[Made, Sent | None]:
    """Make a dataset of another one, wherever both lie.

    Args:
        source: The dataset.
        target: What to make; None if there is none.
        make: Given the source's folder and the one to make, which is None in a dry run of what is
            remote, makes it.
        work: What is made of the source; the same only if the same would come out.
        note: What is noted of a remote target that is made, and is not sent yet.
        noted: What ``make`` had returned, from such a note. Without it, it is made again.
        overwrite: Of a URI: replace the dataset that is there.
        dry_run: Whether nothing is to be written.
        storage_options: Of what is remote: as for ``demoreel.open``.
        fetching: Called with the share that is fetched.
        sending: Called with the share that is sent.

    Returns:
        What ``make`` returned, and what was sent to a URI.

    Raises:
        DemoreelError: As ``make``, ``local_copy`` and ``remote_target``.
    """

    def at_hand(place: Path | None) -> Made:
        if not is_uri(source):
            return make(Path(source), place)
        with local_copy(str(source), storage_options=storage_options, report=fetching) as folder:
            return make(folder, place)

    if target is None or not is_uri(target):
        return at_hand(None if target is None else Path(target)), None
    refuse_remote_overlap(source, target)
    if dry_run:
        refuse_remote_target(str(target), overwrite=overwrite, storage_options=storage_options)
        return at_hand(None), None
    state = (
        remote_state(str(source), storage_options) if is_uri(source) else folder_state(Path(source))
    )
    return made_and_sent(
        str(target),
        at_hand,
        work=(*work, str(source), state),
        note=note,
        noted=noted,
        overwrite=overwrite,
        storage_options=storage_options,
        sending=sending,
    )


def made_and_sent(
    uri: str,
    make: Callable[[Path], Made],
    *,
    work: tuple[object, ...],
    note: Callable[[Made], Mapping[str, Any]] | None = None,
    noted: Callable[[dict[str, Any]], Made] | None = None,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    sending: Report | None = None,
) -> tuple[Made, Sent]:
    """Make a dataset in a folder on this machine, unless that is done, and send it to a URI.

    The arguments are those of ``made_anywhere``.

    Raises:
        DemoreelError: As ``make`` and ``remote_target``.
    """
    with remote_target(uri, *work, overwrite=overwrite, storage_options=storage_options) as out:
        before = out.made()
        if before is not None and noted is not None:
            made = noted(before)
        else:
            made = make(out.folder)
            if note is not None:
                out.note_made(note(made))
        return made, out.send(sending)
