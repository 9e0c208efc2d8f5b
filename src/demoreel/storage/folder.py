"""A dataset's folder: its metadata on this disk, and its tables and videos wherever they lie."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from demoreel.storage.local import count_opening, open_file
from demoreel.storage.store import FileInfo, StoredFile

if TYPE_CHECKING:
    from demoreel.storage.parquet import Parquet

T = TypeVar("T")


class DatasetFolder:
    """A folder on this disk; ``RemoteFolder`` is one of which only the metadata are copied here.

    Args:
        local: The folder with the metadata.

    Attributes:
        waits: Whether reads of its files wait for a server, so that they are best begun early.
    """

    waits = False

    def __init__(self, local: Path) -> None:
        self.local = local

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
