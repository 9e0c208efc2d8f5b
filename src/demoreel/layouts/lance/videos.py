"""The videos of a Lance dataset: one row per mp4, its bytes in a blob.

Which frame is where is known without a look at the video where the table says so: in our own
column (see ``schemas.py``), or by where an mp4's ``moov`` box is. Else the video's own
boxes are walked, which are a few small reads.

Lance keeps a blob in the data file, in a file beside it, or points at one by URI; a descriptor
says where. On a local disk such a file is read like any other: 20 times faster than through Lance,
and in any process. In a store, its ranges are fetched like those of any other object. How files are
named is internal to Lance, though, and has changed before: so a place counts only if the file is
there in the right size, and the first one of each data file only if its bytes are those that Lance
gives.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa

from demoreel.errors import FrameMismatchError, StoreError, VideoError
from demoreel.layouts.lance.calls import DEDICATED, EXTERNAL, INLINE, PACKED, LanceFailure, ask
from demoreel.layouts.lance.schemas import BYTES_COLUMN, PACKETS_COLUMN, VIDEO_NAMES, decode_packets
from demoreel.layouts.lance.tables import LanceTable
from demoreel.media import mp4
from demoreel.media.video import PacketIndex, Video, index_video
from demoreel.storage.arrow import as_numpy
from demoreel.storage.cache import ByteCache, RangeCache
from demoreel.storage.local import LocalFile, LocalSlice, open_file
from demoreel.storage.place import RemotePlace
from demoreel.storage.remote.files import RemoteFile, RemoteSlice, store_of
from demoreel.storage.store import Range, StoredFile
from demoreel.storage.threads import transfer

_MOOV = ("moov_offset", "moov_size")
_MOST_BLOBS = 4096
_INDEX_BYTES = 16 << 20
_SAMPLE = 256
_MOST_FILES = 1 << 14

ReadRanges = Callable[[list[tuple[int, int]]], list[bytes]]


@dataclass(frozen=True)
class _VideoRows:
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

    The first look reads the columns that name the videos and say where their bytes are, some 60
    bytes a video.

    Args:
        table: The table.
        cache: Keeps ranges of videos that are in a store.
    """

    def __init__(self, table: LanceTable, cache: RangeCache | None = None) -> None:
        self._table = table
        self._finder: LocalBlobs | RemoteBlobs
        if isinstance(table.place, str):
            self._finder = LocalBlobs(table.place)
        else:
            self._finder = RemoteBlobs(table.place, cache if cache is not None else RangeCache())
        self._found: dict[int, LocalPlace | RemoteSlice | None] = {}
        self._kept_indices: ByteCache[int, bytes] = ByteCache(_INDEX_BYTES)
        self._blobs: ByteCache[int, LanceBlob] = ByteCache(_MOST_BLOBS)

    @cached_property
    def _rows(self) -> _VideoRows:
        table, files = self._table.blob_rows(VIDEO_NAMES, BYTES_COLUMN)
        cameras = np.array(table.column("video_key").to_pylist(), dtype=object)
        chunk, file = (as_numpy(table.column(name)) for name in VIDEO_NAMES[1:])
        number = chunk.astype(np.int64) << 32 | file.astype(np.int64)
        numbers, places = {}, {}
        for camera in set(cameras.tolist()):
            found = np.flatnonzero(cameras == camera)
            found = found[np.argsort(number[found], kind="stable")]
            numbers[str(camera)], places[str(camera)] = number[found], found
        return _VideoRows(numbers, places, table.drop_columns(list(VIDEO_NAMES)), files)

    def video(self, camera: str, chunk: int, file: int, *, name: str) -> Video:
        """Return a video, open and indexed."""
        place = self._place(camera, chunk, file, name)
        data = self._bytes(place, name)
        return index_video(data, name, stored=lambda: self._stored_index(place, data, name))

    def blob(self, camera: str, chunk: int, file: int) -> LanceBlob:
        """Return a video's bytes as Lance itself reads them."""
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

    def _bytes(self, place: int, name: str) -> StoredFile:
        """Return a video's bytes: as a file if they are on this disk, else through Lance."""
        if place not in self._found:
            self._found[place] = self._find(place, name)
        found = self._found[place]
        file = found.open() if isinstance(found, LocalPlace) else found
        return file if file is not None else self._blob(place, name)

    def _find(self, place: int, name: str) -> LocalPlace | RemoteSlice | None:
        described = self._descriptor(place)
        if described is None:
            return None
        self._require_allowed(described, name)
        return self._finder.find(described, lambda parts: self._blob(place, name).read_now(parts))

    def expect(self, videos: Iterable[tuple[str, int, int]]) -> None:
        """Fetch the packet indices of several videos at the same time; those that are not kept."""
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

    def _require_allowed(self, blob: Descriptor, name: str) -> None:
        """Refuse a blob outside the dataset, before a byte of it is asked for."""
        if blob.kind == EXTERNAL:
            self._table.external.require([blob.uri], file=name)

    def _blob(self, place: int, name: str) -> LanceBlob:
        def make() -> tuple[LanceBlob, int]:
            described, size = self._descriptor(place), None
            if described is not None:
                self._require_allowed(described, name)
                if isinstance(self._finder, RemoteBlobs):  # a store takes time to answer
                    size = described.size
            row = self._rows.table.column("_rowid")[place].as_py()
            return LanceBlob(self._table, BYTES_COLUMN, row, name=name, size=size), 1

        return self._blobs.get(place, make)

    def _stored_index(self, place: int, data: StoredFile, name: str) -> PacketIndex | None:
        present = set(self._table.columns)
        if PACKETS_COLUMN in present:
            stored = self._kept_indices.peek(place) or self._values(place, PACKETS_COLUMN)[0]
            index = decode_packets(stored, video_bytes=data.size, name=name) if stored else None
            if stored and self._is_replaced(place, index, data):
                raise FrameMismatchError(
                    "A video that the table points at is not the one that it was made from.",
                    hint="put the old one back, or convert the dataset again",
                    file=name,
                )
            if index is not None:
                return index
        if present.issuperset(_MOOV):
            offset, size = self._values(place, *_MOOV)
            if offset is not None and size:  # the writer notes 0 where there is no such box
                return mp4.read_index(data, name=name, moov_at=(offset, size))
        return None

    def _is_replaced(self, place: int, index: PacketIndex | None, data: StoredFile) -> bool:
        """Whether a video outside of the table is not the one that was linked.

        In the table itself an index that is not the video's is one that another program left.
        """
        descriptor = self._descriptor(place)
        if descriptor is None or descriptor.kind != EXTERNAL:
            return False
        found = mp4.read_index(data, name=descriptor.uri) if index is not None else None
        return index is None or (
            found is not None
            and not (
                np.array_equal(found.offset, index.offset)
                and np.array_equal(found.size, index.size)
            )
        )

    def _values(self, place: int, *columns: str) -> list[Any]:
        row = self._table.take(np.array([place]), columns)
        return [row.column(name)[0].as_py() for name in columns]


