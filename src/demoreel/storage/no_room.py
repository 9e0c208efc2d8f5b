"""Telling a disk that is full, or that fails, from other failures."""

from __future__ import annotations

import errno
import os

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
