"""What lies in a dataset's folder: names and sizes, and nothing else."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_DEEPEST = 12
_MOST_FILES = 8_000_000


def list_files(root: Path) -> dict[str, int]:
    """Return every file below a folder by its relative path, with its size; -1 for what is none.

    Links are followed, as the Hub's cache is made of them; circles and endless depths are not. Dead
    links, pipes and devices are no files.
    Hidden folders and Lance tables are passed over: the former are nobody's data, the latter are
    Lance's own business.

    Cost: one stat a file.
    """
    found: dict[str, int] = {}
    seen: set[tuple[int, int]] = set()
    waiting = [("", 0)]
    while waiting and len(found) < _MOST_FILES:
        folder, depth = waiting.pop()
        try:
            with os.scandir(root / folder) as entries:
                for entry in entries:
                    name = f"{folder}/{entry.name}" if folder else entry.name
                    if _is_folder(entry):
                        if _is_ours(entry.name) and depth < _DEEPEST and _is_new(entry, seen):
                            waiting.append((name, depth + 1))
                    else:
                        found[name] = _size(entry)
        except OSError:
            continue  # a folder that may not be read has no files for anyone
    return dict(sorted(found.items()))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_ours(name: str) -> bool:
    return not name.startswith(".") and not name.endswith(".lance")


def _is_new(entry: os.DirEntry[str], seen: set[tuple[int, int]]) -> bool:
    if not entry.is_symlink():
        return True  # only links make circles
    status = entry.stat()
    place = (status.st_dev, status.st_ino)
    is_new = place not in seen
    seen.add(place)
    return is_new


def _size(entry: os.DirEntry[str]) -> int:
    try:
        status = entry.stat()
    except OSError:
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1
