"""One writer at a time: a lock on a file in the dataset's hidden folder.

The lock is the kernel's (``flock``), so it ends with its process however that ends. Readers take
none, and make no file; ``is_held`` tells them whether a writer is alive.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import time
import weakref
from pathlib import Path

from demoreel.errors import DatasetBusyError, UnsafePathError
from demoreel.storage.commit.hidden_folder import is_locked

HIDDEN = ".demoreel"
"""The folder inside a dataset that belongs to its writer; nothing else looks at it."""

_NAME = "lock"
_PAUSE = 0.005
_held: weakref.WeakSet[WriterLock] = weakref.WeakSet()


class WriterLock:
    """The right to change a dataset; use it as a context manager, or call ``release``.

    Args:
        root: The dataset's folder, which must exist.
        patience_s: How long to wait for another holder. Readers hold the lock for moments only.
    """

    def __init__(self, root: Path, *, patience_s: float = 0.5) -> None:
        self.root = root
        self._path = root / HIDDEN / _NAME
        self._handle: int | None = None
        until = time.monotonic() + patience_s
        while self._handle is None:
            self._handle = self._try()
            if self._handle is None:
                if time.monotonic() >= until:
                    raise self._busy()
                time.sleep(_PAUSE)
        _held.add(self)

    def _try(self) -> int | None:
        handle = self._opened()
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise self._unsafe()
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its last holder may have removed the file while this one waited for it.
            if os.path.samestat(os.fstat(handle), os.stat(self._path)):
                return handle
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
        return None

    def _opened(self) -> int:
        # No links: those of a dataset from an untrusted source may lead to what is ours.
        flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        if self._path.parent.is_symlink():
            raise UnsafePathError(
                f"The dataset's {HIDDEN} is a link.",
                hint=f"remove the link; where no recording is under way, {HIDDEN} holds nothing",
                dataset=self.root,
            )
        if self._path.parent.exists() and not self._path.parent.is_dir():
            raise UnsafePathError(
                f"The dataset's {HIDDEN} is a file; demoreel needs a folder of this name.",
                hint="move the file away, or delete it: no data of the dataset is in it",
                dataset=self.root,
                path=self._path.parent,
            )
        if self._path.is_symlink():
            raise self._unsafe()
        while True:
            try:
                return os.open(self._path, os.O_RDWR | os.O_CREAT | flags, 0o666)
            except FileNotFoundError:
                self._path.parent.mkdir(exist_ok=True)
            except OSError:  # a read-only disk can still tell whether another process writes
                return os.open(self._path, os.O_RDONLY | flags)

    def _unsafe(self) -> UnsafePathError:
        return UnsafePathError(
            f"The lock in the dataset's {HIDDEN} is no file.",
            hint="remove it; is this dataset from someone you trust?",
            dataset=self.root,
            path=self._path,
        )

    def sign(self) -> None:
        """Write down who holds the lock, for the error that the next one gets."""
        assert self._handle is not None
        text = f"process {os.getpid()} on {socket.gethostname()}".encode()
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, text, 0)

    def follow(self, root: Path) -> None:
        """Go on under the dataset's new name, now that its folder was renamed."""
        self.root, self._path = root, root / HIDDEN / _NAME

    def _busy(self) -> DatasetBusyError:
        try:
            holder = self._path.read_text() or "another process"
        except OSError:
            holder = "another process"
        return DatasetBusyError(
            f"The dataset is being written by {holder}.",
            hint="finish that recording, or wait for it; reading is possible meanwhile",
            dataset=self.root,
        )

    def release(self, *, remove: bool = False) -> None:
        """Let go; with ``remove``, take the lock file and its folder away if nothing else is in it.

        May be called twice.
        """
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        try:
            if remove and set(os.listdir(self._path.parent)) <= {_NAME}:
                self._path.unlink()
                self._path.parent.rmdir()
        except OSError:
            pass  # another process came in; an empty folder does no harm
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)  # a child that forks just now has the handle too
            os.close(handle)

    def _forget(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> WriterLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.release()


def is_held(root: Path) -> bool:
    """Whether a living process has the right to change a dataset. Nothing is made or written."""
    folder = root / HIDDEN
    return not folder.is_symlink() and is_locked(folder / _NAME)


def _leave_to_the_parent() -> None:
    # A child that kept the handle would keep the lock when its parent is killed.
    for lock in list(_held):
        lock._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)
