"""Uses FFmpeg's demuxers and muxers: indexes containers that ``mp4.py`` cannot, and joins videos.

An index by demuxing reads the whole file once. Used for fragmented mp4, several edits, Matroska,
AVI and the like.

Videos are joined by copying their packets: no decoding, no loss, no drift. Players join by adding
durations in seconds, and after a few hundred episodes the sum is frames off. Here a frame is an
ordinal: the output's clock ticks once a frame, frame ``i`` of the result is shown at tick ``i``,
and what the sources' own clocks say is used only for their order.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from demoreel.errors import ArgumentError, VideoError
from demoreel.media.mp4 import Tracks
from demoreel.media.settings import exact_rate
from demoreel.media.video import DECODERS, Codec, PacketIndex, index_packets
from demoreel.packages import load_late
from demoreel.storage.local import open_file
from demoreel.storage.store import Bytes, Seekable

if TYPE_CHECKING:
    import av
    from av.container import InputContainer, OutputContainer
    from av.packet import Packet
    from av.video.stream import VideoStream
else:
    av = load_late("av")


_SOFTWARE = {"av1": "libdav1d"}
_BUFFER = 1 << 20
_BLOCK_HEADER = 256  # more than any container puts between a block's beginning and its bytes


_Open = Callable[[], "av.container.InputContainer"]

# A stranger's file must not name another one. FFmpeg is given bytes and no path, only containers
# that hold their own packets (no playlists, no patterns of file names), no protocol for what such a
# container may still refer to, and only listed decoders for what it tries on its own account.
_CONTAINED = {
    "format_whitelist": "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts",
    "protocol_whitelist": "none",
    "codec_whitelist": ",".join(DECODERS),
}


def open_container(file: Bytes) -> av.container.InputContainer:
    """Open a video with FFmpeg's demuxer such that it reads nothing but ``file``."""
    source: Any = io.BufferedReader(Seekable(file), _BUFFER)
    opened: av.container.InputContainer = av.open(
        source, metadata_errors="replace", container_options=dict(_CONTAINED)
    )
    return opened


def read_index(path: str, file: Bytes | None = None) -> PacketIndex:
    """Return the packet index of any video that FFmpeg can demux.

    Args:
        path: The video.
        file: Its bytes, where ``path`` is only a name for them.
    """
    try:
        data = file if file is not None else open_file(path)

        def opened() -> av.container.InputContainer:
            return open_container(data)

        with opened() as container:
            return _index(container, opened, data, path)
    except (av.error.FFmpegError, OSError, EOFError) as error:
        raise VideoError(
            f"The video does not open ({error}).", hint="restore the file from a copy", file=path
        ) from error


def read_tracks(path: str, file: Bytes) -> Tracks:
    """Return what a video that is no mp4 holds besides its video; its audio is not copied."""
    try:
        with open_container(file) as container:
            kinds = [stream.type for stream in container.streams]
    except (av.error.FFmpegError, OSError, EOFError) as error:
        raise VideoError(
            f"The video does not open ({error}).", hint="restore the file from a copy", file=path
        ) from error
    if "video" in kinds:
        kinds.remove("video")
    others = tuple(f"a track of the kind {kind!r}" for kind in kinds if kind != "audio")
    return Tracks(problem="it is not in an mp4" if "audio" in kinds else "", others=others)


def _index(
    container: av.container.InputContainer, opened: _Open, file: Bytes, path: str
) -> PacketIndex:
    if not container.streams.video:
        raise VideoError("The file has no video in it.", file=path)
    stream = container.streams.video[0]
    context = stream.codec_context
    if context is None:
        raise VideoError("This installation cannot decode the video's codec.", file=path)
    codec = Codec(
        _SOFTWARE.get(context.codec.canonical_name, context.codec.canonical_name),
        context.extradata,
        context.width,
        context.height,
        int(context.color_range),
        int(context.colorspace),
    )
    codec.require_listed(path)
    rows = []
    for packet in container.demux(stream):
        if packet.size == 0:
            continue
        if packet.pos is None or packet.pos < 0 or packet.pts is None:
            raise VideoError("The video's packets have no position or no time.", file=path)
        at = _position(packet, file, path)
        rows.append((at, packet.size, packet.pts, packet.is_keyframe, packet.is_discard))
    if not rows or stream.time_base is None:
        raise VideoError("The video has no packets.", file=path)
    offset, size, pts, keyframe, hidden = (np.array(column) for column in zip(*rows, strict=True))
    shown = ~hidden.astype(bool)
    if context.has_b_frames and (np.diff(pts) > 0).all():
        pts = _times_as_shown(pts, shown, opened, path)
    return index_packets(
        codec=codec,
        offset=offset,
        size=size,
        pts=pts,
        keyframe=keyframe.astype(bool),
        shown=shown,
        seconds_per_tick=float(stream.time_base),
    )


