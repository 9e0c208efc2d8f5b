"""A video and its packet index, kept for as long as the video does not change.

Where reads wait for a server, a video is indexed by one of them, if it is guessed right where its
table lies: an mp4's ``moov`` stands at its beginning or at its end, and a dataset's videos come
from one tool. So the beginning is read first; where the table turns out to be at the end, the end
of the next video is read first.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from demoreel.errors import VideoError
from demoreel.media import mp4
from demoreel.media.packets import PacketIndex
from demoreel.storage.folder import DatasetFolder
from demoreel.storage.forks import renew_in_children
from demoreel.storage.local import LocalFile, open_file
from demoreel.storage.lru import ByteCache
from demoreel.storage.store import StoredFile
from demoreel.storage.threads import transfer

_LEAST = 1 << 16
_MOST = 1 << 20
_SHARE = 9  # a table takes about a five-hundredth of its video
_INDEX_BYTES = 64 << 20  # per process: the indices of about two million frames

_indices: ByteCache[object, PacketIndex] = ByteCache(_INDEX_BYTES)

Stored = Callable[[], PacketIndex | None]
"""Returns an index that is kept somewhere, or found in a shorter way; None if there is none."""


@dataclass(frozen=True, slots=True)
class Video:
    """An open video.

    Attributes:
        name: Its path, or what stands for one.
        file: Its bytes.
        index: Its packet index.
    """

    name: str
    file: StoredFile
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


def index_video(file: StoredFile, name: str, *, stored: Stored | None = None) -> Video:
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


def _make_index(file: StoredFile, name: str, stored: Stored | None) -> tuple[PacketIndex, int]:
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


class Videos:
    """The videos of a dataset's folder.

    Args:
        folder: The dataset's folder.
    """

    def __init__(self, folder: DatasetFolder) -> None:
        self._folder = folder
        self._table_is_last = False
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Begin anew in a forked child: what is under way will never arrive there."""
        self._opening: dict[str, Future[Video]] = {}
        self._lock = threading.Lock()

    def open(self, name: str) -> Video:
        """Open a video and index it; a second call costs nothing.

        Cost: as ``open_video``. Where reads wait, one ranged read; two for the first video of a
        dataset whose tables are at the end.

        Raises:
            VideoError: It is missing, empty, cut off, or not a video.
            StoreError: It cannot be read.
        """
        if not self._folder.waits:
            return open_video(self._folder.local / name)
        return self._indexed(name) or self._begin(name).result()

    def begin(self, names: Iterable[str]) -> None:
        """Begin to open several videos side by side; those that fail will fail again."""
        for name in dict.fromkeys(names):
            if self._indexed(name) is None:
                self._begin(name)

    def _indexed(self, name: str) -> Video | None:
        """Return a video that was indexed before; None if it was not."""
        if self._folder.known_size(name) is None:
            return None
        file, uri = self._folder.file(name), f"{self._folder.uri}/{name}"
        index = _indices.peek((uri, file.identity))
        return None if index is None else Video(uri, file, index)

    def _begin(self, name: str) -> Future[Video]:
        with self._lock:
            future = self._opening.get(name)
            if future is None:
                future = self._opening[name] = transfer(lambda: self._open(name))
            return future

    def _open(self, name: str) -> Video:
        try:
            file, uri = self._folder.file(name), f"{self._folder.uri}/{name}"
            ends = _Ends(file, self._folder.known_size(name))
            return index_video(file, uri, stored=lambda: self._index(ends, uri))
        finally:
            with self._lock:
                self._opening.pop(name, None)

    def _index(self, ends: _Ends, name: str) -> PacketIndex | None:
        if self._table_is_last:
            place = ends.table_at_end()
            if place is not None:
                return mp4.read_index(ends, name=name, moov_at=place)
        index = mp4.read_index(ends, name=name)
        self._table_is_last = ends.went_to_the_end
        return index


class _Ends:
    """A file whose beginning and end are read in one go each, however few are asked for."""

    def __init__(self, file: StoredFile, size: int | None) -> None:
        self._file = file
        self._held: list[tuple[int, bytes]] = []
        self.went_to_the_end = False
        if size is None:
            self._load(0, _LEAST)  # tells the size, too
        self.size = file.size

    def read(self, offset: int, length: int) -> bytes:
        length = min(length, self.size - offset)
        for begin, data in self._held:
            if begin <= offset and offset + length <= begin + len(data):
                return data[offset - begin : offset - begin + length]
        rest = self.size - offset
        if offset == 0:
            return self._load(0, max(length, self._guess()))[:length]
        if rest <= self._guess():
            self.went_to_the_end = True
            return self._load(offset, rest)[:length]
        return self._load(offset, max(length, _LEAST))[:length]

    def _guess(self) -> int:
        return max(_LEAST, min(_MOST, self.size >> _SHARE))

    def _load(self, offset: int, length: int) -> bytes:
        data = self._file.read(offset, length)
        self._held.append((offset, data))
        return data

    def table_at_end(self) -> tuple[int, int] | None:
        """Return offset and size of a ``moov`` that ends where the file does; None if none does."""
        length = min(self._guess(), self.size)
        begin = self.size - length
        data = self.read(begin, length)
        at = data.find(b"moov", 4)
        while at >= 0:
            size = struct.unpack_from(">I", data, at - 4)[0]
            if at - 4 + size == len(data):
                return begin + at - 4, size
            at = data.find(b"moov", at + 1)
        return None
