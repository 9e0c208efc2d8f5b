"""Giving HEVC frames parameter sets of other numbers, to lie beside another encoder's frames.

x265 numbers its parameter sets 0, as others do. Here sets and slices get a number that is free. In
a set that is a few bits; in a slice the number stands in a header of some bits that ends on a whole
byte, and what follows it stays as it is. Only pictures that lean on no other, in one slice without
the filters that add to its header, are renumbered: x265 is told to make such (``PLAIN``). A header
that does not end where it should is an error, never a picture.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from demoreel.errors import VideoError

PLAIN = "keyint=1:sao=0:wpp=0:slices=1"
"""What x265 must be told."""

_VPS, _SPS, _PPS = 32, 33, 34
_SETS = (_VPS, _SPS, _PPS)
_IDR = (19, 20)
_SLICES = range(32)
_ARRAYS = 22  # where the parameter sets begin in hvcC
_MOST_SETS = 15
_HEADER_BYTES = 64  # of a slice; more than any such header has
_PROFILE_BITS = 4 + 3 + 1 + 96  # of a sequence parameter set, before its number


class _Strange(Exception):
    """Something that ``PLAIN`` does not make."""


@dataclass(frozen=True, slots=True)
class Hevc:
    """An HEVC header (``hvcC``): its beginning, and its units by kind."""

    head: bytes
    units: tuple[tuple[int, bytes], ...]

    @classmethod
    def read(cls, content: bytes) -> Hevc:
        """Take a header apart.

        Raises:
            ValueError: It is cut off.
        """
        if len(content) <= _ARRAYS:
            raise ValueError("an HEVC header that is cut off")
        found = []
        at = _ARRAYS + 1
        for _ in range(content[_ARRAYS]):
            kind, count = content[at] & 0x3F, struct.unpack_from(">H", content, at + 1)[0]
            at += 3
            for _ in range(count):
                (length,) = struct.unpack_from(">H", content, at)
                found.append((kind, content[at + 2 : at + 2 + length]))
                at += 2 + length
        if at > len(content):
            raise ValueError("an HEVC header that is cut off")
        return cls(content[:_ARRAYS], tuple(found))

    def to_bytes(self) -> bytes:
        """Return it as it lies in a file."""
        kinds = list(dict.fromkeys(kind for kind, _ in self.units))
        parts = [self.head, bytes([len(kinds)])]
        for kind in kinds:
            own = [unit for other, unit in self.units if other == kind]
            parts.append(bytes([kind | 0x80 * (kind in _SETS)]) + struct.pack(">H", len(own)))
            parts += [struct.pack(">H", len(unit)) + unit for unit in own]
        return b"".join(parts)

    @property
    def sets(self) -> tuple[tuple[int, bytes], ...]:
        """Its parameter sets."""
        return tuple((kind, unit) for kind, unit in self.units if kind in _SETS)

    @property
    def lengths_have_four_bytes(self) -> bool:
        """Whether units are preceded by four bytes of length, as FFmpeg writes them."""
        return self.head[21] & 3 == 3

    def free_number(self) -> int | None:
        """Return a number that no parameter set has; None if all are taken."""
        taken = {_number_of(kind, unit) for kind, unit in self.sets}
        return next((n for n in range(1, _MOST_SETS + 1) if n not in taken), None)

    def with_sets(self, units: Sequence[tuple[int, bytes]]) -> Hevc:
        """Return a header that has these sets too."""
        return Hevc(self.head, tuple(dict.fromkeys((*self.units, *units))))


class Renumbering:
    """Gives the sets and slices of one encoding another number.

    Args:
        header: The encoding's own header.
        number: The number that all its sets get.

    Attributes:
        sets: Its parameter sets, renumbered.

    Raises:
        VideoError: They are not what ``PLAIN`` makes.
    """

    def __init__(self, header: Hevc, number: int) -> None:
        self._number = number
        try:
            pictures = [unit for kind, unit in header.sets if kind == _PPS]
            if len(pictures) != 1 or len(header.sets) != len(_SETS):
                raise _Strange("several parameter sets of a kind")
            self._picture = _Picture.read(_Bits(_bare(pictures[0])[2:]))
            self.sets = tuple((kind, self._set(kind, unit)) for kind, unit in header.sets)
        except (_Strange, IndexError) as strange:
            raise _refused(strange) from strange

    def _set(self, kind: int, unit: bytes) -> bytes:
        name, bits = unit[:2], _Bits(_bare(unit)[2:])
        text = bits.text[: bits.text.rindex("1")]  # what follows is the end's mark
        if kind == _VPS:
            made = f"{self._number:04b}" + text[4:]
        elif kind == _SPS:
            if text[4:7] != "000":
                raise _Strange("layers")
            start, stop = _PROFILE_BITS, _PROFILE_BITS + _length(text, _PROFILE_BITS)
            made = f"{self._number:04b}" + text[4:start] + _golomb(self._number) + text[stop:]
        else:
            first = _length(text, 0)
            second = _length(text, first)
            made = _golomb(self._number) * 2 + text[first + second :]
        return name + _escaped(_whole_bytes(made + "1"))

    def packet(self, data: bytes) -> bytes:
        """Return a packet with its slice renumbered; sets inside it are left out.

        Raises:
            VideoError: It is not what ``PLAIN`` makes.
        """
        parts = []
        try:
            for unit in _units(data):
                kind = unit[0] >> 1 & 0x3F
                if kind in _SETS:
                    continue
                made = self._slice(unit, kind) if kind in _SLICES else unit
                parts.append(struct.pack(">I", len(made)) + made)
        except (_Strange, IndexError) as strange:
            raise _refused(strange) from strange
        return b"".join(parts)

    def _slice(self, unit: bytes, kind: int) -> bytes:
        if kind not in _IDR:
            raise _Strange("pictures that lean on others")
        data = _bare(unit)
        bits = _Bits(data[2 : 2 + _HEADER_BYTES])
        if not bits.take():
            raise _Strange("several slices in a picture")
        bits.take()  # whether pictures from before are still to be shown
        front = bits.text[: bits.at]
        bits.golomb()
        begin = bits.at
        self._picture.pass_rest_of_slice_header(bits)
        rest, end = bits.text[begin : bits.at], bits.at
        padded = -(-(end + 1) // 8) * 8
        if bits.text[end:padded] != "1" + "0" * (padded - end - 1):
            raise _Strange("a slice whose header ends elsewhere")
        made = _whole_bytes(front + _golomb(self._number) + rest + "1")
        return unit[:2] + _escaped(made + data[2 + padded // 8 :])


@dataclass(frozen=True, slots=True)
class _Picture:
    """What a picture parameter set says of slices' headers."""

    output_flag: bool
    extra_bits: int
    chroma_offsets: bool
    deblocking_override: bool
    across_slices: bool

    @classmethod
    def read(cls, bits: _Bits) -> _Picture:
        bits.golomb()
        bits.golomb()
        if bits.take():
            raise _Strange("dependent slices")
        output_flag, extra = bits.take(), bits.take(3)
        bits.take(2)
        for _ in range(3):  # reference counts, quality
            bits.golomb()
        bits.take(2)
        if bits.take():
            bits.golomb()
        bits.golomb()
        bits.golomb()
        chroma_offsets = bits.take()
        bits.take(3)
        if bits.take() or bits.take():
            raise _Strange("tiles or wavefronts")
        across = bits.take()
        override = disabled = 0
        if bits.take():
            override, disabled = bits.take(), bits.take()
        return cls(
            bool(output_flag),
            extra,
            bool(chroma_offsets),
            bool(override),
            bool(across and not disabled),
        )

    def pass_rest_of_slice_header(self, bits: _Bits) -> None:
        bits.take(self.extra_bits)
        if bits.golomb() != 2:
            raise _Strange("pictures that lean on others")
        if self.output_flag:
            bits.take()
        bits.golomb()
        if self.chroma_offsets:
            bits.golomb()
            bits.golomb()
        if self.deblocking_override and bits.take():
            raise _Strange("filters set by slice")
        if self.across_slices:
            bits.take()


