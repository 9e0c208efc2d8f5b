"""Decodes GOP spans into frames, without a demuxer, on several threads.

A ``GopSpan`` names the frames that are decoded together. Where a read waits (a blob in a table, an
object store), ``begin_loading`` begins to read all spans of a video in one call. A ``Decoder``
belongs to one thread. It keeps a few codec contexts open, keyed by the codec's own header, so that
a batch over many files of the same camera opens a codec once. A ``DecodePool`` has one for each of
its threads: codecs and swscale release the GIL, so threads scale.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from demoreel.errors import VideoError
from demoreel.media.colour import Painter
from demoreel.media.video import Codec, PacketIndex, Video
from demoreel.model.limits import limit
from demoreel.packages import load_late
from demoreel.storage.store import Bytes, StoredFile
from demoreel.storage.threads import Threads, interrupted

if TYPE_CHECKING:
    import av
else:
    av = load_late("av")

_MOST_CODECS = 8
_LEAD_IN = 64  # packets; H.264 keeps 16 frames, and some of its B-frames are not kept
_SMALL_GROUP = 1 << 17  # bytes that may be read beyond what is wanted
_MOST_BETWEEN = 1 << 20  # bytes between packets that are read with them, if the packets have fewer

_LENGTH_SIZE_AT = {"h264": 4, "hevc": 21}  # in the codec's header
_H264_SLICES, _H264_IDR = range(1, 6), (5,)
_HEVC_SLICES, _HEVC_IDR = range(32), (19, 20)
_HEAD = 1 << 16


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
        """Return the packets to decode when beginning at ``start``, in decoding order."""
        return self.index.decoded_from(start, self.last + 1)


class Decoder:
    """Turns spans into video frames. For one thread."""

    def __init__(self) -> None:
        self.painter = Painter()
        self._contexts: OrderedDict[Codec, av.VideoCodecContext] = OrderedDict()

    def frames(self, span: GopSpan) -> Iterator[tuple[int, av.VideoFrame]]:
        """Yield (frame number, frame) for every wanted frame, in presentation order.

        Cost: one read of the span's bytes, one decode of each packet in it.
        """
        wanted = set(span.frames)
        start = span.start
        try:
            yield from self._wanted(span, start, wanted)
        except _Damaged as damaged:
            # After an H.264 keyframe that is no IDR, packets may tell the codec to forget frames
            # from before it (open GOP), or take some frames to become clean (intra refresh). With
            # a lead-in there are such frames; errors of the codec in it are ignored.
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
    """Return the span's own frames that a packet yields; those of a lead-in are dropped."""
    try:
        frames = context.decode(packet)
    except av.error.FFmpegError as error:
        if packet is None:
            raise _Damaged(str(error), span.frames[-1]) from error
        if packet.pts is not None and packet.pts >= span.start:
            raise _Damaged(str(error), int(span.index.frame_of[packet.pts])) from error
        return []
    return [frame for frame in frames if frame.pts is not None and frame.pts >= span.start]


def packet_bytes(span: GopSpan | Video, packets: np.ndarray) -> list[bytes]:
    """Return the bytes of packets: out of one read, unless much else is between them."""
    offsets = span.index.offset[packets].tolist()
    sizes = span.index.size[packets].tolist()
    begin = min(offsets)
    end = max(map(sum, zip(offsets, sizes, strict=True)))
    if end - begin > 2 * sum(sizes) + _MOST_BETWEEN:
        return [b"".join(packet_bytes(span, packets[at : at + 1])) for at in range(len(packets))]
    data = span.file.read(begin, end - begin)
    if len(data) < end - begin:
        raise VideoError(
            f"The video is cut off: bytes {begin} to {end} are wanted, "
            f"{len(data)} of them are there.",
            hint="restore the file from a copy",
            file=span.name,
        )
    return [
        data[offset - begin : offset - begin + size]
        for offset, size in zip(offsets, sizes, strict=True)
    ]


def _read(span: GopSpan, packets: np.ndarray) -> list[av.Packet[Any]]:
    found = []
    for number, data in zip(packets.tolist(), packet_bytes(span, packets), strict=True):
        # Codecs read past a packet's end. A packet made from bytes is only a view of them, with
        # whatever is behind; one made by size ends in the zeros that codecs rely on.
        packet = av.Packet(len(data))
        packet.update(data)
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
    if len(frames) == 1:
        return [(int(frames[0]),)]
    starts = index.starts(frames)
    order = np.argsort(starts, kind="stable")
    cuts = np.flatnonzero(np.diff(starts[order])) + 1
    return [tuple(part.tolist()) for part in np.split(frames[order], cuts)]


