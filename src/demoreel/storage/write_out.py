"""Bytes on their way to a disk, which is given work early: fsync has little left to do then."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol, runtime_checkable

from demoreel.storage.local import LocalFile, LocalSlice
from demoreel.storage.no_room import NO_ROOM
from demoreel.storage.seekable import Bytes

_COPY_BYTES = 16 << 20
_BEGIN = 2  # SYNC_FILE_RANGE_WRITE: begin, and wait for nothing


def begin_writing_out(handle: int, offset: int, length: int) -> None:
    """Ask the kernel to begin writing a part of a file to disk, and return at once.

    Promises nothing: that is what fsync is for. Does nothing where the system has no such call.
    """
    call = _sync_file_range()
    if call is not None and length:
        call(handle, ctypes.c_int64(offset), ctypes.c_int64(length), _BEGIN)


@lru_cache(maxsize=1)
def _sync_file_range() -> Callable[..., int] | None:
    try:
        return ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError, TypeError):
        return None


@runtime_checkable
class WritesItself(Bytes, Protocol):
    """Something that knows a faster way into a file."""

    def write_to(self, handle: int) -> None:
        """Write all bytes to an open file, from where that stands."""
        ...


def copy_bytes(source: Bytes, handle: int) -> None:
    """Copy all bytes of a source to an open file; inside the kernel where they lie in a file."""
    if isinstance(source, WritesItself):
        source.write_to(handle)
        return
    file = source.whole if isinstance(source, LocalSlice) else source
    begin = source.begin if isinstance(source, LocalSlice) else 0
    at = 0
    if isinstance(file, LocalFile) and hasattr(os, "copy_file_range"):
        at = _copy_in_kernel(file, begin, source.size, handle)
    while at < source.size:
        data = source.read(at, min(_COPY_BYTES, source.size - at))
        if not data:
            raise OSError(errno.EIO, "A file has become shorter while it was copied")
        _write_all(handle, data)
        at += len(data)


def _copy_in_kernel(file: LocalFile, begin: int, size: int, handle: int) -> int:
    """Return how many bytes were copied; the rest has to be read and written."""
    source = os.open(file.path, os.O_RDONLY)
    at = 0
    try:
        while at < size:
            try:
                count = os.copy_file_range(
                    source, handle, min(_COPY_BYTES, size - at), offset_src=begin + at
                )
            except OSError as error:
                if error.errno in (*NO_ROOM, errno.EIO):
                    raise
                return at  # file systems that cannot
            if count == 0:
                return at
            end = os.lseek(handle, 0, os.SEEK_CUR)
            begin_writing_out(handle, end - count, count)
            at += count
    finally:
        os.close(source)
    return at


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]
