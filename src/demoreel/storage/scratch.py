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
import re
import shutil
import stat
import tempfile
import uuid
import weakref
from pathlib import Path

_DIGITS = 24
_OURS = re.compile(f"[0-9a-f]{{{_DIGITS}}}")
_GONE = "gone-"


def scratch_home() -> Path:
    """Return the folder that holds this user's scratch folders."""
    place = os.environ.get("DEMOREEL_SCRATCH") or tempfile.gettempdir()
    return Path(place) / f"demoreel-{os.getuid()}"


class Scratch:
    """A shared folder, held open by a lock for as long as this object lives.

    Args:
        *identity: What the content is made from; equal identities share a folder.

    Raises:
        PermissionError: The home of scratch folders is not this user's own.
        OSError: The folder cannot be made.
    """

    def __init__(self, *identity: object) -> None:
        home = scratch_home()
        _make_home(home)
        _sweep(home)
        digest = hashlib.sha256(repr((_boot(), *identity)).encode()).hexdigest()[:_DIGITS]
        self.folder, lock = _claim(home / digest)
        self._finalizer = weakref.finalize(self, _leave, self.folder, lock, os.getpid())

    def close(self) -> None:
        """Let go of the folder; the last one to do so removes it."""
        self._finalizer()


def _make_home(home: Path) -> None:
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    # In a folder that everyone may write to, someone else may have put something there first: a
    # link, say, to a folder of ours in which we would then sweep.
    status = home.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise PermissionError(f"{home} is not a folder of this user")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{home} can be written by other users")


def _boot() -> str:
    # After a power cut a flag may have reached the disk before the data it speaks of: start anew.
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return ""


def _claim(folder: Path) -> tuple[Path, int]:
    while True:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        try:
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # removed by its last user between the two calls
        fcntl.flock(lock, fcntl.LOCK_SH)
        if _is_lock_of(lock, folder):
            return folder, lock
        os.close(lock)


def _is_lock_of(lock: int, folder: Path) -> bool:
    """Whether an open lock still is the one in the folder of that name, not a removed one's."""
    try:
        return os.path.samestat(os.fstat(lock), os.stat(folder / "lock"))
    except FileNotFoundError:
        return False


def _leave(folder: Path, lock: int, owner: int) -> None:
    if os.getpid() != owner:
        return  # a forked child shares the lock with its parent and must not drop it
    _remove_if_unused(folder, lock)
    os.close(lock)


def _remove_if_unused(folder: Path, lock: int) -> None:
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_lock_of(lock, folder):
            # Renamed first: nobody may find half of it, or put new files among those being removed.
            gone = folder.with_name(f"{_GONE}{uuid.uuid4().hex}")
            folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)


def _sweep(home: Path) -> None:
    """Remove what killed processes left; nothing that is not ours by name."""
    for folder in home.iterdir():
        if folder.name.startswith(_GONE):
            shutil.rmtree(folder, ignore_errors=True)
        elif _OURS.fullmatch(folder.name):
            with contextlib.suppress(OSError):
                lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
                try:
                    _remove_if_unused(folder, lock)
                finally:
                    os.close(lock)
