"""Arrow columns as numpy arrays and back, without pandas.

``Array.to_numpy`` and ``pa.array`` import pandas where it is installed, which takes longer than
opening a dataset.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError)
"""What Arrow raises where a file is damaged: invalid, unknown, too large, badly named."""


def is_number(kind: pa.DataType) -> bool:
    """Whether ``as_numpy`` takes a column of this type."""
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def as_numpy(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Return a column of numbers or booleans without missing values; read-only, mostly no copy."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_boolean(array.type):
        return as_numpy(array.cast(pa.uint8())).view(np.bool_)
    dtype = np.dtype(array.type.to_pandas_dtype())
    data = array.buffers()[1]
    if data is None or len(array) == 0:
        return np.zeros(0, dtype)
    return np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize)


def from_numpy(values: np.ndarray) -> pa.Array:
    """Return numbers or booleans, in one dimension, as a column; mostly no copy."""
    if values.dtype.kind == "b":
        return from_numpy(values.view(np.uint8)).cast(pa.bool_())
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, data])


def from_texts(texts: Sequence[str]) -> pa.Array:
    """Return texts as a column."""
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    data = pa.py_buffer(b"".join(encoded))
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(ends), data)
