"""Indexing a video that lies far away: one read, if it is guessed right where its table lies.

An mp4's ``moov`` stands at its beginning or at its end, and a dataset's videos come from one tool.
So the beginning is read first; where the table turns out to be at the end, the end of the next
video is read first.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable
from concurrent.futures import Future

from demoreel.media import mp4
from demoreel.media.packets import PacketIndex
from demoreel.media.video import Video, index_video, indexed
from demoreel.storage.far.files import FarFile
from demoreel.storage.far.folder import FarFolder
from demoreel.storage.far.threads import transfer
from demoreel.storage.forks import renew_in_children

_LEAST = 1 << 16
_MOST = 1 << 20
_SHARE = 9  # a table takes about a five-hundredth of its video


class FarVideos:
    """The videos of a dataset that lies far away.

    Args:
        folder: The dataset's folder.
    """

    def __init__(self, folder: FarFolder) -> None:
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

        Cost: one ranged read; two for the first video of a dataset whose tables are at the end.

        Raises:
            VideoError: It is empty, cut off, or not a video.
            StoreError: It cannot be read.
        """
        file = self._folder.file(name)
        known = indexed(file, file.uri) if file.is_known else None
        return known or self._begin(name, file).result()

    def begin(self, names: Iterable[str]) -> None:
        """Begin to open several videos side by side; those that fail will fail again."""
        for name in dict.fromkeys(names):
            file = self._folder.file(name)
            if not file.is_known or indexed(file, file.uri) is None:
                self._begin(name, file)

    def _begin(self, name: str, file: FarFile) -> Future[Video]:
        with self._lock:
            future = self._opening.get(name)
            if future is None:
                future = self._opening[name] = transfer(lambda: self._open(name, file))
            return future

    def _open(self, name: str, file: FarFile) -> Video:
        try:
            ends = _Ends(file)
            return index_video(file, file.uri, stored=lambda: self._index(ends, file.uri))
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
    """A file whose beginning and end are read in one go each, whoever asks for a few bytes."""

    def __init__(self, file: FarFile) -> None:
        self._file = file
        self._held: list[tuple[int, bytes]] = []
        self.went_to_the_end = False
        if not file.is_known:
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
