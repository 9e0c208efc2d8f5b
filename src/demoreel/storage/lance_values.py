"""Large values of a column, read from a table's data files without Lance.

A take of random rows costs Lance some 75 µs of processor time a row, whatever is asked of them, and
a process that was forked has to ask a helper. A value of kilobytes lies in one piece, though: Lance
writes "full-zip" pages, in which each value follows its length, and beside them where each begins.
A read of such a piece takes 6 µs.

How pages look is Lance's own business: so a kind of page counts only if its values are those that
Lance gives, tried on a few of them, and each value only if its length is the one that was noted.
All else is left to Lance: other kinds of pages (compressed, with missing or small values), tables
with deleted rows, other file systems.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from demoreel.storage.local import LocalFile, open_file

_LENGTH = struct.Struct("<I")

Take = Callable[[np.ndarray], list[bytes | None]]
"""Returns the values of rows as Lance gives them."""


@dataclass(frozen=True, slots=True)
class ValuePage:
    """One page of a column.

    Attributes:
        path: The data file.
        rows: Rows in the page.
        data: Where its values begin in the file, and their bytes.
        index: Likewise, the list of where each value begins.
        kind: Lance's description of its layout.
    """

    path: str
    rows: int
    data: tuple[int, int]
    index: tuple[int, int]
    kind: str


class LocalValues:
    """The values of one column, by the place of their rows.

    Args:
        pages: Its pages, in the order of rows.
        take: Asked for a few values of each kind of page.
    """

    def __init__(self, pages: list[ValuePage], take: Take) -> None:
        self._pages = pages
        self._take = take
        self._first = np.concatenate([[0], np.cumsum([page.rows for page in pages])])
        self._edges: dict[int, np.ndarray | None] = {}
        self._believed: dict[str, bool] = {}

    def read(self, places: np.ndarray) -> list[bytes] | None:
        """Return the values of these rows; None if Lance has to be asked."""
        numbers = np.searchsorted(self._first, places, side="right") - 1
        if not all(self._believe(number) for number in np.unique(numbers).tolist()):
            return None
        return self._values(places, numbers)

    def _values(self, places: np.ndarray, numbers: np.ndarray) -> list[bytes] | None:
        files: dict[str, LocalFile] = {}
        found = []
        within = (places - self._first[numbers]).tolist()
        for number, at in zip(numbers.tolist(), within, strict=True):
            page = self._pages[number]
            edges = self._edges_of(number)
            if edges is None:
                return None
            file = files.get(page.path)
            if file is None:
                opened = _opened(page.path)
                if opened is None:
                    return None
                file = files[page.path] = opened
            begin, end = int(edges[at]), int(edges[at + 1])
            piece = file.read(page.data[0] + begin, end - begin)
            size = end - begin - _LENGTH.size
            if len(piece) != end - begin or _LENGTH.unpack_from(piece)[0] != size:
                return None
            found.append(piece[_LENGTH.size :])
        return found

    def _edges_of(self, number: int) -> np.ndarray | None:
        """Return where the values of a page begin, and its end; None if that makes no sense."""
        if number not in self._edges:
            self._edges[number] = _edges(self._pages[number])
        return self._edges[number]

    def _believe(self, number: int) -> bool:
        """Whether pages of this kind are read rightly here, tried on the first one that is met."""
        page = self._pages[number]
        if page.kind not in self._believed:
            first = int(self._first[number])
            places = np.unique(first + np.array([0, page.rows // 2, page.rows - 1]))
            mine = self._values(places, np.full(len(places), number))
            self._believed[page.kind] = mine is not None and mine == self._take(places)
        return self._believed[page.kind]


def _opened(path: str) -> LocalFile | None:
    try:
        return open_file(path)
    except OSError:
        return None


def _edges(page: ValuePage) -> np.ndarray | None:
    file = _opened(page.path)
    begin, size = page.index
    width = size // (page.rows + 1)
    if file is None or width not in (1, 2, 4, 8) or size != width * (page.rows + 1):
        return None
    data = file.read(begin, size)
    if len(data) != size:
        return None
    edges = np.frombuffer(data, f"<u{width}").astype(np.int64)
    in_order = edges[0] == 0 and edges[-1] == page.data[1]
    return edges if in_order and (np.diff(edges) >= _LENGTH.size).all() else None
