"""Where the files of an episode lie until it is committed; ``persisted.py`` reads them.

Imports nothing heavy: encoder processes need these names, too.
"""

from __future__ import annotations

import os
from pathlib import Path

WORKDIR = Path(".demoreel") / "encoding"
"""The folder for them, in the dataset's."""

MANIFEST = "sealed.json"
"""While an episode's folder has this file, the episode is saved and not committed."""

ROWS = "rows.arrow"
"""An episode's rows."""

_FOLDER = "episode-"


def episode_folder(workdir: Path, episode: int) -> Path:
    """The folder of an episode."""
    return workdir / f"{_FOLDER}{episode:06d}"


def episode_folders(workdir: Path) -> list[Path]:
    """The folders of the episodes that are there, oldest first.

    Raises:
        OSError: The folder cannot be listed, which is not the same as empty.
    """
    try:
        names = os.listdir(workdir)  # a glob would keep quiet about what may not be read
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = [path for name in names if _number(path := workdir / name) is not None]
    return sorted(found, key=lambda path: (_number(path) or 0, path.name))


def persisted_folders(root: Path) -> list[Path]:
    """The folders of the episodes of a dataset that are saved and not committed, oldest first.

    Where this user may not look, there may be some: the folder that may not be listed is one.
    """
    try:
        return [path for path in episode_folders(root / WORKDIR) if is_persisted(path)]
    except PermissionError:
        return [root / WORKDIR]


def is_persisted(folder: Path) -> bool:
    """Whether a folder has a manifest, or may have one that this user may not see.

    Raises:
        OSError: The disk does not say.
    """
    try:
        os.lstat(folder / MANIFEST)
    except PermissionError:
        return True
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def next_episode(workdir: Path) -> int:
    """Return a number that no episode in ``workdir`` has; the first is 1."""
    return 1 + max((_number(path) or 0 for path in episode_folders(workdir)), default=0)


def video_path(base: Path) -> Path:
    """Where the video of an episode's camera is made."""
    return base.with_name(base.name + ".mp4")


def packets_path(base: Path) -> Path:
    """Where its packets are noted."""
    return base.with_name(base.name + ".packets")


def spill_path(base: Path) -> Path:
    """Where its images wait if they must."""
    return base.with_name(base.name + ".raw")


def counts_path(base: Path) -> Path:
    """Where the counts of its images are when it is persisted."""
    return base.with_name(base.name + ".counts.npy")


def _number(folder: Path) -> int | None:
    if not folder.name.startswith(_FOLDER):
        return None
    number = folder.name.removeprefix(_FOLDER)
    return int(number) if number.isascii() and number.isdigit() and len(number) < 16 else None
