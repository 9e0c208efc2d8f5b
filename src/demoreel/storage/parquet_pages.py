"""Pages of a parquet column: their headers, and the values of large ones.

Headers say how many values and bytes there are, before anything is decoded. Arrow decodes a page as
a whole, and holds it two or three times; writers put a thousand images into one, or into a
dictionary. ``Texts`` decodes such pages piece by piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from demoreel.storage.store import Bytes, Seekable
from demoreel.storage.thrift import I32, TRUE, NotThriftError, Reading, Struct, put_unsigned

_LENGTHS = (160, 1 << 16, 1 << 24)  # bytes that a page's header is looked for in
_DICTIONARY_PAGE, _PREFIXES = 2, 7  # a page's type; an encoding
_KINDS = (0, _DICTIONARY_PAGE, 3)  # and pages of data of both versions
_PLAIN, _DICTIONARIES = 0, (2, 8)  # encodings
_RLE = 3  # an encoding of levels
_IMAGES_AT_ONCE = 8  # that are written together
_PIECE = 1 << 22  # bytes of a page that are read or decompressed together
_SNAPPY_HEAD = 5  # the most bytes of an element that say what it is
_SNAPPY_REACH = 1 << 16
_SNAPPY_COPIES = (0, 2, 3, 5)  # bytes of elements that repeat what was before

PIECED = frozenset(("UNCOMPRESSED", "SNAPPY", "ZSTD", "GZIP", "BROTLI"))
"""Codecs that ``Texts`` decompresses piece by piece."""


def batch_rows(schema: pa.Schema) -> int:
    """Return the ``write_batch_size`` for tables of these columns.

    Arrow looks at the bytes of a page, or a dictionary, after each batch: by default, a thousand
    images are one page.
    """
    kinds = [field.type for field in schema]
    kinds += [inner.type for kind in kinds if pa.types.is_struct(kind) for inner in kind]
    return _IMAGES_AT_ONCE if any(map(pa.types.is_binary, kinds)) else 1024


@dataclass(slots=True)
class Pages:
    """What the headers of a column's pages say.

    Attributes:
        values: Values in all pages.
        named: Those that are numbers of entries of the dictionary.
        prefixed: Those that are stored as what differs from the one before.
        plain: Bytes of all pages of data, decompressed.
        dictionary: Bytes of the dictionary, decompressed.
        largest: Bytes of the largest page of data.
        unfolding: Values up to the last page whose values are no plain ones.
        plainly: Whether all values stand in pages or in a dictionary as they are.
        pieced: Whether some are large, and ``Texts`` decodes them.
    """

    values: int = 0
    named: int = 0
    prefixed: int = 0
    plain: int = 0
    dictionary: int = 0
    largest: int = 0
    unfolding: int = 0
    plainly: bool = True
    pieced: bool = False

    def add(self, page: _Page) -> None:
        """Add a page."""
        self.plainly &= page.kind in _KINDS and page.encoding in (_PLAIN, *_DICTIONARIES)
        if page.kind == _DICTIONARY_PAGE:
            self.dictionary += page.unfolded
            return
        self.values += page.values
        self.named += page.values if page.encoding in _DICTIONARIES else 0
        self.prefixed += page.values if page.encoding == _PREFIXES else 0
        if page.encoding in (*_DICTIONARIES, _PREFIXES):
            self.unfolding = self.values
        self.plain += page.unfolded
        self.largest = max(self.largest, page.unfolded)


@dataclass(slots=True)
class _Page:
    """A page: its type, its bytes decompressed, its values, their encoding.

    ``head`` and ``folded`` are the bytes of its header and of the rest in the file; ``head`` is
    None where the header was not read to its end. ``levels`` are bytes of levels before the values
    in the second version of pages, where they are not compressed; ``-1`` in the first version.
    """

    kind: int
    unfolded: int
    values: int
    encoding: int
    head: int | None
    folded: int
    levels: int = -1
    compressed: bool = True


class Headers:
    """Reads headers of pages that follow one another."""

    def __init__(self, file: Bytes) -> None:
        self._file = file
        self._begin, self._held = 0, b""

    def page(self, at: int, *, whole: bool = False) -> _Page:
        """Return what stands at the beginning of a page.

        Args:
            at: Where it begins.
            whole: Whether its header is read to its end.
        """
        for most in _LENGTHS:
            start = at - self._begin
            if start < 0 or start + most > len(self._held):  # small pages share a read
                self._held, self._begin, start = self._file.read(at, 2 * most), at, 0
            try:
                return _slowly_parsed(self._held, start) if whole else _parsed(self._held, start)
            except (NotThriftError, IndexError) as error:
                if most == _LENGTHS[-1] or at + most >= self._file.size:
                    raise pa.ArrowInvalid(f"a page's header is damaged: {error}") from error
        raise AssertionError


def _parsed(data: bytes, start: int) -> _Page:
    # By hand up to the numbers that matter, as pages are many: type and the two sizes come first.
    if data[start] != 0x15:
        return _slowly_parsed(data, start)
    kind, at = data[start + 1], start + 2
    if data[at] != 0x15 or kind not in (0, 2 * _DICTIONARY_PAGE):
        return _slowly_parsed(data, start)
    unfolded, at = _varint(data, at + 1)
    if data[at] != 0x15:
        return _slowly_parsed(data, start)
    folded, at = _varint(data, at + 1)
    # Then the header of a page of data, version 1, or of a dictionary.
    if data[at] != (0x4C if kind else 0x2C) or data[at + 1] != 0x15:
        return _slowly_parsed(data, start)
    values, at = _varint(data, at + 2)
    if data[at] != 0x15:
        return _slowly_parsed(data, start)
    encoding, at = _varint(data, at + 1)
    if (unfolded | folded | values | encoding) & 1:  # below zero
        return _slowly_parsed(data, start)
    if not kind:
        return _Page(0, unfolded >> 1, values >> 1, encoding >> 1, None, folded >> 1)
    at += 1 if data[at] in (0x11, 0x12) else 0  # whether it is sorted
    if data[at] or data[at + 1]:
        return _slowly_parsed(data, start)
    return _Page(_DICTIONARY_PAGE, unfolded >> 1, 0, 0, at + 2 - start, folded >> 1)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    number, shift = byte & 0x7F, 7
    while shift < 42:
        at += 1
        byte = data[at]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at + 1
        shift += 7
    raise NotThriftError("a number does not end")


def _slowly_parsed(data: bytes, start: int) -> _Page:
    reading = Reading(data, start)
    header = reading.struct()
    kind, unfolded, folded = (_number(header, number) for number in (1, 2, 3))
    if kind == _DICTIONARY_PAGE:
        return _Page(kind, unfolded, 0, 0, reading.at - start, folded)
    number, encoded = (5, 2) if 5 in header else (8, 4)
    about = header.get(number, (0, {}))[1]
    if not isinstance(about, dict):
        raise pa.ArrowInvalid("a page's header is none")
    values = _number(about, 1) if about else 0
    encoding = _number(about, encoded) if about else 0
    page = _Page(kind, unfolded, values, encoding, reading.at - start, folded)
    if number == 8 and about:
        page.levels = _number(about, 5) + _number(about, 6)
        page.compressed = about.get(7, (TRUE, True))[1] is not False
    elif about.get(3, (I32, _RLE))[1] != _RLE:
        page.kind = -1  # levels as writers had them once
    return page


def _number(struct: Struct, field: int) -> int:
    value = struct[field][1] if field in struct else -1
    if not isinstance(value, int) or value < 0:
        raise pa.ArrowInvalid("a page's header lacks a number")
    return value


# ── Values of large pages, piece by piece ─────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts or bytes of a column whose rows hold at most one.

    Attributes:
        file: The bytes of the file.
        at: Where the column's first page begins.
        values: Its rows.
        codec: How pages are compressed, as the footer calls it.
        levels: The level of a row that has a value; those below lack it or something around it.
    """

    file: Bytes
    at: int
    values: int
    codec: str
    levels: int

    def __iter__(self) -> Iterator[tuple[int, bytes | None]]:
        """Yield the level of each row, and its value.

        Memory: a few pieces of a page, however large that is, and entries of the dictionary that
        rows further down name once more.
        """
        try:
            yield from self._rows()
        except pa.ArrowException:
            raise
        except (NotThriftError, IndexError, ValueError) as error:
            raise pa.ArrowInvalid(f"a page is damaged: {error}") from error

    def _rows(self) -> Iterator[tuple[int, bytes | None]]:
        dictionary, pages = self._pages()
        named = [self._named(at, page) for at, page in pages if page.encoding in _DICTIONARIES]
        entries = _Entries(dictionary, [number for _, numbers in named for number in numbers])
        found = iter(named)
        for at, page in pages:
            if page.encoding in _DICTIONARIES:
                levels, _ = next(found)
                take = entries.take
            else:
                stream = _Stream(self._unfolded(at, page), page.unfolded)
                levels = self._levels(page, stream)
                take = stream.text
            for level in levels:
                yield level, take() if level == self.levels else None

    def _pages(self) -> tuple[_Stream | None, list[tuple[int, _Page]]]:
        """Return the dictionary, and the pages of data with the places where they begin."""
        headers, at, left = Headers(self.file), self.at, self.values
        dictionary, pages = None, []
        while left > 0:
            page = headers.page(at, whole=True)
            if page.kind not in _KINDS or page.values > left:
                raise pa.ArrowInvalid("a page is none of its column")
            at += page.head or 0
            if page.kind == _DICTIONARY_PAGE:
                dictionary = _Stream(self._unfolded(at, page), page.unfolded)
            else:
                pages.append((at, page))
            at, left = at + page.folded, left - page.values
        return dictionary, pages

    def _levels(self, page: _Page, stream: _Stream) -> list[int]:
        if not self.levels:
            return [0] * page.values
        length = page.levels if page.levels >= 0 else _length(stream.take(4))
        return _hybrid(stream.take(length), self.levels.bit_length(), page.values)

    def _named(self, at: int, page: _Page) -> tuple[list[int], list[int]]:
        """Return the levels of a page's rows, and the entries that those with a value name."""
        stream = _Stream(self._unfolded(at, page), page.unfolded)
        levels = self._levels(page, stream)
        wanted = levels.count(self.levels)
        if not wanted:
            return levels, []
        width = stream.take(1)[0]
        return levels, _hybrid(stream.take(stream.left), width, wanted)

    def _unfolded(self, at: int, page: _Page) -> Iterator[bytes]:
        """Yield the bytes of a page, decompressed."""
        end, plain = at + page.folded, max(0, page.levels)
        if plain > min(page.folded, page.unfolded):
            raise pa.ArrowInvalid("a page's levels are longer than the page")
        yield from _pieces(self.file, at, at + plain)
        at += plain
        if self.codec == "UNCOMPRESSED" or not page.compressed:
            yield from _pieces(self.file, at, end)
        elif self.codec == "SNAPPY" and page.folded * 2 > page.unfolded:
            yield from _snappy(_Stream(_pieces(self.file, at, end), end - at))
        elif self.codec == "SNAPPY":
            yield pa.decompress(
                self.file.read(at, end - at), page.unfolded - plain, "snappy", asbytes=True
            )
        else:
            part = Seekable(_Part(self.file, at, end - at))
            with pa.CompressedInputStream(pa.PythonFile(part, "r"), self.codec.lower()) as stream:
                while piece := stream.read(_PIECE):
                    yield piece


