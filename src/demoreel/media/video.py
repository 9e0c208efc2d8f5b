"""A video file and its packet index, kept for as long as the file does not change."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from demoreel.errors import VideoError
from demoreel.media import mp4
from demoreel.media.packets import PacketIndex
from demoreel.storage.local import LocalFile, open_file
from demoreel.storage.lru import ByteCache

_INDEX_BYTES = 64 << 20  # per process: the indices of about two million frames

_indices: ByteCache[object, PacketIndex] = ByteCache(_INDEX_BYTES)


@dataclass(frozen=True, slots=True)
class Video:
    """An open video.

    Attributes:
        name: Its path.
        file: Its bytes.
        index: Its packet index.
    """

    name: str
    file: LocalFile
    index: PacketIndex


def open_video(path: str | Path) -> Video:
    """Open a video and index it; a second call for an unchanged file costs a stat.

    Cost: one or two small reads for an mp4; a full read for containers without a packet table.

    Raises:
        VideoError: The file is missing, empty, cut off, or not a video.
    """
    name = os.fspath(path)
    try:
        file = open_file(name)
    except OSError as error:
        raise VideoError(
            f"The video cannot be opened ({error.strerror}).",
            hint="fetch or restore the file",
            file=name,
        ) from error
    index = _indices.get((name, file.identity), lambda: _make_index(file, name))
    return Video(name, file, index)


def _make_index(file: LocalFile, name: str) -> tuple[PacketIndex, int]:
    try:
        index = mp4.read_index(file, name=name)
    except OSError as error:
        raise VideoError(f"The video cannot be read ({error.strerror}).", file=name) from error
    if index is None:
        from demoreel.media import demux  # heavy, and rarely needed

        index = demux.read_index(name)
    return index, index.nbytes
