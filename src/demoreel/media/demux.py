"""Indexing a video by demuxing all of it: the fallback for what ``mp4.py`` does not read.

Reads the whole file once. Used for fragmented mp4, several edits, Matroska, AVI and the like.
"""

from __future__ import annotations

import av
import numpy as np

from demoreel.errors import VideoError
from demoreel.media.packets import Codec, PacketIndex, index_packets

_SOFTWARE = {"av1": "libdav1d"}


def read_index(path: str) -> PacketIndex:
    """Return the packet index of any video that FFmpeg can demux.

    Raises:
        VideoError: The file does not open, has no video, or its packets have no position.
    """
    try:
        with av.open(path) as container:
            return _index(container, path)
    except (av.error.FFmpegError, OSError, EOFError) as error:
        raise VideoError(
            f"The video does not open ({error}).", hint="restore the file from a copy", file=path
        ) from error


def _index(container: av.container.InputContainer, path: str) -> PacketIndex:
    if not container.streams.video:
        raise VideoError("The file has no video in it.", file=path)
    stream = container.streams.video[0]
    context = stream.codec_context
    rows = []
    for packet in container.demux(stream):
        if packet.size == 0:
            continue
        if packet.pos is None or packet.pos < 0 or packet.pts is None:
            raise VideoError("The video's packets have no position or no time.", file=path)
        rows.append((packet.pos, packet.size, packet.pts, packet.is_keyframe, packet.is_discard))
    if not rows or stream.time_base is None:
        raise VideoError("The video has no packets.", file=path)
    offset, size, pts, keyframe, hidden = (np.array(column) for column in zip(*rows, strict=True))
    return index_packets(
        codec=Codec(
            _SOFTWARE.get(context.codec.canonical_name, context.codec.canonical_name),
            context.extradata,
            context.width,
            context.height,
        ),
        offset=offset,
        size=size,
        pts=pts,
        keyframe=keyframe.astype(bool),
        shown=~hidden.astype(bool),
        seconds_per_tick=float(stream.time_base),
    )
