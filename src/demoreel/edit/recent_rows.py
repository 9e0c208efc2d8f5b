"""A source's rows, read once by who writes them, for who compares with them what was written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import numpy as np

from demoreel.layouts.base import Column, Reader

_MOST_KEPT = 64 << 20
_BYTES_OF_TEXT = 4096  # more than a text, or a list of language rows, takes


class _Kept:
    """Columns of stretches of episodes, as long as they are small together."""

    def __init__(self) -> None:
        self._stretches: list[tuple[int, int, Mapping[str, Column]]] = []
        self._room = _MOST_KEPT

    def find(self, reader: Reader, first: int, stop: int) -> Mapping[str, Column] | None:
        start = reader.episodes.start
        for begin, end, columns in self._stretches:
            if begin <= first and stop <= end:
                rows = slice(int(start[first] - start[begin]), int(start[stop] - start[begin]))
                return {key: column[rows] for key, column in columns.items()}
        return None

    def keep(self, first: int, stop: int, columns: Mapping[str, Column]) -> None:
        size = sum(
            column.nbytes if isinstance(column, np.ndarray) else len(column) * _BYTES_OF_TEXT
            for column in columns.values()
        )
        if size <= self._room:
            self._room -= size
            self._stretches.append((first, stop, columns))


_remembering: WeakKeyDictionary[Reader, _Kept] = WeakKeyDictionary()


@contextmanager
def remembering(reader: Reader) -> Iterator[None]:
    """Keep what ``rows_of_source`` reads of a source in the block, up to 64 MB of it."""
    _remembering[reader] = _Kept()
    try:
        yield
    finally:
        _remembering.pop(reader, None)


def rows_of_source(reader: Reader, first: int, stop: int) -> Mapping[str, Column]:
    """Return every column but the cameras' of the episodes at ``first`` to ``stop`` - 1.

    As the reader's own ``rows_once``; rows that were read before and are remembered cost nothing.
    Nobody may change them.
    """
    kept = _remembering.get(reader)
    if kept is None:
        return reader.rows_once(first, stop)
    found = kept.find(reader, first, stop)
    if found is None:
        found = reader.rows_once(first, stop)
        kept.keep(first, stop, found)
    return found
