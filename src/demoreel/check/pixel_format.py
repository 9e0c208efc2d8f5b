"""A video's pixel format as far as its codec's header tells, without decoding."""

from __future__ import annotations

import re
from dataclasses import dataclass

from demoreel.media.packets import Codec

_CHROMA = ("grey", "4:2:0", "4:2:2", "4:4:4")
_DECLARED = re.compile(r"(?:yuvj?(420|422|444)p|(gray))(9|10|12|14|16)?(?:le|be)?")
_SUBSAMPLING = {"420": 1, "422": 2, "444": 3}
_NV12 = {"nv12": (1, 8), "nv21": (1, 8), "p010le": (1, 10), "gbrp": (3, 8)}
_PLAIN_H264 = (66, 77, 88)  # baseline, main and extended: 8 bits of 4:2:0


@dataclass(frozen=True, slots=True)
class PixelFormat:
    """How colours are sampled, and how many bits they have."""

    chroma: int
    bits: int

    def __str__(self) -> str:
        return f"{_CHROMA[self.chroma]} of {self.bits} bits"


def declared_format(name: str) -> PixelFormat | None:
    """Return what a pixel format's name says; None for names that are not known here."""
    if name in _NV12:
        return PixelFormat(*_NV12[name])
    match = _DECLARED.fullmatch(name)
    if match is None:
        return None
    chroma = 0 if match[2] else _SUBSAMPLING[match[1]]
    return PixelFormat(chroma, int(match[3] or 8))


def stored_format(codec: Codec) -> PixelFormat | None:
    """Return what a codec's header says; None where it does not."""
    header = codec.extradata or b""
    try:
        if codec.name == "libdav1d":
            return _av1(header)
        if codec.name == "hevc" and header[0] == 1:
            return PixelFormat(header[16] & 3, (header[17] & 7) + 8)
        if codec.name == "h264" and header[0] == 1:
            return _h264(header)
    except IndexError:
        pass
    return None


def _av1(header: bytes) -> PixelFormat:
    flags = header[2]
    bits = (12 if flags & 0x20 else 10) if flags & 0x40 else 8
    if flags & 0x10:
        return PixelFormat(0, bits)
    across, down = flags & 0x08, flags & 0x04
    return PixelFormat(1 if down else 2 if across else 3, bits)


def _h264(header: bytes) -> PixelFormat | None:
    """Baseline to main are 8 bits of 4:2:0; higher profiles say so behind their parameter sets."""
    if header[1] in _PLAIN_H264:
        return PixelFormat(1, 8)
    at = 6
    for _ in range(header[5] & 31):
        at += 2 + int.from_bytes(header[at : at + 2], "big")
    count, at = header[at], at + 1
    for _ in range(count):
        at += 2 + int.from_bytes(header[at : at + 2], "big")
    return PixelFormat(header[at] & 3, (header[at + 1] & 7) + 8)
