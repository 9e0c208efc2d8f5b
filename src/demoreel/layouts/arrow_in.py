"""From Arrow columns to numpy: checked against what ``info.json`` declares."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa

from demoreel.errors import TableError
from demoreel.model import Feature
from demoreel.model.numbers import misfit, range_of
from demoreel.storage.arrow import as_numpy, is_number


def numbers(array: pa.Array, feature: Feature, *, where: str) -> np.ndarray:
    """Return a numeric column as an array of rows.

    Values may be stored in another type if the declared one holds each of them: as for lerobot,
    whole numbers may be stored as floats, which pandas makes of a column that once lacked a value.

    Args:
        array: The column.
        feature: What ``info.json`` says of it.
        where: The table, for errors.
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


def texts(array: pa.Array) -> pa.Array:
    """Return a column of texts; some tools store each one as a list of one."""
    array = _storage(array)
    is_list = pa.types.is_list(array.type) or pa.types.is_large_list(array.type)
    return (
        array.flatten()
        if (is_list or pa.types.is_fixed_size_list(array.type))
        and (not array.null_count and _even(array, 1))
        else array
    )


def images(array: pa.Array, *, key: str, where: str) -> pa.Array:
    """Return an image column's encoded bytes, whatever form the writer chose."""
    array = _storage(array)
    if pa.types.is_struct(array.type) and array.type.get_field_index("bytes") >= 0:
        array = array.field(array.type.get_field_index("bytes"))
    if not (pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type)):
        raise TableError(f"Column {key!r} holds {array.type}, not encoded images.", file=where)
    return array
