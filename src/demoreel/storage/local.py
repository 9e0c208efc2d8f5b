"""Files on this machine: positional reads through a bounded set of open handles; copies.

``os.pread`` carries its own offset, so threads and forked workers share a handle safely; a
memory map would turn a file cut short behind our back into a crash (SIGBUS) instead of an error.

Git LFS pointers are a few lines of text in the place of a file that was not fetched: a clone
without Git LFS, or with ``GIT_LFS_SKIP_SMUDGE=1``, has nothing but those of large files.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from demoreel.errors import DatasetNotFoundError, DemoreelError, TargetExistsError, refuse_shortage
from demoreel.storage.commit.files import NO_ROOM
from demoreel.storage.names import EndlessListing, Listing
from demoreel.storage.store import Bytes, FileInfo, ReadsNow, Store

_MOST_OPEN_FILES = 256  # a mixture of a hundred datasets reads from as many videos in turns
_SHARE_OF_FILES = 4  # of those that the process may have


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
    """A part of a local file, read by position."""

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

    def __init__(self) -> None:
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
            most = _most_open_files()
            while len(self._files) > most:
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


def _most_open_files() -> int:
    try:
        import resource
    except ImportError:  # Windows
        return _MOST_OPEN_FILES // 4
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY:
        return _MOST_OPEN_FILES
    return max(1, min(_MOST_OPEN_FILES, allowed // _SHARE_OF_FILES))


_pool = _FilePool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.forget)


def open_file(path: str | Path) -> LocalFile:
    """Return the open file at ``path``; at most 256 stay open, a quarter of those allowed."""
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
    """A folder of this machine."""

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


_COPY_BYTES = 16 << 20
_BEGIN = 2  # SYNC_FILE_RANGE_WRITE: begin, and wait for nothing


def begin_writing_out(handle: int, offset: int, length: int) -> None:
    """Ask the kernel to begin writing a part of a file to disk, and return at once.

    Promises nothing: that is what fsync is for. Does nothing where the system has no such call.
    """
    call = _sync_file_range()
    if call is not None and length:
        call(handle, ctypes.c_int64(offset), ctypes.c_int64(length), _BEGIN)


@lru_cache(maxsize=1)
def _sync_file_range() -> Callable[..., int] | None:
    try:
        return ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError, TypeError):
        return None


@runtime_checkable
class WritesItself(Bytes, Protocol):
    """Something that knows a faster way into a file."""

    def write_to(self, handle: int) -> None:
        """Write all bytes to an open file, from where that stands."""
        ...


def copy_bytes(source: Bytes, handle: int) -> None:
    """Copy all bytes of a source to an open file; inside the kernel where they lie in a file."""
    if isinstance(source, WritesItself):
        source.write_to(handle)
        return
    file = source.whole if isinstance(source, LocalSlice) else source
    begin = source.begin if isinstance(source, LocalSlice) else 0
    at = 0
    if isinstance(file, LocalFile) and hasattr(os, "copy_file_range"):
        at = _copy_in_kernel(file, begin, source.size, handle)
    while at < source.size:
        data = source.read(at, min(_COPY_BYTES, source.size - at))
        if not data:
            raise OSError(errno.EIO, "A file has become shorter while it was copied")
        _write_all(handle, data)
        at += len(data)


def _copy_in_kernel(file: LocalFile, begin: int, size: int, handle: int) -> int:
    """Return how many bytes were copied; the rest has to be read and written."""
    source = os.open(file.path, os.O_RDONLY)
    at = 0
    try:
        while at < size:
            try:
                count = os.copy_file_range(
                    source, handle, min(_COPY_BYTES, size - at), offset_src=begin + at
                )
            except OSError as error:
                if error.errno in (*NO_ROOM, errno.EIO):
                    raise
                return at  # file systems that cannot
            if count == 0:
                return at
            end = os.lseek(handle, 0, os.SEEK_CUR)
            begin_writing_out(handle, end - count, count)
            at += count
    finally:
        os.close(source)
    return at


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


_AT_ONCE = 1 << 20  # larger ones leave the processor's cache


class Readable(Protocol):
    """Bytes that are read by position."""

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes there."""
        ...


