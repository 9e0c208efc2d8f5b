"""Reading a Parquet file whose writer was killed before it wrote the footer.

The footer is the file's table of contents: without it no program opens the file, though all row
groups that were finished lie there whole. Every page of a column says how long it is and how many
values it holds. So pages are walked from the start, dealt out to the columns of a schema that is
known from elsewhere (another file of the dataset, or ``info.json``), and a footer is written anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.errors import refuse_shortage
from demoreel.storage.parquet import open_parquet
from demoreel.storage.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    NotThriftError,
    Reading,
    Struct,
    to_bytes,
)

_MAGIC = b"PAR1"
_DATA, _DICTIONARY, _DATA_2 = 0, 2, 3
_RLE = 3
_LARGEST = 1 << 31  # bytes or values of a page
_CODECS = (1, 6, 0, 7, 2, 4)  # as probable: snappy, zstd, none, lz4, gzip, brotli


@dataclass(frozen=True, slots=True)
class _RescuedPage:
    kind: int
    at: int
    stop: int
    values: int
    size: int  # uncompressed, with the header
    encoding: int


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A column as Parquet sees it: one of numbers or texts.

    Attributes:
        path: Names from the root.
        type: Parquet's number of its type.
        width: Values in a row; None if that varies.
    """

    path: tuple[bytes, ...]
    type: int
    width: int | None


_Chunk = list[_RescuedPage]
_Group = tuple[int, list[_Chunk]]


def rescue_rows(data: bytes, schema: pa.Schema, *, width: Mapping[str, int]) -> pa.Table | None:
    """Return the rows of all row groups that were finished; None if there are none to be found.

    What comes back has been decoded. Whether it makes sense, e.g. whether indices count up, is for
    the caller to look at: pages do not say which column they belong to.

    Cost: decodes the file once; it is held in memory.

    Args:
        data: The file's bytes.
        schema: Its columns, in its order.
        width: Values in a row of each column that holds lists of one length; others hold one value
            or, if they are lists, any number.
    """
    if data[:4] != _MAGIC or not schema.names:
        return None
    footer = _footer_of(schema)
    leaves = _leaves(footer, width)
    pages = _pages(data)
    tables: list[pa.Table] = []
    place = 0
    codecs: Sequence[int] = _CODECS
    while place < len(pages):
        found = _next_group(data, pages[place:], footer, leaves, codecs)
        if found is None:
            break
        table, used, codec = found
        tables.append(table)
        place, codecs = place + used, (codec,)  # a file has one codec
    return pa.concat_tables(tables) if tables else None


def _next_group(
    data: bytes,
    pages: Sequence[_RescuedPage],
    footer: Struct,
    leaves: Sequence[_Leaf],
    codecs: Sequence[int],
) -> tuple[pa.Table, int, int] | None:
    """Return the rows of the first row group, how many pages it has, and its codec."""
    for group in _possible_groups(pages, leaves):
        for codec in codecs:
            table = _decoded(data, footer, leaves, group, codec)
            if table is not None:
                return table, sum(len(chunk) for chunk in group[1]), codec
    return None


def _footer_of(schema: pa.Schema) -> Struct:
    """Return the footer of an empty file with these columns."""
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    whole = sink.getvalue().to_pybytes()
    length = int.from_bytes(whole[-8:-4], "little")
    return Reading(whole[-8 - length : -8]).struct()


def _leaves(footer: Struct, width: Mapping[str, int]) -> list[_Leaf]:
    """Return the columns of numbers and texts, in the order in which they are written."""
    elements: list[Struct] = footer[2][1][1]
    place = 1  # behind the root

    def below(path: tuple[bytes, ...], repeated: bool) -> list[_Leaf]:
        nonlocal place
        element = elements[place]
        place += 1
        name: bytes = element[4][1]
        here = (*path, name)
        repeated = repeated or element.get(3, (I32, 0))[1] == 2
        children = element.get(5, (I32, 0))[1]
        if not children:
            column = here[0].decode()
            each = width.get(column, 1 if not repeated else None)
            return [_Leaf(here, element[1][1], each)]
        return [leaf for _ in range(children) for leaf in below(here, repeated)]

    return [leaf for _ in range(elements[0][5][1]) for leaf in below((), False)]


