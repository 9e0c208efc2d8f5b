"""What a killed process had finished: a note of the dataset, made just before it gets its place.

Between the rename that makes a dataset appear and the end of the process there is a moment. Whoever
is killed in it has done everything, and the same command must not be told that something is in its
way. The note says which file ``meta/info.json`` was: a rename of its folder changes nothing about
it, and whoever writes to the dataset afterwards replaces it.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from demoreel.storage.atomic import sync_path

_NAME = "made.json"
_MARK = Path("meta", "info.json")


def note_made(folder: Path, dataset: Path) -> None:
    """Note in a hidden folder what is about to get its place; the note is on disk then.

    Raises:
        OSError: There is no ``meta/info.json`` in the dataset; the disk is full, or failed.
    """
    fresh = folder / f".{_NAME}.new"
    fresh.write_text(json.dumps(_identity(dataset)))
    sync_path(fresh)
    os.replace(fresh, folder / _NAME)


def is_made(folder: Path, target: Path) -> bool:
    """Whether the dataset that was noted has its place at ``target``, and nobody has changed it."""
    with suppress(OSError, ValueError):
        return bool(json.loads((folder / _NAME).read_bytes()) == _identity(target))
    return False


def _identity(dataset: Path) -> list[int]:
    status = os.stat(dataset / _MARK)
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
