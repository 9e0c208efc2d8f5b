"""Are the bytes of two files the same? As fast as memory is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from demoreel.storage.local import LocalFile, LocalSlice, read_into

_AT_ONCE = 1 << 20  # larger ones leave the processor's cache


class Readable(Protocol):
    """Bytes that are read by position."""

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes there."""
        ...


Watch = Callable[[int], None]
"""Told of every span that was compared; may raise to stop."""


class Comparer:
    """Compares spans of files, through memory that serves again. For one thread."""

    def __init__(self) -> None:
        self._left = np.empty(_AT_ONCE, np.uint8)
        self._right = np.empty(_AT_ONCE, np.uint8)

    def first_difference(
        self,
        left: Readable | int,
        at: int,
        right: Readable | int,
        at_right: int,
        length: int,
        *,
        watch: Watch | None = None,
    ) -> int | None:
        """Return where in ``left`` the piece lies in which they differ; None if they are the same.

        Cost: reads both once. A file that ends too early differs.

        Args:
            left: One file; a number is the handle of one that is open for reading.
            at: Where in it the span begins.
            right: The other.
            at_right: Where in that the span begins.
            length: Bytes to compare.
            watch: Told how many bytes were compared.
        """
        for done in range(0, length, _AT_ONCE):
            step = min(_AT_ONCE, length - done)
            one, other = self._left[:step], self._right[:step]
            whole = _filled(left, at + done, one) and _filled(right, at_right + done, other)
            if not whole or not _equal(one, other):
                return at + done
            if watch is not None:
                watch(step)
        return None


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    words = len(one) & ~7  # eight bytes at a time
    same = np.array_equal(one[:words].view(np.uint64), other[:words].view(np.uint64))
    return bool(same and np.array_equal(one[words:], other[words:]))


def _filled(file: Readable | int, offset: int, memory: np.ndarray) -> bool:
    """Read from a place until the memory is full; False where the file ends before."""
    if isinstance(file, LocalSlice):
        offset += file.begin
        file = file.whole
    if isinstance(file, LocalFile):
        return file.read_into(offset, memory.data) == len(memory)
    if isinstance(file, int):
        return read_into(file, offset, memory.data) == len(memory)
    data = file.read(offset, len(memory))
    memory[: len(data)] = np.frombuffer(data, np.uint8)
    return len(data) == len(memory)
