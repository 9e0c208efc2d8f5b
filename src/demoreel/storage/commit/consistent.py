"""Reads a dataset that another process may be writing, between two commits.

A commit replaces several files. A reader that starts in the middle of one would see some old and
some new. Each commit therefore leaves a record while it runs, and replaces ``meta/info.json``
last: what was read while there was no record, and with the same ``info.json`` before and after, is
of one state.

Reading takes no lock, makes no file and finishes nothing. A record whose writer is dead and whose
steps were all taken does no harm. Where some were not, the dataset is half of one state and half of
another; where none was, it lacks what the writer may have reported as saved (a power cut undoes
renames). ``demoreel finish``, or the next writer, puts it in place; reading says so.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import socket
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar

from demoreel.errors import DatasetBusyError, DemoreelError, UnfinishedError
from demoreel.storage.commit.journal import is_in_place, is_pending, record_of, roll_forward
from demoreel.storage.commit.writer_lock import HIDDEN, WriterLock, is_held
from demoreel.storage.names import OLD_METADATA

T = TypeVar("T")


class Told(NamedTuple):
    """A state of a folder, for other processes to compare theirs with.

    Attributes:
        machine: On which machine, since which start of it: numbers of files count there only.
        place: Tells the folder, and the newest edit in it.
        files: Tells the metadata's files.
    """

    machine: str
    place: str
    files: str


class FolderState:
    """The state that a dataset's folder was in when it was opened, told by its metadata's files.

    Every commit replaces ``meta/info.json`` last, and leaves a record while it runs. So a file
    that was opened before ``is_current`` was asked belongs to the metadata that were opened, if the
    answer is yes. The folder itself tells appending from replacing: a dataset that is edited in
    place becomes another folder of the same name. A Lance dataset stays where it is, and notes it.
    """

    def __init__(self, root: Path, meta: Path | None = None) -> None:
        meta = meta or root / "meta"
        # A tool may write metadata without info.json: new files show in their folders.
        folders = sorted((meta / "episodes").glob("*"))
        self._root = root
        self._paths = [record_of(root), meta / "info.json", meta / "episodes.jsonl", *folders]
        self._meta = meta
        self._seen = self._look()
        self._place = self._find()

    @property
    def told(self) -> Told:
        """The state, for other processes."""
        return Told(_machine(), _digest(self._place), _digest(self._seen))

    def is_current(self) -> bool:
        """Whether nothing was committed since, and nothing is being committed. Some stats."""
        return self._look() == self._seen

    def is_same_folder(self) -> bool:
        """Whether the folder is the one that was opened, no other took its place, and no edit."""
        return self._find() == self._place

    def grew_from(self, told: Told) -> bool:
        """Whether it is the folder that another process saw; unknown ones may be."""
        return told.machine != _machine() or told.place == _digest(self._place)

    def _find(self) -> tuple[object, ...]:
        return _place(self._root), _place(self._meta), _newest_edit(self._root)

    def _look(self) -> list[tuple[int, ...] | None]:
        return [_status(path) for path in self._paths]


def _status(path: Path) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _place(root: Path) -> tuple[int, ...] | None:
    status = _status(root)
    return None if status is None else status[:2]


def _newest_edit(root: Path) -> str:
    """Return the newest note of an edit of a Lance dataset; appending makes none."""
    try:
        names = os.listdir(root / OLD_METADATA)
    except OSError:
        return ""
    return max((name for name in names if name.endswith(".json")), default="")


def _digest(value: object) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()


@cache
def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        boot = ""
    return _digest((socket.gethostname(), boot))


_PATIENCE_S = 20.0
_PAUSE = 0.002
_VANISHED = 50  # files that may be gone when they are looked at, before that is an error


def consistent_read(root: Path, read: Callable[[], T], *, patience_s: float = _PATIENCE_S) -> T:
    """Return what ``read`` returns when no commit went on meanwhile.

    While a living writer commits (milliseconds), this waits. Costs a stat before and after where
    no recorder has ever appended, and a few elsewhere. Nothing is written.

    Args:
        root: The dataset's folder.
        read: Reads the metadata; called again when a commit came in between.
        patience_s: How long a writer may take.
    """
    until = time.monotonic() + patience_s
    vanished = 0
    while True:
        before = _state(root)
        if _is_whole(root):
            try:
                found = read()
            except Exception as error:
                # A file that was listed an instant ago and is gone has moved, whatever the state
                # says; what is missing for good is an error of the tree.
                gone = isinstance(error, FileNotFoundError) and not isinstance(error, DemoreelError)
                vanished += gone
                unmoved = not gone or vanished > _VANISHED
                if unmoved and _state(root) == before and _is_whole(root):
                    raise
            else:
                if _state(root) == before and _is_whole(root):
                    return found
        if time.monotonic() >= until:
            raise DatasetBusyError(
                "Another process is in the middle of a commit to this dataset, and stands still.",
                hint="let it continue, or end it and run: demoreel finish "
                + shlex.quote(os.fspath(root)),
                dataset=root,
            )
        time.sleep(_PAUSE)


def finish_commit(root: Path) -> bool:
    """Complete the commit of a writer that died in it; return whether there was one."""
    if not is_pending(root):
        return False
    lock = WriterLock(root)
    try:
        return roll_forward(root)
    finally:
        lock.release(remove=True)


def _state(root: Path) -> tuple[int, int, int] | None:
    """Return what changes with every commit; None where no recorder appends."""
    try:
        os.stat(root / HIDDEN)
        status = os.stat(root / "meta" / "info.json")
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _is_whole(root: Path) -> bool:
    """Whether the dataset is of one state; not while a living writer puts a commit in place."""
    if not is_pending(root):
        return True
    if is_held(root):
        # A writer whose disk fails may leave its record for long, when all is in place.
        return is_in_place(root)
    # The lock is free: either its holder has just finished, or it died.
    if is_in_place(root):
        return True
    if is_held(root) or not is_pending(root):
        return False
    command = f"demoreel finish {shlex.quote(os.fspath(root))}"
    raise UnfinishedError(
        "A writer died in the middle of a commit to this dataset; not all of it is in place.",
        hint=f"nothing is lost: {command} completes the commit",
        dataset=root,
    )
