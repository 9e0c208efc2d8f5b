"""The packet index: for every frame of a video, which bytes make it.

With it a random frame is three steps: read the bytes from a keyframe on, feed them to a codec,
take the frame. No demuxer, no seek, no float seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from demoreel.errors import VideoError

_BY_NAME = "libdav1d h264 hevc vp8 vp9 mpeg4 mpeg2video mjpeg png ffv1"
DECODERS = tuple(_BY_NAME.split())
"""The decoders that a file may ask for: those that recognise their own bytes.

FFmpeg has others that make an image of any bytes (``rawvideo``) or draw text (``ansi``): with one
of them, a packet index that points at a foreign file would show what it says.
"""


@dataclass(frozen=True, slots=True)
class Codec:
    """What a decoder must be told before the first packet.

    Attributes:
        name: FFmpeg's name of a software decoder, one of ``DECODERS``.
        extradata: The codec's own header, if it has one.
        width: Coded width in pixels.
        height: Coded height in pixels.
        color_range: The container's word on it, as FFmpeg numbers it; 0 is unknown. The codec's
            own word, if it has one, comes first.
        colorspace: Likewise, the matrix from YUV to RGB; 2 is unknown.
        pix_fmt: The pixel format, of frames that are not compressed: nothing else says it.
    """

    name: str
    extradata: bytes | None
    width: int
    height: int
    color_range: int = 0
    colorspace: int = 2
    pix_fmt: str | None = None

    def require_listed(self, file: str) -> None:
        """Raise VideoError unless the decoder is one of ``DECODERS``."""
        # No file can name a pixel format: raw frames are those that a recorder left.
        is_raw = self.name == "rawvideo" and self.pix_fmt is not None
        if self.name not in DECODERS and not is_raw:
            raise VideoError(
                f"A video of codec {self.name[:40]!r} is not decoded.",
                hint=f"codecs that are: {', '.join(DECODERS)}",
                file=file,
            )


@dataclass(frozen=True)
class PacketIndex:
    """Where each packet of a video lies, and which frame it becomes.

    Packets are numbered in decoding order, frames in presentation order: frame ``k`` is the
    ``k``-th frame that a player would show, whatever the packets' order.

    Attributes:
        codec: How to decode.
        offset: Byte position of each packet.
        size: Bytes of each packet.
        frame_of: Frame that each packet becomes; -1 for packets that are decoded, never shown.
        start_of: For each packet, the keyframe packet where decoding must begin to get it right; -1
            where that lies before the video's first packet.
        packet_of: Packet of each frame.
        seconds: Presentation time of each frame on the file's own clock.
        raw: How to decode the last packets, where they are frames that were never compressed (an
            episode that waits for its encoder); each of them is a keyframe.
        raw_from: The first of those packets.
        nbytes: Memory that the index takes.
        has_leading: Whether any keyframe is followed by frames that lean on the GOP before it.
    """

    codec: Codec
    offset: np.ndarray
    size: np.ndarray
    frame_of: np.ndarray
    start_of: np.ndarray
    packet_of: np.ndarray
    seconds: np.ndarray
    raw: Codec | None = None
    raw_from: int = 0
    nbytes: int = field(init=False, default=0)
    has_leading: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        per_packet = (self.offset, self.size, self.frame_of, self.start_of)
        per_frame = (self.packet_of, self.seconds)
        total = sum(array.nbytes for array in (*per_packet, *per_frame))
        object.__setattr__(self, "nbytes", total + 512)
        object.__setattr__(self, "has_leading", bool((np.diff(self.start_of) < 0).any()))

    @property
    def frames(self) -> int:
        """Frames that the video shows."""
        return len(self.packet_of)

    def codec_at(self, packet: int) -> Codec:
        """Return how to decode what begins with this packet."""
        return self.raw if self.raw is not None and packet >= self.raw_from else self.codec

    def starts(self, frames: np.ndarray | list[int]) -> np.ndarray:
        """Return, for each of these frames, where its decoding begins (see ``start_of``)."""
        return np.asarray(self.start_of[self.packet_of[frames]])

    @cached_property
    def lies_in_order(self) -> bool:
        """Whether packets lie in the file in the order in which they are decoded."""
        return bool((np.diff(self.offset) > 0).all())

    @cached_property
    def _keyframes(self) -> np.ndarray:
        return np.flatnonzero(self.start_of == np.arange(len(self.start_of)))

    def ends_of_groups(self, packets: np.ndarray) -> np.ndarray:
        """Return where the bytes end of the GOP that each packet is in.

        Only for packets that lie in order.
        """
        following = np.searchsorted(self._keyframes, packets, side="right")
        last = np.append(self._keyframes, len(self.offset))[following] - 1
        return np.asarray(self.offset[last] + self.size[last])

    @property
    def end(self) -> int:
        """One past the last byte of any packet."""
        return int((self.offset + self.size).max(initial=0))


def index_packets(
    *,
    codec: Codec,
    offset: np.ndarray,
    size: np.ndarray,
    pts: np.ndarray,
    keyframe: np.ndarray,
    shown: np.ndarray,
    seconds_per_tick: float,
    origin: int = 0,
    raw: Codec | None = None,
    raw_from: int = 0,
) -> PacketIndex:
    """Derive presentation order and decoding starts from a packet table in decoding order.

    Args:
        codec: How to decode.
        offset: Byte positions.
        size: Byte counts.
        pts: Presentation ticks.
        keyframe: Whether decoding may begin at a packet.
        shown: Whether a packet's frame is presented (edit lists hide some).
        seconds_per_tick: Length of a tick.
        origin: The tick that is second 0.
        raw: See ``PacketIndex``.
        raw_from: See ``PacketIndex``.
    """
    shown_packets = np.flatnonzero(shown)
    order = np.argsort(pts[shown_packets], kind="stable")
    packet_of = shown_packets[order].astype(np.int32)
    frame_of = np.full(len(offset), -1, dtype=np.int32)
    frame_of[packet_of] = np.arange(len(packet_of), dtype=np.int32)
    return PacketIndex(
        codec=codec,
        offset=offset.astype(np.int64),
        size=size.astype(np.int64),
        frame_of=frame_of,
        start_of=_decoding_starts(pts, keyframe),
        packet_of=packet_of,
        seconds=(pts[packet_of] - origin) * seconds_per_tick,
        raw=raw,
        raw_from=raw_from,
    )


def _decoding_starts(pts: np.ndarray, keyframe: np.ndarray) -> np.ndarray:
    """Return, for each packet, the keyframe packet from which it can be decoded.

    A packet that follows a keyframe but is shown before it (a leading frame of an open GOP)
    may refer to the GOP before, so decoding must begin one keyframe earlier. Leading frames of
    the first keyframe (of a video that was cut there) have no GOP before: -1.
    """
    count = len(pts)
    numbers = np.arange(count)
    last_key = np.maximum.accumulate(np.where(keyframe, numbers, 0))
    before = np.concatenate([[-1], last_key[:-1]]) if count else last_key
    key_before_key = before[last_key]  # the keyframe before each packet's own keyframe
    leading = pts < pts[last_key]
    return np.asarray(np.where(leading, key_before_key, last_key), dtype=np.int32)
