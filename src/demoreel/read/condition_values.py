"""Values of a condition, as SQL of explicit types: the same in Lance and in DuckDB.

See ``conditions.py``, which reads what a user wrote.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

Kind = Literal["bool", "int", "float", "double", "text", "other"]

NUMBERS = ("int", "float", "double")

_LARGEST_INT = (1 << 63) - 1
_BIGINT = (-_LARGEST_INT, _LARGEST_INT)  # Lance cannot read the smallest number of 64 bits


class NotUnderstood(ValueError):
    """Why a text is not a condition over these columns, without a full stop."""


@dataclass(frozen=True, slots=True)
class Value:
    """A part of a condition, as SQL.

    Attributes:
        kind: Its type; ``other`` can only be null or not.
        sql: An operand: a name, a literal, a call, or something in parentheses.
        literal: The value that stands there itself.
        bits: Of an integer column, its type's smallest and largest value.
    """

    kind: Kind
    sql: str
    literal: bool | int | float | str | None = None
    bits: tuple[int, int] = _BIGINT


def as_condition(sql: str) -> Value:
    """Return a condition, as an operand."""
    return Value("bool", f"({sql})")


def number(value: int | float) -> Value:
    """Return a number that stands in the text."""
    if isinstance(value, int):
        return Value("int", str(value), value)
    return Value("double", _as_float(value, "double"), value)


def parsed_number(text: str) -> int | float:
    """Return the number that a text spells."""
    if text.isdecimal() and len(text) < 400:
        whole = int(text)
        return whole if whole <= _LARGEST_INT else parsed_number(f"{text}.")
    value = float(text)
    if math.isinf(value):
        raise NotUnderstood(f"{short(text)} is larger than any number")
    return value


def _as_float(value: float, kind: Kind) -> str:
    # 17 digits give back the very number, and an exponent keeps DuckDB from making a decimal of it.
    exact = float(np.float32(value)) if kind == "float" else float(value)
    return f"cast({exact + 0.0:.16e} as {kind})"


def cast(value: Value, kind: Kind) -> str:
    """Return a number as one of floating point."""
    if value.literal is not None:
        assert isinstance(value.literal, int | float)
        return _as_float(value.literal, kind)
    return value.sql if value.kind == kind else f"cast({value.sql} as {kind})"


def as_bigint(value: Value) -> str:
    """Return an integer with 64 bits."""
    return value.sql if value.bits == _BIGINT else f"cast({value.sql} as bigint)"


def double(value: Value) -> str:
    """Return a number to calculate with."""
    if value.kind not in NUMBERS:
        raise NotUnderstood(f"{family(value)} cannot be calculated with")
    return cast(value, "double")


def common_type(value: Value, others: Sequence[Value]) -> Kind | Literal["bigint"]:
    """Return the type in which numbers are compared."""
    literals = [other.literal for other in others if other.literal is not None]
    if value.literal is not None:
        return "double"  # among literals
    if not literals:
        kinds = {value.kind, *(other.kind for other in others)}
        if kinds == {"int"}:
            return "bigint"
        return kinds.pop() if len(kinds) == 1 else "double"
    if value.kind == "int":
        low, high = value.bits
        fit = all(isinstance(each, int) and low <= each <= high for each in literals)
        return "int" if fit else "double"
    if value.kind == "float" and all(abs(float(each)) < 3.4e38 for each in literals):
        return "float"
    return "double"


def family(value: Value) -> str:
    """Return what a value is, for an error."""
    if value.kind in NUMBERS:
        return "a number"
    return {"bool": "a condition", "text": "a text"}.get(value.kind, "an array or a camera")


def translated(value: Value, letters: str, to: str) -> Value:
    """Return a text with other letters."""
    # ASCII only: engines differ in what the capital of another letter is.
    return Value("text", f"translate({value.sql}, '{letters}', '{to}')")


def quoted_text(text: str) -> str:
    """Return a text as SQL has it."""
    if "\0" in text:
        raise NotUnderstood("a text with a NUL in it")
    return "'" + text.replace("'", "''") + "'"


def with_backslashes(pattern: str, escape: str | None) -> str:
    """Return a pattern of LIKE in which a backslash escapes."""
    written, characters = "", iter(pattern)
    for character in characters:
        if escape is not None and character == escape:
            character = next(characters, "")
            if character not in ("%", "_", escape):
                raise NotUnderstood("ESCAPE stands before %, _ and itself")
            written += f"\\{character}" if character in "%_\\" else character
        else:
            written += "\\\\" if character == "\\" else character
    return written


def is_list(kind: pa.DataType) -> bool:
    """Whether a column holds several values a row."""
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def stored_places(
    name: str, places: Sequence[int], shape: tuple[int, ...], kind: pa.DataType
) -> list[int]:
    """Return the indices into what is stored; some layouts store matrices in one row."""
    found = []
    for place, size in zip(places, shape, strict=True):
        if not 0 < abs(place) <= size:
            raise NotUnderstood(f"{short(name)} has the shape {list(shape)}, counted from 1")
        found.append(place if place > 0 else size + 1 + place)
    depth = 0
    while is_list(kind):
        kind, depth = kind.value_type, depth + 1
    if not shape:
        return [1] * depth  # older tools store numbers as lists of one
    if depth == 1:
        return [int(np.ravel_multi_index([place - 1 for place in found], shape)) + 1]
    if depth != len(shape):
        raise NotUnderstood(f"{short(name)} is stored in another shape than declared")
    return found


def typed(sql: str, stored: pa.DataType, declared: np.dtype[np.generic]) -> Value:
    """Return a number or condition as its feature declares it."""
    if declared.kind == "b":
        is_stored = pa.types.is_boolean(stored)
        return Value("bool", sql if is_stored else f"cast({sql} as boolean)")
    if declared.kind == "f":
        kind: Kind = "float" if declared.itemsize <= 4 else "double"
        same = pa.types.is_float32(stored) if kind == "float" else pa.types.is_float64(stored)
        return Value(kind, sql if same else f"cast({sql} as {kind})")
    if declared == np.uint64:
        return Value("double", f"cast({sql} as double)")
    if pa.types.is_integer(stored) and stored != pa.uint64():
        limits = np.iinfo(stored.to_pandas_dtype())
        bits = (int(limits.min), int(limits.max)) if stored != pa.int64() else _BIGINT
        return Value("int", sql, bits=bits)
    return Value("int", f"cast({sql} as bigint)")


def short(text: str) -> str:
    """Return the beginning of a text, for an error."""
    return text if len(text) <= 60 else f"{text[:57]}..."