class _Bits:
    """Bits, read from the front."""

    def __init__(self, data: bytes) -> None:
        self.text = "".join(f"{byte:08b}" for byte in data)
        self.at = 0

    def take(self, count: int = 1) -> int:
        self.at += count
        if self.at > len(self.text):
            raise _Strange("bits that are cut off")
        return int(self.text[self.at - count : self.at] or "0", 2)

    def golomb(self) -> int:
        length = _length(self.text, self.at)
        return self.take(length) - 1


def _length(text: str, at: int) -> int:
    """Return how many bits an Exp-Golomb number takes."""
    one = text.find("1", at)
    if one < 0:
        raise _Strange("bits that are cut off")
    return 2 * (one - at) + 1


def _golomb(number: int) -> str:
    bits = f"{number + 1:b}"
    return "0" * (len(bits) - 1) + bits


def _number_of(kind: int, unit: bytes) -> int:
    bits = _Bits(_bare(unit)[2:])
    if kind == _VPS:
        return bits.take(4)
    if kind == _SPS:
        bits.take(_PROFILE_BITS)
    return bits.golomb()


def _whole_bytes(text: str) -> bytes:
    text += "0" * (-len(text) % 8)
    return int(text, 2).to_bytes(len(text) // 8, "big")


def _bare(unit: bytes) -> bytes:
    """Return a unit without the bytes that keep it from looking like a beginning of one."""
    return unit.replace(b"\0\0\3", b"\0\0")


def _escaped(data: bytes) -> bytes:
    return re.sub(rb"\x00\x00(?=[\x00-\x03])", b"\0\0\3", data)


def _units(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + 4 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        yield data[at + 4 : at + 4 + length]
        at += 4 + length


def _refused(strange: Exception) -> VideoError:
    return VideoError(
        f"HEVC frames cannot be encoded to stand beside another encoder's here ({strange}).",
        hint="begin and end clips with groups of pictures, or encode the camera anew (vcodec)",
    )
