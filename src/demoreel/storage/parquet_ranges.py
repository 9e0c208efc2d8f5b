"""A parquet file whose reads wait: its footer is read once, then the wanted columns' bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.errors import TableError
from demoreel.model.limits import refuse_above
from demoreel.storage.parquet import Parquet, leaves_of
from demoreel.storage.seekable import Seekable
from demoreel.storage.store import Range, StoredFile

_TAIL = 1 << 16  # enough for most footers
_NEAR = 1 << 18  # unwanted columns of a row group lie between the wanted ones
_MAGIC = b"PAR1"


class ParquetRanges:
    """A parquet file.

    Opening costs one ranged read of its end, or two where the footer is long.

    Args:
        file: Its bytes.
        name: What to call it in errors.

    Attributes:
        columns: Names of the columns.
        nbytes: Memory that the footer takes, about.

    Raises:
        ArrowException: It is no parquet file.
        StoreError: It cannot be read.
    """

    def __init__(self, file: StoredFile, name: str) -> None:
        self._file = file
        self._name = name
        footer = _footer(file, name)
        self._metadata = pq.read_metadata(pa.BufferReader(_MAGIC + footer))
        self._schema = self._metadata.schema.to_arrow_schema()
        # For each leaf, the column that it belongs to: names hold dots, so paths do not tell.
        self._column_of = [
            field.name for field in self._schema for _ in range(leaves_of(field.type))
        ]
        self.columns = frozenset(self._schema.names)
        self.nbytes = 8 * len(footer)

    def groups_with(self, column: str, numbers: np.ndarray) -> list[int]:
        """Return the row groups that may hold one of these numbers in a column."""
        at = self._column_of.index(column)
        low, high = int(numbers.min()), int(numbers.max())
        ordered = np.sort(numbers)
        found = []
        for group in range(self._metadata.num_row_groups):
            statistics = self._metadata.row_group(group).column(at).statistics
            if statistics is not None and statistics.has_min_max:
                first, last = statistics.min, statistics.max
                if last < low or first > high:
                    continue
                place = int(np.searchsorted(ordered, first))
                if place == len(ordered) or ordered[place] > last:
                    continue
            found.append(group)
        return found

    def begin(self, groups: Sequence[int], columns: Sequence[str]) -> Callable[[], pa.Table]:
        """Begin to fetch columns of some row groups; return what gives them when they are there.

        Cost: a request for what lies together, all side by side. What is returned raises an
        ``ArrowException`` where the bytes are damaged, and a ``StoreError`` where they cannot be
        had.
        """
        if not groups:
            fields = [self._schema.field(name) for name in columns]
            return lambda: pa.schema(fields).empty_table()
        parts = [part for group in groups for part in self._ranges(group, columns)]
        refuse_above(
            "TABLE_BYTES",
            sum(length for _, length in parts),
            "Columns of a table that are fetched together have bytes:",
            TableError,
            file=self._name,
        )
        ranges = _together(parts)
        arriving = self._file.read_ranges(ranges)

        def table() -> pa.Table:
            held = [
                (begin, future.result())
                for (begin, _), future in zip(ranges, arriving, strict=True)
            ]
            sparse = _Sparse(held, self._file)
            with Parquet(
                lambda: Seekable(sparse), sparse, self._name, TableError, self._metadata
            ) as parquet:
                return parquet.read(columns, groups=groups, use_threads=False)

        return table

    def _ranges(self, group: int, columns: Sequence[str]) -> list[Range]:
        wanted = set(columns)
        described = self._metadata.row_group(group)
        found = []
        for number, name in enumerate(self._column_of):
            if name in wanted:
                chunk = described.column(number)
                begin = chunk.data_page_offset
                if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                    begin = min(begin, chunk.dictionary_page_offset)
                length = chunk.total_compressed_size
                if begin < 0 or not 0 <= length <= self._file.size - begin:
                    raise pa.ArrowInvalid("a column lies outside the file")
                found.append((begin, length))
        return found


def _footer(file: StoredFile, name: str) -> bytes:
    """Return a parquet file's footer, its length and the magic word."""
    length = min(_TAIL, file.size)
    tail = file.read(file.size - length, length)
    if len(tail) < 8 or tail[-4:] != _MAGIC:
        raise pa.ArrowInvalid("it does not end as a parquet file does")
    wanted = struct.unpack("<I", tail[-8:-4])[0] + 8
    if wanted > file.size:
        raise pa.ArrowInvalid("its footer is longer than the file")
    refuse_above("FOOTER_BYTES", wanted, "A footer has bytes:", TableError, file=name)
    if wanted > length:
        tail = file.read(file.size - wanted, wanted)
    return tail[-wanted:]


def _together(ranges: Sequence[Range]) -> list[Range]:
    merged: list[Range] = []
    for begin, length in sorted(ranges):
        if merged and begin - sum(merged[-1]) <= _NEAR:
            first, _ = merged.pop()
            length = begin + length - first
            begin = first
        merged.append((begin, length))
    return merged


class _Sparse:
    """A file of which some ranges are here; what else is wanted after all is fetched."""

    def __init__(self, held: Sequence[tuple[int, bytes]], behind: StoredFile) -> None:
        self._held = held
        self._behind = behind
        self.size = behind.size

    def read(self, offset: int, length: int) -> bytes:
        for begin, data in self._held:
            start = offset - begin
            if start >= 0 and start + length <= len(data):
                return data[start : start + length]
        return self._behind.read(offset, length)
