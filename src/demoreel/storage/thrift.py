"""Reads and writes the part of Thrift's compact protocol that Parquet uses.

A struct is a dict: number of the field -> (type, value). Lists are (type of the items, items). What
is written from what was read has the same bytes, whether this module knows the fields or not.
"""

from __future__ import annotations

from typing import Any

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)

Struct = dict[int, tuple[int, Any]]
"""A struct: (type, value) of each field that is there."""

_MOST_ITEMS = 1 << 24
_DEEPEST = 32


class NotThriftError(ValueError):
    """These bytes are no struct, or it ends before they do."""


class Reading:
    """Reads structs from bytes."""

    def __init__(self, data: bytes | memoryview, at: int = 0) -> None:
        self._data = data
        self.at = at

    def struct(self, depth: int = 0) -> Struct:
        """Return the struct that begins here, and stand behind it."""
        if depth > _DEEPEST:
            raise NotThriftError("structs are nested too deeply")
        found: Struct = {}
        number = 0
        while True:
            head = self._byte()
            if head == 0:
                return found
            step, kind = head >> 4, head & 0x0F
            number = number + step if step else self._signed()
            if number in found or number < 0:
                raise NotThriftError("a field comes twice")
            found[number] = (kind, self._value(kind, depth))

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (TRUE, FALSE):
            return kind == TRUE
        if kind == BYTE:
            return self._byte()
        if kind in (I16, I32, I64):
            return self._signed()
        if kind == DOUBLE:
            return self._bytes(8)
        if kind == BINARY:
            return self._bytes(self._count())
        if kind in (LIST, SET):
            return self._list(depth)
        if kind == STRUCT:
            return self.struct(depth + 1)
        raise NotThriftError(f"there is no type {kind} here")

    def _list(self, depth: int) -> tuple[int, list[Any]]:
        head = self._byte()
        count, kind = head >> 4, head & 0x0F
        if count == 15:
            count = self._count()
        if kind in (TRUE, FALSE):
            return kind, [self._byte() for _ in range(count)]
        return kind, [self._value(kind, depth) for _ in range(count)]

    def _count(self) -> int:
        count = self._unsigned()
        if count > max(_MOST_ITEMS, len(self._data)):
            raise NotThriftError(f"{count} items are too many")
        return count

    def _signed(self) -> int:
        number = self._unsigned()
        return (number >> 1) ^ -(number & 1)

    def _unsigned(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
            if shift > 63:
                raise NotThriftError("a number does not end")

    def _byte(self) -> int:
        if self.at >= len(self._data):
            raise NotThriftError("the bytes end in the middle")
        self.at += 1
        return self._data[self.at - 1]

    def _bytes(self, count: int) -> bytes:
        if self.at + count > len(self._data):
            raise NotThriftError("the bytes end in the middle")
        self.at += count
        return bytes(self._data[self.at - count : self.at])


def to_bytes(struct: Struct) -> bytes:
    """Return a struct as bytes."""
    out = bytearray()
    _put_struct(out, struct)
    return bytes(out)


def _put_struct(out: bytearray, struct: Struct) -> None:
    before = 0
    for number in sorted(struct):
        kind, value = struct[number]
        if kind in (TRUE, FALSE):
            kind = TRUE if value else FALSE
        step = number - before
        if 0 < step < 16:
            out.append(step << 4 | kind)
        else:
            out.append(kind)
            _put_signed(out, number)
        before = number
        if kind not in (TRUE, FALSE):
            _put(out, kind, value)
    out.append(0)


def _put(out: bytearray, kind: int, value: Any) -> None:
    if kind == BYTE:
        out.append(value)
    elif kind in (I16, I32, I64):
        _put_signed(out, value)
    elif kind == DOUBLE:
        out += value
    elif kind == BINARY:
        put_unsigned(out, len(value))
        out += value
    elif kind in (LIST, SET):
        _put_list(out, *value)
    elif kind == STRUCT:
        _put_struct(out, value)
    else:
        raise NotThriftError(f"there is no type {kind}")


def _put_list(out: bytearray, kind: int, items: list[Any]) -> None:
    if len(items) < 15:
        out.append(len(items) << 4 | kind)
    else:
        out.append(0xF0 | kind)
        put_unsigned(out, len(items))
    for item in items:
        _put(out, BYTE if kind in (TRUE, FALSE) else kind, item)


def _put_signed(out: bytearray, number: int) -> None:
    put_unsigned(out, (number << 1) ^ (number >> 63))


def put_unsigned(out: bytearray, number: int) -> None:
    """Append a number, seven bits a byte."""
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