def _position(packet: av.Packet[av.VideoStream], file: Bytes, path: str) -> int:
    """Return where a packet's bytes are; Matroska gives where the block around them begins."""
    assert packet.pos is not None
    data = bytes(packet)
    found = file.read(packet.pos, len(data) + _BLOCK_HEADER).find(data)
    if found < 0:
        raise VideoError(
            "The video's packets are not stored in one piece in this kind of file.",
            hint="bring it into an mp4 without loss: ffmpeg -i FILE -c copy FILE.mp4",
            file=path,
        )
    return packet.pos + found


def _times_as_shown(pts: np.ndarray, shown: np.ndarray, opened: _Open, path: str) -> np.ndarray:
    """Put times into the order in which the codec shows the packets, by decoding them all.

    AVI stores no times, so FFmpeg makes them up in decoding order, even where B-frames reorder.
    """
    order: list[int] = []
    with opened() as container:
        context = container.streams.video[0].codec_context
        packets = (packet for packet in container.demux(video=0) if packet.size)
        for number, packet in enumerate(packets):
            packet.pts, packet.dts = number, None
            order += [frame.pts for frame in context.decode(packet) if frame.pts is not None]
        order += [frame.pts for frame in context.decode(None) if frame.pts is not None]
    if sorted(order) != np.flatnonzero(shown).tolist():
        raise VideoError(
            "The video does not say when its packets are shown, and not each becomes a frame: "
            f"{len(order)} of {shown.sum()} do.",
            hint="bring it into an mp4, or restore the file from a copy",
            file=path,
        )
    times = pts.copy()
    times[order] = np.sort(pts[order])
    return times


_SELF_DESCRIBING = ("av1", "vp9")
"""Codecs whose keyframes carry all that their header says, so headers may differ."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What two videos must share to be joined without re-encoding.

    Attributes:
        codec: Name of the codec, e.g. ``h264``.
        width: Frame width in pixels.
        height: Frame height in pixels.
        pix_fmt: Pixel format, e.g. ``yuv420p``.
        header: The codec's parameter sets, where they are not repeated in the packets.
        others: What the file holds besides the video, e.g. ``audio``: joining would drop it.
    """

    codec: str
    width: int
    height: int
    pix_fmt: str | None
    header: bytes
    others: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.codec} {self.width}x{self.height} {self.pix_fmt}"


def probe(path: str | os.PathLike[str]) -> tuple[Signature, int]:
    """Return what decides whether this video can be joined with another, and how many it shows.

    Reads only the header of an mp4; other containers are read through.
    """
    with _opened(path) as (container, stream):
        found = _signature(container, stream)
        if "mp4" in container.format.name and hasattr(stream, "index_entries"):  # PyAV from 16
            return found, sum(not entry.is_discard for entry in stream.index_entries)
        return found, sum(not packet.is_discard for packet in _packets(container, stream))


