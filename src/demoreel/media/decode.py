"""Decoding spans of packets into frames, without a demuxer.

A ``Decoder`` belongs to one thread. It keeps a few codec contexts open, keyed by the codec's own
header, so that a batch over many files of the same camera opens a codec once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import av
import numpy as np

from demoreel.errors import VideoError
from demoreel.media.colour import Painter
from demoreel.media.packets import Codec, PacketIndex
from demoreel.model.limits import limit
from demoreel.storage.seekable import Bytes

_MOST_CODECS = 8
_LEAD_IN = 64  # packets; H.264 keeps 16 frames, and some of its B-frames are not kept


@dataclass(frozen=True, slots=True)
class GopSpan:
    """Frames of one video that are decoded together, from one keyframe on.

    Attributes:
        index: The video's packet index.
        file: Its bytes.
        name: Its path, for errors.
        frames: The wanted frame numbers, ascending.
        start: The keyframe packet where decoding begins; -1 if it is not in the file.
        last: The last packet that must be decoded.
    """

    index: PacketIndex
    file: Bytes
    name: str
    frames: tuple[int, ...]
    start: int = field(init=False)
    last: int = field(init=False)

    def __post_init__(self) -> None:
        packets = self.index.packet_of[list(self.frames)]
        object.__setattr__(self, "start", int(self.index.start_of[packets].min()))
        object.__setattr__(self, "last", int(packets.max()))

    def packets(self, start: int) -> np.ndarray:
        """Return the packets to decode when beginning at ``start``, in decoding order.

        Leading frames of that keyframe are left out unless they are wanted: they lean on the
        GOP before it, so the codec would take them for damaged.
        """
        packets = np.arange(max(start, 0), self.last + 1)
        if self.index.has_leading:
            packets = packets[self.index.start_of[packets] >= start]
        return packets


class Decoder:
    """Turns spans into video frames. For one thread."""

    def __init__(self) -> None:
        self.painter = Painter()
        self._contexts: OrderedDict[Codec, av.VideoCodecContext] = OrderedDict()

    def frames(self, span: GopSpan) -> Iterator[tuple[int, av.VideoFrame]]:
        """Yield (frame number, frame) for every wanted frame, in presentation order.

        Cost: one read of the span's bytes, one decode of each packet in it.

        Raises:
            VideoError: Bytes are missing, or the codec finds them damaged, or a wanted frame
                does not come out. Damage to any packet of the span counts, as others lean on
                it; where B-frames reorder it may be found after frames have been yielded.
        """
        wanted = set(span.frames)
        start = span.start
        try:
            yield from self._wanted(span, start, wanted)
        except _Damaged as damaged:
            # After an H.264 keyframe that is no IDR, packets may tell the codec to forget frames
            # from before it (open GOP), or take some frames to become clean (intra refresh). With
            # a lead-in there are such frames; what the codec says of it does not matter.
            if span.index.codec_at(start).name != "h264" or start <= 0:
                raise _error(span, damaged) from damaged.__cause__
            try:
                earlier = int(span.index.start_of[max(0, start - _LEAD_IN)])
                yield from self._wanted(span, earlier, wanted)
            except _Damaged:
                raise _error(span, damaged) from damaged.__cause__

    def _wanted(
        self, span: GopSpan, start: int, wanted: set[int]
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        """Yield the wanted frames, and take them out of ``wanted``."""
        index = span.index
        packets = _read(span, span.packets(start))
        # Taken out while in use: a second span begun before the first one's end gets its own.
        codec = index.codec_at(start)
        context = self._contexts.pop(codec, None) or _open_codec(codec, span.name)
        last = -1
        try:
            for packet in (*packets, None):
                for frame in _decode(context, packet, span):
                    number = int(index.frame_of[frame.pts])
                    if frame.is_corrupt:
                        raise _Damaged("the codec marks a frame as corrupt", number)
                    if 0 <= number < last:
                        # A muxer that lost the times of B-frames: which is which is unknown.
                        raise _Damaged("the codec shows it after frames that are later", number)
                    last = max(last, number)
                    if number in wanted:
                        wanted.discard(number)
                        yield number, frame
        finally:
            context.flush_buffers()
            self._contexts[codec] = context
            if len(self._contexts) > _MOST_CODECS:
                self._contexts.popitem(last=False)
        if wanted:
            raise _Damaged("the codec gave no frame", min(wanted), code="video-decodes-short")


class _Damaged(Exception):
    """A packet or frame that the codec finds damaged, and the frame that it was to become."""

    def __init__(self, reason: str, frame: int, *, code: str | None = None) -> None:
        super().__init__(reason)
        self.frame = frame
        self.code = code


def _decode(
    context: av.VideoCodecContext, packet: av.Packet[Any] | None, span: GopSpan
) -> list[Any]:
    """Return the span's own frames that a packet brings out; those of a lead-in are dropped."""
    try:
        frames = context.decode(packet)
    except av.error.FFmpegError as error:
        if packet is None:
            raise _Damaged(str(error), span.frames[-1]) from error
        if packet.pts is not None and packet.pts >= span.start:
            raise _Damaged(str(error), int(span.index.frame_of[packet.pts])) from error
        return []
    return [frame for frame in frames if frame.pts is not None and frame.pts >= span.start]


