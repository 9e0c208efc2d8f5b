"""Reading a dataset that another process may be writing, between two of its commits.

A commit replaces several files. A reader that starts in the middle of one would see some old and
some new. Each commit therefore leaves a record while it goes on, and replaces ``meta/info.json``
last: what was read while there was no record, and with the same ``info.json`` before and after, is
of one state.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from demoreel.errors import DatasetBusyError, DiskFullError, MetadataError
from demoreel.storage.journal import is_in_place, is_pending, roll_forward
from demoreel.storage.no_room import NO_ROOM
from demoreel.storage.writer_lock import HIDDEN, WriterLock

T = TypeVar("T")

_PATIENCE_S = 20.0
_PAUSE = 0.002
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


def settled(root: Path, read: Callable[[], T], *, patience_s: float = _PATIENCE_S) -> T:
    """Return what ``read`` returns when no commit went on meanwhile.

    A commit whose writer is dead is finished first. While a living writer commits (milliseconds),
    this waits. Costs a stat before and after where nobody has ever appended, and a few where.

    Args:
        root: The dataset's folder.
        read: Reads the metadata; called again when a commit came in between.
        patience_s: How long a writer may take.

    Raises:
        DatasetBusyError: The writer stands still in the middle of a commit.
        MetadataError: An unfinished commit cannot be finished: it is damaged, or the disk is
            read-only.
        DiskFullError: It cannot be finished, for want of room.
    """
    until = time.monotonic() + patience_s
    while True:
        before = _state(root)
        if not is_pending(root) or _finish(root):
            try:
                found = read()
            except Exception:
                if _state(root) == before and not is_pending(root):
                    raise
            else:
                # On a disk that is read-only a record may stay although all is in place.
                if _state(root) == before and (not is_pending(root) or is_in_place(root)):
                    return found
        if time.monotonic() >= until:
            raise DatasetBusyError(
                "Another process is in the middle of a commit to this dataset, and stands still.",
                hint="let it go on, or end it: whoever opens the dataset then finishes the commit",
                dataset=root,
            )
        time.sleep(_PAUSE)


def _state(root: Path) -> tuple[int, int, int] | None:
    """Return what changes with every commit; None where nobody appends."""
    try:
        os.stat(root / HIDDEN)
        status = os.stat(root / "meta" / "info.json")
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _finish(root: Path) -> bool:
    """Finish a dead writer's commit; return whether all is in place now."""
    try:
        with WriterLock(root, patience_s=0):
            roll_forward(root)
        return True
    except DatasetBusyError:
        return False
    except FileNotFoundError:
        return False  # the writer finished and tidied up
    except OSError as error:
        if error.errno in _READ_ONLY and is_in_place(root):
            return True
        raise _unfinished(root, error) from error


def _unfinished(root: Path, error: OSError) -> Exception:
    what = "The last commit to this dataset was interrupted, and cannot be finished here"
    if error.errno in NO_ROOM:
        return DiskFullError(
            f"{what}: the disk is full.", hint="free some space, then open it again", dataset=root
        )
    return MetadataError(
        f"{what} ({error.strerror}).",
        hint="open it once where it may be written to, or copy it to such a place",
        dataset=root,
    )
