"""Numeric columns addressed by row, filled bit by bit, in memory or in a shared scratch file."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np


class MemoryColumn:
    """A column in this process's memory; pages that are never filled cost nothing."""

    def __init__(self, rows: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.values = np.zeros((rows, *shape), dtype=dtype)

    def write(self, row: int, values: np.ndarray) -> None:
        """Put values there."""
        self.values[row : row + len(values)] = values


class SharedColumn:
    """A column in a sparse file that every process maps.

    Writing goes through ``pwrite``, not through the map: on a full disk a write to the map kills
    the process, a ``pwrite`` is an ordinary error. Two processes that fill the same rows write the
    same bytes, so no lock is needed.

    Args:
        path: The file; made if it is not there.
        rows: Rows of the column.
        dtype: Type of a value.
        shape: Shape of a row's value.
        reserve: Take the disk space now. For columns that are read before they are written: where
            the disk is memory (tmpfs), looking at a hole takes space too, and kills the process
            if there is none.

    Raises:
        OSError: The file cannot be made, or the disk is full.
    """

    def __init__(
        self,
        path: Path,
        rows: int,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        *,
        reserve: bool = False,
    ) -> None:
        self._row_bytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        total = max(1, rows * self._row_bytes)
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._handle, total)
        if reserve and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._handle, 0, total)
        self._dtype = dtype
        pages = mmap.mmap(self._handle, total, prot=mmap.PROT_READ)
        count = rows * int(np.prod(shape, dtype=np.int64))
        self.values = np.frombuffer(pages, dtype, count).reshape(rows, *shape)

    def write(self, row: int, values: np.ndarray) -> None:
        """Put values there.

        Raises:
            OSError: The disk is full.
        """
        data = np.ascontiguousarray(values, dtype=self._dtype).reshape(-1).view(np.uint8).data
        at = row * self._row_bytes
        while data:
            written = os.pwrite(self._handle, data, at)
            data = data[written:]
            at += written

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle is not None:
            os.close(handle)


Column = MemoryColumn | SharedColumn