class Arriving:
    """A part of a video's bytes that is being fetched; ``read`` waits for it.

    Attributes:
        size: Bytes of the video.
    """

    __slots__ = ("_begin", "_behind", "_future", "_length", "_mark", "size")

    def __init__(self, begin: int, length: int, future: Future[bytes], behind: Bytes) -> None:
        self._begin = begin
        self._length = length
        self._future = future
        self._mark = interrupted.mark()
        self._behind = behind
        self.size = behind.size

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes there, by their position in the video."""
        start = offset - self._begin
        if start >= 0 and start + length <= self._length:
            data = interrupted.wait_for(self._future, self._mark)
            return data[start : start + length]
        return self._behind.read(offset, length)


def byte_ranges(gop_spans: Sequence[GopSpan]) -> list[tuple[int, int]]:
    """Return (offset, length) of the bytes that hold each GOP span's packets; all of one video.

    Leading frames that are not decoded are in between, and are read with the others.
    """
    index = gop_spans[0].index
    frames = np.concatenate([gop_span.frames for gop_span in gop_spans])
    edges = np.cumsum([0, *(len(gop_span.frames) for gop_span in gop_spans[:-1])])
    first = np.maximum(np.minimum.reduceat(index.starts(frames), edges), 0)
    last = np.maximum.reduceat(index.packet_of[frames], edges)
    ends = index.offset + index.size
    if index.lies_in_order:
        begin, end = index.offset[first], ends[last]
    else:  # packets that are not in the order in which they are decoded
        spans = [slice(a, b + 1) for a, b in zip(first.tolist(), last.tolist(), strict=True)]
        begin = np.array([index.offset[span].min() for span in spans])
        end = np.array([ends[span].max() for span in spans])
    return list(zip(begin.tolist(), (end - begin).tolist(), strict=True))


def begin_loading(file: StoredFile, gop_spans: Sequence[GopSpan]) -> list[GopSpan]:
    """Start to fetch GOP spans of a remote video; decoding a span waits for its bytes only.

    Complete GOPs are fetched, so that the cache serves all of their frames, unless a GOP is much
    larger than the wanted part of it.
    """
    ranges = _whole_groups(gop_spans, _ranges_inside(gop_spans))
    return [
        replace(gop_span, file=Arriving(begin, length, future, file))
        for gop_span, (begin, length), future in zip(
            gop_spans, ranges, file.read_ranges(ranges), strict=True
        )
    ]


def _whole_groups(
    gop_spans: Sequence[GopSpan], ranges: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    index = gop_spans[0].index
    if not index.lies_in_order:
        return list(ranges)
    last = np.array([gop_span.last for gop_span in gop_spans])
    end = index.ends_of_groups(last)
    found = []
    for (begin, length), stop in zip(ranges, end.tolist(), strict=True):
        more = stop - (begin + length)
        found.append((begin, length + more if 0 < more <= max(length, _SMALL_GROUP) else length))
    return found


def _ranges_inside(gop_spans: Sequence[GopSpan]) -> list[tuple[int, int]]:
    ranges = byte_ranges(gop_spans)
    size = gop_spans[0].file.size
    if max(begin + length for begin, length in ranges) > size:
        raise VideoError(
            f"The video is cut off: it has {size} bytes, and more are wanted.",
            hint="restore the file from a copy",
            file=gop_spans[0].name,
        )
    return ranges


Job = Callable[[Decoder], None]


class DecodePool:
    """Runs jobs, each with the decoder of the thread that runs it.

    A forked worker inherits no threads: the pool notices and starts its own.

    Args:
        threads: How many at once; None is every core in a main process, one in a DataLoader worker.
    """

    def __init__(self, threads: int | None) -> None:
        self._wanted = threads
        self._process: int | None = None
        self._renew()

    def _renew(self) -> None:
        self._process = os.getpid()
        self.threads = self._wanted or default_threads()
        self._local = threading.local()
        self._helpers: Threads | None = None

    def run(self, jobs: Iterable[Job], *, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Run all jobs; the calling thread helps. The first error is raised, after all stopped.

        Args:
            jobs: What to do; drawn one by one, so that making jobs and doing them overlap.
            meanwhile: What the calling thread does first, while others have already begun.
        """
        if self._process != os.getpid():
            self._renew()
        queue = iter(jobs)
        first = list(itertools.islice(queue, self.threads))
        if self.threads == 1 or len(first) < 2:
            meanwhile()
            self._drain(itertools.chain(first, queue))
            return
        shared = _Shared(itertools.chain(first, queue))
        if self._helpers is None:
            self._helpers = Threads(self.threads - 1, "demoreel")
            weakref.finalize(self, self._helpers.close)
        futures: list[Future[None]] = []
        try:
            for _ in first[1:]:
                try:
                    futures.append(self._helpers.submit(partial(self._drain, shared)))
                except RuntimeError:  # not one more thread: this one does all
                    break
            meanwhile()
            self._drain(shared)
        except BaseException as problem:
            if not isinstance(problem, Exception):  # Ctrl-C: helpers may wait for a silent server
                interrupted.now()
            raise
        finally:
            shared.stop()
            # Helpers write into the caller's arrays: never return while one still does.
            errors = [future.exception() for future in futures]
        for error in errors:
            if error is not None:
                raise error

    def _drain(self, jobs: Iterator[Job]) -> None:
        decoder = self.decoder
        for job in jobs:
            job(decoder)

    @property
    def decoder(self) -> Decoder:
        """The calling thread's decoder."""
        decoder = getattr(self._local, "decoder", None)
        if decoder is None:
            decoder = self._local.decoder = Decoder()
        assert isinstance(decoder, Decoder)
        return decoder


