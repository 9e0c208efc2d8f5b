"""Packets of an episode's frames as a browser decodes them: WebCodecs needs no demuxer.

A message is a sequence of packets in decoding order, each a header of ``HEADER`` and its bytes. The
number of a packet is the video's frame that it becomes, in presentation order: the page gives it to
the decoder as the time stamp, so a frame that comes out is known by its ordinal and never by time.
"""

from __future__ import annotations

import struct

import numpy as np

from demoreel.errors import ArgumentError
from demoreel.media.decode import GopSpan, packet_bytes
from demoreel.media.video import Codec, VideoClip

HEADER = struct.Struct("<Bxxxii")
"""Whether decoding may begin here, the frame's number (-1: never shown), and the bytes."""

MOST_FRAMES = 1000
MOST_BYTES = 256 << 20


def packets_message(clip: VideoClip, first: int, stop: int) -> bytes:
    """Return the packets that frames of an episode need, from the keyframe before them on."""
    if not 0 <= first < stop <= first + MOST_FRAMES:
        raise ArgumentError(f"Frames {first} to {stop} are not sent at once.")
    index = clip.video.index
    frames = tuple(clip.frames(np.arange(first, stop)).tolist())
    span = GopSpan(index, clip.video.file, clip.video.name, frames)
    packets = span.packets(span.start)
    if int(index.size[packets].sum()) > MOST_BYTES:
        raise ArgumentError(f"Frames {first} to {stop} are more than {MOST_BYTES >> 20} MB.")
    parts = []
    for packet, data in zip(packets.tolist(), packet_bytes(span, packets), strict=True):
        is_key = int(index.start_of[packet]) == packet
        parts += [HEADER.pack(is_key, int(index.frame_of[packet]), len(data)), data]
    return b"".join(parts)


def codec_string(codec: Codec, packet: bytes) -> tuple[str, bytes | None] | None:
    """Return what ``VideoDecoder.configure`` is told: the codec, and its header if it takes one.

    Returns:
        None where a browser has no decoder for it.
    """
    header = codec.extradata or b""
    if codec.name == "h264" and len(header) > 6 and header[0] == 1:
        return f"avc1.{header[1:4].hex()}", header
    if codec.name == "hevc" and len(header) > 22 and header[0] == 1:
        return _hevc(header), header
    if codec.name == "libdav1d":
        return _av1(header), None
    if codec.name == "vp9" and packet:
        # The bits of a key frame's first byte: marker, then the profile, the lower bit first.
        profile = (packet[0] >> 5 & 1) | (packet[0] >> 4 & 1) << 1
        return (f"vp09.{profile:02}.41.08", None) if profile < 2 else None
    if codec.name == "vp8":
        return "vp8", None
    return None


def _av1(header: bytes) -> str:
    if len(header) < 4 or header[0] != 0x81:
        return "av01.0.08M.08"
    profile, level = header[1] >> 5, header[1] & 31
    tier = "H" if header[2] & 0x80 else "M"
    depth = 8 if not header[2] & 0x40 else 12 if header[2] & 0x20 else 10
    return f"av01.{profile}.{level:02}{tier}.{depth:02}"


def _hevc(header: bytes) -> str:
    space, tier, profile = header[1] >> 6, header[1] >> 5 & 1, header[1] & 31
    compatible = int(f"{int.from_bytes(header[2:6], 'big'):032b}"[::-1], 2)
    constraints = header[6:12].rstrip(b"\0")
    parts = [
        f"{' ABC'[space].strip()}{profile}",
        f"{compatible:x}",
        f"{'H' if tier else 'L'}{header[12]}",
        *(f"{byte:x}" for byte in constraints),
    ]
    return f"hvc1.{'.'.join(parts)}"
