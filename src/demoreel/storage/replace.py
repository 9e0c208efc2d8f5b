"""One folder put in another's place, so that a kill at any instant loses neither.

::

    .NAME.replace/       beside the folder NAME
        lock             held while someone works here
        new              becomes NAME
        begun.json       which folder the new one is; while it is there, the exchange is under way
        old              what NAME was, until it gets its place

Where the system can exchange two folders as one step, NAME is there all the time. Where not, it is
moved away first, and for a moment there is none: whoever opens it after a kill finishes what was
begun (``finish_replacing``).
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from demoreel.errors import ArgumentError, DatasetBusyError, TargetExistsError
from demoreel.storage.atomic import refuse_existing, sync_path
from demoreel.storage.hidden_folder import lock_folder
from demoreel.storage.writer_lock import WriterLock

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_PATIENCE_S = 5.0
_PAUSE = 0.005


@contextmanager
def replacing(root: Path, *, keep: Path | None) -> Iterator[Path]:
    """Yield a path for the caller to make a folder at, which then takes the place of ``root``.

    If the block raises, nothing has happened. After a kill, what it has written is there for the
    next call.

    Args:
        root: The folder to be replaced. What the caller makes must be forced to disk.
        keep: What the old folder is to be called then, beside ``root``; None deletes it.

    Yields:
        A path in a hidden folder beside ``root``, at which there is nothing.

    Raises:
        TargetExistsError: There is something at ``keep``.
        DatasetBusyError: Another process replaces the same folder.
        OSError: A folder cannot be renamed; what was there is there still.
    """
    finish_replacing(root)
    if keep is not None:
        refuse_kept(keep)
    folder = _folder(root)
    lock = lock_folder(folder, root)
    begun = False
    try:
        new = folder / "new"
        shutil.rmtree(new, ignore_errors=True)
        yield new
        if keep is not None:
            refuse_kept(keep)
        _begin(folder, keep)
        begun = True
        _exchange(folder, root)
        _finish(folder, root)
    finally:
        if not begun or not (folder / "begun.json").exists():
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def place_of_old(root: Path) -> Path:
    """Return what a dataset will be called when another has its place: ``NAME_old``.

    Finishes a replacement that was killed.

    Raises:
        ArgumentError: It is a link, or where a disk is mounted: neither can be replaced.
        TargetExistsError: There is something at ``NAME_old``.
        DatasetBusyError: Another process replaces the same dataset.
    """
    if root.is_symlink() or os.path.ismount(root):
        raise ArgumentError(
            "A link, or where a disk is mounted, cannot be replaced in place.",
            hint="name the folder itself, or give a target",
            path=root,
        )
    finish_replacing(root)
    old = root.with_name(f"{root.name}_old")
    refuse_kept(old)
    return old


@contextmanager
def replacing_dataset(root: Path, old: Path) -> Iterator[Path]:
    """Yield a path for another dataset, which then takes a dataset's place; nobody may record.

    Args:
        root: The dataset's folder.
        old: What it is to be called then: ``place_of_old``.

    Raises:
        DatasetBusyError: A recording is open on the dataset, or someone else replaces it.
    """
    lock = WriterLock(root)
    try:
        with replacing(root, keep=old) as new:
            yield new
        lock.follow(old)
    finally:
        lock.release(remove=True)


def finish_replacing(root: Path) -> None:
    """Finish a replacement that was killed when it had begun, or undo it where it had not.

    Costs a stat where there is none.

    Raises:
        DatasetBusyError: A living process is at it, and stands still.
        TargetExistsError: The old folder's place was taken meanwhile.
    """
    folder = _folder(root)
    until = time.monotonic() + _PATIENCE_S
    while (folder / "begun.json").exists():
        try:
            lock = lock_folder(folder, root)
        except DatasetBusyError:
            if time.monotonic() >= until:
                raise
            time.sleep(_PAUSE)
            continue
        try:
            if (folder / "begun.json").exists():
                _finish(folder, root)
            if not (folder / "begun.json").exists():
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


def exchange(left: Path, right: Path) -> bool:
    """Exchange two folders as one step; False where the system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    done = rename(_AT_FDCWD, os.fsencode(left), _AT_FDCWD, os.fsencode(right), _RENAME_EXCHANGE)
    return bool(done == 0)


def _folder(root: Path) -> Path:
    return root.with_name(f".{root.name}.replace")


def refuse_kept(keep: Path) -> None:
    """Refuse to replace a folder whose old one would have no place.

    Raises:
        TargetExistsError: There is something at ``keep``.
    """
    if os.path.lexists(keep):
        refuse_existing(keep, hint="it is an older one, perhaps: move it away, or delete it")
        raise TargetExistsError(
            "There is a folder where the old dataset is to be kept.",
            hint="delete it: it is empty",
            path=keep,
        )


def _begin(folder: Path, keep: Path | None) -> None:
    status = os.stat(folder / "new")
    note = {"new": [status.st_dev, status.st_ino], "keep": None if keep is None else keep.name}
    fresh = folder / "begun.new"
    fresh.write_text(json.dumps(note))
    sync_path(fresh)
    os.rename(fresh, folder / "begun.json")
    sync_path(folder)


def _exchange(folder: Path, root: Path) -> None:
    """Put the new folder in the old one's place."""
    new, old = folder / "new", folder / "old"
    if exchange(new, root):
        os.rename(new, old)
    else:
        os.rename(root, old)
        os.rename(new, root)
    sync_path(root.parent)


def _finish(folder: Path, root: Path) -> None:
    """Go on from wherever it stopped: undone if the new folder is in no one's place yet."""
    note = json.loads((folder / "begun.json").read_text())
    new, old = folder / "new", folder / "old"
    if not root.exists() and old.is_dir() and new.is_dir():
        os.rename(new, root)
    if _is(root, note["new"]):
        if new.is_dir():  # they were exchanged, and that is the old one
            os.rename(new, old)
        if note["keep"] is not None and old.is_dir():
            _keep(old, root.with_name(note["keep"]), root)
    elif old.is_dir():
        raise TargetExistsError(
            "While a dataset was being replaced, something else was put in its place.",
            hint="move that away, and open the dataset: then the replacement is finished",
            path=root,
            old=old,
        )
    sync_path(root.parent)
    (folder / "begun.json").unlink()


def _keep(old: Path, keep: Path, root: Path) -> None:
    try:
        os.rename(old, keep)
    except OSError as error:
        if not os.path.lexists(keep):
            raise
        raise TargetExistsError(
            "The place where the old dataset was to be kept was taken meanwhile.",
            hint="move that away, and open the dataset: then the old one gets its place",
            dataset=root,
            path=keep,
            old=old,
        ) from error


def _is(folder: Path, identity: list[int]) -> bool:
    with suppress(OSError):
        status = os.stat(folder)
        return [status.st_dev, status.st_ino] == identity
    return False