class LanceBlob:
    """The bytes of one row's blob.

    Lance answers the same calls for blobs of any kind: inside the data file, beside it, or
    somewhere else, by URI. A range costs about 0.1 ms on a local disk, many at once far less each.

    Holds no handle: safe for threads, forks and pickling.

    Args:
        table: The table.
        column: The blob column.
        row: The row's id.
        name: What to call it in errors.
        size: Its size, if that is known; else it is asked for.

    Attributes:
        table: The table, its version, and the column.
        row: The row's id.
    """

    waits = True

    def __init__(
        self, table: LanceTable, column: str, row: int, *, name: str, size: int | None = None
    ) -> None:
        table.require([column])
        self.table = (table.place, table.version, column)
        self.row = row
        self._name = name
        size = size or self._ask("blob_size")
        if size is None:
            raise VideoError(
                "The video's row holds no bytes.",
                hint="restore the table",
                code="lance-blob-missing",
                file=self._name,
            )
        self.size = int(size)
        self.identity = (*table.identity, column, row, self.size)

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes there; fewer than ``length`` only where the blob ends."""
        length = min(length, self.size - offset)
        if offset < 0 or length <= 0:
            return b""
        return self.read_now([(offset, length)])[0]

    def read_now(self, ranges: Sequence[Range]) -> list[bytes]:
        """Return the bytes of many ranges, in one call; all inside the blob."""
        found: list[bytes] = self._ask("blob_ranges", list(ranges))
        return found

    def read_ranges(self, ranges: Sequence[Range]) -> list[Future[bytes]]:
        """Begin to read many ranges, in one call; all inside the blob."""
        futures: list[Future[bytes]] = [Future() for _ in ranges]

        def read() -> None:
            try:
                for future, data in zip(futures, self.read_now(ranges), strict=True):
                    future.set_result(data)
            except BaseException as error:
                for future in futures:
                    if not future.done():
                        future.set_exception(error)

        transfer(read)
        return futures

    def _ask(self, call: str, *arguments: Any) -> Any:
        try:
            return ask(call, *self.table, self.row, *arguments)
        except LanceFailure as error:
            raise VideoError(
                f"The video's bytes cannot be read from their table: {error}.",
                hint="fetch or restore the file",
                file=self._name,
            ) from error


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What Lance notes of one blob.

    Attributes:
        kind: How it is kept.
        position: Where it begins in its file.
        size: Its bytes; 0 for the whole of a file elsewhere.
        blob_id: Number of the file beside the data file.
        uri: The file elsewhere.
        data_files: The data files of the row's fragment, in the table's ``data`` folder.
    """

    kind: int
    position: int
    size: int
    blob_id: int
    uri: str
    data_files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """Where a blob is on this disk.

    Attributes:
        path: The file.
        begin: Where the blob begins in it.
        size: The blob's bytes; None for the whole file.
    """

    path: str
    begin: int
    size: int | None

    def open(self) -> LocalFile | LocalSlice | None:
        """Return the bytes; None if the file is not there, or too short."""
        try:
            file = open_file(self.path)
        except OSError:
            return None
        if self.size is None or (self.begin == 0 and file.size == self.size):
            return file
        if self.begin + self.size > file.size:
            return None
        return LocalSlice(file, self.begin, self.size)


