"""Blobs and large values, read from a table's files without Lance.

Blobs: Lance keeps one in the data file, in a file beside it, or points at one by URI; a descriptor
says where. On a local disk such a file is read like any other: 20 times faster than through Lance,
and in any process. In a store, its ranges are fetched like those of any other object. How files are
named is internal to Lance, though, and has changed before: so a place counts only if the file is
there in the right size, and the first one of each data file only if its bytes are those that Lance
gives.

Large values of a column: a take of random rows costs Lance some 75 µs of processor time a row,
whatever is asked of them, and a process that was forked has to ask a helper. A value of kilobytes
lies in one piece, though: Lance writes "full-zip" pages, in which each value follows its length,
and beside them where each begins. A read of such a piece takes 6 µs. A kind of page counts only if
its values are those that Lance gives, tried on a few of them, and each value only if its length is
the one that was noted. All else is left to Lance: other kinds of pages (compressed, with missing or
small values), tables with deleted rows, other file systems.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

import numpy as np

from demoreel.errors import StoreError
from demoreel.layouts.lance.calls import DEDICATED, EXTERNAL, INLINE, PACKED, ValuePage
from demoreel.storage.local import LocalFile, LocalSlice, open_file
from demoreel.storage.lru import ByteCache
from demoreel.storage.place import RemotePlace
from demoreel.storage.remote.cache import RangeCache
from demoreel.storage.remote.files import RemoteFile, RemoteSlice, store_of

_SAMPLE = 256
_MOST_FILES = 1 << 14
_LENGTH = struct.Struct("<I")  # before each value of a page

ReadRanges = Callable[[list[tuple[int, int]]], list[bytes]]


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What Lance notes of one blob.

    Attributes:
        kind: How it is kept.
        position: Where it begins in its file.
        size: Its bytes; 0 for the whole of a file elsewhere.
        blob_id: Number of the file beside the data file.
        uri: The file elsewhere.
        data_files: The data files of the row's fragment, in the table's ``data`` folder.
    """

    kind: int
    position: int
    size: int
    blob_id: int
    uri: str
    data_files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """Where a blob lies on this disk.

    Attributes:
        path: The file.
        begin: Where the blob begins in it.
        size: The blob's bytes; None for the whole file.
    """

    path: str
    begin: int
    size: int | None

    def open(self) -> LocalFile | LocalSlice | None:
        """Return the bytes; None if the file is not there, or too short."""
        try:
            file = open_file(self.path)
        except OSError:
            return None
        if self.size is None or (self.begin == 0 and file.size == self.size):
            return file
        if self.begin + self.size > file.size:
            return None
        return LocalSlice(file, self.begin, self.size)


