"""Conditions of ``filter=``: one small language for every layout.

Lance and DuckDB read the same text differently. Lance's parser stops at the end of the first
expression and drops the rest (``a < 5 AN b > 9``), takes ``"name"`` for a text and divides
integers without a remainder; a text in parentheses may close them (``1=1) or (1=1``); they order
NaN and -0.0 differently. So neither sees the user's text: it is parsed here, as a whole, checked
against the columns and their types, and written again with explicit types for the engine that
answers. What is not in the grammar is an error::

    condition  = or
    or         = and {OR and}
    and        = not {AND not}
    not        = NOT not | test
    test       = sum [("=" | "==" | "<>" | "!=" | "<" | "<=" | ">" | ">=") sum
                     | [NOT] IN "(" literal {"," literal} ")" | [NOT] BETWEEN sum AND sum
                     | [NOT] (LIKE | ILIKE) text [ESCAPE text] | IS [NOT] (NULL | TRUE | FALSE)]
    sum        = term {("+" | "-") term}
    term       = factor {("*" | "/" | "%") factor}
    factor     = "-" factor | "+" factor | value
    value      = number | text | TRUE | FALSE | name {"[" integer "]"} | function "(" ... ")"
                 | "(" or ")"
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from demoreel.model import Feature

Kind = Literal["bool", "int", "float", "double", "text", "other"]

NUMBERS = ("int", "float", "double")

_LARGEST_INT = (1 << 63) - 1
_BIGINT = (-_LARGEST_INT, _LARGEST_INT)  # Lance cannot read the smallest number of 64 bits

Dialect = Literal["lance", "duckdb"]
_MOST_NESTED = 12  # Lance's parser gives up at 50, and types add some
_MOST_PARTS = 1000  # of and, or, +, ...: engines walk them by recursion
_COMPARISONS = {"==": "=", "!=": "<>"} | {sign: sign for sign in ("=", "<>", "<", "<=", ">", ">=")}
_UPPER, _LOWER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz"
_TO_LOWER = str.maketrans(_UPPER, _LOWER)
_FUNCTIONS = ("abs", "isnan", "length", "lower", "upper", "starts_with", "ends_with", "contains")
_WORDS = {"and", "or", "not", "in", "between", "like", "ilike", "escape", "is", "null"}
_TOKEN = re.compile(
    r"""\s+ | --[^\n]* | /\*(?:(?!/\*|\*/).)*\*/
    | (?P<number> (?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]) )
    | (?P<text> '(?:[^']|'')*'(?!') )
    | "(?P<double>(?:[^"]|"")+)"(?!") | `(?P<back>[^`]+)`(?!`)
    | (?P<name> [^\W\d]\w*(?:\.\w+)* )
    | (?P<sign> <= | >= | <> | != | == | [-+*/%=<>()\[\],] )""",
    re.VERBOSE | re.DOTALL,
)


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


@dataclass(frozen=True, slots=True)
class ColumnNode:
    """What a condition may say of a feature.

    Attributes:
        name: Its column in the table that is asked.
        feature: What the metadata declare.
        stored: The column's type.
    """

    name: str
    feature: Feature
    stored: pa.DataType


class _Token(NamedTuple):
    kind: Literal["number", "text", "name", "quoted", "sign", "end"]
    text: str
    place: int


def condition_sql(text: str, columns: Mapping[str, ColumnNode], dialect: Dialect) -> str:
    """Return a condition as SQL that means the same in every dialect.

    Args:
        text: What the user wrote.
        columns: The columns by each name that they go by.
        dialect: The engine that will read it.
    """
    return _Parser(text, columns, dialect).condition()


@dataclass
class _Parser:
    text: str
    columns: Mapping[str, ColumnNode]
    dialect: Dialect
    depth: int = 0
    parts: int = 0
    tokens: Iterator[_Token] = field(init=False)
    ahead: _Token = field(init=False)

    def condition(self) -> str:
        self.tokens = _tokens(self.text)
        self.ahead = next(self.tokens)
        found = self._or()
        if self.ahead.kind != "end":
            before = self.text[: self.ahead.place].strip()
            raise NotUnderstood(
                f"it ends with {short(before)!r}, but {short(self.ahead.text)!r} follows"
            )
        return self._boolean(found).sql

    # Reading tokens

    def _take(self) -> _Token:
        token, self.ahead = self.ahead, next(self.tokens, self.ahead)
        return token

    def _sees(self, *words: str) -> bool:
        """Whether one of these words or signs is next."""
        return self.ahead.kind in ("name", "sign") and self.ahead.text.lower() in words

    def _takes(self, *words: str) -> bool:
        if self._sees(*words):
            self._take()
            return True
        return False

    def _expect(self, word: str) -> None:
        if not self._takes(word):
            raise NotUnderstood(f"{word.upper()} was expected {self._here()}")

    def _here(self) -> str:
        if self.ahead.kind == "end":
            return "at its end"
        return f"where {short(self.ahead.text)!r} stands"

    def _count(self) -> None:
        self.parts += 1
        if self.parts > _MOST_PARTS:
            raise NotUnderstood(f"it has more than {_MOST_PARTS:,} parts; IN takes long lists")

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > _MOST_NESTED:
            raise NotUnderstood(f"it is nested more than {_MOST_NESTED} deep")

    # Conditions

    def _or(self) -> Value:
        return self._joined("or", self._and)

    def _and(self) -> Value:
        return self._joined("and", self._not)

    def _joined(self, word: str, part: Callable[[], Value]) -> Value:
        found = [part()]
        while self._takes(word):
            self._count()
            found.append(part())
        if len(found) == 1:
            return found[0]
        return as_condition(f" {word} ".join(self._boolean(each).sql for each in found))

    def _not(self) -> Value:
        if not self._takes("not"):
            return self._test()
        self._deeper()
        found = as_condition(f"not {self._boolean(self._not()).sql}")
        self.depth -= 1
        return found

    def _test(self) -> Value:
        left = self._sum()
        if self.ahead.kind == "sign" and self.ahead.text in _COMPARISONS:
            self._count()
            found = self._compared(left, _COMPARISONS[self._take().text], self._sum())
            if self.ahead.kind == "sign" and self.ahead.text in _COMPARISONS:
                raise NotUnderstood("comparisons are joined with AND: a < b AND b < c")
            return found
        if self._takes("is"):
            return self._is(left)
        negated = self._takes("not")
        if self._takes("in"):
            found = self._in(left)
        elif self._takes("between"):
            low = self._sum()
            self._expect("and")
            high = self._sum()
            both = (self._compared(left, ">=", low).sql, self._compared(left, "<=", high).sql)
            found = as_condition(" and ".join(both))
        elif self._sees("like", "ilike"):
            found = self._like(left, ignoring_case=self._take().text.lower() == "ilike")
        elif negated:
            raise NotUnderstood(f"IN, BETWEEN or LIKE was expected {self._here()}")
        else:
            return left
        self._count()
        return as_condition(f"not {found.sql}") if negated else found

    def _is(self, left: Value) -> Value:
        negation = "not " if self._takes("not") else ""
        if self._takes("null"):
            return as_condition(f"{left.sql} is {negation}null")
        for word in ("true", "false"):
            if self._takes(word):
                return as_condition(f"{self._boolean(left).sql} is {negation}{word}")
        raise NotUnderstood(f"NULL, TRUE or FALSE was expected {self._here()}")

    def _in(self, left: Value) -> Value:
        self._expect("(")
        members = [self._sum()]
        while self._takes(","):
            members.append(self._sum())
        self._expect(")")
        if left.literal is not None or any(member.literal is None for member in members):
            raise NotUnderstood("IN stands between a column and a list of numbers or texts")
        kinds = {family(member) for member in members}
        if kinds != {family(left)}:
            raise NotUnderstood(f"IN compares {family(left)} with {' and '.join(sorted(kinds))}")
        operand, others = self._same_type(left, members)
        return as_condition(f"{operand} in ({', '.join(others)})")

    def _like(self, left: Value, *, ignoring_case: bool) -> Value:
        pattern = self._text("LIKE")
        escape = self._text("ESCAPE") if self._takes("escape") else None
        if left.kind != "text":
            raise NotUnderstood(f"LIKE compares texts, not {family(left)}")
        if escape is not None and len(escape) != 1:
            raise NotUnderstood("ESCAPE takes one character")
        if ignoring_case:
            left, pattern = translated(left, _UPPER, _LOWER), pattern.translate(_TO_LOWER)
            escape = escape.translate(_TO_LOWER) if escape is not None else None
        # Engines differ in what escapes without being told: here it is always told.
        written = quoted_text(with_backslashes(pattern, escape))
        return as_condition(f"{left.sql} like {written} escape '\\'")

    def _text(self, word: str) -> str:
        found = self._take()
        if found.kind != "text":
            raise NotUnderstood(f"{word} is followed by a text in single quotes")
        return found.text

    def _boolean(self, value: Value) -> Value:
        if value.kind != "bool":
            raise NotUnderstood(f"{family(value)} stands where a condition was expected")
        return value

    # Comparing

    def _compared(self, left: Value, sign: str, right: Value) -> Value:
        families = {family(left), family(right)}
        if len(families) > 1 or "other" in (left.kind, right.kind):
            raise NotUnderstood(f"{family(left)} cannot be compared with {family(right)}")
        if left.kind == "bool" and sign not in ("=", "<>"):
            raise NotUnderstood("conditions are equal or not, and not larger or smaller")
        if left.literal is not None and right.literal is None:
            there, (here,) = self._same_type(right, [left])
        else:
            here, (there,) = self._same_type(left, [right])
        return as_condition(f"{here} {sign} {there}")

    def _same_type(self, value: Value, others: Sequence[Value]) -> tuple[str, list[str]]:
        """Return operands of one type: a literal takes the type of what it is compared with."""
        if value.kind in ("bool", "text"):
            return value.sql, [other.sql for other in others]
        kind = common_type(value, others)
        if kind == "int":
            return value.sql, [other.sql for other in others]
        if kind == "bigint":
            return as_bigint(value), [as_bigint(other) for other in others]
        every = [self._ordered(cast(each, kind), kind, each) for each in (value, *others)]
        return every[0], every[1:]

    def _ordered(self, sql: str, kind: Kind, value: Value) -> str:
        """Return a number that is ordered as DuckDB does: -0.0 is 0.0, all NaN the largest."""
        if self.dialect == "duckdb" or value.literal is not None:
            return sql
        return f"nanvl({sql} + cast(0 as {kind}), cast('NaN' as {kind}))"

    # Values

    def _sum(self) -> Value:
        return self._chain(("+", "-"), self._term)

    def _term(self) -> Value:
        return self._chain(("*", "/", "%"), self._factor)

    def _chain(self, signs: tuple[str, ...], part: Callable[[], Value]) -> Value:
        first = part()
        written = ""
        while self._sees(*signs):
            self._count()
            sign = self._take().text
            operand = double(part())
            # By zero: nothing, in both; engines raise, or give infinity.
            zero = "cast(0 as double)"  # added, since -0.0 is another number to Lance
            divisor = f"nullif({operand} + {zero}, {zero})" if sign in "/%" else operand
            written += f" {sign} {divisor}"
        # Numbers of 64 bits: integers would overflow, and divide differently.
        return Value("double", f"({double(first)}{written})") if written else first

    def _factor(self) -> Value:
        if not self._sees("-", "+"):
            return self._value()
        negative = self._take().text == "-"
        self._deeper()
        found = self._factor()
        self.depth -= 1
        if found.kind not in NUMBERS:
            raise NotUnderstood(f"a sign before {family(found)}")
        if not negative:
            return found
        if found.literal is not None:
            assert isinstance(found.literal, int | float)
            return number(-found.literal)
        kind: Kind = "float" if found.kind == "float" else "double"
        return Value(kind, f"(- {cast(found, kind)})")

    def _value(self) -> Value:
        token = self._take()
        if token.kind == "number":
            return number(parsed_number(token.text))
        if token.kind == "text":
            return Value("text", quoted_text(token.text), token.text)
        if token.kind == "sign" and token.text == "(":
            self._deeper()
            found = self._or()
            self._expect(")")
            self.depth -= 1
            return found
        if token.kind == "name" and token.text.lower() in ("true", "false"):
            return Value("bool", token.text.lower(), token.text.lower() == "true")
        if token.kind == "name" and token.text.lower() == "null":
            raise NotUnderstood("nothing equals NULL; IS NULL asks for it")
        if token.kind == "name" and self._sees("(") and self._resolved(token.text) is None:
            return self._call(token.text)
        if token.kind == "quoted" or (token.kind == "name" and token.text.lower() not in _WORDS):
            return self._column(token.text)
        if token.kind == "end":
            raise NotUnderstood("it ends too soon")
        raise NotUnderstood(f"{short(token.text)!r} stands where a value was expected")

    def _call(self, name: str) -> Value:
        function = name.lower()
        if function not in _FUNCTIONS:
            raise NotUnderstood(f"{short(name)}() is none of {', '.join(_FUNCTIONS)}")
        self._expect("(")
        self._deeper()
        self._count()
        given = [self._sum()]
        while self._takes(","):
            given.append(self._sum())
        self._expect(")")
        self.depth -= 1
        numbers = function in ("abs", "isnan")
        wanted = 2 if function in ("starts_with", "ends_with", "contains") else 1
        kinds = NUMBERS if numbers else ("text",)
        fits = all(each.kind in kinds for each in given)
        if len(given) != wanted or not fits:
            what = "a number" if numbers else "a text" if wanted == 1 else "two texts"
            raise NotUnderstood(f"{function}() takes {what}")
        first = given[0]
        if numbers:
            kind: Kind = "float" if first.kind == "float" else "double"
            sql = f"{function}({cast(first, kind)})"
            return Value(kind, sql) if function == "abs" else Value("bool", sql)
        if function in ("lower", "upper"):
            letters = (_UPPER, _LOWER) if function == "lower" else (_LOWER, _UPPER)
            return translated(first, *letters)
        if function == "length":
            return Value("int", f"cast(length({first.sql}) as bigint)")
        return Value("bool", f"{function}({first.sql}, {given[1].sql})")

    def _resolved(self, name: str) -> ColumnNode | None:
        """Return the column that a name means; as in SQL, unless two differ in case alone."""
        if name in self.columns:
            return self.columns[name]
        found = {id(c): c for n, c in self.columns.items() if n.lower() == name.lower()}
        if len(found) > 1:
            raise NotUnderstood(f"{short(name)!r} may be several columns that differ in case")
        return next(iter(found.values()), None)

    def _column(self, name: str) -> Value:
        column = self._resolved(name)
        if column is None:
            raise NotUnderstood(f"there is no column {short(name)!r}")
        feature, kind, sql = column.feature, column.stored, self._named(column.name)
        places: list[int] = []
        while self._takes("["):
            places.append(self._index())
        if not feature.is_numeric:
            if places:
                raise NotUnderstood(f"{short(name)} has no numbered parts")
            if not feature.is_string:
                return Value("other", sql)
            is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
            return Value("text", sql if is_text else f"cast({sql} as varchar)")
        shape = feature.item_shape
        if not places and shape:
            return Value("other", sql)
        if len(places) != len(shape):
            expected = "".join(f"[1 to {size}]" for size in shape) or "without an index"
            raise NotUnderstood(f"{short(name)} is one number {expected}")
        for place in stored_places(name, places, shape, kind):
            sql, kind = f"{sql}[{place}]", kind.value_type
        if is_list(kind):
            raise NotUnderstood(f"{short(name)} is stored in another shape than declared")
        return typed(sql, kind, feature.numpy_dtype)

    def _index(self) -> int:
        sign = -1 if self._takes("-") else 1
        token = self._take()
        if token.kind != "number" or not token.text.isdecimal():
            raise NotUnderstood("an index is an integer, counted from 1")
        self._expect("]")
        return sign * int(token.text[:20])

    def _named(self, name: str) -> str:
        if self.dialect == "duckdb":
            return '"' + name.replace('"', '""') + '"'
        if "`" in name:  # Lance has no way to write it
            raise NotUnderstood(f"a column with a backtick in its name, {short(name)!r}")
        return f"`{name}`"


def _tokens(text: str) -> Iterator[_Token]:
    place = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise NotUnderstood(f"{short(text[place:])!r} cannot be read")
        kind = match.lastgroup
        if kind in ("number", "name", "sign"):
            yield _Token(kind, match[kind], place)  # type: ignore[arg-type]
        elif kind == "text":
            yield _Token("text", match["text"][1:-1].replace("''", "'"), place)
        elif kind == "double":
            yield _Token("quoted", match["double"].replace('""', '"'), place)
        elif kind == "back":
            yield _Token("quoted", match["back"], place)
        place = match.end()
    yield _Token("end", "", place)
