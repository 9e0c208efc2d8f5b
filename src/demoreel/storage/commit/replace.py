"""Replaces one folder by another so that a kill at any moment loses neither.

::

    .NAME.replace/       beside the folder NAME
        lock             held while a process works here
        new              becomes NAME
        begun.json       which folder the new one is; while it is there, the exchange is under way
        old              what NAME was, until it gets its place

Where the system can exchange two folders as one step, NAME is there all the time. Where not, it is
moved away first, and for a moment there is none: after a kill, ``demoreel finish`` and the next
writer finish what was begun (``finish_replacing``). Readers only wait (``wait_for_replacing``).
"""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from demoreel.errors import (
    ArgumentError,
    DatasetBusyError,
    MetadataError,
    TargetExistsError,
    UnfinishedError,
)
from demoreel.storage.commit.files import refuse_existing, sync_path
from demoreel.storage.commit.hidden_folder import is_locked, lock_folder, remove_hidden
from demoreel.storage.commit.writer_lock import WriterLock
from demoreel.storage.folder import refuse_links_out
from demoreel.storage.json_files import read_json

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
        root: The folder to be replaced. What the caller makes must be synced to disk.
        keep: What the old folder is to be called then, beside ``root``; None deletes it.

    Yields:
        A path in a hidden folder beside ``root``, at which there is nothing.
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
            remove_hidden(folder)
        os.close(lock)


def place_of_old(root: Path, *, dry_run: bool = False) -> Path:
    """Return what a dataset will be called when another has its place: ``NAME_old``.

    Finishes a replacement that was killed, unless nothing is to be written (``dry_run``).
    """
    refuse_irreplaceable(root)
    if not dry_run:
        finish_replacing(root)
    elif not root.exists():
        wait_for_replacing(root)
    old = root.with_name(f"{root.name}_old")
    refuse_kept(old)
    return old


def refuse_irreplaceable(root: Path) -> None:
    """Refuse a folder whose place another cannot take."""
    if root.is_symlink() or os.path.ismount(root):
        raise ArgumentError(
            "A link, or where a disk is mounted, cannot be replaced in place.",
            hint="name the folder itself, or give a target",
            path=root,
        )
    refuse_links_out(root)


@contextmanager
def replacing_dataset(root: Path, old: Path | None) -> Iterator[Path]:
    """Yield a path for another dataset, which then takes a dataset's place; recording is refused.

    Args:
        root: The dataset's folder.
        old: What it is to be called then: ``place_of_old``; None deletes it.
    """
    lock = WriterLock(root)
    try:
        with replacing(root, keep=old) as new:
            yield new
        if old is not None:
            lock.follow(old)
    finally:
        lock.release(remove=True)


def wait_for_replacing(root: Path) -> None:
    """Wait for a living process that puts a folder in another's place; changes nothing.

    Costs a stat where there is none.
    """
    folder = _folder(root)
    until = time.monotonic() + _PATIENCE_S
    while not root.exists() and (folder / "begun.json").exists():
        if not is_locked(folder / "lock") or time.monotonic() >= until:
            raise UnfinishedError(
                "A process died while it put another dataset in this one's place.",
                hint=f"nothing is lost: demoreel finish {shlex.quote(os.fspath(root))}",
                path=root,
            )
        time.sleep(_PAUSE)


def finish_replacing(root: Path) -> bool:
    """Finish a replacement that was killed when it had begun, or undo it where it had not.

    Costs a stat where there is none.

    Returns:
        Whether there was one.
    """
    folder, found = _folder(root), False
    until = time.monotonic() + _PATIENCE_S
    while (folder / "begun.json").exists():
        found = True
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
                remove_hidden(folder)
        finally:
            os.close(lock)
    return found


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
    """Refuse to replace a folder whose old one would have no place."""
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
    note = _noted(folder)
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
            hint="move that away, then run demoreel finish: it completes the replacement",
            path=root,
            old=old,
        )
    sync_path(root.parent)
    (folder / "begun.json").unlink()


def _noted(folder: Path) -> dict[str, Any]:
    """Return what was noted when a replacement began; an untrusted folder may hold anything."""
    path = folder / "begun.json"
    try:
        note: Any = read_json(path)
        keep = note["keep"]
        if keep is not None and (Path(keep).name != keep or keep in (".", "..")):
            raise ValueError(f"it names {keep!r}")
        return {"new": [int(number) for number in note["new"]], "keep": keep}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MetadataError(
            "The record of an unfinished replacement cannot be used "
            f"({str(error).splitlines()[0]}).",
            hint="put the folder 'old' or 'new' beside it in the dataset's place yourself",
            file=path,
        ) from error


def _keep(old: Path, keep: Path, root: Path) -> None:
    try:
        os.rename(old, keep)
    except OSError as error:
        if not os.path.lexists(keep):
            raise
        raise TargetExistsError(
            "The place where the old dataset was to be kept was taken meanwhile.",
            hint="move that away, then run demoreel finish: the old one gets its place",
            dataset=root,
            path=keep,
            old=old,
        ) from error


def _is(folder: Path, identity: list[int]) -> bool:
    with suppress(OSError):
        status = os.stat(folder)
        return [status.st_dev, status.st_ino] == identity
    return False