class _Shared(Iterator[Job]):
    """An iterator that several threads draw from."""

    def __init__(self, jobs: Iterator[Job]) -> None:
        self._jobs = jobs
        self._lock = threading.Lock()
        self._stopped = False

    def __next__(self) -> Job:
        with self._lock:
            if self._stopped:
                raise StopIteration
            return next(self._jobs)

    def stop(self) -> None:
        self._stopped = True


def default_threads() -> int:
    """Return every usable core in a main process, one in a DataLoader worker."""
    data = sys.modules.get("torch.utils.data")
    if data is not None and data.get_worker_info() is not None:
        return 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def begins_anew(video: Video | GopSpan, packet: int) -> bool:
    """Whether nothing that is decoded before a keyframe matters to what comes after.

    Decoding from keyframe to keyframe does not need it. But a player that runs on from one clip
    into the next orders frames by counters in their headers, and only some keyframes begin these
    again: every one of AV1 and VP9, of H.264 and HEVC the IDR frames. A clip that begins with
    another one needs a file of its own. (HEVC could say "broken link" there instead, but FFmpeg 8
    then takes frames before and after the seam for one another.)

    Cost: one read of the packet's head; none for most codecs.
    """
    name, index = video.index.codec.name, video.index
    if name not in _LENGTH_SIZE_AT:
        return True
    size = min(int(index.size[packet]), _HEAD)
    data = video.file.read(int(index.offset[packet]), size)
    slices, anew = (_H264_SLICES, _H264_IDR) if name == "h264" else (_HEVC_SLICES, _HEVC_IDR)
    kinds = (kind for kind in _units(video, data) if kind in slices)
    return next(kinds, None) in anew


def with_lead_in(index: PacketIndex, packet: int) -> int:
    """Return where to begin so that a keyframe that is no IDR decodes as in the whole video.

    After such a keyframe, H.264 may ask the decoder to forget frames from before it, which it
    then has to have.
    """
    if index.codec.name != "h264":
        return packet
    return max(0, int(index.start_of[max(0, packet - _LEAD_IN)]))


def _units(video: Video | GopSpan, data: bytes) -> Iterator[int]:
    """Yield the kinds of a packet's units, as far as they can be read."""
    codec = video.index.codec
    header = codec.extradata or b""
    place = _LENGTH_SIZE_AT[codec.name]
    if len(header) <= place or header[0] != 1:
        return  # another way of dividing packets, which mp4 does not have
    width = (header[place] & 3) + 1
    at = 0
    while at + width < len(data):
        first = data[at + width]
        yield first & 0x1F if codec.name == "h264" else first >> 1 & 0x3F
        at += width + int.from_bytes(data[at : at + width], "big")
