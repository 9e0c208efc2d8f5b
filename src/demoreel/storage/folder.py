"""A dataset's folder: its metadata on this disk, and its tables and videos wherever they lie."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from demoreel.errors import ArgumentError
from demoreel.storage.local import count_opening, open_file
from demoreel.storage.place import RemotePlace
from demoreel.storage.store import FileInfo, StoredFile, is_uri

if TYPE_CHECKING:
    from demoreel.storage.parquet import Parquet
    from demoreel.storage.remote.cache import RangeCache

T = TypeVar("T")


class DatasetFolder:
    """A folder on this disk; ``RemoteFolder`` is one of which only the metadata are copied here.

    Args:
        local: The folder with the metadata.

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
            leaving: What in it to leave where it lies.
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
