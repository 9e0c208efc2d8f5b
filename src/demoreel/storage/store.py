"""The contract for bytes: files on a disk, in an object store or on the Hub.

A store lists, describes, reads, writes and removes files by name. Names are relative, with slashes.
Reading gives futures: on a disk they are done, over a network they are under way, and many of them
take as long as one. ``demoreel.testing.StoreTests`` holds every store to this.
"""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from demoreel.errors import ArgumentError, UnsafePathError
from demoreel.storage.names import leads_elsewhere


class Bytes(Protocol):
    """Something with a size that is read by position."""

    @property
    def size(self) -> int:
        """How many bytes there are."""
        ...

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes there, fewer only at the end."""
        ...


class Seekable(io.RawIOBase):
    """A file over bytes that are read by position.

    Args:
        file: The bytes.
    """

    def __init__(self, file: Bytes) -> None:
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go elsewhere; return where that is."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill memory with the next bytes; return how many there were."""
        view = memoryview(buffer)
        data = self._file.read(self._at, len(view))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


Range = tuple[int, int]
"""Offset and length."""

SCHEMES = ("s3", "gs", "az")
"""The object stores that there are."""


class FileInfo(NamedTuple):
    """What a store says of a file.

    Attributes:
        name: Its path, relative to the store.
        size: Its bytes.
        etag: Changes when its bytes do; None where the store tells none.
    """

    name: str
    size: int
    etag: str | None


class StoredFile(Bytes, Protocol):
    """A file that is read by position; safe for threads."""

    @property
    def identity(self) -> Hashable:
        """Changes when the bytes do."""
        ...

    @property
    def waits(self) -> bool:
        """Whether a read waits for more than a disk, so that ranges are best begun early."""
        ...

    def read_ranges(self, ranges: Sequence[Range]) -> Sequence[Future[bytes]]:
        """Begin to read ranges that are inside the file, all at the same time."""
        ...


class ReadsNow:
    """What a file whose reads do not wait has beside ``read``."""

    __slots__ = ()

    waits = False

    def read_ranges(self: Bytes, ranges: Sequence[Range]) -> list[Future[bytes]]:
        """Return the bytes of ranges, as futures that are done."""
        futures: list[Future[bytes]] = [Future() for _ in ranges]
        for future, part in zip(futures, ranges, strict=True):
            future.set_result(self.read(*part))
        return futures


class Store(ABC):
    """Files below one place. Holds no handle: pickling moves names, and no secret."""

    @property
    @abstractmethod
    def uri(self) -> str:
        """What to call it: a path, or a URI without credentials."""

    @abstractmethod
    def folders(self) -> Sequence[str]:
        """Return the names of the folders directly in it; one request."""

    @abstractmethod
    def list(
        self, under: str = "", *, most_pages: int | None = None
    ) -> tuple[Sequence[FileInfo], bool]:
        """Return the files in a folder and below it, and whether these are all.

        Cost: a request for every thousand files.

        Args:
            under: The folder, with a slash at its end; empty for all.
            most_pages: Requests to make at most.

        Raises:
            StoreError: The store does not answer, or lists more than ``LISTED_FILES``.
        """

    @abstractmethod
    def stat(self, name: str) -> FileInfo:
        """Return size and state of a file; one request.

        Raises:
            FileNotFoundError: There is none.
        """

    @abstractmethod
    def file(self, name: str, known: FileInfo | None = None) -> StoredFile:
        """Return a file to read from; over a network, nothing is asked before it is read.

        Its state is pinned to ``known``, else to that of the first read: other bytes than those are
        an ``ObjectChangedError``.
        """

    def read_ranges(self, name: str, ranges: Sequence[Range]) -> Sequence[Future[bytes]]:
        """Begin to read ranges that are inside a file, all at the same time."""
        return self.file(name).read_ranges(ranges)

    @abstractmethod
    def put(self, name: str, path: str | os.PathLike[str], *, new: bool = False) -> None:
        """Store a copy of a local file as one step, in the place of one that is there.

        Raises:
            TargetExistsError: It must be ``new``, and there is one.
        """

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Remove files; those that are not there do no harm."""

    def sha256(self, name: str) -> str | None:
        """Return the check sum of a file that was listed; None where the store tells none."""
        return None

    def _checked(self, name: str) -> str:
        """Return a file's name unless it would lead out of the store."""
        if leads_elsewhere(name):
            raise UnsafePathError(f"A file's name leads elsewhere: {name!r}.", uri=self.uri)
        return name


def open_store(
    place: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> Store:
    """Return the store at a path or a URI: ``s3://``, ``gs://``, ``az://``, ``hf://``.

    Nothing is asked yet.

    Args:
        place: The path or the URI.
        storage_options: What an object store or the Hub is told beyond what the environment says.

    Raises:
        ArgumentError: Nothing is read from such a URI, or it holds credentials.
    """
    if not is_uri(place):
        from demoreel.storage.local import LocalStore

        return LocalStore(place)
    uri = os.fspath(place)
    scheme = urlsplit(uri).scheme
    if scheme == "hf":
        from demoreel.storage.remote.hub_store import hub_store

        return hub_store(uri, storage_options)
    if scheme not in SCHEMES:
        raise ArgumentError(
            f"Datasets are not read from {scheme}://.",
            hint=f"there are: {', '.join(f'{name}://' for name in (*SCHEMES, 'hf'))}",
        )
    from demoreel.storage.place import remote_place
    from demoreel.storage.remote.object_store import ObjectStore

    return ObjectStore(remote_place(uri, storage_options))


def is_uri(place: object) -> bool:
    """Whether this is a URI of a store, and no path."""
    return isinstance(place, str) and "://" in place and not place.startswith("file://")
