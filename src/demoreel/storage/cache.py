"""Caches: values in memory, bounded by their bytes; ranges of objects, optionally on disk.

On disk, where all processes share them, a range is a file of its own, named by what it is a range
of. It is written beside its place and renamed, and carries a checksum: a process that dies or a
machine that loses power cannot leave bytes that would be taken for others. Nothing of it needs a
lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shutil
import threading
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Generic, TypeVar

from demoreel.errors import ArgumentError
from demoreel.storage.threads import renew_in_children

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteCache(Generic[K, V]):
    """Keeps the most recently used values until their sizes add up to ``most_bytes``.

    Two threads that miss the same key at once may both make the value; the last one is kept.
    That costs a little work and saves a lock around slow reads.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._held = 0
        self._lock = threading.Lock()
        renew_in_children(self)

    def get(self, key: K, make: Callable[[], tuple[V, int]]) -> V:
        """Return the value, or ``make()`` it; ``make`` returns the value and its size."""
        found = self._found(key)
        if found is not None:
            return found[0]
        value, size = make()
        self.put(key, value, size)
        return value

    def peek(self, key: K) -> V | None:
        """Return the value if it is here."""
        found = self._found(key)
        return None if found is None else found[0]

    def _found(self, key: K) -> tuple[V, int] | None:
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
            return found

    def put(self, key: K, value: V, size: int) -> None:
        """Keep a value of this size."""
        with self._lock:
            before = self._values.pop(key, None)
            self._held += size - (before[1] if before else 0)
            self._values[key] = (value, size)
            # The newest value stays even if it alone is over the bound: it is in use.
            while self._held > self.most_bytes and len(self._values) > 1:
                _, (_, dropped) = self._values.popitem(last=False)
                self._held -= dropped

    @property
    def held_bytes(self) -> int:
        """Bytes held now."""
        return self._held

    def renew(self) -> None:
        """Begin with a lock of its own in a forked child."""
        self._lock = threading.Lock()
        # Another thread may have been between the two steps of keeping a value.
        self._held = sum(size for _, size in self._values.values())


_MEMORY_BYTES = int(os.environ.get("DEMOREEL_RANGE_MEMORY", 64 << 20))
_LARGEST_KEPT = 8 << 20
_SHARD_BYTES = 64 << 20
_MOST_SHARDS = 256
_ROOM_LEFT = 0.9  # of a shard that was full
_LOOK_AGAIN = 16  # after this part of a shard was written: others write, too
_CHECKSUM = 4
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_PART = re.compile(r"[0-9a-f]{2}")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?\s*", re.IGNORECASE)

_log = logging.getLogger(__name__)
_memory: ByteCache[tuple[Hashable, int, int], bytes] = ByteCache(_MEMORY_BYTES)


def size_in_bytes(size: int | str) -> int:
    """Return a size such as ``"50GB"`` or ``"512 MiB"`` in bytes."""
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if found is None:
        raise ArgumentError(
            f"{size!r} is not a size.", hint="give bytes, or a text such as '50GB' or '512MiB'"
        )
    unit = _UNITS[found[2].upper()]
    if found[3]:
        unit = 1 << (10 * list(_UNITS).index(found[2].upper()))
    return int(float(found[1]) * unit)


class RangeCache:
    """Keeps ranges of objects.

    Args:
        folder: Where on disk; None keeps them in this process's memory alone (64 MB).
        most_bytes: How much the folder may hold, about; those read longest ago go first.
    """

    def __init__(self, folder: Path | None = None, most_bytes: int = 0) -> None:
        self._disk = None if folder is None else _DiskCache(folder, most_bytes)

    @property
    def is_quick(self) -> bool:
        """Whether nothing is written to disk."""
        return self._disk is None

    def get(self, identity: Hashable, offset: int, length: int) -> bytes | None:
        """Return a range; None if it is not here."""
        kept = _memory.peek((identity, offset, length))
        if kept is not None:
            return kept
        if self._disk is not None:
            found = self._disk.get(_name(identity, offset, length), length)
            if found is not None:
                self._remember(identity, offset, found)
                return found
        return None

    def put(self, identity: Hashable, offset: int, data: bytes) -> None:
        """Keep a range, if it is not too large. Never fails: it is a cache."""
        if not data or len(data) > _LARGEST_KEPT:
            return
        self._remember(identity, offset, data)
        if self._disk is not None:
            self._disk.put(_name(identity, offset, len(data)), data)

    @staticmethod
    def _remember(identity: Hashable, offset: int, data: bytes) -> None:
        _memory.put((identity, offset, len(data)), data, len(data))


