"""A hidden folder beside a target: created, locked for one worker or several, and removed.

::

    .NAME.KIND[-1a2b3c4d5e6f]/    beside the target NAME
        lock                      held (``flock``) while a process works here; a line for each says
                                  on which machine, and what the work is about

The lock ends with its process however that ends. A folder whose lock is free and whose owners were
on this machine is what a killed process left. Work that the same command continues from (a cut, a
conversion, a pull) stays until that command is done, another has made the target, or ``clean`` is
called. All other kinds are removed by the next write beside them (``remove_dead``).
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import socket
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from demoreel.errors import DatasetBusyError, UnsafePathError

LOCK = "lock"
"""The name of the file that is locked; that it is ours is told by what stands in it."""

_MARKER = "demoreel"
_NAME = re.compile(r"\.(.+)\.(?:(convert|replace)|(cut|pull|repair|staging)-[0-9a-f]{12})", re.S)
_PASSING = ("repair", "staging")  # kinds that no command continues from
_ON_ITS_WAY = ("begun.json", "old", "before")  # see ``replace.py``; "before" was its name
_LONGEST = 1 << 16
MADE = "made.json"
"""The name of the note of what a killed process had finished; see ``made.py``."""

Standing = Literal["dead", "in use", "elsewhere", "foreign"]
"""Of a hidden folder: left by a process of this machine that is gone; in use; of another machine,
where it may be in use; or not known to be demoreel's."""


@dataclass(frozen=True, slots=True)
class HiddenName:
    """What a hidden folder's name says.

    Attributes:
        target: The name of what was to be made.
        kind: Which work it is.
    """

    target: str
    kind: str

    @property
    def is_passing(self) -> bool:
        """Whether nothing continues from what is left of such work."""
        return self.kind in _PASSING


def parsed_name(name: str) -> HiddenName | None:
    """Return what the name of a hidden folder says; None if it is another's name."""
    found = _NAME.fullmatch(name)
    return None if found is None else HiddenName(found[1], found[2] or found[3])


def make_parents(folder: Path) -> list[Path]:
    """Make a folder and those above it; return the new ones, innermost first."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return missing


def remove_empty(folders: list[Path]) -> None:
    """Remove those of the folders that are empty."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def lock_folder(
    folder: Path, target: Path, *, shared: bool = False, about: str | None = None
) -> int:
    """Make a folder if need be and lock it; return the handle whose closing unlocks it.

    Args:
        folder: The folder; a file ``lock`` in it is what is locked.
        target: What the work is about, for errors.
        shared: Whether others may hold it at the same time, if they share it too.
        about: What the lock says the work is about; the target if None.
    """
    while True:
        with suppress(FileExistsError):
            folder.mkdir()
        if folder.is_symlink() or not folder.is_dir():
            raise _leads_elsewhere(folder)
        try:
            handle = _opened(folder, os.O_CREAT)
        except FileNotFoundError:
            continue  # another has just ended and taken the folder with it
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise DatasetBusyError(
                "Another process is writing to this folder right now.",
                hint="wait for it, or choose another folder",
                path=target,
            ) from error
        if _is_lock_of(handle, folder):
            try:
                _refuse_links(folder)
                _sign(handle, about or str(target), shared=shared)
            except BaseException:
                os.close(handle)
                raise
            return handle
        os.close(handle)


@contextmanager
def passing_folder(target: Path, kind: str) -> Iterator[Path]:
    """Yield a hidden folder beside a target that is gone when the block ends.

    What killed processes left of such folders beside the same target, or others, is removed first.

    Args:
        target: What is to be made; the folder above it must exist.
        kind: ``repair`` or ``staging``.
    """
    remove_dead(target.parent)
    folder = target.with_name(f".{target.name}.{kind}-{uuid.uuid4().hex[:12]}")
    lock = lock_folder(folder, target)
    try:
        yield folder
    finally:
        remove_hidden(folder)
        os.close(lock)


def remove_hidden(folder: Path) -> None:
    """Remove a hidden folder, its lock last: after a kill on the way, what is left can be told.

    The note of what was made goes just before the lock: it says until then that all is done.
    """
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name not in (MADE, LOCK):
                os.unlink(entry.path)
        for name in (MADE, LOCK):
            (folder / name).unlink(missing_ok=True)
        os.rmdir(folder)


def remove_dead(parent: Path) -> None:
    """Remove the hidden folders of a folder that killed processes left, and nothing continues from.

    Cost: lists the folder.
    """
    for folder, name in hidden_folders(parent):
        if name.is_passing:
            _remove_if_dead(folder)
        elif name.kind == "replace":
            remove_dead(folder)  # a repair in place had its own in there


def remove_outdated(target: Path) -> None:
    """Remove what other commands had begun for a target that has been made now.

    None of them can continue: the target is there. What is in use stays.
    """
    for folder, name in hidden_folders(target.parent):
        if name.target == target.name and name.kind != "replace":
            _remove_if_dead(folder)