class LocalBlobs:
    """Finds the local files of a table's blobs."""

    def __init__(self, folder: str) -> None:
        self._data = os.path.join(folder, "data")
        self._verified: set[tuple[int, tuple[str, ...]]] = set()

    def find(self, blob: Descriptor, as_lance_reads: ReadRanges) -> LocalPlace | None:
        """Return where a blob's bytes are on this disk; None if they are not found.

        Args:
            blob: What Lance notes of it.
            as_lance_reads: Reads (offset, length) ranges of the blob through Lance.
        """
        size = None if blob.kind == EXTERNAL and blob.size == 0 else blob.size
        for path in self._candidates(blob):
            place = LocalPlace(path, blob.position, size)
            file = place.open()
            if file is not None and self._is_it(blob, file, as_lance_reads):
                return place
        return None

    def _candidates(self, blob: Descriptor) -> list[str]:
        if blob.kind == EXTERNAL:
            parts = urlsplit(blob.uri)
            return [unquote(parts.path)] if parts.scheme == "file" and not parts.netloc else []
        return [os.path.join(self._data, name) for name in _names(blob)]

    def _is_it(
        self, blob: Descriptor, file: LocalFile | LocalSlice, as_lance_reads: ReadRanges
    ) -> bool:
        if blob.kind == EXTERNAL:
            return True  # the URI says which file it is
        group = (blob.kind, blob.data_files)
        if group not in self._verified:
            length = min(_SAMPLE, file.size)
            ranges = [(at, length) for at in (0, (file.size - length) // 2, file.size - length)]
            if as_lance_reads(ranges) != [file.read(*part) for part in ranges]:
                return False
            self._verified.add(group)
        return True


class RemoteBlobs:
    """Finds the objects of a table's blobs, for a table that is in a store."""

    def __init__(self, table: RemotePlace, cache: RangeCache) -> None:
        self._store = store_of(table.uri, dict(table.options))
        self._cache = cache
        self._verified: dict[tuple[int, tuple[str, ...]], int] = {}
        self._files: ByteCache[str, RemoteFile] = ByteCache(_MOST_FILES)

    def find(self, blob: Descriptor, as_lance_reads: ReadRanges) -> RemoteSlice | None:
        """Return a blob's bytes; None if they are only to be had through Lance.

        Cost: nothing, but for the first one of each data file, of which a part is read in both ways
        and compared.

        Args:
            blob: What Lance notes of it.
            as_lance_reads: Reads (offset, length) ranges of the blob through Lance.
        """
        if blob.kind not in (INLINE, PACKED, DEDICATED) or not blob.size:
            return None
        group, names = (blob.kind, blob.data_files), _names(blob)
        if group in self._verified:
            return self._slice(names[self._verified[group]], blob)
        middle = (blob.size // 2, min(_SAMPLE, blob.size - blob.size // 2))
        [known] = as_lance_reads([middle])
        for number, name in enumerate(names):
            found = self._slice(name, blob)
            try:
                if found.read(*middle) == known:
                    self._verified[group] = number
                    return found
            except StoreError:  # there is none of this name
                continue
        return None

    def _slice(self, name: str, blob: Descriptor) -> RemoteSlice:
        def make() -> tuple[RemoteFile, int]:
            path = f"data/{name}"
            uri = f"{self._store.uri}/{path}"
            file = RemoteFile(
                self._store,
                path,
                uri=uri,
                size=None,
                etag=None,
                cache=self._cache,
                for_ever=True,
            )
            return file, 1

        return RemoteSlice(self._files.get(name, make), blob.position, blob.size)


def _names(blob: Descriptor) -> list[str]:
    """Return what the file may be called that holds a blob, in a table's ``data`` folder."""
    if blob.kind == INLINE:
        return list(blob.data_files)
    if blob.kind not in (PACKED, DEDICATED):
        return []
    # The number's bits in reverse, or in hexadecimal: both have been in use.
    numbers = (f"{blob.blob_id:032b}"[::-1], f"{blob.blob_id:08x}")
    stems = [name.removesuffix(".lance") for name in blob.data_files]
    return [f"{stem}/{number}.blob" for stem in stems for number in numbers]
