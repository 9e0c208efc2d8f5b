"""Converts numbers to another type without loss, or raises an error that names the first loss."""

from __future__ import annotations

from typing import Any

import numpy as np

from demoreel.errors import ArgumentError
from demoreel.model.feature import Feature

_AT_ONCE = 1 << 20  # values: columns may be larger than memory


def misfit(values: np.ndarray, dtype: np.dtype[Any]) -> int | None:
    """Return the place of the first value that a type of number does not hold; None if all fit.

    Rounding a float to a shorter one is no misfit; a float that becomes infinite by it is. A whole
    number fits into every float that is large enough. NaN and infinities fit into floats.

    Args:
        values: Booleans, integers or floats; counted as if they were in a row.
        dtype: The type that is to hold them.
    """
    if np.can_cast(values.dtype, dtype):
        return None
    if dtype.kind in "iu" and values.dtype.kind in "iu" and values.size:
        limits = np.iinfo(dtype)
        if limits.min <= int(values.min()) and int(values.max()) <= limits.max:
            return None
    flat = values.reshape(-1)
    for begin in range(0, flat.size, _AT_ONCE):
        part = np.asarray(flat[begin : begin + _AT_ONCE])
        with np.errstate(all="ignore"):  # what does not fit differs afterwards
            cast = part.astype(dtype)
        odd = np.isinf(cast) & np.isfinite(part) if dtype.kind == "f" else _differ(part, cast)
        if odd.any():
            return begin + int(odd.argmax())
    return None


def _differ(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Say which integers (or booleans) are not the numbers they were cast from."""
    if after.dtype.kind == "b":
        return np.asarray((before != 0) & (before != 1))
    limits = np.iinfo(after.dtype)
    if before.dtype.kind != "f":
        low, high = np.iinfo(before.dtype).min, np.iinfo(before.dtype).max
        below = before < limits.min if limits.min > low else np.zeros(before.shape, bool)
        above = before > limits.max if limits.max < high else np.zeros(before.shape, bool)
        return np.asarray(below | above)
    # One past the largest is a power of two, which a float holds exactly; the largest may not be.
    inside = (before >= float(limits.min)) & (before < float(limits.max) + 1.0)
    return np.asarray(~inside | (before != np.floor(before)))


def cast_numbers(
    values: np.ndarray,
    feature: Feature,
    *,
    rows: bool,
    whole_floats: bool = False,
    **where: object,
) -> np.ndarray:
    """Return values in a feature's dtype, each as it was; floats may be rounded to shorter ones.

    Args and raises as for ``check_numbers``.
    """
    check_numbers(values, feature, rows=rows, whole_floats=whole_floats, **where)
    return values.astype(feature.numpy_dtype, copy=False)


def check_numbers(
    values: np.ndarray,
    feature: Feature,
    *,
    rows: bool,
    whole_floats: bool = False,
    **where: object,
) -> None:
    """Refuse values that a feature's dtype does not hold.

    Args:
        values: The values.
        feature: What they are declared as.
        rows: Whether the first axis counts frames, so that an error can name one.
        whole_floats: Take whole numbers that come as floats for integers and booleans, too.
        **where: Where they come from, for errors.
    """
    wanted, kind = feature.numpy_dtype, values.dtype.kind
    if kind not in "biuf" or not (_kind_fits(kind, wanted.kind) or whole_floats):
        raise ArgumentError(
            f"Feature {feature.key!r} holds {values.dtype}; {feature.dtype} was declared, and "
            "would not hold it.",
            hint="declare a dtype of that kind, or give values of the declared one",
            **where,
        )
    place = misfit(values, wanted)
    if place is not None:
        if rows and len(values):
            where = {**where, "frame": place // (values.size // len(values))}
        raise ArgumentError(
            f"Feature {feature.key!r} has the value {values.reshape(-1)[place].item()!r}, which "
            f"{feature.dtype} does not hold ({range_of(wanted)}).",
            hint="declare a wider dtype, or correct the value",
            **where,
        )


def _kind_fits(given: str, wanted: str) -> bool:
    """Whether a kind of number is one of another kind: integers are floats, floats no integers."""
    return given == "b" or wanted == "f" or (wanted in "iu" and given in "iu")


def range_of(dtype: np.dtype[Any]) -> str:
    """Return the smallest and the largest number that a type holds, in words."""
    if dtype.kind == "b":
        return "True or False"
    if dtype.kind == "f":
        limits = np.finfo(dtype)
        return f"{float(limits.min):.4g} to {float(limits.max):.4g}"
    whole = np.iinfo(dtype)
    return f"whole numbers from {whole.min} to {whole.max}"