def hidden_folders(parent: Path) -> Iterator[tuple[Path, HiddenName]]:
    """Yield the folders with names of hidden folders, whosever they are."""
    with suppress(OSError):
        for entry in sorted(os.scandir(parent), key=lambda entry: entry.name):
            name = parsed_name(entry.name)
            if name is not None and entry.is_dir(follow_symlinks=False):
                yield Path(entry.path), name


def standing(folder: Path) -> Standing:
    """Return whether what is in a hidden folder is in use, and whose it is."""
    found, handle = _claimed(folder)
    if handle is not None:
        os.close(handle)
    return found


def about(folder: Path) -> str | None:
    """Return what the work in a hidden folder is about, as its lock says."""
    try:
        handle = _opened(folder, 0)
    except (OSError, UnsafePathError):
        return None
    try:
        owners = _owners(handle)
    finally:
        os.close(handle)
    return owners[-1]["about"] if owners else None


def claim_dead(folder: Path) -> int | None:
    """Lock a folder that a killed process of this machine left; None if it is not one."""
    return _claimed(folder)[1]


def holds_data(folder: Path) -> bool:
    """Whether a user's dataset may be in a hidden folder, on its way to another place."""
    return any(os.path.lexists(folder / name) for name in _ON_ITS_WAY)


def _remove_if_dead(folder: Path) -> None:
    with suppress(OSError):
        os.rmdir(folder)  # left by a kill between its lock's end and its own, or before the lock
    lock = claim_dead(folder)
    if lock is not None:
        if not holds_data(folder):
            remove_hidden(folder)
        os.close(lock)


def _claimed(folder: Path) -> tuple[Standing, int | None]:
    try:
        handle = _opened(folder, 0)
    except FileNotFoundError:
        return ("foreign" if _has_entries(folder) else "dead"), None
    except (OSError, UnsafePathError):
        return "foreign", None
    found: Standing = "foreign"
    try:
        owners = _owners(handle)
        # A kill before the first line was written leaves an empty lock, and nothing beside it.
        if owners or (owners == [] and os.listdir(folder) == [LOCK]):
            found = "in use"
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_lock_of(handle, folder):
                if all(_was_here(owner) for owner in _owners(handle) or ()):
                    return "dead", handle
                found = "elsewhere"
    except OSError:
        pass
    os.close(handle)
    return found, None


def _has_entries(folder: Path) -> bool:
    with suppress(OSError):
        return bool(os.listdir(folder))
    return True


def _opened(folder: Path, flags: int) -> int:
    # No links, and no waiting for a pipe: a folder of this name may be untrusted.
    flags |= os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        handle = os.open(folder / LOCK, flags, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _leads_elsewhere(folder / LOCK) from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _leads_elsewhere(folder / LOCK)
    return handle


def _is_lock_of(handle: int, folder: Path) -> bool:
    """Whether an open lock still is the one in the folder, not that of a removed one."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(handle), os.lstat(folder / LOCK))
    return False


def _refuse_links(folder: Path) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                raise _leads_elsewhere(Path(entry.path))


def _leads_elsewhere(path: Path) -> UnsafePathError:
    return UnsafePathError(
        "Where a staging folder is to be, there is a link or a file that is not demoreel's.",
        hint="remove it, or choose another target",
        path=path,
    )


def _sign(handle: int, about: str, *, shared: bool) -> None:
    """Write down which machine holds a lock: another one that finds it free cannot be sure."""
    line = {_MARKER: 1, "host": socket.gethostname(), "boot": _boot(), "about": about}
    text = (json.dumps({**line, "pid": os.getpid()}) + "\n").encode()
    if not shared:
        os.ftruncate(handle, 0)
    if os.fstat(handle).st_size < _LONGEST:
        os.lseek(handle, 0, os.SEEK_END)
        os.write(handle, text)


def _owners(handle: int) -> list[dict[str, str]] | None:
    """Return who has held a lock; None if what stands in it is not demoreel's."""
    owners = []
    try:
        for line in os.pread(handle, 2 * _LONGEST, 0).decode().splitlines():
            said = json.loads(line)
            if said[_MARKER] != 1:
                return None
            owners.append({name: str(said[name]) for name in ("host", "boot", "about")})
    except (ValueError, KeyError, TypeError):
        return None
    return owners


def _was_here(owner: dict[str, str]) -> bool:
    # One kernel knows all its locks, also of containers; a machine of this name has rebooted since.
    return owner["boot"] == _boot() or owner["host"] == socket.gethostname()


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def is_locked(lock: Path) -> bool:
    """Whether a living process holds a file's lock. Nothing is made or written."""
    try:
        handle = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False  # who works there makes the file before all else
    try:
        # Shared, and for an instant: a writer that comes just now tries again.
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(handle, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a disk without locks
    finally:
        os.close(handle)
    return False
