"""Another frame rate: which frames of a source's episode become those of the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from demoreel.edit.clips import Clip
from demoreel.media.settings import exact_rate

Frames = range | tuple[int, ...]
"""Frame numbers, ascending: a range where they are regular."""


def frames_of(clip: Clip, *, rate: float, fps: float) -> Frames:
    """Return the frames of the episode that become a clip's: at each tick, the nearest in time.

    Frame ``k`` of the result shows second ``k / fps`` of the clip; no tick lies behind its last
    frame. A range where one rate is a multiple of the other.

    Args:
        clip: The clip.
        rate: Its source's frames per second.
        fps: The result's.
    """
    ratio = exact_rate(rate) / exact_rate(fps)
    if ratio.denominator == 1:
        return range(clip.start, clip.stop, ratio.numerator)
    over, under = ratio.numerator, ratio.denominator
    count = (clip.length - 1) * under // over + 1
    # Halves are rounded up; in whole numbers, so that every machine agrees.
    return tuple(clip.start + (2 * tick * over + under) // (2 * under) for tick in range(count))


def gathered(values: Sequence[Any], chosen: Sequence[int]) -> list[list[Any]]:
    """Put what every row says into the nearest row that is kept: nothing that was said is lost.

    Args:
        values: A list for each row.
        chosen: The rows that are kept, ascending; one that is kept twice speaks once.
    """
    kept: list[list[Any]] = [[] for _ in chosen]
    once = [place for place, row in enumerate(chosen) if not place or chosen[place - 1] != row]
    at = 0
    for row, said in enumerate(values):
        while at + 1 < len(once) and _is_nearer(chosen[once[at + 1]], chosen[once[at]], row):
            at += 1
        kept[once[at]] += said
    return kept


def _is_nearer(after: int, before: int, row: int) -> bool:
    return abs(after - row) < abs(before - row)


def earlier(rows: Sequence[Mapping[str, Any]], seconds: float) -> list[dict[str, Any]]:
    """Move language rows to a clip's own time; what began before it begins with it."""
    moved = []
    for row in rows:
        at = row.get("timestamp")
        moved.append(dict(row) if at is None else {**row, "timestamp": max(0.0, at - seconds)})
    return moved
