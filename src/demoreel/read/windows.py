"""Windows: which neighbours of a frame belong to its sample."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from demoreel.errors import ArgumentError, UnknownKeyError, nearest

Offsets = Iterable[int] | Iterable[float]
Windows = Mapping[str, Offsets]
"""Feature key -> offsets from the current frame: integers are frames, floats are seconds."""


def frame_offsets(
    windows: Windows, *, known: Iterable[str], fps: float, tolerance_s: float
) -> dict[str, np.ndarray]:
    """Translate windows into frame offsets.

    Raises:
        UnknownKeyError: A key is not a feature of the dataset.
        ArgumentError: A window is empty, or seconds are not multiples of 1/fps; all are listed.
    """
    names = list(known)
    offsets: dict[str, np.ndarray] = {}
    off_grid: dict[str, list[float]] = {}
    for key, values in windows.items():
        if key not in names:
            raise UnknownKeyError(
                f"There is no feature {key!r} to take a window of.", hint=nearest(key, names)
            )
        listed = list(values)
        if not listed:
            raise ArgumentError(f"The window of {key!r} is empty.")
        bad = [value for value in listed if not _on_grid(value, fps, tolerance_s)]
        if bad:
            off_grid[key] = bad
        else:
            frames = [v if _is_frames(v) else round(v * fps) for v in listed]
            offsets[key] = np.array(frames, dtype=np.int64)
    if off_grid:
        lines = "; ".join(f"{key}: {values}" for key, values in off_grid.items())
        raise ArgumentError(
            f"These offsets are not multiples of 1/{fps:g} s within {tolerance_s:g} s: {lines}.",
            hint="give seconds that fall on frames, or integers, which are frames",
        )
    return offsets


def _is_frames(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _on_grid(value: float, fps: float, tolerance_s: float) -> bool:
    if _is_frames(value):
        return True
    if not isinstance(value, (float, np.floating)) or not np.isfinite(value):
        return False
    return bool(abs(value * fps - round(value * fps)) / fps <= tolerance_s)


@dataclass(frozen=True, slots=True)
class Expanded:
    """Rows of a window for each sample.

    Attributes:
        rows: Positions in the dataset (samples, offsets), clamped to each sample's episode.
        is_pad: Where clamping was needed.
    """

    rows: np.ndarray
    is_pad: np.ndarray


def expand(rows: np.ndarray, offsets: np.ndarray, start: np.ndarray, stop: np.ndarray) -> Expanded:
    """Expand rows by offsets; ``start`` and ``stop`` are the edges of each row's episode."""
    wanted = rows[:, None] + offsets[None, :]
    low, high = start[:, None], stop[:, None] - 1
    return Expanded(
        rows=np.minimum(np.maximum(wanted, low), high),
        is_pad=(wanted < low) | (wanted > high),
    )
