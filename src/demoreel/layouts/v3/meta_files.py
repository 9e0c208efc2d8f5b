"""The files under ``meta/`` of a v3.0 dataset that are parquet: episodes and tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.storage.arrow import from_numpy, from_texts

_EPISODES_FILE = "meta/episodes/chunk-000/file-000.parquet"
_EPISODES_AT_ONCE = 256  # rows held before they are written


class EpisodeFile:
    """``meta/episodes``: one row an episode, a column for everything known of it.

    The first row decides the columns; the others must have the same.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / _EPISODES_FILE
        self._rows: list[dict[str, Any]] = []
        self._writer: pq.ParquetWriter | None = None

    def add(self, row: dict[str, Any]) -> None:
        """Take one episode's row; it is written with others, by the hundreds."""
        self._rows.append({**row, "meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0})
        if len(self._rows) >= _EPISODES_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        if not self._rows:
            return
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            schema = pa.schema([(name, _kind_of(v)) for name, v in self._rows[0].items()])
            self._writer = pq.ParquetWriter(self._path, schema, compression="snappy")
        rows = [{name: _plain(value) for name, value in row.items()} for row in self._rows]
        self._writer.write_table(pa.Table.from_pylist(rows, schema=self._writer.schema))
        self._rows = []

    def close(self) -> None:
        """Write what is left and finish the file."""
        self._flush()
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _kind_of(value: Any) -> pa.DataType:
    """Return the column type for a value: statistics are lists as deep as their shape."""
    if isinstance(value, list):
        return pa.list_(pa.string())
    if isinstance(value, np.ndarray):
        kind = pa.int64() if value.dtype.kind in "iu" else pa.float64()
        for _ in range(max(1, value.ndim)):
            kind = pa.list_(kind)
        return kind
    return pa.int64() if isinstance(value, int) else pa.float64()


def _plain(value: Any) -> Any:
    return np.atleast_1d(value).tolist() if isinstance(value, np.ndarray) else value


def write_tasks(path: Path, tasks: Mapping[str, int]) -> None:
    """Write the tasks so that pandas reads them with the texts as index, as lerobot expects."""
    text = {"pandas_type": "unicode", "numpy_type": "object", "metadata": None}
    number = {"pandas_type": "int64", "numpy_type": "int64", "metadata": None}
    pandas = {
        "index_columns": ["task"],
        "column_indexes": [
            {**text, "name": None, "field_name": None, "metadata": {"encoding": "UTF-8"}}
        ],
        "columns": [
            {"name": "task_index", "field_name": "task_index", **number},
            {"name": "task", "field_name": "task", **text},
        ],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.2.0",
    }
    table = pa.table(
        {
            "task_index": from_numpy(np.array(list(tasks.values()), np.int64)),
            "task": from_texts(list(tasks)),
        }
    ).replace_schema_metadata({"pandas": json.dumps(pandas)})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="snappy")


def episode_row(row: Mapping[str, Any], schema: pa.Schema | None) -> pa.Table:
    """Return a table of one episode, in the columns of those before it.

    Args:
        row: What is known of the episode; statistics are arrays.
        schema: The columns of the files before; what they lack is left out, what the row lacks is
            missing in it. None: the row decides.
    """
    if schema is None:
        schema = pa.schema([(name, _kind_of(value)) for name, value in row.items()])
    columns = [pa.array([_fitting(row.get(f.name), f.type)], f.type) for f in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _fitting(value: Any, kind: pa.DataType) -> Any:
    """Return a value for a column of this type; None where it would lose something."""
    if not isinstance(value, np.ndarray):
        return value
    depth = 0
    while pa.types.is_list(kind):
        kind, depth = kind.value_type, depth + 1
    array = np.atleast_1d(value)
    if array.ndim != depth:
        return None
    if pa.types.is_integer(kind) and array.dtype.kind == "f":
        whole = np.isfinite(array).all() and np.array_equal(array, np.round(array))
        return array.astype(np.int64).tolist() if whole else None
    return array.tolist()
