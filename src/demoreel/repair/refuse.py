"""What a repair does not do unasked: leave out episodes and cameras."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from demoreel.errors import RepairError, count
from demoreel.repair.changes import examples
from demoreel.repair.decide import Lost

_FETCH = "fetch them (demoreel pull OWNER/NAME FOLDER, or from a copy)"
_SHOWN = 3
_RANGES = 20


def refuse_absent_cameras(
    root: Path, cameras: Sequence[str], absent: Sequence[str], damaged: Sequence[tuple[str, str]]
) -> None:
    """Refuse to repair a dataset without the videos of cameras that it declares.

    Args:
        root: The dataset.
        cameras: The cameras of which no video can be read.
        absent: Files that are not there.
        damaged: Videos that do not open, and why.

    Raises:
        RepairError: There are such cameras.
    """
    if not cameras:
        return
    options = " ".join(f"--drop-camera {name}" for name in cameras)
    own = [f"{name}: {why}" for name, why in damaged if any(c in name for c in cameras)]
    said = f" {count(len(own), 'video')} cannot be read ({examples(own)})." if own else ""
    next_step = _FETCH if absent else "restore them from a copy"
    raise RepairError(
        f"There are no frames of {' and '.join(cameras)}.{_not_there(absent)}{said}",
        hint=f"{next_step}; {options} (drop_cameras=) leaves the "
        f"{'camera' if len(cameras) == 1 else 'cameras'} out",
        dataset=root,
    )


def refuse_losses(
    root: Path, lost: Sequence[Lost], episodes: int, absent: Sequence[str]
) -> NoReturn:
    """Refuse to leave episodes out.

    Raises:
        RepairError: Always.
    """
    fetch = f"{_FETCH}; " if absent else ""
    raise RepairError(
        f"{len(lost)} of {count(episodes, 'episode')} cannot be kept: {reasons(lost)}."
        f"{_not_there(absent)}",
        hint=f"{fetch}--drop-episodes (drop_episodes=True) leaves them out, --dry-run lists them",
        dataset=root,
    )


def refuse_nothing(root: Path, lost: Sequence[Lost], absent: Sequence[str]) -> NoReturn:
    """Say that no episode can be saved.

    Raises:
        RepairError: Always.
    """
    why = f" {reasons(lost)}." if lost else ""
    raise RepairError(
        f"No episode can be saved.{why[:1]}{why[1:2].upper()}{why[2:]}{_not_there(absent)}",
        hint=_FETCH if absent else "demoreel check says what is wrong with each",
        dataset=root,
    )


def reasons(lost: Sequence[Lost]) -> str:
    """Return why episodes are lost, with the episodes of each reason; the first few."""
    return "; ".join(said for said in grouped(lost)[:_SHOWN]) + (
        "; ..." if len(grouped(lost)) > _SHOWN else ""
    )


def grouped(lost: Sequence[Lost]) -> list[str]:
    """Return a sentence for each reason, with its episodes."""
    by_reason: dict[str, list[int]] = {}
    for one in lost:
        by_reason.setdefault(one.why, []).append(one.episode)
    return [f"{_called(own)} ({why})" for why, own in by_reason.items()]


def _called(episodes: Sequence[int]) -> str:
    """Return which episodes, those that follow one another as a range."""
    ranges: list[list[int]] = []
    for number in sorted(episodes):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    said = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    more = f" and {len(said) - _RANGES} more" if len(said) > _RANGES else ""
    return f"{'episode' if len(episodes) == 1 else 'episodes'} {', '.join(said[:_RANGES])}{more}"


def _not_there(absent: Sequence[str]) -> str:
    if not absent:
        return ""
    verb = "is" if len(absent) == 1 else "are"
    return f" {count(len(absent), 'file')} {verb} not there ({examples(absent)})."
