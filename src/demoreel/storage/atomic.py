"""Writes that either happened or did not.

A folder is filled beside its target under a hidden name, forced to disk file by file, and renamed
once. Whoever looks, at any moment and after any crash, sees the whole result or nothing.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demoreel.errors import ArgumentError, TargetExistsError


@contextmanager
def staged(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty folder that becomes ``target`` when the block ends well.

    If the block raises, the folder is removed and nothing has happened. After a crash or
    ``kill -9`` the hidden folder ``.NAME.staging-XXXX`` may stay behind; no reader looks at it, and
    it may be deleted. Forcing the files to disk costs one disk flush per file.

    Args:
        target: The folder to make. Its parent is made if need be. An empty folder may be there.

    Yields:
        A folder on the same filesystem, for the caller to fill.

    Raises:
        TargetExistsError: There is something at ``target``, now or when the block ends.
        OSError: The disk is full or not writable; the staging folder is removed.
    """
    final = Path(target)
    refuse_existing(final)
    final.parent.mkdir(parents=True, exist_ok=True)
    staging = _hidden_name(final, "staging")
    staging.mkdir()
    try:
        yield staging
        sync_tree(staging)
        refuse_existing(final)
        _rename_folder(staging, final)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    sync_path(final.parent)


def write_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Replace the file at ``path`` as one step: readers see the old bytes or the new, never half.

    Costs two disk flushes. The folder must exist.

    Raises:
        OSError: The disk is full or not writable; the old file is untouched.
    """
    final = Path(path)
    fresh = _hidden_name(final, "new")
    try:
        with open(fresh, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, final)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    sync_path(final.parent)


def sync_tree(folder: Path) -> None:
    """Force every file and folder below ``folder``, and itself, to disk."""
    for parent, _, files in os.walk(folder, topdown=False):
        for name in files:
            sync_path(Path(parent) / name)
        sync_path(Path(parent))


def refuse_existing(
    final: Path, *, hint: str = "choose another folder, or delete this one yourself"
) -> None:
    """Refuse to write over what is there; an empty folder is nothing.

    Args:
        final: Where something is to be written.
        hint: What can be done about a folder with something in it.

    Raises:
        TargetExistsError: There is a file, or a folder with something in it.
    """
    if final.is_symlink() or (final.exists() and not final.is_dir()):
        raise TargetExistsError("There is a file where a dataset is to be written.", path=final)
    if final.is_dir() and any(final.iterdir()):
        raise TargetExistsError(
            "There is already something in the folder where a dataset is to be written.",
            hint=hint,
            path=final,
        )


def refuse_overlap(source: str | os.PathLike[str], target: Path) -> None:
    """Refuse to write into a folder that is read from, or around it.

    Raises:
        ArgumentError: The target is the source, lies inside it, or holds it.
    """
    here, there = Path(os.path.realpath(source)), Path(os.path.realpath(target))
    if here == there:
        what = "Source and target are the same folder."
    elif there.is_relative_to(here):
        what = "The target lies inside the source, which never changes."
    elif here.is_relative_to(there):
        what = "The source lies inside the target."
    else:
        return
    raise ArgumentError(what, hint="choose a folder elsewhere", path=target, source=source)


def _rename_folder(staging: Path, final: Path) -> None:
    try:
        # On POSIX this replaces an empty folder as one step, and fails on a full one.
        os.rename(staging, final)
    except OSError as error:
        refuse_existing(final)
        raise error


def sync_path(path: Path) -> None:
    """Force one file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _hidden_name(final: Path, kind: str) -> Path:
    # Not tempfile's: that makes things for their owner only, and a dataset is to be shared.
    return final.with_name(f".{final.name}.{kind}-{uuid.uuid4().hex[:12]}")