def _pages(data: bytes) -> list[_RescuedPage]:
    """Return the pages that lie in the file whole, from its start on."""
    pages: list[_RescuedPage] = []
    view = memoryview(data)
    at = len(_MAGIC)
    while True:
        reading = Reading(view, at)
        try:
            header = reading.struct()
            kind, plain, packed = (header[number][1] for number in (1, 2, 3))
            inner = {_DATA: 5, _DICTIONARY: 7, _DATA_2: 8}.get(kind)
            if inner is None:
                return pages
            about = header[inner][1]
            values = about[1][1]
            encoding = about[4 if kind == _DATA_2 else 2][1]
            # What is no number raises a TypeError here.
            if not (0 <= packed < _LARGEST and 0 <= plain < _LARGEST and 0 <= values < _LARGEST):
                return pages
        except (NotThriftError, KeyError, TypeError, IndexError):
            return pages
        stop = reading.at + packed
        if stop > len(data):
            return pages
        pages.append(_RescuedPage(kind, at, stop, values, reading.at - at + plain, encoding))
        at = stop


def _possible_groups(pages: Sequence[_RescuedPage], leaves: Sequence[_Leaf]) -> Iterator[_Group]:
    """Yield every number of rows for which all columns come out even, with their pages.

    How many rows a group has follows from its first column: some of the pages, up to the next
    dictionary at the most. Which of several numbers is right, only decoding can tell.
    """
    each = leaves[0].width
    if each is None:
        return
    values = 0
    for number, page in enumerate(pages):
        if page.kind == _DICTIONARY:
            if number:
                return
            continue
        values += page.values
        if values and values % each == 0:
            chunks = _dealt(pages, leaves, values // each)
            if chunks is not None:
                yield values // each, chunks


def _dealt(
    pages: Sequence[_RescuedPage], leaves: Sequence[_Leaf], rows: int
) -> list[_Chunk] | None:
    """Deal pages out to the columns of so many rows; None if they do not come out even."""
    chunks, place = [], 0
    for leaf in leaves:
        chunk = _chunk(pages, place, None if leaf.width is None else rows * leaf.width)
        if chunk is None:
            return None
        chunks.append(chunk)
        place += len(chunk)
    return chunks


def _chunk(pages: Sequence[_RescuedPage], place: int, wanted: int | None) -> _Chunk | None:
    """Return the pages from here on that hold so many values; up to a dictionary if None."""
    chunk: _Chunk = []
    values = 0
    for number in range(place, len(pages)):
        page = pages[number]
        if page.kind == _DICTIONARY and chunk:
            return chunk if wanted is None else None
        chunk.append(page)
        if page.kind == _DICTIONARY:
            continue
        values += page.values
        if wanted is not None and values >= wanted:
            return chunk if values == wanted else None
    return chunk if wanted is None and values else None


def _decoded(
    data: bytes, footer: Struct, leaves: Sequence[_Leaf], group: _Group, codec: int
) -> pa.Table | None:
    """Return the rows of a group; None if it cannot be decoded."""
    rows, chunks = group
    begin, end = chunks[0][0].at, chunks[-1][-1].stop
    about = _described(group, leaves, codec, moved=len(_MAGIC) - begin)
    whole = to_bytes({**footer, 3: (I64, rows), 4: (LIST, (STRUCT, [about]))})
    file = b"".join((_MAGIC, data[begin:end], whole, len(whole).to_bytes(4, "little"), _MAGIC))
    try:
        table = open_parquet(file).read()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        refuse_shortage(error)
        return None
    return table if table.num_rows == rows else None


def _described(group: _Group, leaves: Sequence[_Leaf], codec: int, *, moved: int) -> Struct:
    """Return what a footer says of a group whose bytes lie so much later than in the file."""
    rows, chunks = group
    pairs = zip(chunks, leaves, strict=True)
    columns = [_column(chunk, leaf, codec, moved) for chunk, leaf in pairs]
    size = sum(page.size for chunk in chunks for page in chunk)
    return {1: (LIST, (STRUCT, columns)), 2: (I64, size), 3: (I64, rows)}


def _column(chunk: _Chunk, leaf: _Leaf, codec: int, moved: int) -> Struct:
    own = [page for page in chunk if page.kind != _DICTIONARY]
    encodings = sorted({_RLE, *(page.encoding for page in chunk)})
    about: dict[int, tuple[int, Any]] = {
        1: (I32, leaf.type),
        2: (LIST, (I32, encodings)),
        3: (LIST, (BINARY, list(leaf.path))),
        4: (I32, codec),
        5: (I64, sum(page.values for page in own)),
        6: (I64, sum(page.size for page in chunk)),
        7: (I64, chunk[-1].stop - chunk[0].at),
        9: (I64, own[0].at + moved),
    }
    if chunk[0].kind == _DICTIONARY:
        about[11] = (I64, chunk[0].at + moved)
    return {2: (I64, 0), 3: (STRUCT, about)}
