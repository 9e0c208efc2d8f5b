"""Shifts and resamples the times of language rows when frames are left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from demoreel.edit.clips import Clip, Frames

_ROUNDING = 1e-4  # seconds


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


def events_of(column: Sequence[Any], clip: Clip, frames: Frames) -> list[Any]:
    """Return what is said at each frame of a clip.

    Args:
        column: What is said at each frame of the episode.
        clip: The clip.
        frames: The frames of the episode that become the clip's.
    """
    if frames == range(clip.start, clip.stop):
        return list(column[clip.start : clip.stop])
    chosen = [frame - clip.start for frame in frames]
    return list(gathered(column[clip.start : clip.stop], chosen))


def _is_nearer(after: int, before: int, row: int) -> bool:
    return abs(after - row) < abs(before - row)


def moved(
    rows: Sequence[Mapping[str, Any]],
    old: np.ndarray,
    clip: Clip,
    frames: Frames,
    new: np.ndarray,
) -> list[dict[str, Any]]:
    """Move language rows that hold from their time on to a clip's own time.

    What begins at a frame begins at that frame's new time, bit for bit. Of what began before the
    clip, the last of each kind holds at its beginning; what begins behind it is left out.

    Args:
        rows: The rows of the episode.
        old: The time of each of its frames.
        clip: The clip.
        frames: The frames of the episode that become the clip's.
        new: The time of each of those.
    """
    found: list[tuple[int, float, dict[str, Any]]] = []
    latest: dict[Any, float] = {}
    for row in rows:
        at = row.get("timestamp")
        if at is None:
            found.append((clip.start, 0.0, dict(row)))
            continue
        frame, after = frame_at(old, float(at))
        if frame >= clip.stop:
            continue
        if frame <= clip.start:
            latest[_kind(row)] = max(latest.get(_kind(row), -np.inf), float(at))
        found.append((frame, after, dict(row)))
    kept = []
    for frame, after, row in found:
        at = row.get("timestamp")
        if at is not None and frame <= clip.start and float(at) < latest[_kind(row)]:
            continue
        if at is not None:
            place = min(int(np.searchsorted(np.asarray(frames), frame)), len(frames) - 1)
            is_there = frame >= clip.start and frames[place] == frame
            row["timestamp"] = float(new[place]) + (after if is_there else 0.0)
        kept.append(row)
    return kept


def _kind(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row.get("style"), row.get("role"), row.get("camera")


def frame_at(times: np.ndarray, at: float) -> tuple[int, float]:
    """Return the frame that is shown at a second, and for how many seconds it is shown by then.

    Times that were computed another way are a frame's as far as rounding explains it.
    """
    near = int(np.argmin(np.abs(times - at)))
    if abs(float(times[near]) - at) <= _ROUNDING:
        return near, 0.0
    frame = max(0, int(np.searchsorted(times, at, side="right")) - 1)
    return frame, max(0.0, at - float(times[frame]))
