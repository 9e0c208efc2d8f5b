"""Single steps of a commit: files and folders that are complete or absent, and synced to disk.

Also tells a disk that is full, or that fails, from other failures.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from demoreel.errors import ArgumentError, TargetExistsError

_FLUSHES_AT_ONCE = 8


def write_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Replace the file at ``path`` as one step: readers see the old bytes or the new, never half.

    Costs two disk flushes. The folder must exist.
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


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` make a file under another name, and give it its own when it is whole.

    A killed process leaves the other name behind, to be written over.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    try:
        write(fresh)
        os.replace(fresh, path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def sync_tree(folder: Path) -> None:
    """Force every file and folder below ``folder``, and itself, to disk."""
    for parent, _, files in os.walk(folder, topdown=False):
        for name in files:
            sync_path(Path(parent) / name)
        sync_path(Path(parent))


def sync_all(paths: Iterable[Path]) -> None:
    """Force files and folders to disk, many at a time: a disk flushes several at once."""
    with ThreadPoolExecutor(_FLUSHES_AT_ONCE, "demoreel-sync") as pool:
        list(pool.map(sync_path, paths))


def refuse_existing(
    final: Path, *, hint: str = "choose another folder, or delete this one yourself"
) -> None:
    """Refuse to write over what is there; an empty folder is nothing.

    Args:
        final: Where something is to be written.
        hint: What can be done about a folder with something in it.
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
    """Refuse to write into a folder that is read from, or around it."""
    here, there = Path(os.path.realpath(source)), Path(os.path.realpath(target))
    if here == there:
        what = "Source and target are the same folder."
    elif there.is_relative_to(here):
        what = "The target is inside the source, which never changes."
    elif here.is_relative_to(there):
        what = "The source is inside the target."
    else:
        return
    raise ArgumentError(what, hint="choose a folder elsewhere", path=target, source=source)


def put_in_place(staging: Path, final: Path) -> None:
    """Make a folder that is on disk the target, as one step."""
    refuse_existing(final)
    try:
        # On POSIX this replaces an empty folder as one step, and fails on a full one.
        os.rename(staging, final)
    except OSError as error:
        refuse_existing(final)
        raise error
    try:
        sync_path(final.parent)
    except BaseException:
        os.rename(final, staging)  # undone, so that the caller may do it again
        raise


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


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""How the system says that there is no room: on the disk, for this user, for so large a file."""

FAILING = (
    *NO_ROOM,
    errno.EIO,
    errno.EROFS,
    errno.ENXIO,
    errno.ENODEV,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.EMFILE,
    errno.ENFILE,
)
"""What may pass when the cause is gone. Not EPERM, which codecs say of settings they refuse."""


def says_no_room(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is that of a full disk; PyAV's are no ``OSError``."""
    return _number(error, NO_ROOM) is not None


def disk_errno(error: BaseException | None) -> int:
    """Return with which number an error, or what caused it, says that the disk fails; else 0."""
    return _number(error, FAILING) or 0


def reason_of(error: BaseException) -> str:
    """Return what the system says of a disk that fails, without the path."""
    number = disk_errno(error)
    if number:
        return os.strerror(number)
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _number(error: BaseException | None, wanted: tuple[int, ...]) -> int | None:
    while error is not None:
        number = getattr(error, "errno", None)
        if number in wanted:
            return int(number)
        error = error.__cause__ or error.__context__
    return None
