"""From columns in memory to Arrow, in the types that LeRobot writes.

The way back, with its checks of other people's files, is ``arrow_in.py``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from demoreel.errors import ArgumentError, PictureError
from demoreel.model import Feature
from demoreel.model.numbers import cast_numbers
from demoreel.storage.arrow import from_numpy

_MOST_DIMENSIONS = 5  # the datasets library, which lerobot reads tables with, has Array2D..Array5D
_LANGUAGE_FIELDS = ("role", "content", "style", "timestamp", "camera", "tool_calls")
_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_BYTES_AT_ONCE = 1 << 27  # of numbers that are worked on together
_IMAGE_BYTES_AT_ONCE = 1 << 25

FEW_BYTES = 1 << 23
"""Bytes of encoded images that are compared together, or that a thread works on."""

_JPEG_START = b"\xff\xd8"


def table_schema(features: Iterable[Feature]) -> pa.Schema:
    """Return the schema of a table of these features; videos have no column."""
    stored = [feature for feature in features if not feature.is_video]
    described = {feature.key: _huggingface_feature(feature) for feature in stored}
    metadata = {"huggingface": json.dumps({"info": {"features": described}})}
    return pa.schema([(f.key, arrow_type(f)) for f in stored], metadata=metadata)


def arrow_type(feature: Feature) -> pa.DataType:
    """Return the type of a feature's column."""
    if feature.is_language:
        return _language_type(feature, pa.json_())
    if feature.is_image:
        return _IMAGE
    if feature.is_string:
        return pa.string()
    _refuse_many_dimensions(feature)
    kind = pa.from_numpy_dtype(feature.numpy_dtype)
    if len(feature.item_shape) == 1:
        return pa.list_(kind, feature.shape[0])
    for _ in feature.item_shape:
        kind = pa.list_(kind)
    return kind


