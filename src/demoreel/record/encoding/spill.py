"""Buffers frames on disk, from a thread, so that nothing else waits for the disk."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

log = logging.getLogger(__name__)

_SYNC_EVERY = 64 << 20


def bytes_of(image: np.ndarray) -> memoryview:
    """Return the bytes of a frame whose values are in a row, to read or to fill."""
    return image.reshape(-1).view(np.uint8).data


def read_spilled(path: Path, place: int, image: np.ndarray) -> None:
    """Fill ``image`` with the frame at a place of a spill file."""
    with open(path, "rb", buffering=0) as file:
        file.seek(place * image.nbytes)
        if file.readinto(bytes_of(image)) != image.nbytes:
            raise OSError(errno.EIO, "a frame that waited on disk is cut short", str(path))


def write_at(handle: int, image: np.ndarray, at: int) -> None:
    """Write the bytes of a frame, all of them."""
    data = bytes_of(image)
    while data:
        written = os.pwrite(handle, data, at)
        if not written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        data, at = data[written:], at + written


class SpillFile:
    """A file of places for frames; places that are given back are used again.

    It is made when the first frame is written. One thread writes; others may give places back.
    """

    def __init__(self, path: Path, nbytes: int) -> None:
        self.path = path
        self._nbytes = nbytes
        self._handle: int | None = None
        self._free: list[int] = []
        self._places = 0
        self._unsynced = 0
        self._doubtful = False

    def write(self, image: np.ndarray) -> int:
        """Write a frame and return its place.

        Now and then this forces the file to disk, so that little is left when it must be safe.
        Where the disk is full or fails (OSError), no place is taken.
        """
        handle = self._open()
        place = self._free.pop() if self._free else self._places
        try:
            write_at(handle, np.ascontiguousarray(image), place * self._nbytes)
        except OSError:
            if place < self._places:
                self._free.append(place)
            raise
        self._places = max(self._places, place + 1)
        self._unsynced += self._nbytes
        if self._unsynced >= _SYNC_EVERY:
            with contextlib.suppress(OSError):  # the frame is there; persisting syncs again
                self.sync()
        return place

    def give_back(self, place: int) -> None:
        """Let another frame have the place."""
        self._free.append(place)

    def sync(self) -> None:
        """Force what was written to disk."""
        if self._handle is None:
            return
        if self._doubtful:
            # After an fsync that failed the system counts what it could not write as written.
            for place in range(self._places):
                image = os.pread(self._handle, self._nbytes, place * self._nbytes)
                os.pwrite(self._handle, image, place * self._nbytes)
        self._unsynced, self._doubtful = 0, True
        os.fsync(self._handle)
        self._doubtful = False

    def close(self) -> None:
        """Close the file, which stays."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _open(self) -> int:
        if self._handle is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        return self._handle


class DiskThread:
    """A thread that does what waits for the disk, in order. It ends with ``close``."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="demoreel-spill", daemon=True)
        self._thread.start()

    def do(self, job: Callable[[], None]) -> None:
        """Have ``job`` done after those before it; it must not raise. Returns at once."""
        self._jobs.put(job)

    def finish(self) -> None:
        """Wait until all jobs so far are done."""
        done = threading.Event()
        self._jobs.put(done.set)
        done.wait()

    def close(self) -> None:
        """End the thread when all jobs so far are done."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:  # without this thread, all that wait for it would wait for ever
                log.warning("something was not done to a disk", exc_info=True)
            del job  # holds the frame's camera; not to be kept while waiting