def _read(span: GopSpan, packets: np.ndarray) -> list[av.Packet[Any]]:
    offsets = span.index.offset[packets].tolist()
    sizes = span.index.size[packets].tolist()
    begin = min(offsets)
    end = max(map(sum, zip(offsets, sizes, strict=True)))
    data = span.file.read(begin, end - begin)
    if len(data) < end - begin:
        raise VideoError(
            f"The video is cut off: bytes {begin} to {end} are wanted, "
            f"{len(data)} of them are there.",
            hint="restore the file from a copy",
            file=span.name,
        )
    found = []
    for number, offset, size in zip(packets.tolist(), offsets, sizes, strict=True):
        # Codecs read past a packet's end. A packet made from bytes is only a view of them, with
        # whatever lies behind; one made by size ends in the zeros that codecs rely on.
        packet = av.Packet(size)
        packet.update(data[offset - begin : offset - begin + size])
        # The packet's number travels through the codec as the time stamp, so reordered, dropped
        # and hidden frames cannot be taken for one another.
        packet.pts = number
        packet.dts = None
        found.append(packet)
    return found


def _open_codec(codec: Codec, name: str) -> av.VideoCodecContext:
    codec.require_listed(name)
    try:
        context = av.CodecContext.create(codec.name, "r")
        assert isinstance(context, av.VideoCodecContext)
        if codec.extradata:
            context.extradata = codec.extradata
        context.width, context.height = codec.width, codec.height
        if codec.pix_fmt is not None:
            context.pix_fmt = codec.pix_fmt
        context.color_range, context.colorspace = codec.color_range, codec.colorspace
        # Parallelism comes from decoding several spans at once: inside one short span,
        # codec threads only add delay.
        context.thread_count = 1
        # Broken data must be an error: by default codecs paint over what they cannot read.
        # A stream may say another size than its container, and memory is taken by the stream's.
        context.options = {
            "err_detect": "crccheck+explode",
            "max_pixels": str(limit("IMAGE_PIXELS")),
        }
        if codec.name == "h264":
            # Many encoders do not say how far B-frames reorder. The codec would guess, and lose a
            # frame each time it learns that it guessed wrong; strict, it takes the level's bound.
            context.options["strict"] = "strict"
        context.open()
    except (av.error.FFmpegError, ValueError) as error:
        raise VideoError(
            f"This installation cannot decode {codec.name!r} ({error}).",
            hint="install a PyAV wheel that carries this codec: pip install -U av",
            file=name,
        ) from error
    return context


def _error(span: GopSpan, damaged: _Damaged) -> VideoError:
    return VideoError(
        f"A frame of the video does not decode: {damaged}.",
        hint="restore the file from a copy",
        code=damaged.code,
        file=span.name,
        frame=damaged.frame if damaged.frame >= 0 else None,
    )


def group_frames(index: PacketIndex, frames: np.ndarray) -> list[tuple[int, ...]]:
    """Group distinct, ascending frame numbers by the packet where their decoding begins."""
    starts = index.starts(frames)
    order = np.argsort(starts, kind="stable")
    cuts = np.flatnonzero(np.diff(starts[order])) + 1
    return [tuple(part.tolist()) for part in np.split(frames[order], cuts)]
