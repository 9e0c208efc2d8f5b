"""Columns between numpy and Arrow, in the types that LeRobot writes.

What is read comes from other people's files: it is checked against what ``info.json`` declares.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from demoreel.errors import ArgumentError, PictureError, TableError
from demoreel.model import Feature
from demoreel.model.numbers import cast_numbers, misfit, range_of
from demoreel.storage.arrow import as_numpy, from_numpy, is_number


def parsed_rows(rows: list[dict[str, Any]] | None, *, key: str, where: str) -> list[dict[str, Any]]:
    """Return one frame's language rows; tool calls, stored as JSON text, become objects."""
    found = []
    if not isinstance(rows, list | None) or not all(isinstance(row, dict) for row in rows or []):
        raise TableError(
            f"The column {key!r} does not hold language rows.",
            hint="info.json and the table were not written together",
            file=where,
        )
    for row in rows or []:
        calls = row.get("tool_calls")
        found.append({**row, "tool_calls": calls and [_parsed(c, key, where) for c in calls]})
    return found


def _parsed(call: object, key: str, where: str) -> object:
    if not isinstance(call, (str, bytes)):
        return call
    try:
        return json.loads(call)
    except (ValueError, RecursionError) as error:
        raise TableError(f"A tool call in {key!r} is not JSON ({error}).", file=where) from error


def read_numbers(array: pa.Array, feature: Feature, *, where: str) -> np.ndarray:
    """Return a numeric column as an array of rows.

    Values may be stored in another type if the declared one holds each of them: as for lerobot,
    whole numbers may be stored as floats, which pandas makes of a column that once lacked a value.
    """
    rows = len(array)
    values, shape_known = _flattened(_storage(array))
    wanted = math.prod(feature.item_shape)
    if len(values) != rows * wanted or (shape_known and not _even(array, wanted)):
        per_row = len(values) / rows if rows else 0
        raise TableError(
            f"Column {feature.key!r} holds {per_row:g} numbers a row; "
            f"info.json declares the shape {list(feature.shape)}.",
            hint="the table and info.json were not written together",
            code="feature-shape",
            file=where,
        )
    if values.null_count:
        raise TableError(f"Column {feature.key!r} has missing values.", file=where)
    if not is_number(values.type) or not _kind_fits(as_numpy(values).dtype, feature.numpy_dtype):
        raise TableError(
            f"Column {feature.key!r} holds {values.type}; info.json declares {feature.dtype}.",
            hint="the table and info.json were not written together",
            file=where,
        )
    odd = misfit(as_numpy(values), feature.numpy_dtype)
    if odd is not None:
        raise TableError(
            f"Column {feature.key!r} holds {values[odd].as_py()!r}; info.json declares "
            f"{feature.dtype} ({range_of(feature.numpy_dtype)}).",
            hint="the table and info.json were not written together",
            file=where,
            row=odd // wanted if wanted else odd,
        )
    as_declared = np.asarray(as_numpy(values), dtype=feature.numpy_dtype)
    return as_declared.reshape(rows, *feature.item_shape)


def as_counts(column: pa.ChunkedArray) -> np.ndarray | None:
    """Return a column that says which row is which; None where one is no whole number.

    Some tools store such a column as a list of one, or as floats.
    """
    array = _storage(column.combine_chunks())
    values, is_uneven = _flattened(array)
    if len(values) != len(column) or (is_uneven and not _even(array, 1)):
        return None
    if not is_number(values.type) or values.null_count:
        return None
    found = as_numpy(values)
    if found.dtype.kind in "iu":
        return found
    return None if misfit(found, np.dtype(np.int64)) is not None else found.astype(np.int64)


def _storage(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _flattened(array: pa.Array) -> tuple[pa.Array, bool]:
    """Return the innermost values, and whether rows may be of different lengths."""
    uneven = False
    while pa.types.is_nested(array.type):
        if not pa.types.is_fixed_size_list(array.type):
            uneven = True
        array = _storage(array.flatten())
    return array, uneven


def _even(array: pa.Array, wanted: int) -> bool:
    """Whether every row holds exactly ``wanted`` numbers (totals may agree by chance)."""
    array = _storage(array)
    rows = len(array)
    edges = np.arange(rows + 1)
    while pa.types.is_nested(array.type):
        if pa.types.is_fixed_size_list(array.type):
            edges = edges * array.type.list_size
        else:
            offsets = as_numpy(array.offsets)
            edges = (offsets - offsets[0])[edges]
        array = _storage(array.flatten())
    return bool((np.diff(edges) == wanted).all())


def _kind_fits(given: np.dtype[Any], declared: np.dtype[Any]) -> bool:
    """Whether the declared kind of number may hold such values, as far as each of them fits."""
    return given.kind in "biuf" and declared.kind in "biuf"


def read_texts(array: pa.Array) -> pa.Array:
    """Return a column of texts; some tools store each one as a list of one."""
    array = _storage(array)
    is_list = pa.types.is_list(array.type) or pa.types.is_large_list(array.type)
    return (
        array.flatten()
        if (is_list or pa.types.is_fixed_size_list(array.type))
        and (not array.null_count and _even(array, 1))
        else array
    )


def read_images(array: pa.Array, *, key: str, where: str) -> pa.Array:
    """Return an image column's encoded bytes, whatever form the writer chose."""
    array = _storage(array)
    if pa.types.is_struct(array.type) and array.type.get_field_index("bytes") >= 0:
        array = array.field(array.type.get_field_index("bytes"))
    if not (pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type)):
        raise TableError(f"Column {key!r} holds {array.type}, not encoded images.", file=where)
    return array


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
    """Return how many rows are worked on together: fewer where their numbers are many."""
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
