"""The bytes of GOP spans of video, read before they are decoded.

Where a read waits (a blob in a table, an object store), all that a batch needs of a video is begun
in one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

import numpy as np

from demoreel.errors import VideoError
from demoreel.media.decode import GopSpan
from demoreel.storage.local import LocalFile, open_file
from demoreel.storage.seekable import Bytes
from demoreel.storage.store import StoredFile
from demoreel.storage.threads import interrupted

_SMALL_GROUP = 1 << 17  # bytes that may be read beyond what is wanted


class Loaded:
    """A part of a video's bytes, held in memory; what lies outside is read from the video.

    Attributes:
        size: Bytes held.
    """

    __slots__ = ("_begin", "_behind", "_data", "_identity", "size")

    def __init__(self, begin: int, data: bytes, behind: Bytes) -> None:
        self._begin = begin
        self._data = data
        # By its path, a local file is opened again: thousands of GOP spans may wait at once.
        self._behind: Bytes | str = behind.path if isinstance(behind, LocalFile) else behind
        self._identity = behind.identity if isinstance(behind, LocalFile) else None
        self.size = len(data)

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes there, by their position in the video."""
        start = offset - self._begin
        if start >= 0 and start + length <= self.size:
            return self._data[start : start + length]
        # A GOP span that seems damaged is tried once more, from further back.
        if not isinstance(self._behind, str):
            return self._behind.read(offset, length)
        behind = open_file(self._behind)
        if behind.identity != self._identity:
            raise VideoError(
                "A video was replaced while it was being read.",
                hint="another process writes to the dataset; read again",
                file=self._behind,
            )
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


def byte_ranges(gop_spans: Sequence[GopSpan]) -> list[tuple[int, int]]:
    """Return (offset, length) of the bytes that hold each GOP span's packets; all of one video.

    Leading frames that are not decoded lie in between, and are read with the others.
    """
    index = gop_spans[0].index
    frames = np.concatenate([gop_span.frames for gop_span in gop_spans])
    edges = np.cumsum([0, *(len(gop_span.frames) for gop_span in gop_spans[:-1])])
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


def load(gop_span: GopSpan) -> GopSpan:
    """Return the GOP span with its bytes in memory; it holds no local file open.

    Raises:
        VideoError: The bytes cannot be read.
    """
    [(begin, length)] = byte_ranges([gop_span])
    return replace(gop_span, file=Loaded(begin, gop_span.file.read(begin, length), gop_span.file))


def begin_loading(file: StoredFile, gop_spans: Sequence[GopSpan]) -> list[GopSpan]:
    """Begin to read GOP spans of one video, where a read waits; decoding waits for its GOP span.

    Whole GOPs are read, so that what is kept of them serves any frame of theirs; but
    not of groups so large that this would cost much.

    Raises:
        VideoError: The video is cut off.
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
