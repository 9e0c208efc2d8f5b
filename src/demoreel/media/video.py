"""A video and its packet index, kept for as long as the video does not change."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from demoreel.errors import VideoError
from demoreel.media import mp4
from demoreel.media.packets import PacketIndex
from demoreel.storage.local import LocalFile, open_file
from demoreel.storage.lru import ByteCache
from demoreel.storage.seekable import Bytes

_INDEX_BYTES = 64 << 20  # per process: the indices of about two million frames

_indices: ByteCache[object, PacketIndex] = ByteCache(_INDEX_BYTES)

Stored = Callable[[], PacketIndex | None]
"""Returns an index that is kept somewhere, or found in a shorter way; None if there is none."""


class VideoFile(Bytes, Protocol):
    """A video's bytes, wherever they lie.

    Those that read many ranges at once cheaper than one by one also have ``read_ranges``: a list of
    (offset, length) pairs in, a list of bytes out (see ``preload.py``).
    """

    @property
    def identity(self) -> Hashable:
        """Changes when the bytes do."""
        ...


@dataclass(frozen=True, slots=True)
class Video:
    """An open video.

    Attributes:
        name: Its path, or what stands for one.
        file: Its bytes.
        index: Its packet index.
    """

    name: str
    file: VideoFile
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
    return index_video(file, name)


def index_video(file: VideoFile, name: str, *, stored: Stored | None = None) -> Video:
    """Index a video; a second call for the same bytes costs nothing.

    Args:
        file: The video's bytes.
        name: Its path, or what stands for one.
        stored: Asked before the video is searched.

    Raises:
        VideoError: The video is empty, cut off, or not a video.
    """
    index = _indices.get((name, file.identity), lambda: _make_index(file, name, stored))
    return Video(name, file, index)


def indexed(file: VideoFile, name: str) -> Video | None:
    """Return a video that was indexed before; None if it was not."""
    index = _indices.peek((name, file.identity))
    return None if index is None else Video(name, file, index)


def _make_index(file: VideoFile, name: str, stored: Stored | None) -> tuple[PacketIndex, int]:
    index = stored() if stored is not None else None
    if index is None:
        try:
            index = mp4.read_index(file, name=name)
        except OSError as error:
            raise VideoError(f"The video cannot be read ({error.strerror}).", file=name) from error
    if index is None:
        from demoreel.media import demux  # heavy, and rarely needed

        is_the_file = isinstance(file, LocalFile) and file.path == name
        index = demux.read_index(name, None if is_the_file else file)
    return index, index.nbytes
