"""Reads parquet files in bounded memory: decoded sizes are known before decoding.

A few kilobytes of parquet can stand for gigabytes: pages decompress a thousandfold, a dictionary
holds one long text that every row names, run lengths repeat a value a billion times. A footer may
lie about all of that. What cannot lie is the header of each page, as the decoder goes by it: its
bytes once decompressed and its number of values. They are added up before anything is decoded.

Ordinary columns of numbers skip that: they hold one value a row, and the bytes in the file bound
what they can decompress to. So opening and reading an ordinary file costs what it did.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.errors import DemoreelError, TableError
from demoreel.model.limits import exceeded, limit, refuse_above
from demoreel.packages import load_late
from demoreel.storage.local import naming_pointers, refuse_special
from demoreel.storage.parquet_pages import PIECED, Headers, Pages, Texts
from demoreel.storage.store import Bytes

pc = load_late("pyarrow.compute")

AT_ONCE = 1 << 26
"""Bytes of columns that are decoded together without a second thought."""

_BLOCK = 1 << 23  # bytes of a block of what is larger than that
_BUFFER = 1 << 20
_LARGE_PAGE = 1 << 25  # bytes of a page that is decoded in pieces, if it can be
_ROWS_OF_LISTS = 1 << 10  # that are measured together
_RATIOS = {"UNCOMPRESSED": 1, "SNAPPY": 32, "LZ4": 256, "LZ4_RAW": 256, "GZIP": 1100}
_PLAUSIBLE = 100  # of data worth keeping; what unfolds further may not unfold as far
_LONG = 1 << 10  # bytes of a text of which a scanner must not hold many
_HIGHEST_RATIO = 1 << 16  # zstd and brotli repeat a byte without end
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}


@dataclass(slots=True)
class _Chunk:
    """What a column of a row group unfolds to.

    Attributes:
        bytes: At most so many in all.
        cell: At most so many in a row, where a row holds one value.
        exact: Whether ``bytes`` is no guess; texts of a dictionary may be shorter than feared.
        plain: Bytes of its pages.
        usual: Bytes of a value on average.
        unfolding: Values up to the last one that names an entry of a dictionary.
        pieced: Whether it has large pages, which are decoded in pieces.
    """

    bytes: int
    cell: int
    exact: bool = True
    plain: int = 0
    usual: int = 0
    unfolding: int = 0
    pieced: bool = False


class Parquet:
    """An open parquet file; made by ``open_parquet``.

    Args:
        source: What Arrow reads.
        file: The same bytes, to look at page headers.
        name: What to call it in errors.
        kind: The class of errors about limits.
        metadata: Its footer, if it is known.
    """

    use_threads = True  # whether Arrow may decode columns side by side

    def __init__(
        self,
        source: Any,
        file: Bytes,
        name: str,
        kind: type[DemoreelError],
        metadata: pq.FileMetaData | None = None,
    ) -> None:
        self._source, self._file, self._name, self._kind = source, file, name, kind
        self._known = metadata
        if metadata is None:
            self._refuse_long_footer()
        self._parquet = self._opened()
        self.metadata: pq.FileMetaData = self._parquet.metadata
        self.num_row_groups: int = self.metadata.num_row_groups
        self._chunks: dict[tuple[int, int], _Chunk] = {}
        self._headers = Headers(file)

    def _opened(self, **options: Any) -> pq.ParquetFile:
        return pq.ParquetFile(self._source(), metadata=self._known, memory_map=False, **options)

    def _refuse_long_footer(self) -> None:
        if self._file.size <= limit("FOOTER_BYTES"):
            return
        tail = self._file.read(self._file.size - 8, 8)
        if len(tail) == 8:
            length = struct.unpack("<I", tail[:4])[0]
            refuse_above(
                "FOOTER_BYTES",
                min(length, self._file.size),
                "The footer of a table has bytes:",
                self._kind,
                file=self._name,
            )

    @cached_property
    def schema_arrow(self) -> pa.Schema:
        """Its columns."""
        return self._parquet.schema_arrow

    @cached_property
    def _columns(self) -> list[tuple[int | None, bool, str]]:
        """For each leaf the bytes of a value, whether a row has one, and its path."""
        schema = self.metadata.schema
        leaves = [schema.column(number) for number in range(self.metadata.num_columns)]
        return [(_width(leaf), leaf.max_repetition_level == 0, leaf.path) for leaf in leaves]

    @cached_property
    def _groups(self) -> list[tuple[int, Callable[[int], Any]]]:
        """For each row group its rows, and what tells about a column of it."""
        groups = [self.metadata.row_group(number) for number in range(self.num_row_groups)]
        return [(group.num_rows, group.column) for group in groups]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._parquet.close()

    def bounds(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the least and the largest number of a column in each group, as far as stated."""
        at = self._column_of.index(column)
        first, last = np.full(self.num_row_groups, -np.inf), np.full(self.num_row_groups, np.inf)
        for group, (_, about) in enumerate(self._groups):
            statistics = about(at).statistics
            if statistics is not None and statistics.has_min_max:
                least, largest = statistics.min, statistics.max
                numbers = isinstance(least, int | float) and isinstance(largest, int | float)
                if numbers and least <= largest:  # not where one of them is NaN
                    first[group], last[group] = least, largest
        return first, last

    def begin(self, groups: Sequence[int], columns: Sequence[str]) -> Callable[[], Parquet]:
        """Begin to fetch columns of some row groups; return what gives the file to read them."""
        return lambda: self  # on a disk, nothing needs to be begun

    @cached_property
    def _column_of(self) -> list[str]:
        """For each leaf the column that it belongs to: names hold dots, so paths do not tell."""
        fields = self.schema_arrow
        return [field.name for field in fields for _ in range(leaves_of(field.type))]

    def read(
        self,
        columns: Sequence[str] | None = None,
        *,
        groups: Sequence[int] | None = None,
        use_threads: bool = True,
    ) -> pa.Table:
        """Return columns of row groups as one table.

        Args:
            columns: Their names; None for all.
            groups: The row groups; None for all.
            use_threads: Whether Arrow may decode columns side by side.
        """
        wanted = list(range(self.num_row_groups)) if groups is None else list(groups)
        self._refuse_large(columns, wanted)
        names = None if columns is None else list(columns)
        use_threads = use_threads and self.use_threads
        return self._parquet.read_row_groups(wanted, columns=names, use_threads=use_threads)

    def blocks(
        self,
        columns: Sequence[str] | None = None,
        *,
        groups: Sequence[int] | None = None,
        rows: int | None = None,
        use_threads: bool = True,
    ) -> Iterator[pa.Table]:
        """Yield columns of row groups some rows at a time, in order.

        A block is a row group that is small enough, or a part of a larger one.

        Args:
            columns: Their names; None for all.
            groups: The row groups; None for all.
            rows: The most rows of a block.
            use_threads: Whether Arrow may decode columns side by side.
        """
        wanted = range(self.num_row_groups) if groups is None else groups
        names = None if columns is None else list(columns)
        use_threads = use_threads and self.use_threads
        leaves = self._chosen(columns)
        together: list[int] = []
        held = seen = 0
        for group in wanted:
            length, _ = self._groups[group]
            step = self.rows_at_once(group, columns)
            step = min(step, rows) if rows is not None else step
            size = sum(self._chunk(group, leaf).bytes for leaf in leaves)
            is_full = held + size > AT_ONCE or (rows is not None and seen + length > rows)
            if together and (step < length or is_full):
                yield self._parquet.read_row_groups(together, names, use_threads=use_threads)
                together, held, seen = [], 0, 0
            if step >= length:
                together.append(group)
                held, seen = held + size, seen + length
                continue
            # Buffered, or Arrow would read all bytes of a column before it decodes the first page.
            options = {"buffer_size": _BUFFER, "pre_buffer": False} if size > AT_ONCE else {}
            pieced = [leaf for leaf in leaves if self._chunk(group, leaf).pieced]
            others = [self._columns[leaf][2] for leaf in leaves if leaf not in pieced]
            with self._opened(**options) as parquet:
                batches = parquet.iter_batches(
                    step,
                    row_groups=[group],
                    columns=others if pieced else names,
                    use_threads=use_threads,
                )
                even = _even(batches, step)
                yield from self._joined(group, pieced, even, names, step) if pieced else even
        if together:
            yield self._parquet.read_row_groups(together, names, use_threads=use_threads)

    def _joined(
        self,
        group: int,
        pieced: Sequence[int],
        others: Iterator[pa.Table],
        names: list[str] | None,
        step: int,
    ) -> Iterator[pa.Table]:
        """Yield blocks of a row group: leaves that are decoded in pieces beside the others."""
        schema = self._parquet.read_row_groups([], names).schema
        texts = {leaf: iter(self._texts(group, leaf)) for leaf in pieced}
        length, _ = self._groups[group]
        for first in range(0, length, step):
            count = min(step, length - first)
            beside = next(others, None)
            values = {leaf: list(itertools.islice(found, count)) for leaf, found in texts.items()}
            counts = {*map(len, values.values())} | ({len(beside)} if beside is not None else set())
            if counts != {count}:
                raise pa.ArrowInvalid("columns of a row group differ in length")
            block = [self._column(field, beside, values) for field in schema]
            del beside, values
            yield pa.Table.from_arrays(block, schema=schema)
            del block
            pa.default_memory_pool().release_unused()

    def _column(
        self,
        field: pa.Field,
        beside: pa.Table | None,
        values: Mapping[int, list[tuple[int, bytes | None]]],
    ) -> pa.Array | pa.ChunkedArray:
        """Return a column of a block, of which some leaves were decoded in pieces."""
        found = [values.get(self._texts_of.get((field.name, None), -1))]
        if found[0] is not None:
            return pa.array([text for _, text in found[0]], field.type)
        inner = list(field.type) if pa.types.is_struct(field.type) else []
        found = [values.get(self._texts_of.get((field.name, one.name), -1)) for one in inner]
        levels = next((one for one in found if one is not None), None)
        if levels is None:
            assert beside is not None
            return beside.column(field.name)
        arrays = []
        for one, texts in zip(inner, found, strict=True):
            if texts is not None:
                arrays.append(pa.array([text for _, text in texts], one.type))
            else:
                assert beside is not None
                known = beside.column(field.name).combine_chunks()
                arrays.append(known.flatten()[known.type.get_field_index(one.name)])
        missing = [field.nullable and level == 0 for level, _ in levels]
        return pa.StructArray.from_arrays(arrays, fields=inner, mask=pa.array(missing, pa.bool_()))

    def _texts(self, group: int, leaf: int) -> Texts:
        about = self._groups[group][1](leaf)
        levels = self.metadata.schema.column(leaf).max_definition_level
        return Texts(self._file, first_page(about), about.num_values, about.compression, levels)

    @cached_property
    def _texts_of(self) -> dict[tuple[str, str | None], int]:
        """The leaves that can be decoded in pieces, by column and, in a struct, by field."""
        found: dict[tuple[str, str | None], int] = {}
        leaf = 0
        for field in self.schema_arrow:
            kind, count = field.type, leaves_of(field.type)
            if _is_text(kind):
                found[field.name, None] = leaf
            elif pa.types.is_struct(kind) and count == kind.num_fields:
                for at, inner in enumerate(kind):
                    if _is_text(inner.type):
                        found[field.name, inner.name] = leaf + at
            leaf += count
        distinct = len(set(self.schema_arrow.names)) == len(self.schema_arrow.names)
        return found if distinct and leaf == self.metadata.num_columns else {}

    def rows_at_once(self, group: int, columns: Sequence[str] | None = None) -> int:
        """Return how many rows of a row group are decoded together: all, if it is small."""
        leaves = self._chosen(columns)
        if sum(self._chunk(group, leaf).bytes for leaf in leaves) > AT_ONCE:
            for leaf in leaves:
                if not self._chunk(group, leaf).exact:
                    self._measure(group, leaf)
        length, _ = self._groups[group]
        cell = 1
        for leaf in leaves:
            chunk = self._chunk(group, leaf)
            self._refuse_unlikely(group, leaf)
            if self._columns[leaf][1]:
                cell += chunk.cell
            else:
                # Lists may all be in one row: then that row is all of it.
                self._refuse_chunk(leaf, chunk)
                cell += chunk.bytes // max(1, length) + 1
        if sum(self._chunk(group, leaf).bytes for leaf in leaves) <= AT_ONCE:
            return max(1, length)
        return max(1, _BLOCK // cell)

    def refuse_scan(self, columns: Sequence[str], *, held: int = 0) -> int:
        """Refuse what Arrow's scanner cannot hold: it decodes row groups of several files ahead.

        Returns:
            Bytes of long texts that take less than a hundredth of that in the files.
        """
        most = limit("TABLE_BYTES") // 4
        leaves = self._chosen(columns)
        for group in range(self.num_row_groups):
            self.rows_at_once(group, columns)
            length, about = self._groups[group]
            for leaf in leaves:
                if self._columns[leaf][0] is not None:
                    continue
                folded = about(leaf).total_compressed_size
                if self._chunk(group, leaf).bytes <= max(_PLAUSIBLE * folded, _LONG * length):
                    continue
                if not self._chunk(group, leaf).exact:
                    self._measure(group, leaf)  # all entries of a dictionary in each row: a guess
                found = self._chunk(group, leaf).bytes
                held += found if found > max(_PLAUSIBLE * folded, _LONG * length) else 0
                if held > most:
                    column = self._columns[leaf][2][:80]
                    raise exceeded(
                        "TABLE_BYTES",
                        f"Long texts of the column {column!r} unfold a hundredfold to {held:,} "
                        "bytes, and a query may take a quarter of the limit",
                        self._kind,
                        file=self._name,
                    )
        return held

    def _refuse_large(self, columns: Sequence[str] | None, groups: Sequence[int]) -> None:
        leaves = self._chosen(columns)
        found = [(group, leaf, self._chunk(group, leaf)) for group in groups for leaf in leaves]
        total = sum(chunk.bytes for *_, chunk in found)
        most = limit("TABLE_BYTES")
        if total <= most:
            return
        for group, leaf, chunk in sorted(found, key=lambda one: -one[2].bytes):
            if not chunk.exact:
                self._measure(group, leaf)
                total += self._chunks[group, leaf].bytes - chunk.bytes
            if total <= most:
                return
        _, leaf, chunk = max(
            ((g, n, self._chunks[g, n]) for g, n, _ in found), key=lambda one: one[2].bytes
        )
        column = self._columns[leaf][2][:80]
        raise exceeded(
            "TABLE_BYTES",
            f"Columns of a table unfold to {total:,} bytes or more, {chunk.bytes:,} in {column!r}",
            self._kind,
            file=self._name,
        )

    def _refuse_unlikely(self, group: int, leaf: int) -> None:
        """Refuse what is both large and far larger than its bytes in the file."""
        chunk = self._chunk(group, leaf)
        if chunk.bytes > limit("TABLE_BYTES"):
            about = self._groups[group][1](leaf)
            if chunk.bytes > _PLAUSIBLE * about.total_compressed_size:
                self._refuse_chunk(leaf, chunk)

    def _refuse_chunk(self, leaf: int, chunk: _Chunk) -> None:
        column = self._columns[leaf][2][:80]
        what = f"The column {column!r} unfolds to bytes:"
        refuse_above("TABLE_BYTES", chunk.bytes, what, self._kind, file=self._name)

    def _chosen(self, columns: Sequence[str] | None) -> list[int]:
        """Return the leaves of columns: what parquet calls columns."""
        if columns is None:
            return list(range(self.metadata.num_columns))
        leaves = self._leaves
        return [leaf for name in columns for leaf in leaves.get(name, ())]

    @cached_property
    def _leaves(self) -> dict[str, list[int]]:
        """The leaves by everything that may be the name of their column: names hold dots, too."""
        found: dict[str, list[int]] = {}
        for number, (_, _, path) in enumerate(self._columns):
            at = path.find(".")
            while at >= 0:
                found.setdefault(path[:at], []).append(number)
                at = path.find(".", at + 1)
            found.setdefault(path, []).append(number)
        return found

    def _chunk(self, group: int, leaf: int) -> _Chunk:
        found = self._chunks.get((group, leaf))
        if found is None:
            found = self._chunks[group, leaf] = self._looked_at(group, leaf)
        return found

    def _looked_at(self, group: int, leaf: int) -> _Chunk:
        rows, columns = self._groups[group]
        about = columns(leaf)
        width, flat, _ = self._columns[leaf]
        if width is not None and flat:
            ratio = _RATIOS.get(about.compression, _HIGHEST_RATIO)
            total = rows * width
            if about.total_compressed_size * ratio > AT_ONCE:
                total = max(total, self._pages(about, leaf).largest)  # a page is decoded whole
            return _Chunk(total, width)
        pages = self._pages(about, leaf)
        if width is not None:
            return _Chunk(pages.values * (width + 4), width)  # and two levels of two bytes
        unfolded = pages.named * pages.dictionary + pages.prefixed * pages.largest
        plain = pages.plain + 8 * pages.values
        # Some rows may be larger than most: they lie in one page, which is in memory anyway.
        usual = plain // max(1, pages.values) + 1
        cell = max(usual, pages.dictionary if pages.named else 0)
        cell = max(cell, pages.largest if pages.prefixed else 0)
        return _Chunk(
            plain + unfolded, cell, not unfolded, plain, usual, pages.unfolding, pages.pieced
        )

    def _pages(self, about: Any, leaf: int) -> Pages:
        pages = Pages()
        at = first_page(about)
        end, expected = at + about.total_compressed_size, about.num_values
        most, headers = limit("PAGE_BYTES"), self._headers
        # As Arrow does it: pages are read until they have as many values as the footer says.
        while at < end and pages.values < expected:
            page = headers.page(at)
            if page.unfolded > (most if page.unfolded <= _PLAUSIBLE * page.folded else most // 4):
                raise self._large_page(leaf, page.unfolded, f"from {page.folded:,} bytes")
            if page.folded > 2 * most:
                raise self._large_page(leaf, page.folded, "from more than it unfolds to")
            pages.add(page)
            if pages.values >= expected:
                break
            if page.head is None:
                page = headers.page(at, whole=True)
            at += (page.head or 0) + page.folded
        largest = max(pages.largest, pages.dictionary)
        pages.pieced = (
            largest > _LARGE_PAGE
            and pages.plainly
            and about.compression in PIECED
            and pages.plain + pages.dictionary > _LONG * pages.values
            and leaf in self._texts_of.values()
        )
        if largest > most // 4 and not pages.pieced:
            raise self._large_page(leaf, largest, "and must be decoded as a whole")
        return pages

    def _large_page(self, leaf: int, size: int, how: str) -> DemoreelError:
        column = self._columns[leaf][2][:80]
        what = f"A page of the column {column!r} unfolds to {size:,} bytes {how}"
        return exceeded("PAGE_BYTES", what, self._kind, file=self._name)

    def _measure(self, group: int, leaf: int) -> None:
        """Learn the bytes of a column of texts that name entries of a dictionary, or of one before.

        Some are decoded at a time, up to the last such one, or up to the limit.
        """
        path, guess = self._columns[leaf][2], self._chunk(group, leaf)
        most = limit("TABLE_BYTES")
        total = longest = seen = 0
        if guess.pieced:
            for seen, (_, text) in enumerate(self._texts(group, leaf)):
                size = len(text or b"") + 8
                total, longest = total + size, max(longest, size)
                if total > most or seen >= guess.unfolding:
                    break
            self._chunks[group, leaf] = replace(
                guess, bytes=total + guess.plain, cell=max(longest, guess.usual), exact=True
            )
            return
        # In lists, one row may hold all: there, the entries of a dictionary stay entries.
        kept = {} if self._columns[leaf][1] else {"read_dictionary": [path]}
        rows = max(1, AT_ONCE // guess.cell) if not kept else _ROWS_OF_LISTS
        with self._opened(buffer_size=_BUFFER, pre_buffer=False, **kept) as parquet:
            for batch in parquet.iter_batches(
                rows, row_groups=[group], columns=[path], use_threads=False
            ):
                size = sum(map(_text_bytes, batch.columns))
                total, longest = total + size, max(longest, size // len(batch) + 1)
                seen += len(batch)
                if total > most or (seen >= guess.unfolding and not kept):
                    break
        self._chunks[group, leaf] = _Chunk(total + guess.plain, max(longest, guess.usual))


class Forward:
    """Rows of a parquet file from its beginning on, some at a time."""

    def __init__(self, parquet: Parquet, columns: Sequence[str] | None = None) -> None:
        self._parquet, self._columns = parquet, columns
        self._begin()

    def _begin(self) -> None:
        self._blocks = self._parquet.blocks(self._columns)
        self._held: pa.Table | None = None
        self._first = 0

    def pieces(self, first: int, length: int) -> Iterator[pa.Table]:
        """Yield so many rows, a block's at a time; to go back costs a fresh start."""
        if first < self._first:
            self._begin()
        stop = first + length
        while first < stop:
            end = self._first + (0 if self._held is None else len(self._held))
            if first >= end:
                self._first, self._held = end, next(self._blocks, None)
                if self._held is None:
                    raise pa.ArrowInvalid("the table has fewer rows than it says")
                continue
            count = min(stop, end) - first
            assert self._held is not None
            yield self._held.slice(first - self._first, count)
            first += count


def open_parquet(
    path: str | os.PathLike[str] | bytes,
    *,
    kind: type[DemoreelError] = TableError,
) -> Parquet:
    """Open a parquet file of this machine, or its bytes.

    Args:
        path: The file, or what is in it.
        kind: The class of errors about limits: its footer may be no longer than ``FOOTER_BYTES``.
    """
    if isinstance(path, bytes):
        data = path
        return Parquet(lambda: pa.BufferReader(data), _HeldPages(data), "bytes", kind)
    name = os.fspath(path)
    refuse_special(name)
    with naming_pointers(kind, name):
        return Parquet(lambda: name, _ParquetFile(name), name, kind)


def read_schema(path: Path) -> pa.Schema:
    """Return the columns of a parquet file; see ``open_parquet``."""
    with open_parquet(path) as parquet:
        return parquet.schema_arrow


def rows_in(path: Path) -> int:
    """Return how many rows a parquet file has; see ``open_parquet``."""
    with open_parquet(path) as parquet:
        return int(parquet.metadata.num_rows)


class _ParquetFile:
    """A file of this machine. Not one of the open ones: tables are many, and looked at once."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.size = os.stat(path).st_size
        self._handle = -1

    def read(self, offset: int, length: int) -> bytes:
        if self._handle < 0:
            self._handle = os.open(self._path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        return os.pread(self._handle, length, offset)

    def __del__(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)


class _HeldPages:
    """Bytes in memory, as a file."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]


def leaves_of(kind: pa.DataType) -> int:
    """Return how many of a parquet file's columns hold a value of this type."""
    if isinstance(kind, pa.BaseExtensionType):
        return leaves_of(kind.storage_type)
    return sum(leaves_of(kind.field(at).type) for at in range(kind.num_fields)) or 1


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
    )


def first_page(about: Any) -> int:
    """Return where the first page of a column of a row group begins."""
    at = int(about.data_page_offset)
    if about.has_dictionary_page and about.dictionary_page_offset:
        at = min(at, about.dictionary_page_offset)
    return at


def _width(column: Any) -> int | None:
    """Return the bytes of one value of a leaf; None where they differ."""
    if column.physical_type == "FIXED_LEN_BYTE_ARRAY":
        return int(column.length) + 8
    return _WIDTHS.get(column.physical_type)


def _text_bytes(array: pa.Array) -> int:
    """Return what texts take; those that are entries of a dictionary, if each had its own."""
    if pa.types.is_dictionary(array.type):
        lengths = pc.binary_length(array.dictionary).cast(pa.int64())
        return int(pc.sum(lengths.take(array.indices)).as_py() or 0) + 8 * len(array)
    if pa.types.is_struct(array.type):
        return sum(map(_text_bytes, array.flatten()))
    if pa.types.is_nested(array.type):
        return _text_bytes(array.values) + 8 * len(array)
    return int(array.nbytes)


def _even(batches: Iterator[pa.RecordBatch], step: int) -> Iterator[pa.Table]:
    """Yield tables of ``step`` rows, the last one aside: Arrow may give less at a time."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(map(len, waiting)) >= step:
            table = pa.Table.from_batches(waiting)
            waiting = []
            while len(table) > step:
                yield table.slice(0, step)
                table = table.slice(step)
            if len(table) == step:
                yield table
            else:
                waiting = table.to_batches()
    if waiting:
        yield pa.Table.from_batches(waiting)
