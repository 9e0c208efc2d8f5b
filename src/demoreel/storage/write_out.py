"""Giving the disk work early: so that forcing a file to disk at the end has little left to do."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache

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