def rows_at_once(features: Iterable[Feature], most: int) -> int:
    """Return how many rows are worked on together: fewer where their numbers are many.

    Args:
        features: The dataset's features.
        most: As many at most.
    """
    numbers = (f for f in features if f.is_numeric)
    width = sum(math.prod(f.shape) * f.numpy_dtype.itemsize for f in numbers)
    return max(1, min(most, _BYTES_AT_ONCE // max(1, width)))


def image_steps(
    encoded: Callable[[np.ndarray, str], Sequence[bytes | None]],
    rows: np.ndarray,
    keys: Sequence[str],
    most: int,
    *,
    most_bytes: int = _IMAGE_BYTES_AT_ONCE,
) -> list[tuple[int, int]]:
    """Return pieces of rows, from one to another, whose images are in memory together.

    The first row's tell how large they are.

    Args:
        encoded: Reads the images of rows of a camera.
        rows: The rows.
        keys: The cameras.
        most: At most so many rows in a piece.
        most_bytes: And so many bytes, or one row.
    """
    size = sum(len(encoded(rows[:1], key)[0] or b"") for key in keys) if len(rows) else 0
    step = max(1, min(most, most_bytes // max(1, size)))
    return [(at, min(at + step, len(rows))) for at in range(0, len(rows), step)]


def to_arrow(values: np.ndarray | Sequence[Any], feature: Feature, *, length: int) -> pa.Array:
    """Turn one episode's values into a column.

    Args:
        values: Numbers as an array of ``length`` rows; texts, encoded images (bytes) or lists of
            language rows (dicts) as a sequence.
        feature: What ``info.json`` will say of the column.
        length: Rows that are expected.
    """
    if len(values) != length:
        raise ArgumentError(
            f"Column {feature.key!r} has {len(values)} rows; the episode has {length} frames."
        )
    missing = sum(value is None for value in values) if feature.is_image else 0
    if missing:
        raise PictureError(
            f"{missing} of {length} images of {feature.key!r} are missing from their table.",
            hint="demoreel check names the table; leave its episodes out, or restore it",
        )
    try:
        if feature.is_language:
            return _language(values, feature)
        if feature.is_image:
            return _images(values)
        if feature.is_string:
            return pa.array(list(values), pa.string())
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError, AttributeError) as error:
        raise ArgumentError(
            f"Column {feature.key!r} is declared as {feature.dtype}, which these values are not "
            f"({error})."
        ) from error
    return _numbers(np.asarray(values), feature)


def _numbers(values: np.ndarray, feature: Feature) -> pa.Array:
    wanted = (len(values), *feature.item_shape)
    # A column of single numbers may come as (n,) or as (n, 1).
    if values.shape != wanted and values.shape != (len(values), *feature.shape):
        raise ArgumentError(
            f"Column {feature.key!r} has frames of shape {values.shape[1:]}; "
            f"{feature.shape} was declared."
        )
    fitting = cast_numbers(values, feature, rows=True)
    array = from_numpy(np.ascontiguousarray(fitting).reshape(-1))
    if len(feature.item_shape) == 1:
        return pa.FixedSizeListArray.from_arrays(array, feature.shape[0])
    for size in reversed(feature.item_shape):
        offsets = from_numpy(np.arange(0, len(array) + 1, size, dtype=np.int32))
        array = pa.ListArray.from_arrays(offsets, array)
    return array


def _images(values: Sequence[Any] | np.ndarray) -> pa.Array:
    encoded = pa.array(list(values), pa.binary())
    names = [
        f"frame-{number:06d}{'.jpg' if bytes(value[:2]) == _JPEG_START else '.png'}"
        for number, value in enumerate(values)
    ]
    return pa.StructArray.from_arrays([encoded, pa.array(names)], fields=list(_IMAGE))


def _language(values: Sequence[Any] | np.ndarray, feature: Feature) -> pa.Array:
    rows = [[_language_row(row, feature) for row in frame] for frame in values]
    # Arrow cannot build JSON inside lists from Python, but it can relabel text as JSON.
    return pa.array(rows, _language_type(feature, pa.string())).cast(arrow_type(feature))


def _language_row(row: Mapping[str, Any], feature: Feature) -> dict[str, Any]:
    unknown = set(row) - set(_language_fields(feature))
    if unknown or not isinstance(row.get("role"), str):
        raise TypeError(f"a row needs a role and has no {sorted(unknown)}: {dict(row)}")
    calls = row.get("tool_calls")
    return {**row, "tool_calls": None if calls is None else [_as_json(call) for call in calls]}


def _as_json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _language_fields(feature: Feature) -> list[str]:
    # An event happens at its row's own time.
    without = "timestamp" if feature.key == "language_events" else None
    return [name for name in _LANGUAGE_FIELDS if name != without]


def _language_type(feature: Feature, calls: pa.DataType) -> pa.DataType:
    kinds = {"timestamp": pa.float32(), "tool_calls": pa.list_(calls)}
    fields = [(name, kinds.get(name, pa.string())) for name in _language_fields(feature)]
    return pa.list_(pa.struct(fields))


def _huggingface_feature(feature: Feature) -> dict[str, Any]:
    """Describe a column the way the datasets library does in a parquet file's metadata."""
    if feature.is_image:
        return {"_type": "Image"}
    if feature.is_language:
        kinds: dict[str, Any] = {
            name: {"dtype": "string", "_type": "Value"} for name in _language_fields(feature)
        }
        kinds["tool_calls"] = {"feature": {"_type": "Json"}, "_type": "List"}
        if "timestamp" in kinds:
            kinds["timestamp"] = {"dtype": "float32", "_type": "Value"}
        return {"feature": kinds, "_type": "List"}
    value = {"dtype": feature.dtype, "_type": "Value"}
    if feature.is_string or not feature.item_shape:
        return value
    if len(feature.shape) == 1:
        return {"feature": value, "length": feature.shape[0], "_type": "List"}
    kind = f"Array{len(feature.shape)}D"
    return {"shape": list(feature.shape), "dtype": feature.dtype, "_type": kind}


def _refuse_many_dimensions(feature: Feature) -> None:
    if len(feature.shape) > _MOST_DIMENSIONS:
        raise ArgumentError(
            f"Feature {feature.key!r} has {len(feature.shape)} dimensions; a table holds "
            f"{_MOST_DIMENSIONS} at most.",
            hint="flatten some of them",
        )
