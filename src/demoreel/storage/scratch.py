"""Scratch files that the processes of one machine share while they read the same dataset.

Parquet is compressed, so random rows need a decoded copy. A small one lives in memory; a large
one lives here, in a folder under the system's temporary directory (``DEMOREEL_SCRATCH`` moves it),
where workers and ranks map the same pages. No home and no dataset is written to.

The folder's name is made from what it was decoded from, so every process that opens the same data
finds it. A shared lock is held while it is used; the last process to leave removes it, and what a
killed process left behind is removed by the next one that comes along. Folders for other passing
files are there, too (``scratch_folder``).
"""

from __future__ import annotations

import atexit
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demoreel.errors import DemoreelError, DiskFullError
from demoreel.storage.commit.files import says_no_room

_DIGITS = 24
_OURS = re.compile(f"[0-9a-f]{{{_DIGITS}}}")
_GONE = "gone-"
_CONTENT = "content"


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
        _make_home(home)
        _sweep(home)
        digest = hashlib.sha256(repr((_boot(), *identity)).encode()).hexdigest()[:_DIGITS]
        self.folder, lock = _claim(home / digest)
        self._finalizer = weakref.finalize(self, _leave, self.folder, lock, os.getpid())

    def close(self) -> None:
        """Let go of the folder; the last one to do so removes it."""
        self._finalizer()


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield an empty folder of this process; if it is killed, the next one removes the folder."""
    with no_room_for_scratch(), contextlib.ExitStack() as open_now:
        try:
            held = Scratch(uuid.uuid4().hex)
        except PermissionError:  # another user has taken the name of the home
            name = open_now.enter_context(tempfile.TemporaryDirectory(prefix="demoreel-"))
            yield Path(name)
            return
        open_now.callback(held.close)
        folder = held.folder / _CONTENT
        folder.mkdir()
        yield folder


@contextmanager
def no_room_for_scratch() -> Iterator[None]:
    """Turn the system's error of a full temporary disk into one that names the folder."""
    try:
        yield
    except OSError as error:
        named = error.filename is not None and os.fspath(error.filename)
        home = scratch_home()
        elsewhere = named and not str(named).startswith((str(home), tempfile.gettempdir()))
        if isinstance(error, DemoreelError) or not says_no_room(error) or elsewhere:
            raise
        raise DiskFullError(
            "There is no room on the disk for temporary files.",
            hint="free some space there, or set DEMOREEL_SCRATCH to a folder on another disk",
            path=home,
        ) from error


def process_folder() -> Path:
    """Return an empty folder that is gone when this process ends; forked children may use it."""
    with contextlib.ExitStack() as open_now:
        folder = open_now.enter_context(scratch_folder())
        atexit.register(_close_in, os.getpid(), open_now.pop_all())
    return folder


def _close_in(owner: int, folder: contextlib.ExitStack) -> None:
    if os.getpid() == owner:
        folder.close()


def _make_home(home: Path) -> None:
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    _refuse_foreign_home(home)


def _refuse_foreign_home(home: Path) -> None:
    # In a folder that every user may write to, another user may have put something there first: a
    # link, say, to a folder of ours in which we would then sweep.
    status = home.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise PermissionError(f"{home} is not a folder of this user")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{home} can be written by other users")


def _boot() -> str:
    # After a power cut a flag may have reached the disk before the data it refers to: start again.
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
            # Renamed first: no process may find half of it, or add files while it is removed.
            gone = folder.with_name(f"{_GONE}{uuid.uuid4().hex}")
            folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)


def dead_scratch() -> list[Path]:
    """Return the scratch folders of this user that no living process holds."""
    home = scratch_home()
    try:
        _refuse_foreign_home(home)
        return [folder for folder in sorted(home.iterdir()) if _is_dead(folder)]
    except OSError:
        return []


def remove_scratch(folder: Path) -> bool:
    """Remove a scratch folder if no living process holds it; return whether it is gone."""
    if folder.name.startswith(_GONE):
        shutil.rmtree(folder, ignore_errors=True)
    elif _OURS.fullmatch(folder.name):
        with contextlib.suppress(OSError):
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
            try:
                _remove_if_unused(folder, lock)
            finally:
                os.close(lock)
    return not folder.exists()


def _is_dead(folder: Path) -> bool:
    if folder.name.startswith(_GONE):
        return True
    if not _OURS.fullmatch(folder.name):
        return False
    with contextlib.suppress(OSError):
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        finally:
            os.close(lock)
    return False


def _sweep(home: Path) -> None:
    """Remove what killed processes left; nothing that is not ours by name."""
    for folder in home.iterdir():
        remove_scratch(folder)
