"""Files on this machine: positional reads through a bounded set of open handles.

``os.pread`` carries its own offset, so threads and forked workers share a handle safely; a
memory map would turn a file cut short behind our back into a crash (SIGBUS) instead of an error.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path

from demoreel.errors import DatasetNotFoundError, TargetExistsError
from demoreel.storage.names import EndlessListing, Listing
from demoreel.storage.store import FileInfo, ReadsNow, Store

_MOST_OPEN_FILES = 64


Identity = tuple[int, int, int, int]


def _identity(status: os.stat_result) -> Identity:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def refuse_special(path: str | os.PathLike[str]) -> None:
    """Refuse what is no file with an end: pipes, devices. A dataset may come from a stranger."""
    _refuse_special(os.stat(path), path)


def _refuse_special(status: os.stat_result, path: str | os.PathLike[str]) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "It is no regular file", os.fspath(path))


def open_regular(path: str | os.PathLike[str]) -> int:
    """Open a file for reading and return its handle; pipes and devices are refused at once."""
    # Without waiting: a pipe in a file's place would keep us for ever.
    flags = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
    handle = os.open(path, os.O_RDONLY | flags)
    try:
        _refuse_special(os.fstat(handle), path)
    except BaseException:
        os.close(handle)
        raise
    return handle


class LocalFile(ReadsNow):
    """One open file, read by position.

    The handle closes when the last reader lets go of the object, so the pool may forget a file
    while another thread still reads from it.
    """

    __slots__ = ("__weakref__", "_handle", "identity", "path", "size")

    def __init__(self, path: str) -> None:
        self.path = path
        self._handle = open_regular(path)
        status = os.fstat(self._handle)
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


class LocalSlice(ReadsNow):
    """A part of a local file, read by position.

    Args:
        file: The file.
        begin: Where the part begins.
        size: How long it is.
    """

    __slots__ = ("begin", "identity", "size", "whole")

    def __init__(self, file: LocalFile, begin: int, size: int) -> None:
        self.whole = file
        self.begin = begin
        self.size = size
        self.identity = (*file.identity, begin, size)

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes there; fewer than ``length`` only where the part or the file ends."""
        if offset < 0:
            return b""
        return self.whole.read(self.begin + offset, min(length, self.size - offset))


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
        self.openings = 0

    def get(self, path: str) -> LocalFile:
        now = _identity(os.stat(path))  # the file may have been replaced since it was opened
        with self._lock:
            file = self._files.get(path)
            if file is not None and file.identity == now:
                self._files.move_to_end(path)
                return file
        file = LocalFile(path)
        with self._lock:
            self.openings += 1
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
    """Return the open file at ``path``; at most 64 stay open per process."""
    return _pool.get(os.fspath(path))


def openings() -> int:
    """Return a number that grows whenever this process opens a dataset's file.

    While it stays, all that is read comes from files that were open before, and so from the state
    of the dataset that was looked at then.
    """
    return _pool.openings


def count_opening() -> None:
    """Count a file that was opened by other means than ``open_file``."""
    with _pool._lock:
        _pool.openings += 1


def let_go_of(folder: str | Path) -> None:
    """Close the files of a folder that will be another one's: who deletes them wants the room."""
    _pool.let_go(os.fspath(folder))


class LocalStore(Store):
    """A folder of this machine.

    Args:
        folder: The folder; ``put`` makes it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(os.fspath(folder).removeprefix("file://"))

    @property
    def uri(self) -> str:
        """Its path."""
        return str(self._folder)

    def folders(self) -> Sequence[str]:
        """Return the names of the folders directly in it."""
        if not self._folder.is_dir():
            return []
        return sorted(entry.name for entry in os.scandir(self._folder) if entry.is_dir())

    def list(
        self, under: str = "", *, most_pages: int | None = None
    ) -> tuple[Sequence[FileInfo], bool]:
        """Return the files in a folder and below it; always all of them."""
        names, found = Listing(), []
        for parent, _, files in os.walk(self._folder / under):
            for file in files:
                path = Path(parent, file)
                try:
                    names.add(str(path))
                    found.append(self._described(path))
                except EndlessListing as error:
                    raise error.told(path=self._folder) from None
                except FileNotFoundError:  # removed meanwhile
                    continue
        return sorted(found), True

    def stat(self, name: str) -> FileInfo:
        """Return a file's size and state."""
        path = self._path(name)
        try:
            refuse_special(path)
            return self._described(path)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise DatasetNotFoundError("There is no such file.", file=path) from None

    def file(self, name: str, known: FileInfo | None = None) -> LocalFile:
        """Return a file to read from."""
        return open_file(self._path(name))

    def put(self, name: str, path: str | os.PathLike[str], *, new: bool = False) -> None:
        """Copy a file into the folder as one step."""
        final = self._path(name)
        final.parent.mkdir(parents=True, exist_ok=True)
        fresh = final.with_name(f".{uuid.uuid4().hex}.new")
        try:
            shutil.copyfile(path, fresh)
            handle = os.open(fresh, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
            if new:
                os.link(fresh, final)  # unlike a rename, this fails where something is
            else:
                os.replace(fresh, final)
        except FileExistsError as error:
            raise TargetExistsError("There is such a file.", file=final) from error
        finally:
            fresh.unlink(missing_ok=True)

    def delete(self, names: Iterable[str]) -> None:
        """Remove files; those that are not there do no harm."""
        for name in names:
            self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / self._checked(name)

    def _described(self, path: Path) -> FileInfo:
        status = path.stat()
        state = "-".join(str(part) for part in _identity(status))
        return FileInfo(path.relative_to(self._folder).as_posix(), status.st_size, state)
