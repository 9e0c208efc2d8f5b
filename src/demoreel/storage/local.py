"""Files on this machine: positional reads through a bounded set of open handles.

``os.pread`` carries its own offset, so threads and forked workers share a handle safely; a
memory map would turn a file cut short behind our back into a crash (SIGBUS) instead of an error.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections import OrderedDict
from pathlib import Path

_MOST_OPEN_FILES = 64


Identity = tuple[int, int, int, int]


def _identity(status: os.stat_result) -> Identity:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def refuse_special(path: str | os.PathLike[str]) -> None:
    """Refuse what is no file with an end: pipes, devices. A dataset may come from a stranger.

    Raises:
        FileNotFoundError: There is nothing.
        OSError: It is something else than a file.
    """
    _refuse_special(os.stat(path), path)


def _refuse_special(status: os.stat_result, path: str | os.PathLike[str]) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "It is no regular file", os.fspath(path))


class LocalFile:
    """One open file, read by position.

    The handle closes when the last reader lets go of the object, so the pool may forget a file
    while another thread still reads from it.
    """

    __slots__ = ("__weakref__", "_handle", "identity", "path", "size")

    def __init__(self, path: str) -> None:
        self.path = path
        # Without waiting: a pipe in a file's place would keep us for ever.
        flags = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
        self._handle = os.open(path, os.O_RDONLY | flags)
        status = os.fstat(self._handle)
        _refuse_special(status, path)
        self.size = status.st_size
        self.identity = _identity(status)

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes there; fewer than ``length`` only where the file ends."""
        if offset < 0 or length <= 0:
            return b""
        data = os.pread(self._handle, length, offset)
        while len(data) < length:
            more = os.pread(self._handle, length - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def read_into(self, offset: int, memory: memoryview) -> int:
        """Fill memory with the bytes there, and return how many there were."""
        return read_into(self._handle, offset, memory)

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle is not None:
            os.close(handle)


def read_into(handle: int, offset: int, memory: memoryview) -> int:
    """Fill memory with the bytes at a place of an open file, and return how many there were."""
    done = 0
    while done < len(memory):
        if hasattr(os, "preadv"):
            found = os.preadv(handle, [memory[done:]], offset + done)
        else:
            data = os.pread(handle, len(memory) - done, offset + done)
            found = len(data)
            memory[done : done + found] = data
        if not found:
            break
        done += found
    return done


class _FilePool:
    """The most recently used files, kept open."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._files: OrderedDict[str, LocalFile] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: str) -> LocalFile:
        now = _identity(os.stat(path))  # the file may have been replaced since it was opened
        with self._lock:
            file = self._files.get(path)
            if file is not None and file.identity == now:
                self._files.move_to_end(path)
                return file
        file = LocalFile(path)
        with self._lock:
            self._files[path] = file
            self._files.move_to_end(path)
            while len(self._files) > self._most:
                self._files.popitem(last=False)
        return file

    def let_go(self, folder: str) -> None:
        inside = folder + os.sep
        with self._lock:
            gone = [path for path in self._files if path.startswith(inside)]
            closed = [self._files.pop(path) for path in gone]
        del closed  # outside of the lock: closing a file may take a while

    def forget(self) -> None:
        # A lock that another thread held while this process forked stays locked for ever here.
        self._lock = threading.Lock()
        self._files = OrderedDict()


_pool = _FilePool(_MOST_OPEN_FILES)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.forget)


def open_file(path: str | Path) -> LocalFile:
    """Return the open file at ``path``; at most 64 stay open per process.

    Raises:
        FileNotFoundError: There is no such file.
    """
    return _pool.get(os.fspath(path))


def let_go_of(folder: str | Path) -> None:
    """Close the files of a folder that will be another one's: who deletes them wants the room."""
    _pool.let_go(os.fspath(folder))