def join(
    sources: Sequence[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    *,
    fps: float | Fraction | None = None,
) -> int:
    """Write the frames of all sources, one after the other, into one mp4.

    Packets are copied byte for byte, so this runs at the speed of the disk. Each source is read
    twice: once for the order of its packets, once to copy them. Memory: one number per packet.

    Args:
        sources: Videos to join, in order.
        target: The mp4 file to write; removed again if this fails.
        fps: The result's frame rate; None takes the first source's. Frames keep their order and
            number whatever the rate, and are spaced evenly.

    Returns:
        Frames in the result: the sum of the sources' frames.
    """
    if not sources:
        raise ArgumentError("There are no videos to join.", target=target)
    with _opened(sources[0]) as (container, stream):
        rate = exact_rate(fps) if fps else _rate_of(stream, sources[0])
        wanted = _signature(container, stream)
    orders = [_presentation_order(source, wanted, sources[0]) for source in sources]
    # A packet may be decoded this many ticks before its frame is shown; one delay for all
    # sources keeps decoding times rising across the seams.
    delay = max(place - shown for order in orders for place, shown in enumerate(order))
    try:
        with av.open(str(target), "w", format="mp4") as output:
            _copy_all(sources, orders, output, rate=rate, delay=delay)
    except (av.error.FFmpegError, OSError) as error:
        Path(target).unlink(missing_ok=True)
        raise VideoError(f"The videos could not be joined: {error}.", file=target) from error
    except BaseException:
        Path(target).unlink(missing_ok=True)
        raise
    return sum(map(len, orders))


def _copy_all(
    sources: Sequence[str | os.PathLike[str]],
    orders: Sequence[Sequence[int]],
    output: OutputContainer,
    *,
    rate: Fraction,
    delay: int,
) -> None:
    out_stream: VideoStream | None = None
    before = 0
    for source, order in zip(sources, orders, strict=True):
        with _opened(source) as (container, stream):
            if out_stream is None:
                out_stream = output.add_stream_from_template(stream, opaque=True)
                out_stream.time_base = 1 / rate
            for place, packet in enumerate(_packets(container, stream)):
                packet.stream = out_stream
                packet.time_base = 1 / rate
                packet.pts = before + order[place]
                packet.dts = before + place - delay
                packet.duration = 1
                output.mux(packet)
        before += len(order)


def _presentation_order(
    source: str | os.PathLike[str], wanted: Signature, first: str | os.PathLike[str]
) -> list[int]:
    """Return, for each packet in decoding order, which frame of its source it becomes."""
    with _opened(source) as (container, stream):
        found = _signature(container, stream)
        if found.others:
            raise VideoError(
                f"Joining would drop what the video's file holds besides it: "
                f"{', '.join(found.others)}.",
                hint="leave it in a file of its own",
                file=source,
            )
        if found != wanted:
            same = "their headers differ" if str(found) == str(wanted) else f"it is {found}"
            raise VideoError(
                f"The video cannot be joined to one that is {wanted}: {same}.",
                hint="put it in a file of its own, or encode it again with the same settings",
                file=source,
                first=first,
            )
        times = []
        for packet in _packets(container, stream):
            if packet.is_discard:
                raise VideoError(
                    "The video's edit list hides some of its frames, so they cannot be copied.",
                    hint="encode it again",
                    file=source,
                )
            times.append(packet.pts)
    if not times:
        raise VideoError("The video has no frames.", file=source)
    shown = {time: frame for frame, time in enumerate(sorted(t for t in times if t is not None))}
    if len(shown) != len(times):
        raise VideoError("Two frames of the video have the same time, or none.", file=source)
    return [shown[cast(int, time)] for time in times]


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[tuple[InputContainer, VideoStream]]:
    try:
        container = open_container(open_file(os.fspath(path)))
    except (av.error.FFmpegError, OSError) as error:
        raise VideoError(
            f"The video does not open ({error}).", hint="restore or record it again", file=path
        ) from error
    with container:
        if not container.streams.video:
            raise VideoError("The file has no video in it.", file=path)
        yield container, container.streams.video[0]


def _packets(container: InputContainer, stream: VideoStream) -> Iterator[Packet[VideoStream]]:
    return (packet for packet in container.demux(stream) if packet.size)


def _signature(container: InputContainer, stream: VideoStream) -> Signature:
    context = stream.codec_context
    codec = context.codec.canonical_name
    header = b"" if codec in _SELF_DESCRIBING else context.extradata or b""
    others = tuple(str(one.type) for one in container.streams if one.index != stream.index)
    return Signature(codec, context.width, context.height, context.pix_fmt, header, others)


def _rate_of(stream: VideoStream, path: str | os.PathLike[str]) -> Fraction:
    rate = stream.average_rate or stream.guessed_rate
    if not rate:
        raise VideoError("The video does not say its frame rate.", hint="pass fps=", file=path)
    return Fraction(rate)
