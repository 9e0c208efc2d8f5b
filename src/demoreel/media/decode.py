"""Decoding stretches of packets into pictures, without a demuxer.

A ``Decoder`` belongs to one thread. It keeps a few codec contexts open, keyed by the codec's own
header, so that a batch over many files of the same camera opens a codec once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import av
import numpy as np

from demoreel.errors import VideoError
from demoreel.media.colour import Painter
from demoreel.media.mp4 import Bytes
from demoreel.media.packets import Codec, PacketIndex

_MOST_CODECS = 8


@dataclass(frozen=True, slots=True)
class Stretch:
    """Frames of one video that are decoded together, from one keyframe on.

    Attributes:
        index: The video's packet index.
        file: Its bytes.
        name: Its path, for errors.
        frames: The wanted frame numbers, ascending.
    """

    index: PacketIndex
    file: Bytes
    name: str
    frames: tuple[int, ...]

    @property
    def packets(self) -> tuple[int, int]:
        """First and last packet that must be decoded."""
        frames = list(self.frames)
        first = int(self.index.first_packet[frames].min())
        return first, int(self.index.packet_of[frames].max())


class Decoder:
    """Turns stretches into video frames. For one thread."""

    def __init__(self) -> None:
        self.painter = Painter()
        self._contexts: OrderedDict[Codec, av.VideoCodecContext] = OrderedDict()

    def frames(self, stretch: Stretch) -> Iterator[tuple[int, av.VideoFrame]]:
        """Yield (frame number, frame) for every wanted frame, in presentation order.

        Cost: one read of the stretch's bytes, one decode of each packet in it.

        Raises:
            VideoError: Bytes are missing, or the codec finds them damaged, or a wanted frame
                does not come out.
        """
        wanted = set(stretch.frames)
        context = self._context(stretch.index.codec, stretch.name)
        try:
            for frame in self._decoded(context, stretch):
                number = frame.pts
                if number in wanted:
                    if frame.is_corrupt:
                        raise _damaged(stretch, number, "the codec marks the picture as corrupt")
                    wanted.discard(number)
                    yield number, frame
                    if not wanted:
                        break
        except av.error.FFmpegError as error:
            raise _damaged(stretch, min(wanted), str(error)) from error
        finally:
            context.flush_buffers()
        if wanted:
            raise _damaged(stretch, min(wanted), "the codec gave no picture")

    def _decoded(self, context: av.VideoCodecContext, stretch: Stretch) -> Iterator[av.VideoFrame]:
        index = stretch.index
        first, last = stretch.packets
        offsets = index.offset[first : last + 1].tolist()
        sizes = index.size[first : last + 1].tolist()
        begin = min(offsets)
        end = max(offset + size for offset, size in zip(offsets, sizes, strict=True))
        data = stretch.file.read(begin, end - begin)
        if len(data) < end - begin:
            raise VideoError(
                f"The video is cut off: bytes {begin} to {end} are wanted, "
                f"{len(data)} of them are there.",
                hint="restore the file from a copy",
                file=stretch.name,
            )
        numbers = index.frame_of[first : last + 1].tolist()
        for number, offset, size in zip(numbers, offsets, sizes, strict=True):
            packet = av.Packet(data[offset - begin : offset - begin + size])
            # The frame number travels through the codec as the time stamp, so reordering,
            # dropped and hidden pictures cannot be taken for one another.
            packet.pts = number
            packet.dts = None
            yield from context.decode(packet)
        yield from context.decode(None)

    def _context(self, codec: Codec, name: str) -> av.VideoCodecContext:
        context = self._contexts.get(codec)
        if context is not None:
            self._contexts.move_to_end(codec)
            return context
        context = _open_codec(codec, name)
        self._contexts[codec] = context
        if len(self._contexts) > _MOST_CODECS:
            self._contexts.popitem(last=False)
        return context


def _open_codec(codec: Codec, name: str) -> av.VideoCodecContext:
    try:
        context = av.CodecContext.create(codec.name, "r")
        if codec.extradata:
            context.extradata = codec.extradata
        # Parallelism comes from decoding several stretches at once: inside one short stretch,
        # codec threads only add delay.
        context.thread_count = 1
        # Broken data must be an error: by default codecs paint over what they cannot read.
        context.options = {"err_detect": "explode"}
        context.open()
    except (av.error.FFmpegError, ValueError) as error:
        raise VideoError(
            f"This installation cannot decode {codec.name!r} ({error}).",
            hint="install a PyAV wheel that carries this codec: pip install -U av",
            file=name,
        ) from error
    assert isinstance(context, av.VideoCodecContext)
    return context


def _damaged(stretch: Stretch, frame: int, reason: str) -> VideoError:
    first, last = stretch.packets
    begin, end = stretch.index.offset[first], stretch.index.offset[last] + stretch.index.size[last]
    return VideoError(
        f"A frame of the video does not decode: {reason}.",
        hint="restore the file from a copy",
        file=stretch.name,
        frame=frame,
        bytes=f"{begin} to {end}",
    )


def group_frames(index: PacketIndex, frames: np.ndarray) -> list[tuple[int, ...]]:
    """Group distinct, ascending frame numbers by the packet where their decoding begins."""
    starts = index.first_packet[frames]
    order = np.argsort(starts, kind="stable")
    cuts = np.flatnonzero(np.diff(starts[order])) + 1
    return [tuple(part.tolist()) for part in np.split(frames[order], cuts)]
