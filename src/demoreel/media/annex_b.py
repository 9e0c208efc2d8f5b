"""Converts packets to the form that GPU decoders take: Annex B for H.264 and HEVC, AV1 with header.

In an mp4, a packet's units have their length before them and the parameter sets are in the codec's
header. Chips take a plain stream: a start code before every unit, parameter sets first.
"""

from __future__ import annotations

from demoreel.errors import VideoError
from demoreel.media.video import Codec

_START = b"\x00\x00\x00\x01"
_FORBIDDEN = (b"\0\0\0", b"\0\0\1", b"\0\0\2")
_LENGTH_SIZE_AT = {"h264": 4, "hevc": 21}  # in the codec's header
_HEVC_ARRAYS_AT = 22
_AV1_HEADER = 4  # bytes of av1C before its OBUs


def stream_header(codec: Codec, name: str) -> bytes:
    """Return what a decoder gets before a keyframe: parameter sets, or AV1's sequence header."""
    header = codec.extradata or b""
    if codec.name == "libdav1d":
        return header[_AV1_HEADER:] if header[:1] == b"\x81" else header
    if not _has_lengths(codec):
        return header  # Annex B already, or a codec without parameter sets
    units = _h264_sets(header) if codec.name == "h264" else _hevc_sets(header)
    if units is None:
        raise VideoError("The codec's header is cut off.", hint="restore the file", file=name)
    return b"".join(_START + unit for unit in units)


def stream_packet(codec: Codec, packet: bytes, name: str) -> bytes:
    """Return a packet with start codes in the place of lengths."""
    if not _has_lengths(codec):
        return packet
    header = codec.extradata or b""
    width = (header[_LENGTH_SIZE_AT[codec.name]] & 3) + 1
    parts = []
    at = 0
    while at < len(packet):
        end = at + width + int.from_bytes(packet[at : at + width], "big")
        if at + width > len(packet) or end > len(packet):
            raise VideoError(
                "A packet of the video is damaged: a unit reaches past its end.",
                hint="restore the file from a copy",
                file=name,
            )
        parts += [_START, packet[at + width : end]]
        at = end
    return b"".join(parts)


def has_forbidden_bytes(codec: Codec, packet: bytes) -> bool:
    """Whether a packet in Annex B holds bytes that no encoder writes, as blocks of zeros.

    H.264 and HEVC escape them. A chip decodes something from them all the same, and says nothing.
    """
    if not _has_lengths(codec):
        return False
    # A unit's own start code is the only place where two zeros may be followed by 0, 1 or 2.
    return any(found in packet.replace(_START, b"\xff") for found in _FORBIDDEN)


def _has_lengths(codec: Codec) -> bool:
    """Whether packets are lengths and units: the header is an avcC or hvcC box's content."""
    at = _LENGTH_SIZE_AT.get(codec.name)
    header = codec.extradata or b""
    return at is not None and len(header) > at and header[0] == 1


def _h264_sets(header: bytes) -> list[bytes] | None:
    units: list[bytes] = []
    at = 5
    for mask in (0x1F, 0xFF):  # sequence sets, then picture sets
        if at >= len(header):
            return units or None  # some writers leave the count of picture sets out
        number = header[at] & mask
        at += 1
        for _ in range(number):
            unit, at = _unit(header, at)
            if unit is None:
                return None
            units.append(unit)
    return units


def _hevc_sets(header: bytes) -> list[bytes] | None:
    units: list[bytes] = []
    at = _HEVC_ARRAYS_AT
    if at >= len(header):
        return None
    arrays = header[at]
    at += 1
    for _ in range(arrays):
        number = int.from_bytes(header[at + 1 : at + 3], "big")
        at += 3
        for _ in range(number):
            unit, at = _unit(header, at)
            if unit is None:
                return None
            units.append(unit)
    return units


def _unit(header: bytes, at: int) -> tuple[bytes | None, int]:
    """Return the unit whose length of two bytes stands here, and where the next one does."""
    end = at + 2 + int.from_bytes(header[at : at + 2], "big")
    return (None, end) if at + 2 > len(header) or end > len(header) else (header[at + 2 : end], end)