class _Entries:
    """The entries of a dictionary, read as they are named and kept as long as they are.

    Writers number entries in the order in which they come: where none comes twice, one is held.
    """

    def __init__(self, stream: _Stream | None, named: list[int]) -> None:
        self._stream = stream or _Stream(iter(()), 0)
        self._named = iter(enumerate(named))
        self._last = {number: place for place, number in enumerate(named)}
        self._kept: dict[int, bytes] = {}
        self._next = 0

    def take(self) -> bytes:
        place, number = next(self._named)
        while self._next <= number:
            text = self._stream.text()
            if self._next in self._last:
                self._kept[self._next] = text
            self._next += 1
        return self._kept.pop(number) if self._last[number] == place else self._kept[number]


class _Part:
    """Some bytes of a file, as a file."""

    def __init__(self, file: Bytes, at: int, size: int) -> None:
        self._file, self._at, self.size = file, at, size

    def read(self, offset: int, length: int) -> bytes:
        return self._file.read(self._at + offset, max(0, min(length, self.size - offset)))


class _Stream:
    """Takes bytes off pieces of a page."""

    def __init__(self, pieces: Iterator[bytes], size: int) -> None:
        self._pieces, self._held, self._at = pieces, memoryview(b""), 0
        self.left = size

    def text(self) -> bytes:
        return self.take(_length(self.take(4)))

    def take(self, length: int) -> bytes:
        if length > self.left:
            raise pa.ArrowInvalid("a page ends inside a value")
        self.left -= length
        stop = self._at + length
        if stop <= len(self._held):
            self._at, start = stop, self._at
            return bytes(self._held[start:stop])
        parts = [self._held[self._at :]]
        length -= len(parts[0])
        while length > 0:
            piece = next(self._pieces, b"")
            if not piece:
                raise pa.ArrowInvalid("a page is shorter than its header says")
            self._held, self._at = memoryview(piece), min(length, len(piece))
            parts.append(self._held[: self._at])
            length -= self._at
        return b"".join(parts)


