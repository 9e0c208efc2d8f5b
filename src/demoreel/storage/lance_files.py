"""Where a blob's bytes lie, to be read without Lance: on this disk, or in an object store.

Lance keeps a blob in the data file, in a file beside it, or points at one by URI; a descriptor says
where. On a local disk such a file is read like any other: 20 times faster than through Lance, and
in any process. In a store, its ranges are fetched like those of any other object. How files are
named is Lance's own business, though, and has changed before: so a place counts only if the file is
there in the right size, and the first one of each data file only if its bytes are those that Lance
gives.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from demoreel.errors import StoreError
from demoreel.storage.far.cache import RangeCache
from demoreel.storage.far.files import FarFile, FarSlice
from demoreel.storage.far.uris import store_of
from demoreel.storage.lance_places import RemotePlace
from demoreel.storage.local import LocalFile, open_file
from demoreel.storage.lru import ByteCache

_INLINE, _PACKED, _DEDICATED, _EXTERNAL = range(4)
_SAMPLE = 256
_MOST_FILES = 1 << 14

ReadRanges = Callable[[list[tuple[int, int]]], list[bytes]]


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


class LocalSlice:
    """A part of a local file, read by position.

    Args:
        file: The file.
        begin: Where the part begins.
        size: How long it is.
    """

    __slots__ = ("_begin", "_file", "identity", "size")

    def __init__(self, file: LocalFile, begin: int, size: int) -> None:
        self._file = file
        self._begin = begin
        self.size = size
        self.identity = (*file.identity, begin, size)

    @property
    def whole(self) -> LocalFile:
        """The file that this is a part of."""
        return self._file

    @property
    def begin(self) -> int:
        """Where in that file the part begins."""
        return self._begin

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes there; fewer than ``length`` only where the part or the file ends."""
        if offset < 0:
            return b""
        return self._file.read(self._begin + offset, min(length, self.size - offset))


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """Where a blob lies on this disk.

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
        return LocalSlice(file, self.begin, self.size) if self._holds(file) else None

    def _holds(self, file: LocalFile) -> bool:
        assert self.size is not None
        return self.begin + self.size <= file.size


class LocalBlobs:
    """Finds the local files of a table's blobs.

    Args:
        folder: The table's folder; None if that is not on this machine.
    """

    def __init__(self, folder: str | None) -> None:
        self._data = None if folder is None else os.path.join(folder, "data")
        self._believed: set[tuple[int, tuple[str, ...]]] = set()

    def find(self, blob: Descriptor, as_lance_reads: ReadRanges) -> LocalPlace | None:
        """Return where a blob's bytes are on this disk; None if they are not found.

        Args:
            blob: What Lance notes of it.
            as_lance_reads: Reads (offset, length) ranges of the blob through Lance.
        """
        size = None if blob.kind == _EXTERNAL and blob.size == 0 else blob.size
        for path in self._candidates(blob):
            place = LocalPlace(path, blob.position, size)
            file = place.open()
            if file is not None and self._is_it(blob, file, as_lance_reads):
                return place
        return None

    def _candidates(self, blob: Descriptor) -> list[str]:
        if blob.kind == _EXTERNAL:
            parts = urlsplit(blob.uri)
            return [unquote(parts.path)] if parts.scheme == "file" and not parts.netloc else []
        if self._data is None:
            return []
        return [os.path.join(self._data, name) for name in _names(blob)]

    def _is_it(
        self, blob: Descriptor, file: LocalFile | LocalSlice, as_lance_reads: ReadRanges
    ) -> bool:
        if blob.kind == _EXTERNAL:
            return True  # the URI says which file it is
        group = (blob.kind, blob.data_files)
        if group not in self._believed:
            length = min(_SAMPLE, file.size)
            ranges = [(at, length) for at in (0, (file.size - length) // 2, file.size - length)]
            if as_lance_reads(ranges) != [file.read(*part) for part in ranges]:
                return False
            self._believed.add(group)
        return True


class FarBlobs:
    """Finds the objects of a table's blobs, for a table that lies in a store.

    Args:
        table: Where the table lies.
        cache: Keeps ranges that were read.
    """

    def __init__(self, table: RemotePlace, cache: RangeCache) -> None:
        self._store = store_of(table.uri, dict(table.options))
        self._cache = cache
        self._believed: dict[tuple[int, tuple[str, ...]], int] = {}
        self._files: ByteCache[str, FarFile] = ByteCache(_MOST_FILES)

    def find(self, blob: Descriptor, as_lance_reads: ReadRanges) -> FarSlice | None:
        """Return a blob's bytes; None if they are only to be had through Lance.

        Cost: nothing, but for the first one of each data file, of which a part is read in both ways
        and compared.

        Args:
            blob: What Lance notes of it.
            as_lance_reads: Reads (offset, length) ranges of the blob through Lance.
        """
        if blob.kind not in (_INLINE, _PACKED, _DEDICATED) or not blob.size:
            return None
        group, names = (blob.kind, blob.data_files), _names(blob)
        if group in self._believed:
            return self._slice(names[self._believed[group]], blob)
        middle = (blob.size // 2, min(_SAMPLE, blob.size - blob.size // 2))
        [known] = as_lance_reads([middle])
        for number, name in enumerate(names):
            found = self._slice(name, blob)
            try:
                if found.read(*middle) == known:
                    self._believed[group] = number
                    return found
            except StoreError:  # there is none of this name
                continue
        return None

    def _slice(self, name: str, blob: Descriptor) -> FarSlice:
        def make() -> tuple[FarFile, int]:
            path = f"data/{name}"
            uri = f"{self._store.uri}/{path}"
            file = FarFile(
                self._store,
                path,
                uri=uri,
                size=None,
                etag=None,
                cache=self._cache,
                for_ever=True,
            )
            return file, 1

        return FarSlice(self._files.get(name, make), blob.position, blob.size)


def _names(blob: Descriptor) -> list[str]:
    """Return what the file may be called that holds a blob, in a table's ``data`` folder."""
    if blob.kind == _INLINE:
        return list(blob.data_files)
    if blob.kind not in (_PACKED, _DEDICATED):
        return []
    # The number's bits in reverse, or in hexadecimal: both have been in use.
    numbers = (f"{blob.blob_id:032b}"[::-1], f"{blob.blob_id:08x}")
    stems = [name.removesuffix(".lance") for name in blob.data_files]
    return [f"{stem}/{number}.blob" for stem in stems for number in numbers]
