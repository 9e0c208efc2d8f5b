"""A dataset's folder: metadata on this disk, tables and videos local or remote.

No link may lead what is copied, published or written out of it. A dataset may be untrusted,
and a link in it may name any file of this user. Reading through such a link shows users their own
files and is allowed; a copy of it could be published later, and a write through it would change
what is not the dataset's. Everything that copies, publishes or writes therefore calls
``refuse_links_out`` first.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from demoreel.errors import ArgumentError
from demoreel.storage.commit.writer_lock import HIDDEN
from demoreel.storage.local import count_opening, open_file, open_regular
from demoreel.storage.names import OLD_METADATA
from demoreel.storage.place import RemotePlace
from demoreel.storage.store import FileInfo, StoredFile, is_uri

if TYPE_CHECKING:
    from demoreel.storage.cache import RangeCache
    from demoreel.storage.parquet import Parquet

T = TypeVar("T")

OWN_FOLDERS = {"meta", "data", "videos"}


class DatasetFolder:
    """A folder on this disk; ``RemoteFolder`` is one of which only the metadata are copied here.

    Attributes:
        waits: Whether reads of its files wait for a server, so that they are best begun early.
        grows: Whether a recorder may add episodes while it is open; else it is a copied state.
        tables: Where Lance finds the tables, if not in ``local``.
        cache: Keeps the ranges that were read; None where that is the system's own work.
        kept_in: Folder and bytes of the cache of ranges on disk; None where there is none.
    """

    waits = False
    grows = True

    def __init__(self, local: Path) -> None:
        self.local = local

    @property
    def tables(self) -> RemotePlace | None:  # noqa: D102
        return None

    @property
    def cache(self) -> RangeCache | None:  # noqa: D102
        return None

    @property
    def kept_in(self) -> tuple[str, int] | None:  # noqa: D102
        return None

    @property
    def given(self) -> str | RemotePlace:
        """What opens it in another process, or on another machine that shares the place."""
        return os.path.abspath(self.local)

    @property
    def uri(self) -> str:
        """What to call it."""
        return str(self.local)

    def deferred(self, under: str, *, leaving: str | None = None) -> Sequence[FileInfo]:
        """Return the metadata under a folder that are not copied yet, but for those to be left."""
        return []

    def fetch(self, under: str, *, leaving: str | None = None) -> None:
        """Copy the metadata under a folder that are not here yet.

        Cost: a request for each file, all at the same time; nothing if they are here.

        Args:
            under: The folder's name, with a slash at its end.
            leaving: What in it to leave where it is.
        """

    def later(self, under: str) -> Callable[[], None] | None:
        """Return what fetches the metadata under a folder; None if they are here."""
        return partial(self.fetch, under) if self.deferred(under) else None

    def file(self, name: str) -> StoredFile:
        """Return a file; where its reads wait, nothing is asked for before it is read."""
        return open_file(self.local / name)

    def known_size(self, name: str) -> int | None:
        """Return a file's size; None where there is none, or only a request would tell."""
        path = self.local / name
        return path.stat().st_size if path.is_file() else None

    def every_file(self) -> tuple[Iterable[tuple[str, int]], bool]:
        """Return names and sizes of its files, and whether these are all.

        What is remote is listed by a few requests, which may not tell all of very many files.
        """
        paths = (Path(at, name) for at, _, names in os.walk(self.local) for name in names)
        return (
            (path.relative_to(self.local).as_posix(), path.stat().st_size)
            for path in paths
            if path.is_file()  # a link may lead nowhere
        ), True

    def identity(self, name: str) -> Hashable:
        """Return what changes when another file takes a file's place; None while not known."""
        try:
            status = os.stat(self.local / name)
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns

    def begin(self, work: Callable[[], T]) -> Callable[[], T]:
        """Begin work that reads files, and return what gives its result.

        Where reads do not wait, it is done when the result is asked for.
        """
        return work

    def parquet(self, name: str) -> Parquet:
        """Open a table."""
        from demoreel.storage.parquet import open_parquet

        count_opening()
        return open_parquet(self.local / name)

    def arrow_files(self) -> tuple[Any, str]:
        """Return a file system of Arrow, and what stands before a file's name there."""
        from pyarrow import fs

        return fs.LocalFileSystem(), f"{self.local}/"


def dataset_folder(
    place: str | os.PathLike[str] | DatasetFolder,
    *,
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_size: int | str | None = None,
    with_versions: bool = False,
) -> DatasetFolder:
    """Return the folder at a path or a URI; of a remote one, the metadata are copied.

    Args:
        place: The path or the URI, or a folder that is open already.
        storage_options: As for ``demoreel.open``.
        cache_dir: Where ranges are kept on disk; None keeps them in memory alone.
        cache_size: How much may be kept there.
        with_versions: Whether the metadata of older versions are wanted, too.
    """
    if is_uri(place):
        from demoreel.storage.remote.folder import open_remote

        return open_remote(
            str(place),
            storage_options=storage_options,
            cache_dir=cache_dir,
            cache_size=cache_size,
            with_versions=with_versions,
        )
    if isinstance(place, DatasetFolder) and not place.grows:
        return place
    if storage_options or cache_dir is not None or cache_size is not None:
        raise ArgumentError(
            "storage_options=, cache_dir= and cache_size= are for remote datasets.",
            hint="leave them out, or give a URI such as s3://bucket/path",
            path=place,
        )
    return place if isinstance(place, DatasetFolder) else DatasetFolder(Path(place))


_BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")  # how the Hub's cache names files: by their sums
_STAGING = re.compile(r"staging-[0-9a-f]{12}")
_SNAPSHOTS = "snapshots"


def score_files(root: Path) -> list[str]:
    """Return the parquet files beside a dataset's own, relative to its folder."""
    found = []
    for folder, folders, names in os.walk(root):
        place = Path(folder).relative_to(root)
        if not place.parts:
            folders[:] = [name for name in folders if name not in OWN_FOLDERS]
        folders[:] = [name for name in folders if is_beside(f"{name}/x.parquet")]
        found += [(place / name).as_posix() for name in names if is_beside(name)]
    return sorted(found)


def is_beside(name: str) -> bool:
    """Whether a name, relative to a dataset's folder, is one that a score file may have."""
    parts = name.split("/")
    hidden = any(part.startswith(".") or part.endswith(".lance") for part in parts)
    return parts[0] not in OWN_FOLDERS and name.endswith(".parquet") and not hidden


def refuse_links_out(root: Path) -> None:
    """Refuse a dataset with a link that leads out of it, in any of its folders.

    Cost: lists every folder; no stat for files that are not links.

    Args:
        root: The dataset's folder, which may be reached through links itself.
    """
    for path, target in links_out(root):
        raise ArgumentError(
            "A link in the dataset leads out of it, so nothing is copied, published or written.",
            hint="put the file itself in the link's place, or copy the dataset with cp -rL",
            path=path,
            leads_to=target,
        )


def links_out(root: Path) -> Iterator[tuple[Path, Path]]:
    """Yield every link that leads out of a dataset, and where it leads, in the order of names."""
    waiting = [Path(root)]
    while waiting:
        folder = waiting.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue  # gone, or not readable: then nothing is copied of it either
        for entry in entries:
            if folder == root and _is_foreign(entry.name):
                continue
            if entry.is_symlink():
                target = leads_out(root, Path(entry.path))
                if target is not None:
                    yield Path(entry.path), target
            elif entry.is_dir(follow_symlinks=False) and not _is_staging(folder, entry.name):
                waiting.append(Path(entry.path))


def leads_out(root: Path, path: Path) -> Path | None:
    """Return where a path of a dataset leads if that is not in the dataset; None if it is.

    Snapshots in the Hub's cache are links to blobs of the same repository, which belong to them.
    Hidden folders beside ``meta/`` do not belong to a dataset: ``.git/config`` may hold a token.
    """
    home, real = Path(os.path.realpath(root)), Path(os.path.realpath(path))
    if real.is_relative_to(home):
        first = real.relative_to(home).parts[:1]
        own = Path(os.path.abspath(path)).relative_to(os.path.abspath(root)).parts[:1]
        is_hidden = bool(first) and first[0].startswith(".") and first != own
        return real if is_hidden and first[0] != OLD_METADATA else None
    snapshots = [place.parent for place in (home, *home.parents) if place.parent.name == _SNAPSHOTS]
    is_blob = any(real.parent == folder.parent / "blobs" for folder in snapshots)
    return None if is_blob and _BLOB.fullmatch(real.name) else real


def copy_inside(root: Path, path: Path, target: Path) -> None:
    """Copy a file of a dataset; a link that came to lead out of it since is refused."""
    handle = open_regular(path)
    with os.fdopen(handle, "rb") as source:
        # After opening: a file that is exchanged for a link between the two calls is noticed.
        real = os.path.realpath(path)
        is_same = os.path.samestat(os.fstat(handle), os.stat(real, follow_symlinks=False))
        if not is_same or leads_out(root, path) is not None:
            raise ArgumentError(
                "A file of the dataset was exchanged for a link out of it while it was copied.",
                hint="copy the dataset to a folder that only you can write to, and try again",
                path=path,
                leads_to=real,
            )
        with open(target, "wb") as copy:
            shutil.copyfileobj(source, copy)


def _is_foreign(name: str) -> bool:
    """Whether a top-level entry is no part of a dataset: ``.git``, ``.cache`` and the like."""
    return name.startswith(".") and name not in (OLD_METADATA, HIDDEN)


def _is_staging(folder: Path, name: str) -> bool:
    """Whether this is a transaction's folder: its links to tables are demoreel's own."""
    return folder.name == HIDDEN and _STAGING.fullmatch(name) is not None