def _name(identity: Hashable, offset: int, length: int) -> str:
    return hashlib.sha256(repr((identity, offset, length)).encode()).hexdigest()[:40]


class _DiskCache:
    """A folder of ranges, in parts that are each bounded by themselves."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._shards = max(1, min(_MOST_SHARDS, most_bytes // _SHARD_BYTES))
        self._most = most_bytes // self._shards
        self._folders = [str(folder / f"{number:02x}") for number in range(self._shards)]
        self._free = [-1] * self._shards  # bytes that may be written before another look
        self._folder = folder
        self._works = True
        self._is_tidy = False
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Begin with a lock of its own in a forked child."""
        self._lock = threading.Lock()

    def _path(self, name: str) -> tuple[int, str]:
        shard = int(name[:8], 16) % self._shards
        return shard, os.path.join(self._folders[shard], name)

    def get(self, name: str, length: int) -> bytes | None:
        _, path = self._path(name)
        try:
            with open(path, "rb") as file:
                found = file.read(length + _CHECKSUM + 1)
        except OSError:
            return None
        with contextlib.suppress(OSError):  # a folder that may only be read serves, too
            os.utime(path)
        data = found[:length]
        if len(found) != length + _CHECKSUM or found[length:] != _checksum(data):
            with contextlib.suppress(OSError):
                os.unlink(path)
            return None
        return data

    def put(self, name: str, data: bytes) -> None:
        shard, path = self._path(name)
        if not self._works or len(data) > self._most:
            return
        staged = f"{path}.{uuid.uuid4().hex}"
        try:
            self._make_room(shard, len(data) + _CHECKSUM)
            with open(staged, "wb") as file:
                file.write(data)
                file.write(_checksum(data))
            os.rename(staged, path)
        except FileNotFoundError:
            self._free[shard] = -1  # the folder was removed; the next range makes it again
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(staged)
            self._works = False
            _log.warning("ranges are not kept on disk any more: %s", error.strerror)

    def _make_room(self, shard: int, size: int) -> None:
        with self._lock:
            self._free[shard] -= size
            if self._free[shard] >= 0:
                return
        held = self._sweep(shard, size)
        with self._lock:
            room = max(0, self._most - held - size)
            self._free[shard] = min(room, max(self._most // _LOOK_AGAIN, size))

    def _sweep(self, shard: int, size: int) -> int:
        """Remove what was read longest ago until there is room; return the bytes that are left."""
        folder = self._folders[shard]
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if not self._is_tidy:
            self._is_tidy = True
            self._remove_other_parts()
        entries = []
        with os.scandir(folder) as found:
            for entry in found:
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat()
                    entries.append((status.st_mtime_ns, status.st_size, entry.path))
        held = sum(entry[1] for entry in entries)
        if held + size <= self._most:
            return held
        for _, length, path in sorted(entries):
            if held + size <= self._most * _ROOM_LEFT:
                break
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            held -= length
        return held

    def _remove_other_parts(self) -> None:
        """Remove the parts of a larger cache that was here: they are not counted."""
        mine = {os.path.basename(folder) for folder in self._folders}
        for entry in list(os.scandir(self._folder)):
            if entry.name not in mine and _PART.fullmatch(entry.name):
                shutil.rmtree(entry.path, ignore_errors=True)


def _checksum(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(_CHECKSUM, "big")
