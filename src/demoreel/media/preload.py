"""The bytes of stretches of video, read before they are decoded.

Where a read has a price of its own (a blob in a table, an object store), all that a batch needs of
a video is read in one call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeGuard

import numpy as np

from demoreel.errors import VideoError
from demoreel.media.decode import Stretch
from demoreel.storage.far.files import FarFile, FarSlice
from demoreel.storage.far.threads import interrupted
from demoreel.storage.lance_blobs import LanceBlob, read_side_by_side
from demoreel.storage.local import LocalFile, open_file
from demoreel.storage.seekable import Bytes

_SMALL_GROUP = 1 << 17  # bytes that may be read beyond what is wanted


class Loaded:
    """A part of a video's bytes, held in memory; what lies outside is read from the video.

    Attributes:
        size: Bytes held.
    """

    __slots__ = ("_begin", "_behind", "_data", "size")

    def __init__(self, begin: int, data: bytes, behind: Bytes | str) -> None:
        self._begin = begin
        self._data = data
        self._behind = behind
        self.size = len(data)

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes there, by their position in the video."""
        start = offset - self._begin
        if start >= 0 and start + length <= self.size:
            return self._data[start : start + length]
        # A stretch that seems damaged is tried once more, from further back.
        behind = open_file(self._behind) if isinstance(self._behind, str) else self._behind
        return behind.read(offset, length)


class Arriving:
    """A part of a video's bytes that is under way; reading waits for it.

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


def byte_ranges(stretches: Sequence[Stretch]) -> list[tuple[int, int]]:
    """Return (offset, length) of the bytes that hold each stretch's packets; all of one video.

    Leading pictures that are not decoded lie in between, and are read with the others.
    """
    index = stretches[0].index
    frames = np.concatenate([stretch.frames for stretch in stretches])
    edges = np.cumsum([0, *(len(stretch.frames) for stretch in stretches[:-1])])
    first = np.maximum(np.minimum.reduceat(index.starts(frames), edges), 0)
    last = np.maximum.reduceat(index.packet_of[frames], edges)
    ends = index.offset + index.size
    if index.lies_in_order:
        begin, end = index.offset[first], ends[last]
    else:  # packets that do not lie in the order in which they are decoded
        spans = [slice(a, b + 1) for a, b in zip(first.tolist(), last.tolist(), strict=True)]
        begin = np.array([index.offset[span].min() for span in spans])
        end = np.array([ends[span].max() for span in spans])
    return list(zip(begin.tolist(), (end - begin).tolist(), strict=True))


def load(stretch: Stretch) -> Stretch:
    """Return the stretch with its bytes in memory; it holds no local file open.

    Raises:
        VideoError: The bytes cannot be read.
    """
    [(begin, length)] = byte_ranges([stretch])
    file = stretch.file
    # By its path, a local file is opened again: thousands of stretches may wait at the same time.
    behind = file.path if isinstance(file, LocalFile) else file
    return replace(stretch, file=Loaded(begin, file.read(begin, length), behind))


def load_together(stretches: Sequence[Stretch]) -> Sequence[Stretch]:
    """Return stretches of one video, read in one call where the video's file offers that.

    Raises:
        VideoError: The bytes cannot be read.
    """
    file = stretches[0].file
    if not isinstance(file, LocalFile) and hasattr(file, "read_ranges"):
        ranges = _ranges_inside(stretches)
        return _holding(stretches, ranges, file.read_ranges(ranges))
    return stretches


def load_from_afar(videos: Mapping[int, Sequence[Stretch]]) -> dict[int, Sequence[Stretch]]:
    """Return the stretches of those videos that lie in object stores, read side by side.

    Args:
        videos: The stretches of each video.

    Raises:
        VideoError: The bytes cannot be read.
    """
    far, wanted = {}, []
    for number, stretches in videos.items():
        file = stretches[0].file
        if is_far(file):
            far[number] = stretches
            wanted.append((file, _ranges_inside(stretches)))
    read = read_side_by_side(wanted)
    return {
        number: _holding(far[number], ranges, parts)
        for number, (_, ranges), parts in zip(far, wanted, read, strict=True)
    }


def begin_loading(stretches: Sequence[Stretch]) -> list[Stretch]:
    """Begin to read stretches of one video that lies far away; decoding them waits as it must.

    Whole groups of pictures are read, so that what is kept of them serves any frame of theirs; but
    not of groups so large that this would cost much.

    Raises:
        VideoError: The video is cut off.
    """
    file = stretches[0].file
    assert isinstance(file, FarFile | FarSlice)
    ranges = _whole_groups(stretches, _ranges_inside(stretches))
    return [
        replace(stretch, file=Arriving(begin, length, future, file))
        for stretch, (begin, length), future in zip(
            stretches, ranges, file.begin(ranges), strict=True
        )
    ]


def _whole_groups(
    stretches: Sequence[Stretch], ranges: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    index = stretches[0].index
    if not index.lies_in_order:
        return list(ranges)
    last = np.array([stretch.last for stretch in stretches])
    end = index.ends_of_groups(last)
    found = []
    for (begin, length), stop in zip(ranges, end.tolist(), strict=True):
        more = stop - (begin + length)
        found.append((begin, length + more if 0 < more <= max(length, _SMALL_GROUP) else length))
    return found


def is_far(file: object) -> TypeGuard[LanceBlob]:
    """Whether a video lies in an object store, where each read takes its time."""
    return isinstance(file, LanceBlob) and file.is_remote


def _ranges_inside(stretches: Sequence[Stretch]) -> list[tuple[int, int]]:
    ranges = byte_ranges(stretches)
    size = stretches[0].file.size
    if max(begin + length for begin, length in ranges) > size:
        raise VideoError(
            f"The video is cut off: it has {size} bytes, and more are wanted.",
            hint="restore the file from a copy",
            file=stretches[0].name,
        )
    return ranges


def _holding(
    stretches: Sequence[Stretch], ranges: Sequence[tuple[int, int]], parts: Sequence[bytes]
) -> list[Stretch]:
    return [
        Stretch(stretch.index, Loaded(begin, data, stretch.file), stretch.name, stretch.frames)
        for stretch, (begin, _), data in zip(stretches, ranges, parts, strict=True)
    ]
