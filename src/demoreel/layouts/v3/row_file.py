"""Files of one row: an episode's metadata while episodes are appended one by one.

A row has a column for everything that is known of an episode, more than a hundred of them, and
from one episode to the next only numbers change. So the first file is written by Arrow, which takes
milliseconds, and the next ones are that file with other numbers in it: byte for byte what Arrow
would have written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.layouts.v3.writer import episode_rows

_MOST_MOULDS = 8  # one for each task that the robot is given in turn
_KINDS = {pa.int64(): np.dtype("<i8"), pa.float64(): np.dtype("<f8")}


@dataclass(frozen=True, slots=True)
class _Mould:
    """A file, and where in it the numbers of each column lie.

    Attributes:
        shapes: The shape of each column's numbers, and the value of each that is no number.
        data: The file.
        ends: Where each column's numbers end; they are the last of its page.
    """

    shapes: list[Any]
    data: bytes
    ends: dict[str, int]


class RowFiles:
    """Makes files of one row, all of the same columns.

    Args:
        metadata: Entries that each file's schema is to have, beside its own.
    """

    def __init__(self, metadata: Mapping[bytes, bytes]) -> None:
        self._metadata = dict(metadata)
        self._columns: pa.Schema | None = None
        self._kinds: dict[str, tuple[np.dtype[Any], int] | None] = {}
        self._moulds: deque[_Mould] = deque(maxlen=_MOST_MOULDS)

    def encoded(self, row: Mapping[str, Any], schema: pa.Schema | None) -> bytes:
        """Return a file.

        Args:
            row: What is known of the episode, as for ``episode_rows``.
            schema: The columns of the files before; None: the row decides.
        """
        if self._columns is None or not (schema is None or schema.equals(self._columns)):
            self._moulds.clear()
            return self._write(row, schema)
        numbers, shapes = self._numbers(row)
        mould = next((mould for mould in self._moulds if mould.shapes == shapes), None)
        if mould is None:
            return self._write(row, schema)
        data = bytearray(mould.data)
        for name, values in numbers.items():
            end = mould.ends[name]
            data[end - len(values) : end] = values
        return bytes(data)

    def _write(self, row: Mapping[str, Any], schema: pa.Schema | None) -> bytes:
        """Have Arrow write the file; keep it as a mould if its numbers are found in it."""
        table = episode_rows([row], schema)
        known = table.schema.metadata or {}
        table = table.replace_schema_metadata({**known, **self._metadata})
        buffer = pa.BufferOutputStream()
        # Of one row neither a dictionary nor extremes are of use; merging writes both.
        pq.write_table(
            table, buffer, compression="none", use_dictionary=False, write_statistics=False
        )
        data: bytes = buffer.getvalue().to_pybytes()
        self._columns = table.schema
        self._kinds = {field.name: _kind_of(field.type) for field in table.schema}
        numbers, shapes = self._numbers(row)
        ends = _ends_of_columns(data, table.schema)
        found = all(data[ends[n] - len(v) : ends[n]] == v for n, v in numbers.items() if n in ends)
        if found and numbers.keys() <= ends.keys():
            self._moulds.append(_Mould(shapes, data, ends))
        return data

    def _numbers(self, row: Mapping[str, Any]) -> tuple[dict[str, bytes], list[Any]]:
        """Return the bytes of the numbers that may change, and what must not for that."""
        numbers: dict[str, bytes] = {}
        shapes: list[Any] = []
        for name, value in row.items():
            if name not in self._kinds:
                continue  # left out of every file
            array = _as_stored(value, self._kinds[name])
            if array is not None:
                shapes.append((name, array.shape))
                numbers[name] = array.tobytes()
            else:
                shapes.append((name, value.tolist() if isinstance(value, np.ndarray) else value))
        return numbers, shapes


def _kind_of(kind: pa.DataType) -> tuple[np.dtype[Any], int] | None:
    """Return type and depth of a column of numbers, or of lists of them; None of others."""
    depth = 0
    while pa.types.is_list(kind):
        kind, depth = kind.value_type, depth + 1
    return (_KINDS[kind], depth) if kind in _KINDS else None


def _as_stored(value: Any, kind: tuple[np.dtype[Any], int] | None) -> np.ndarray | None:
    """Return numbers as a column holds them; None where it does not hold just these."""
    if kind is None or not isinstance(value, np.ndarray | int | float):
        return None
    wanted, depth = kind
    array = np.atleast_1d(value) if depth else np.asarray(value)
    if array.dtype.kind not in "if" or array.ndim != depth or not array.size:
        return None
    if array.dtype == wanted:
        return array
    fitting = array.astype(wanted)
    return fitting if np.array_equal(fitting, array) else None


def _ends_of_columns(data: bytes, schema: pa.Schema) -> dict[str, int]:
    """Return where the only page of each column ends; nothing where columns have several parts."""
    metadata = pq.read_metadata(pa.BufferReader(data))
    if metadata.num_columns != len(schema) or metadata.num_row_groups != 1:
        return {}
    columns = [metadata.row_group(0).column(number) for number in range(len(schema))]
    return {
        name: column.data_page_offset + column.total_compressed_size
        for name, column in zip(schema.names, columns, strict=True)
        if not column.has_dictionary_page
    }
