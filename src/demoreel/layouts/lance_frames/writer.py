"""Rows of the lance-frames layout: numbers, text, and each camera's picture, encoded.

Types and shapes are those that ``info.json`` declares, except for the default columns, which have
the types that the layout's other tools give them. Arrays of more than one dimension are fixed-size
lists of fixed-size lists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from demoreel.errors import ArgumentError
from demoreel.layouts import arrow_in
from demoreel.layouts.columns import arrow_type, to_arrow
from demoreel.layouts.lance_rows import column_names
from demoreel.media.picture_encode import PictureCodec
from demoreel.model import Feature, Info

CODEC_NOTE = b"demoreel.pictures"
"""Where a table's schema notes how its pictures were encoded."""

_DEFAULTS: Mapping[str, pa.DataType] = {
    "episode_index": pa.int32(),
    "frame_index": pa.int32(),
    "index": pa.int64(),
    "timestamp": pa.float32(),
    "task_index": pa.int32(),
}
_KEY = b"demoreel.feature"
# Lance would run every large value through zstd, which encoded pictures do not get smaller from.
_AS_IT_IS = {b"lance-encoding:compression": b"none"}


def frames_schema(info: Info, codec: PictureCodec) -> pa.Schema:
    """Return the schema of a dataset's table: default columns, other columns, cameras.

    Raises:
        MetadataError: Two features would share a column.
        ArgumentError: A feature has a shape or dtype that no table can hold.
    """
    names = column_names(info)
    features = info.features.values()
    fields = [pa.field(name, kind, metadata={_KEY: name}) for name, kind in _DEFAULTS.items()]
    tabular = [f for f in features if not f.is_camera and f.key not in _DEFAULTS]
    fields += [pa.field(names[f.key], column_type(f), metadata={_KEY: f.key}) for f in tabular]
    fields += [
        pa.field(names[key], pa.binary(), metadata={_KEY: key.encode(), **_AS_IT_IS})
        for key in info.cameras
    ]
    return pa.schema(fields, metadata={CODEC_NOTE: str(codec)})


def column_type(feature: Feature) -> pa.DataType:
    """Return the Lance type of a column that is no camera."""
    kind = arrow_type(feature)
    if feature.is_language:
        return _without_extensions(kind)
    if feature.is_string:
        return kind
    kind = pa.from_numpy_dtype(feature.numpy_dtype)
    for size in reversed(feature.item_shape):
        kind = pa.list_(kind, size)
    return kind


def frames_batch(
    schema: pa.Schema,
    columns: pa.Table | Mapping[str, Any],
    pictures: Mapping[str, Sequence[bytes]],
) -> pa.RecordBatch:
    """Put rows together.

    Cost: one copy of the encoded pictures.

    Args:
        schema: From ``frames_schema``.
        columns: Every column by its feature's key: arrays, lists (text, language) or Arrow, as
            ``Reader.rows`` or a table of the source gives them. Others are left out.
        pictures: Encoded pictures by camera.

    Raises:
        ArgumentError: A column or camera is missing, or has too few or too many rows, or values
            that the schema cannot hold.
    """
    held = _by_key(columns)
    arrays = []
    length: int | None = None
    for field in schema:
        key = _key(field)
        source = pictures if pa.types.is_binary(field.type) else held
        if key not in source:
            raise ArgumentError(f"Rows for Lance lack {key!r}.", hint=f"there are: {list(source)}")
        array = _column(source[key], key, field.type)
        if length is not None and len(array) != length:
            raise ArgumentError(f"{key!r} has {len(array)} rows, where others have {length}.")
        length = len(array)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _by_key(columns: pa.Table | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(columns, pa.Table):
        return {name: columns.column(name) for name in columns.column_names}
    return columns


def _key(field: pa.Field) -> str:
    # A schema that came back from Lance has lost nothing, one that was made by hand has no key.
    key: bytes = (field.metadata or {}).get(_KEY, field.name.encode())
    return key.decode()


def _column(values: Any, key: str, kind: pa.DataType) -> pa.Array:
    try:
        if pa.types.is_binary(kind):
            return pa.array(values, kind)
        if pa.types.is_string(kind):
            return pa.array(list(values), kind) if not _is_arrow(values) else _plain(values, kind)
        if pa.types.is_list(kind):
            return _language(values, key, kind)
        return _numbers(values, key, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError) as error:
        raise ArgumentError(f"Column {key!r} does not fit into {kind} ({error}).") from error


def _language(values: Any, key: str, kind: pa.DataType) -> pa.Array:
    if _is_arrow(values):
        return _plain(values, kind)
    feature = Feature(key, "language", (1,))
    return to_arrow(values, feature, length=len(values)).cast(kind)


def _numbers(values: Any, key: str, kind: pa.DataType) -> pa.Array:
    shape, leaf = _shape(kind)
    if _is_arrow(values):
        feature = Feature(key, str(np.dtype(leaf.to_pandas_dtype())), shape or (1,))
        values = arrow_in.numbers(_combined(values), feature, where="the rows to write")
    array = np.asarray(values)
    fits = np.can_cast(array.dtype, leaf.to_pandas_dtype(), casting="same_kind")
    if len(array) * math.prod(shape) != array.size or not fits:
        raise ArgumentError(
            f"Column {key!r} has rows of shape {array.shape[1:]} ({array.dtype}); {shape} of "
            f"{leaf} was declared."
        )
    found = pa.array(np.ascontiguousarray(array).reshape(-1)).cast(leaf)
    for size in reversed(shape):
        found = pa.FixedSizeListArray.from_arrays(found, size)
    return found


def _shape(kind: pa.DataType) -> tuple[tuple[int, ...], pa.DataType]:
    sizes = []
    while pa.types.is_fixed_size_list(kind):
        sizes.append(kind.list_size)
        kind = kind.value_type
    return tuple(sizes), kind


def _is_arrow(values: Any) -> bool:
    return isinstance(values, (pa.Array, pa.ChunkedArray))


def _combined(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _plain(values: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    array = _combined(values)
    return array if array.type == kind else array.cast(kind)


def _without_extensions(kind: pa.DataType) -> pa.DataType:
    """Return a type with what it stores in place of its extension types: Lance has none inside."""
    if isinstance(kind, pa.BaseExtensionType):
        return _without_extensions(kind.storage_type)
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _without_extensions(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_without_extensions(kind.value_type))
    return kind
