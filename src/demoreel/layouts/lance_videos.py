"""The videos of a Lance dataset: one row per mp4, its bytes in a blob.

Which frame lies where is known without a look at the video where the table says so: in our own
column (see ``media/packet_bytes.py``), or by where an mp4's ``moov`` box lies. Else the video's own
boxes are walked, which are a few small reads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from demoreel.errors import VideoError
from demoreel.media import mp4
from demoreel.media.packet_bytes import PACKETS_COLUMN, decode_packets
from demoreel.media.packets import PacketIndex
from demoreel.media.video import Video, VideoFile, index_video
from demoreel.storage.arrow import as_numpy
from demoreel.storage.far.cache import RangeCache
from demoreel.storage.far.files import FarSlice
from demoreel.storage.lance_blobs import LanceBlob
from demoreel.storage.lance_files import Descriptor, FarBlobs, LocalBlobs, LocalPlace
from demoreel.storage.lance_tables import LanceTable
from demoreel.storage.lru import ByteCache

_BYTES_COLUMN = "video_bytes"
_NAMED_BY = ("video_key", "chunk_index", "file_index")
_MOOV = ("moov_offset", "moov_size")
_MOST_BLOBS = 4096
_INDEX_BYTES = 16 << 20


@dataclass(frozen=True)
class _Rows:
    """The rows of the table.

    Attributes:
        numbers: For each camera, chunk and file index of its videos as one number, ascending.
        places: For each camera, the rows' places in the table, in the same order.
        table: Their ids, addresses and blob descriptors, by place.
        files: The data files of each fragment.
    """

    numbers: dict[str, np.ndarray]
    places: dict[str, np.ndarray]
    table: pa.Table
    files: dict[int, list[str]]


class LanceVideos:
    """The table of one dataset's videos.

    The first look reads the columns that name the videos and say where their bytes lie, some 60
    bytes a video.

    Args:
        table: The table.
        cache: Keeps ranges of videos that lie in a store.
    """

    def __init__(self, table: LanceTable, cache: RangeCache | None = None) -> None:
        self._table = table
        self._on_disk = LocalBlobs(table.path if isinstance(table.place, str) else None)
        self._in_store = (
            None
            if isinstance(table.place, str)
            else FarBlobs(table.place, cache if cache is not None else RangeCache())
        )
        self._found: dict[int, LocalPlace | FarSlice | None] = {}
        self._kept_indices: ByteCache[int, bytes] = ByteCache(_INDEX_BYTES)
        self._blobs: ByteCache[int, LanceBlob] = ByteCache(_MOST_BLOBS)

    @cached_property
    def _rows(self) -> _Rows:
        table, files = self._table.blob_rows(_NAMED_BY, _BYTES_COLUMN)
        cameras = np.array(table.column("video_key").to_pylist(), dtype=object)
        chunk, file = (as_numpy(table.column(name)) for name in _NAMED_BY[1:])
        number = chunk.astype(np.int64) << 32 | file.astype(np.int64)
        numbers, places = {}, {}
        for camera in set(cameras.tolist()):
            found = np.flatnonzero(cameras == camera)
            found = found[np.argsort(number[found], kind="stable")]
            numbers[str(camera)], places[str(camera)] = number[found], found
        return _Rows(numbers, places, table.drop_columns(list(_NAMED_BY)), files)

    def video(self, camera: str, chunk: int, file: int, *, name: str) -> Video:
        """Return a video, open and indexed.

        Args:
            camera: The camera.
            chunk: Its ``chunk_index``.
            file: Its ``file_index``.
            name: What to call it.

        Raises:
            VideoError: It is not in the table, twice in it, cut off, or not a video.
            TableError: The table is missing or damaged.
        """
        place = self._place(camera, chunk, file, name)
        data = self._bytes(place, name)
        return index_video(data, name, stored=lambda: self._stored_index(place, data, name))

    def blob(self, camera: str, chunk: int, file: int) -> LanceBlob:
        """Return a video's bytes as Lance itself reads them.

        Raises:
            VideoError: It is not in the table, twice in it, or cannot be opened.
            TableError: The table is missing or damaged.
        """
        name = f"{self._table.path}#{camera}/chunk-{chunk:03d}/file-{file:03d}"
        return self._blob(self._place(camera, chunk, file, name), name)

    def _place(self, camera: str, chunk: int, file: int, name: str) -> int:
        numbers = self._rows.numbers.get(camera, np.zeros(0, np.int64))
        wanted = chunk << 32 | file
        begin, end = np.searchsorted(numbers, [wanted, wanted + 1]).tolist()
        if end - begin == 1:
            return int(self._rows.places[camera][begin])
        what = "is not in its table" if begin == end else f"is {end - begin} times in its table"
        raise VideoError(
            f"A video that the metadata names {what}.",
            hint="restore the table, or leave its episodes out with episodes=",
            file=name,
            camera=camera,
            chunk_index=chunk,
            file_index=file,
        )

    def _bytes(self, place: int, name: str) -> VideoFile:
        """Return a video's bytes: as a file if they are on this disk, else through Lance."""
        if place not in self._found:
            self._found[place] = self._find(place, name)
        found = self._found[place]
        file = found.open() if isinstance(found, LocalPlace) else found
        return file if file is not None else self._blob(place, name)

    def _find(self, place: int, name: str) -> LocalPlace | FarSlice | None:
        described = self._descriptor(place)
        if described is None:
            return None
        finder = self._in_store if self._in_store is not None else self._on_disk
        return finder.find(described, lambda parts: self._blob(place, name).read_ranges(parts))

    def expect(self, videos: Iterable[tuple[str, int, int]]) -> None:
        """Fetch the packet indices of several videos at the same time; those that are not kept.

        Args:
            videos: Camera, ``chunk_index`` and ``file_index`` of each.

        Raises:
            TableError: The table is missing or damaged.
        """
        if PACKETS_COLUMN not in self._table.columns:
            return
        wanted = []
        for camera, chunk, file in videos:
            with contextlib.suppress(VideoError):  # said when it is opened
                place = self._place(camera, chunk, file, "")
                if self._kept_indices.peek(place) is None:
                    wanted.append(place)
        if wanted:
            column = self._table.take(np.array(wanted), [PACKETS_COLUMN]).column(0)
            for place, stored in zip(wanted, column.to_pylist(), strict=True):
                self._kept_indices.put(place, stored or b"", len(stored or b"") + 64)

    def _descriptor(self, place: int) -> Descriptor | None:
        table = self._rows.table
        if "kind" not in table.column_names:
            return None
        kind, position, size, blob_id, uri, address = (
            table.column(name)[place].as_py()
            for name in ("kind", "position", "size", "blob_id", "blob_uri", "_rowaddr")
        )
        if kind is None:
            return None
        files = tuple(self._rows.files.get(address >> 32, ()))
        return Descriptor(kind, position, size, blob_id, uri or "", files)

    def _blob(self, place: int, name: str) -> LanceBlob:
        def make() -> tuple[LanceBlob, int]:
            row = self._rows.table.column("_rowid")[place].as_py()
            size = None
            if not isinstance(self._table.place, str):  # an object store takes time to answer
                known = self._descriptor(place)
                size = known.size if known is not None else None
            return LanceBlob(self._table, _BYTES_COLUMN, row, name=name, size=size), 1

        return self._blobs.get(place, make)

    def _stored_index(self, place: int, data: VideoFile, name: str) -> PacketIndex | None:
        present = set(self._table.columns)
        if PACKETS_COLUMN in present:
            stored = self._kept_indices.peek(place) or self._values(place, PACKETS_COLUMN)[0]
            index = decode_packets(stored, video_bytes=data.size, name=name) if stored else None
            if index is not None:
                return index
        if present.issuperset(_MOOV):
            offset, size = self._values(place, *_MOOV)
            if offset is not None and size:  # the writer notes 0 where there is no such box
                return mp4.read_index(data, name=name, moov_at=(offset, size))
        return None

    def _values(self, place: int, *columns: str) -> list[Any]:
        row = self._table.take(np.array([place]), columns)
        return [row.column(name)[0].as_py() for name in columns]
