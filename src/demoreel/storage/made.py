"""What a killed process had finished: a note of the dataset, made just before it gets its place.

Between the rename that makes a dataset appear and the end of the process there is a moment. Whoever
is killed in it has done everything, and the same command must not be told that something is in its
way. The note says what was done, and which files came out: a rename of their folder changes nothing
about them, and whoever writes to the dataset afterwards does.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

_NAME = "made.json"


def note_made(folder: Path, dataset: Path, work: str) -> None:
    """Note in a hidden folder what is about to get its place.

    It is not forced to disk: if a power cut takes it, the dataset is there or not all the same.
    Cost: a stat for each file.

    Args:
        folder: The hidden folder.
        dataset: What is about to get its place.
        work: What was done; equal for two commands only if each would be content with the other's
            result.

    Raises:
        OSError: The disk is full, or failed.
    """
    fresh = folder / f".{_NAME}.new"
    fresh.write_text(json.dumps(_described(dataset, work)))
    os.replace(fresh, folder / _NAME)


def is_made(folder: Path, target: Path, work: str) -> bool:
    """Whether this very work was done, and its result lies at ``target`` and is as it was.

    Cost: where there is no note, one look; else a stat for each file.
    """
    with suppress(OSError, ValueError):
        noted = json.loads((folder / _NAME).read_bytes())
        return bool(noted == _described(target, work))
    return False


def forget_made(folder: Path) -> None:
    """Remove a note, if there is one."""
    (folder / _NAME).unlink(missing_ok=True)


def remove_with_note(folder: Path) -> None:
    """Remove a hidden folder, the note last: a kill on the way leaves it to tell what is done."""
    with suppress(OSError):
        for place in list(os.scandir(folder)):
            if place.name != _NAME and place.is_dir(follow_symlinks=False):
                shutil.rmtree(place.path, ignore_errors=True)
            elif place.name != _NAME:
                os.unlink(place.path)
    shutil.rmtree(folder, ignore_errors=True)


def _described(dataset: Path, work: str) -> dict[str, Any]:
    files = {}
    for parent, _, names in os.walk(dataset):
        for name in names:
            status = os.stat(os.path.join(parent, name), follow_symlinks=False)
            place = os.path.relpath(os.path.join(parent, name), dataset)
            files[place] = [status.st_ino, status.st_size, status.st_mtime_ns]
    return {"work": work, "files": files}