Watch = Callable[[int], None]
"""Told of every span that was compared; may raise to stop."""


class Comparer:
    """Compares spans of files, through memory that serves again. For one thread."""

    def __init__(self) -> None:
        self._left = np.empty(_AT_ONCE, np.uint8)
        self._right = np.empty(_AT_ONCE, np.uint8)

    def first_difference(
        self,
        left: Readable | int,
        at: int,
        right: Readable | int,
        at_right: int,
        length: int,
        *,
        watch: Watch | None = None,
    ) -> int | None:
        """Return where in ``left`` the piece lies in which they differ; None if they are the same.

        Cost: reads both once. A file that ends too early differs.

        Args:
            left: One file; a number is the handle of one that is open for reading.
            at: Where in it the span begins.
            right: The other.
            at_right: Where in that the span begins.
            length: Bytes to compare.
            watch: Told how many bytes were compared.
        """
        for done in range(0, length, _AT_ONCE):
            step = min(_AT_ONCE, length - done)
            one, other = self._left[:step], self._right[:step]
            whole = _filled(left, at + done, one) and _filled(right, at_right + done, other)
            if not whole or not _equal(one, other):
                return at + done
            if watch is not None:
                watch(step)
        return None


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    words = len(one) & ~7  # eight bytes at a time
    same = np.array_equal(one[:words].view(np.uint64), other[:words].view(np.uint64))
    return bool(same and np.array_equal(one[words:], other[words:]))


def _filled(file: Readable | int, offset: int, memory: np.ndarray) -> bool:
    """Read from a place until the memory is full; False where the file ends before."""
    if isinstance(file, LocalSlice):
        offset += file.begin
        file = file.whole
    if isinstance(file, LocalFile):
        return file.read_into(offset, memory.data) == len(memory)
    if isinstance(file, int):
        return read_into(file, offset, memory.data) == len(memory)
    data = file.read(offset, len(memory))
    memory[: len(data)] = np.frombuffer(data, np.uint8)
    return len(data) == len(memory)


NOT_FETCHED = "file-not-fetched"
"""The code of what ``check`` finds."""

FETCH = "fetch it: demoreel pull OWNER/NAME FOLDER; or restore it from a copy"
"""What to do about a file that is not there."""

_BEGINS = b"version https://git-lfs.github.com/spec/v1\n"
_LONGEST = 1024  # bytes of a pointer, by its specification

Kind = TypeVar("Kind", bound=DemoreelError)


def is_pointer(begin: bytes) -> bool:
    """Whether a file that begins like this is a pointer."""
    return begin.startswith(_BEGINS)


def is_pointer_file(path: str | os.PathLike[str], size: int | None = None) -> bool:
    """Whether a file of this machine is a pointer.

    Cost: a stat, unless the size is given; a small read, if the file is as short as a pointer.
    """
    try:
        length = os.stat(path).st_size if size is None else size
        if not len(_BEGINS) <= length < _LONGEST:
            return False
        with open(path, "rb") as file:
            return is_pointer(file.read(len(_BEGINS)))
    except OSError as error:
        refuse_shortage(error)
        return False


@contextmanager
def naming_pointers(kind: type[DemoreelError], file: str) -> Iterator[None]:
    """Say of a file that cannot be read that it is a pointer, if it is one."""
    try:
        yield
    except Exception as error:
        if is_pointer_file(file):
            raise not_fetched(kind, file) from error
        raise


def not_fetched(kind: type[Kind], file: object) -> Kind:
    """Return the error that a pointer lies in the place of a file."""
    return kind(
        "This file was not fetched: it is a Git LFS pointer, which stands for its content.",
        hint="run git lfs pull in the dataset's folder",
        code=NOT_FETCHED,
        file=file,
    )
