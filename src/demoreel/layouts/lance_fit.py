"""Whether an episode fits into Lance tables that are there already, whoever made them.

Columns keep the types and the order that they have. The layouts' other tools store some numbers
narrower than ``info.json`` declares them (int32 for indices, float32 for everything else); values
are stored like that where nothing is lost, and refused where something would be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from demoreel.errors import ArgumentError
from demoreel.layouts.columns import arrow_type
from demoreel.layouts.lance_frames.writer import column_type
from demoreel.layouts.lance_out import BYTES_COLUMN, FEATURE_NOTE
from demoreel.layouts.lance_rows import column_names
from demoreel.model import Feature, Info
from demoreel.storage.arrow import as_numpy

RowsBatch = Callable[[pa.Schema, Mapping[str, Any], Mapping[str, Sequence[bytes]]], pa.RecordBatch]
_PICTURE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_NAMED_BY = ("video_key", "chunk_index", "file_index")


def rows_differences(info: Info, schema: pa.Schema) -> list[str]:
    """Return in words where a table of rows is not such that ``info`` fits into it."""
    names = column_names(info)
    stored = {names[f.key]: f for f in info.features.values() if not f.is_video}
    found = [f"the table of rows lacks {name!r}" for name in stored if name not in schema.names]
    found += [f"info.json does not declare {n!r}" for n in schema.names if n not in stored]
    for field in schema:
        feature = stored.get(field.name)
        if feature is not None and not _holds(field.type, feature):
            found.append(f"{field.name!r} is {field.type} there, {_declared(feature)} in info.json")
    return found


def videos_differences(schema: pa.Schema, known: pa.Schema) -> list[str]:
    """Return in words where a table of videos is not such that a row can be added."""
    found = [
        f"the table of videos lacks {name!r}"
        for name in (*_NAMED_BY, BYTES_COLUMN)
        if name not in schema.names
    ]
    unknown = (n for n in schema.names if n != BYTES_COLUMN and n not in known.names)
    found += [f"the table of videos has a column {name!r}, which is not known" for name in unknown]
    if not found and schema.names[-1] != BYTES_COLUMN:
        found.append(f"{BYTES_COLUMN!r} is not the last column of the table of videos")
    if not found and "blob.v2" not in str(schema.field(BYTES_COLUMN)):
        found.append(f"{BYTES_COLUMN!r} is not a blob of Lance's second kind")
    return found


def _holds(kind: pa.DataType, feature: Feature) -> bool:
    if feature.is_image:
        return bool(pa.types.is_binary(kind) or kind == _PICTURE)
    if not feature.is_numeric:
        return bool(kind in (column_type(feature), arrow_type(feature)))
    size = 1
    while pa.types.is_fixed_size_list(kind):
        size, kind = size * kind.list_size, kind.value_type
    if size != math.prod(feature.item_shape):
        return False
    if pa.types.is_boolean(kind):
        return feature.dtype == "bool"
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return False
    wide = bool(np.can_cast(feature.numpy_dtype, kind.to_pandas_dtype()))
    return wide or feature.numpy_dtype.kind in "iub"  # narrow ones are looked at, value by value


def _declared(feature: Feature) -> str:
    return f"{feature.dtype} of shape {tuple(feature.shape)}"


def keyed(schema: pa.Schema, info: Info) -> pa.Schema:
    """Return a table's schema with each column's feature noted in it."""
    keys = {name: key for key, name in column_names(info).items()}
    return pa.schema(
        [
            field.with_metadata({**(field.metadata or {}), FEATURE_NOTE: keys[field.name]})
            for field in schema
        ]
    )


def fitted_rows(schema: pa.Schema, rows: pa.Table, info: Info, batch: RowsBatch) -> pa.Table:
    """Return an episode's rows in the columns of a table.

    Args:
        schema: From ``keyed``.
        rows: The rows, as ``layouts/writing.py`` makes them.
        info: What the dataset is.
        batch: The layout's own ``rows_batch``.

    Raises:
        ArgumentError: A value would not be the same in the table.
    """
    columns: dict[str, Any] = {}
    pictures = {}
    for field in schema:
        key = field.metadata[FEATURE_NOTE].decode()
        feature, values = info.features[key], rows.column(key).combine_chunks()
        if feature.is_image:
            pictures[key] = values.field("bytes").to_pylist()
        elif feature.is_numeric:
            columns[key] = as_numpy(_flat(values)).reshape(len(rows), -1)
            _refuse_loss(columns[key], field.type, feature)
        else:
            columns[key] = values
    return pa.Table.from_batches([batch(schema, columns, pictures)])


def _refuse_loss(numbers: np.ndarray, kind: pa.DataType, feature: Feature) -> None:
    while pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    narrow = np.dtype(kind.to_pandas_dtype())
    if np.can_cast(feature.numpy_dtype, narrow):
        return
    if not np.array_equal(numbers.astype(narrow).astype(numbers.dtype), numbers):
        raise ArgumentError(
            f"Column {feature.key!r} is stored as {narrow} in this dataset, which does not hold "
            "these values as they are.",
            hint="convert the dataset with demoreel convert: its tables are as wide as declared",
        )


def _flat(array: pa.Array) -> pa.Array:
    while pa.types.is_fixed_size_list(array.type) or pa.types.is_list(array.type):
        array = array.flatten()
    return array


def fitted_videos(schema: pa.Schema, rows: pa.Table) -> pa.Table:
    """Return rows of videos in the columns of a table, all but the bytes."""
    wanted = pa.schema([field for field in schema if field.name != BYTES_COLUMN])
    return rows.select(wanted.names).cast(wanted)
