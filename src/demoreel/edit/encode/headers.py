"""Codec headers of a file that holds a video's packets and others encoded to stand beside them.

Every keyframe of AV1 and VP9 says all that a decoder must know. H.264 and HEVC keep that in the
file's header, as parameter sets with numbers that slices name. The sets of both encoders can stand
in one header if their numbers differ. x264 can be told which to take; x265 cannot, and its frames
are renumbered (``encode_hevc.py``), unless both encoders have the very same sets.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from demoreel.edit.encode.hevc import Hevc
from demoreel.media.mp4 import Description
from demoreel.media.mp4_boxes import box

_LENGTH_OF_FOUR = 3
_MOST_SETS = 31


@dataclass(frozen=True, slots=True)
class Avc:
    """An H.264 header (``avcC``), taken apart.

    Attributes:
        head: Version, profile, level, size of lengths.
        sequence: Its sequence parameter sets.
        picture: Its picture parameter sets.
        rest: What some profiles have behind them.
    """

    head: bytes
    sequence: tuple[bytes, ...]
    picture: tuple[bytes, ...]
    rest: bytes

    @classmethod
    def read(cls, content: bytes) -> Avc:
        """Take a header apart.

        Raises:
            ValueError: It is cut off.
        """
        if len(content) < 7:
            raise ValueError("an H.264 header of no length")
        sequence, at = _sets(content, 6, content[5] & 0x1F)
        picture, at = _sets(content, at + 1, content[at])
        return cls(content[:5], sequence, picture, content[at:])

    def to_bytes(self) -> bytes:
        """Return it as it lies in a file."""
        first = bytes([0xE0 | len(self.sequence)]) + _with_lengths(self.sequence)
        second = bytes([len(self.picture)]) + _with_lengths(self.picture)
        return self.head + first + second + self.rest

    @property
    def lengths_have_four_bytes(self) -> bool:
        """Whether units are preceded by four bytes of length, as FFmpeg writes them."""
        return self.head[4] & 3 == _LENGTH_OF_FOUR

    def free_number(self) -> int | None:
        """Return a number that no parameter set has; None if all are taken."""
        taken = {_number(unit[4:]) for unit in self.sequence}
        taken |= {_number(unit[1:]) for unit in self.picture}
        return next((n for n in range(1, _MOST_SETS + 1) if n not in taken), None)

    def joined(self, other: Avc) -> Avc:
        """Return a header with both headers' sets."""
        sequence = dict.fromkeys((*self.sequence, *other.sequence))
        picture = dict.fromkeys((*self.picture, *other.picture))
        level = max(self.head[3], other.head[3])
        head = self.head[:3] + bytes([level]) + self.head[4:]
        return replace(self, head=head, sequence=tuple(sequence), picture=tuple(picture))


def joined_header(
    description: Description,
    encoded: Description,
    encoded_sets: Sequence[tuple[int, bytes]] = (),
) -> Description:
    """Return the description of a file that holds packets of both.

    Args:
        description: The file's, so far.
        encoded: Of what was encoded.
        encoded_sets: In HEVC, its parameter sets, renumbered.

    Raises:
        ValueError: A header is cut off.
    """
    if description.kind in (b"avc1", b"avc3"):
        own = Avc.read(dict(description.boxes())[b"avcC"])
        joined = own.joined(Avc.read(dict(encoded.boxes())[b"avcC"]))
        return _with_box(description, b"avcC", joined.to_bytes())
    if description.kind in (b"hvc1", b"hev1"):
        own_header = hevc_header(description)
        return _with_box(description, b"hvcC", own_header.with_sets(encoded_sets).to_bytes())
    return description


def hevc_header(description: Description) -> Hevc:
    """Return a description's HEVC header.

    Raises:
        ValueError: It is cut off.
    """
    return Hevc.read(dict(description.boxes())[b"hvcC"])


def _with_box(description: Description, kind: bytes, content: bytes) -> Description:
    boxes = (box(k, content if k == kind else own) for k, own in description.boxes())
    return replace(description, entry=description.head + b"".join(boxes))


def _sets(content: bytes, at: int, count: int) -> tuple[tuple[bytes, ...], int]:
    found = []
    for _ in range(count):
        (length,) = struct.unpack_from(">H", content, at)
        found.append(content[at + 2 : at + 2 + length])
        at += 2 + length
    if at > len(content):
        raise ValueError("an H.264 header that is cut off")
    return tuple(found), at


def _with_lengths(units: tuple[bytes, ...]) -> bytes:
    return b"".join(struct.pack(">H", len(unit)) + unit for unit in units)


def _number(data: bytes) -> int:
    """Read the number at the beginning of a parameter set (Exp-Golomb)."""
    bits = _bits(data)
    zeros = 0
    while next(bits) == 0:
        zeros += 1
    value = 1
    for _ in range(zeros):
        value = value << 1 | next(bits)
    return value - 1


def _bits(data: bytes) -> Iterator[int]:
    for byte in data:
        yield from (byte >> shift & 1 for shift in range(7, -1, -1))