def _length(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _pieces(file: Bytes, at: int, end: int) -> Iterator[bytes]:
    while at < end:
        piece = file.read(at, min(_PIECE, end - at))
        if not piece:
            raise pa.ArrowInvalid("a page ends behind its file")
        yield piece
        at += len(piece)


def _snappy(compressed: _Stream) -> Iterator[bytes]:
    """Decompress snappy a piece at a time.

    Elements are walked over to find where one ends. Each piece gets the last bytes before it as its
    first element: compressors refer 64 KiB back at most, as they treat so many at a time.
    """
    while compressed.take(1)[0] & 0x80:
        pass  # the size of all of it, which the page's header says as well
    held = tail = b""
    while held or compressed.left:
        held += compressed.take(min(_PIECE, compressed.left))
        stop = len(held) - (_SNAPPY_HEAD if compressed.left else 0)  # the last may be cut off
        at = made = size = after = 0
        while at < stop and made < _PIECE:
            tag = held[at]
            size, kind = tag >> 2, tag & 3
            if kind:  # repeats bytes from before
                size = size + 1 if kind > 1 else 4 + (size & 7)
                after = at + _SNAPPY_COPIES[kind]
            else:  # bytes as they are; of long ones, the length is behind the tag
                more = max(0, size - 59)
                size = 1 + (_length(held[at + 1 : at + 1 + more]) if more else size)
                after = at + 1 + more + size
            if after > len(held):
                if kind:
                    raise pa.ArrowInvalid("a snappy page ends inside an element")
                break
            at, made = after, made + size
        if at:
            lead = b"\xfc" + (len(tail) - 1).to_bytes(4, "little") + tail if tail else b""
            whole = bytearray()
            put_unsigned(whole, len(tail) + made)
            whole += lead + held[:at]
            piece = pa.decompress(whole, len(tail) + made, "snappy", asbytes=True)[len(tail) :]
            held = held[at:]
            yield piece
        else:  # bytes that are more than a piece
            piece = held[after - size :]
            yield piece
            size, held = size - len(piece), b""
            while size > 0:
                piece = compressed.take(min(_PIECE, size))
                yield piece
                size -= len(piece)
        tail = (tail + piece[-_SNAPPY_REACH:])[-_SNAPPY_REACH:]


def _hybrid(data: bytes, width: int, count: int) -> list[int]:
    """Return numbers of so many bits each that are stored as runs, or side by side."""
    if not 0 < width <= 32:
        return [0] * count
    found: list[int] = []
    at = 0
    while (left := count - len(found)) > 0:
        head, at = _varint(data, at)
        length = min(left, (head >> 1) * (8 if head & 1 else 1))
        if not length:
            raise pa.ArrowInvalid("a run has no values")
        if head & 1:
            bits = np.frombuffer(data, np.uint8, -(-length * width // 8), at)
            each = np.unpackbits(bits, bitorder="little")[: length * width].reshape(-1, width)
            found += (each @ (1 << np.arange(width, dtype=np.int64))).tolist()
            at += (head >> 1) * width
        else:
            size = -(-width // 8)
            found += [_length(data[at : at + size])] * length
            at += size
    return found
