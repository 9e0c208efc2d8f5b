"""Folders on this machine for work on remote datasets: copies, and what is to be sent.

::

    ~/.cache/demoreel/far/work/     DEMOREEL_STAGING, if that is set
        copy-1a2b3c4d5e6f7a8b/      the letters name what it is about
            lock                    held while a process works here
            NAME/                   the dataset

A folder is gone when the work is done, and after an error that would come again. It stays after a
kill, Ctrl-C, a full disk and whatever the network does, and the same work goes on from there; what
was not used for a week is removed by the next work.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demoreel.errors import DatasetBusyError, DiskFullError, StoreError
from demoreel.storage.commit.hidden_folder import lock_folder, remove_hidden
from demoreel.storage.no_room import says_no_room
from demoreel.storage.remote.folder import cache_home

_OURS = re.compile(r"(copy|send)-[0-9a-f]{16}(-\d+)?")
_LIVES_S = 7 * 86400
_MOST_AT_ONCE = 64  # pieces of work of the same name


def working_home() -> Path:
    """Return where such folders are: ``DEMOREEL_STAGING``, else in the user's cache."""
    given = os.environ.get("DEMOREEL_STAGING")
    return Path(given).expanduser().absolute() if given else cache_home(None) / "work"


@contextmanager
def working_folder(kind: str, *what: object, alone: bool) -> Iterator[Path]:
    """Yield a folder for a piece of work, with what an earlier attempt at the same left in it.

    Args:
        kind: Names the folder, with ``what``: ``copy`` or ``send``.
        what: What the work is about; the first is the URI of the dataset.
        alone: Whether no other process may do the same at the same time; else later ones get
            folders of their own.
    """
    home = working_home()
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    _remove_old(home)
    letters = hashlib.sha256(repr(what).encode()).hexdigest()[:16]
    most = 1 if alone else _MOST_AT_ONCE
    folder, lock = _locked(home / f"{kind}-{letters}", most, about=str(what[0]))
    keep = False
    try:
        os.utime(folder)
        yield folder
    except (KeyboardInterrupt, SystemExit, StoreError, DiskFullError):
        keep = True
        raise
    except OSError as error:
        keep = says_no_room(error)
        if keep:
            raise DiskFullError(
                "There is no room left on the disk for the work on a remote dataset.",
                hint="free some, and the same goes on from here; or set DEMOREEL_STAGING",
                folder=folder,
            ) from error
        raise
    finally:
        if not keep:
            remove_hidden(folder)
        os.close(lock)


def working_folders() -> list[Path]:
    """Return the folders of such work, in use or not."""
    with contextlib.suppress(OSError):
        return sorted(p for p in working_home().iterdir() if _OURS.fullmatch(p.name))
    return []


def _locked(first: Path, most: int, *, about: str) -> tuple[Path, int]:
    for number in range(most):
        folder = first if number == 0 else first.with_name(f"{first.name}-{number}")
        try:
            return folder, lock_folder(folder, first, about=about)
        except DatasetBusyError:
            if number + 1 == most:
                raise
    raise AssertionError("the last try raises or returns")


def _remove_old(home: Path) -> None:
    """Remove what was not used for a week; other programs may have files of theirs here."""
    with contextlib.suppress(OSError):
        for folder in home.iterdir():
            old = time.time() - folder.stat().st_mtime > _LIVES_S
            if not (old and _OURS.fullmatch(folder.name) and (folder / "lock").is_file()):
                continue
            try:
                lock = lock_folder(folder, folder)
            except (DatasetBusyError, OSError):
                continue
            remove_hidden(folder)
            os.close(lock)
