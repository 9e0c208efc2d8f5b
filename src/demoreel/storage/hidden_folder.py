"""A hidden folder beside a target: made, locked for one worker or several, and tidied up."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

from demoreel.errors import DatasetBusyError


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


def lock_folder(folder: Path, target: Path, *, shared: bool = False) -> int:
    """Make a folder if need be and lock it; return the handle whose closing unlocks it.

    Args:
        folder: The folder; a file ``lock`` in it is what is locked.
        target: What the work is about, for errors.
        shared: Whether others may hold it at the same time, if they share it too.

    Raises:
        DatasetBusyError: Someone else holds it.
    """
    while True:
        folder.mkdir(exist_ok=True)
        try:
            handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
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
        with suppress(OSError):
            if os.path.samestat(os.fstat(handle), os.stat(folder / "lock")):
                return handle
        os.close(handle)