class LocalBlobs:
    """Finds the local files of a table's blobs.

    Args:
        folder: The table's folder.
    """

    def __init__(self, folder: str) -> None:
        self._data = os.path.join(folder, "data")
        self._verified: set[tuple[int, tuple[str, ...]]] = set()

    def find(self, blob: Descriptor, as_lance_reads: ReadRanges) -> LocalPlace | None:
        """Return where a blob's bytes are on this disk; None if they are not found.

        Args:
            blob: What Lance notes of it.
            as_lance_reads: Reads (offset, length) ranges of the blob through Lance.
        """
        size = None if blob.kind == EXTERNAL and blob.size == 0 else blob.size
        for path in self._candidates(blob):
            place = LocalPlace(path, blob.position, size)
            file = place.open()
            if file is not None and self._is_it(blob, file, as_lance_reads):
                return place
        return None

    def _candidates(self, blob: Descriptor) -> list[str]:
        if blob.kind == EXTERNAL:
            parts = urlsplit(blob.uri)
            return [unquote(parts.path)] if parts.scheme == "file" and not parts.netloc else []
        return [os.path.join(self._data, name) for name in _names(blob)]

    def _is_it(
        self, blob: Descriptor, file: LocalFile | LocalSlice, as_lance_reads: ReadRanges
    ) -> bool:
        if blob.kind == EXTERNAL:
            return True  # the URI says which file it is
        group = (blob.kind, blob.data_files)
        if group not in self._verified:
            length = min(_SAMPLE, file.size)
            ranges = [(at, length) for at in (0, (file.size - length) // 2, file.size - length)]
            if as_lance_reads(ranges) != [file.read(*part) for part in ranges]:
                return False
            self._verified.add(group)
        return True


class RemoteBlobs:
    """Finds the objects of a table's blobs, for a table that lies in a store.

    Args:
        table: Where the table lies.
        cache: Keeps ranges that were read.
    """

    def __init__(self, table: RemotePlace, cache: RangeCache) -> None:
        self._store = store_of(table.uri, dict(table.options))
        self._cache = cache
        self._verified: dict[tuple[int, tuple[str, ...]], int] = {}
        self._files: ByteCache[str, RemoteFile] = ByteCache(_MOST_FILES)

    def find(self, blob: Descriptor, as_lance_reads: ReadRanges) -> RemoteSlice | None:
        """Return a blob's bytes; None if they are only to be had through Lance.

        Cost: nothing, but for the first one of each data file, of which a part is read in both ways
        and compared.

        Args:
            blob: What Lance notes of it.
            as_lance_reads: Reads (offset, length) ranges of the blob through Lance.
        """
        if blob.kind not in (INLINE, PACKED, DEDICATED) or not blob.size:
            return None
        group, names = (blob.kind, blob.data_files), _names(blob)
        if group in self._verified:
            return self._slice(names[self._verified[group]], blob)
        middle = (blob.size // 2, min(_SAMPLE, blob.size - blob.size // 2))
        [known] = as_lance_reads([middle])
        for number, name in enumerate(names):
            found = self._slice(name, blob)
            try:
                if found.read(*middle) == known:
                    self._verified[group] = number
                    return found
            except StoreError:  # there is none of this name
                continue
        return None

    def _slice(self, name: str, blob: Descriptor) -> RemoteSlice:
        def make() -> tuple[RemoteFile, int]:
            path = f"data/{name}"
            uri = f"{self._store.uri}/{path}"
            file = RemoteFile(
                self._store,
                path,
                uri=uri,
                size=None,
                etag=None,
                cache=self._cache,
                for_ever=True,
            )
            return file, 1

        return RemoteSlice(self._files.get(name, make), blob.position, blob.size)


def _names(blob: Descriptor) -> list[str]:
    """Return what the file may be called that holds a blob, in a table's ``data`` folder."""
    if blob.kind == INLINE:
        return list(blob.data_files)
    if blob.kind not in (PACKED, DEDICATED):
        return []
    # The number's bits in reverse, or in hexadecimal: both have been in use.
    numbers = (f"{blob.blob_id:032b}"[::-1], f"{blob.blob_id:08x}")
    stems = [name.removesuffix(".lance") for name in blob.data_files]
    return [f"{stem}/{number}.blob" for stem in stems for number in numbers]


Take = Callable[[np.ndarray], list[bytes | None]]
"""Returns the values of rows as Lance gives them."""


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
        self._verified: dict[str, bool] = {}

    def read(self, places: np.ndarray) -> list[bytes] | None:
        """Return the values of these rows; None if Lance has to be asked."""
        numbers = np.searchsorted(self._first, places, side="right") - 1
        if not all(self._is_verified(number) for number in np.unique(numbers).tolist()):
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

    def _is_verified(self, number: int) -> bool:
        """Whether pages of this kind are read rightly here, tried on the first one that is met."""
        page = self._pages[number]
        if page.kind not in self._verified:
            first = int(self._first[number])
            places = np.unique(first + np.array([0, page.rows // 2, page.rows - 1]))
            mine = self._values(places, np.full(len(places), number))
            self._verified[page.kind] = mine is not None and mine == self._take(places)
        return self._verified[page.kind]


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
