"""Indexing a video by demuxing all of it: the fallback for what ``mp4.py`` does not read.

Reads the whole file once. Used for fragmented mp4, several edits, Matroska, AVI and the like.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from demoreel.errors import VideoError
from demoreel.media.mp4 import Tracks
from demoreel.media.video import DECODERS, Codec, PacketIndex, index_packets
from demoreel.packages import load_late
from demoreel.storage.local import open_file
from demoreel.storage.store import Bytes, Seekable

if TYPE_CHECKING:
    import av
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
    return Tracks(problem="it does not lie in an mp4" if "audio" in kinds else "", others=others)


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
    """Return where a packet's bytes lie; Matroska gives where the block around them begins."""
    assert packet.pos is not None
    data = bytes(packet)
    found = file.read(packet.pos, len(data) + _BLOCK_HEADER).find(data)
    if found < 0:
        raise VideoError(
            "The video's packets do not lie in one piece in this kind of file.",
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
