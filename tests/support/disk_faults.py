"""A disk that fails, at any operation of a piece of work.

``failing`` counts what this process asks of the disk below a folder: opening for writing, writing,
forcing to disk, renaming, linking, deleting, making folders. From one of them on, or just there, it
fails with an error of the caller's choice. What libraries do by themselves (Arrow, Lance, FFmpeg)
is not seen; a small disk or ``crash.files_may_not_grow`` fails for them, too.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

OPERATIONS = (
    "open",
    "write",
    "fsync",
    "rename",
    "replace",
    "link",
    "unlink",
    "mkdir",
    "rmdir",
)
_IN_OS = ("fsync", "rename", "replace", "link", "unlink", "mkdir", "rmdir", "pwrite", "ftruncate")
_WRITES = {"pwrite": "write", "ftruncate": "write"}


class DiskFaults:
    """What was asked of a disk, and which of it failed.

    Attributes:
        asked: Every operation below the folder, in order.
        failed: Those that failed.
    """

    def __init__(
        self, root: Path, fails: Callable[[int, str, str], bool], number: int = errno.EIO
    ) -> None:
        self._root = os.path.realpath(root)
        self._fails = fails
        self._number = number
        self._lock = threading.RLock()  # what is asked may write, too
        self.asked: list[str] = []
        self.failed: list[str] = []

    def ask(self, operation: str, path: Any) -> None:
        """Count an operation, and raise if it is one that fails."""
        name = self._name(path)
        if name is None:
            return
        with self._lock:
            self.asked.append(f"{operation} {name}")
            if not self._fails(len(self.asked) - 1, operation, name):
                return
            self.failed.append(self.asked[-1])
        raise OSError(self._number, os.strerror(self._number), os.path.join(self._root, name))

    def _name(self, path: Any) -> str | None:
        """Return a path below the folder, relative to it; None for others."""
        if isinstance(path, int):
            try:
                path = os.readlink(f"/proc/self/fd/{path}")
            except OSError:
                return None
        full = os.path.abspath(os.fsdecode(path))
        return (
            os.path.relpath(full, self._root) if f"{full}/".startswith(f"{self._root}/") else None
        )


class _Watched:
    """A file whose writes are counted."""

    def __init__(self, file: Any, path: Any, faults: DiskFaults) -> None:
        self._file, self._path, self._faults = file, path, faults

    def write(self, data: Any) -> Any:
        self._faults.ask("write", self._path)
        return self._file.write(data)

    def __enter__(self) -> _Watched:
        self._file.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._file.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def failing(
    root: Path, fails: Callable[[int, str, str], bool], number: int = errno.EIO
) -> Iterator[DiskFaults]:
    """Let operations of this process below a folder fail.

    Args:
        root: The folder.
        fails: Given an operation's place in the order of all, its name (``OPERATIONS``) and its
            path below the folder, says whether it fails.
        number: With which error of the system.
    """
    faults = DiskFaults(root, fails, number)
    before = {name: getattr(os, name) for name in (*_IN_OS, "open")}
    files = io.open
    try:
        for name in _IN_OS:
            setattr(os, name, _counted(faults, _WRITES.get(name, name), before[name]))
        os.open = _counted_open(faults, before["open"])
        io.open = builtins.open = _counted_file(faults, files)
        yield faults
    finally:
        for name, function in before.items():
            setattr(os, name, function)
        io.open = builtins.open = files


def _counted(faults: DiskFaults, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def counted(path: Any, *arguments: Any, **options: Any) -> Any:
        if options.get("dir_fd") is None:
            faults.ask(name, path)
        return function(path, *arguments, **options)

    return counted


def _counted_open(faults: DiskFaults, function: Callable[..., int]) -> Callable[..., int]:
    def counted(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & os.O_CREAT and not os.path.lexists(path):
            faults.ask("open", path)
        return function(path, flags, *arguments, **options)

    return counted


def _counted_file(faults: DiskFaults, function: Callable[..., Any]) -> Callable[..., Any]:
    def counted(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if not set(mode) & set("wxa+") or isinstance(path, int):
            return function(path, mode, *arguments, **options)
        faults.ask("open", path)
        return _Watched(function(path, mode, *arguments, **options), path, faults)

    return counted
