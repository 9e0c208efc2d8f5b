"""Bytes that are read by position, as the kind of file that libraries want."""

from __future__ import annotations

import io
from typing import Any, Protocol


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
