"""Joining videos by copying their packets: no decoding, no loss, no drift.

Players join by adding durations in seconds, and after a few hundred episodes the sum is frames
off. Here a frame is an ordinal: the output's clock ticks once a frame, frame ``i`` of the result
is shown at tick ``i``, and what the sources' own clocks say is used only for their order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, cast

from demoreel.errors import ArgumentError, VideoError
from demoreel.media.demux import open_container
from demoreel.media.settings import exact_rate
from demoreel.packages import load_late
from demoreel.storage.local import open_file

if TYPE_CHECKING:
    import av
    from av.container import InputContainer, OutputContainer
    from av.packet import Packet
    from av.video.stream import VideoStream
else:
    av = load_late("av")

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
