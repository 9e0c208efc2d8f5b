"""Where the files of an episode lie until it is finished."""

from __future__ import annotations

from pathlib import Path

_FOLDER = "episode-"


def episode_folder(workdir: Path, episode: int) -> Path:
    """The folder of an episode."""
    return workdir / f"{_FOLDER}{episode:06d}"


def episode_folders(workdir: Path) -> list[Path]:
    """The folders of the episodes that are there, oldest first."""
    return sorted(path for path in workdir.glob(f"{_FOLDER}*") if _number(path) is not None)


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
    """Where its pictures wait if they must."""
    return base.with_name(base.name + ".raw")


def counts_path(base: Path) -> Path:
    """Where the counts of its pictures are when it is sealed."""
    return base.with_name(base.name + ".counts.npy")


def _number(folder: Path) -> int | None:
    number = folder.name.removeprefix(_FOLDER)
    return int(number) if number.isdigit() else None
