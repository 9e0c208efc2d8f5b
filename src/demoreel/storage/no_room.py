"""Telling a full disk from other failures."""

from __future__ import annotations

import errno

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""How the system says that there is no room: on the disk, for this user, for so large a file."""


def says_no_room(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is that of a full disk; PyAV's are no ``OSError``."""
    while error is not None:
        if getattr(error, "errno", None) in NO_ROOM:
            return True
        error = error.__cause__ or error.__context__
    return False
