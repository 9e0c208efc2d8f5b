"""Scratch files that the processes of one machine share while they read the same dataset.

Parquet is compressed, so random rows need a decoded copy. A small one lives in memory; a large
one lives here, in a folder under the system's temporary directory (``DEMOREEL_SCRATCH`` moves it),
where workers and ranks map the same pages. Nobody's home and no dataset is written to.

The folder's name is made from what it was decoded from, so whoever opens the same data finds it. A
shared lock is held while it is used; whoever leaves last removes it, and what a killed process left
behind is removed by the next one that comes along.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
import weakref
from pathlib import Path


def scratch_home() -> Path:
    """Return the folder that holds this user's scratch folders."""
    place = os.environ.get("DEMOREEL_SCRATCH") or tempfile.gettempdir()
    return Path(place) / f"demoreel-{os.getuid()}"


class Scratch:
    """A shared folder, held open by a lock for as long as this object lives.

    Args:
        *identity: What the content is made from; equal identities share a folder.
    """

    def __init__(self, *identity: object) -> None:
        home = scratch_home()
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if home.stat().st_uid != os.getuid():
            raise PermissionError(f"{home} belongs to another user")
        _sweep(home)
        digest = hashlib.sha256(repr((_boot(), *identity)).encode()).hexdigest()[:24]
        self.folder, lock = _claim(home / digest)
        self._finalizer = weakref.finalize(self, _leave, self.folder, lock, os.getpid())

    def close(self) -> None:
        """Let go of the folder; the last one to do so removes it."""
        self._finalizer()


def _boot() -> str:
    # After a power cut a flag may have reached the disk before the data it speaks of: start anew.
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return ""


def _claim(folder: Path) -> tuple[Path, int]:
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # removed by its last user between the two calls
        fcntl.flock(lock, fcntl.LOCK_SH)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), os.stat(folder / "lock")):
                return folder, lock
        os.close(lock)


def _leave(folder: Path, lock: int, owner: int) -> None:
    if os.getpid() != owner:
        return  # a forked child shares the lock with its parent and must not drop it
    _remove_if_unused(folder, lock)
    os.close(lock)


def _remove_if_unused(folder: Path, lock: int) -> None:
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(home: Path) -> None:
    for folder in home.iterdir():
        with contextlib.suppress(OSError):
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
            try:
                _remove_if_unused(folder, lock)
            finally:
                os.close(lock)
