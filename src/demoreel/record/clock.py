"""Times at which rows were captured, and the rate and jitter computed from them."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from demoreel.errors import count

_GAP = 1.5  # frame times between two rows from which there is a gap
_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Gap:
    """A place where the loop was late.

    Attributes:
        frame: The frame that came late.
        seconds: How long after the one before.
    """

    frame: int
    seconds: float


@dataclass(frozen=True, slots=True)
class EpisodeReport:
    """What is known of an episode when it has been saved.

    Attributes:
        episode_index: Its number.
        frames: Its rows, and the frames of each camera.
        seconds: From the first capture to the last.
        fps: Rows per second that were achieved; None for an episode of one frame.
        jitter_ms_p50: Median distance of the time between two rows from the nominal one.
        jitter_ms_p99: Its 99th percentile.
        gaps: Where a row came more than half a frame late.
        late_frames: How many those are.
        skipped: Frames that were refused because neither encoders nor disk kept up.
        backlog: Frames that wait to be encoded.
        pending: Whether the episode is saved, but not encoded and committed yet: its encoders are
            behind. demoreel reads it all the same.
        save_seconds: How long saving took.
    """

    episode_index: int
    frames: int
    seconds: float
    fps: float | None
    jitter_ms_p50: float
    jitter_ms_p99: float
    gaps: list[Gap] = field(default_factory=list)
    late_frames: int = 0
    skipped: int = 0
    backlog: int = 0
    pending: bool = False
    save_seconds: float = 0.0

    def __str__(self) -> str:
        """Say it in a line, as ``demoreel record`` does."""
        parts = [f"{count(self.frames, 'frame')} in {self.seconds:.1f} s"]
        if self.fps is not None:
            parts.append(f"{self.fps:.2f} fps")
            parts.append(f"jitter {self.jitter_ms_p50:.1f} ms (99 %: {self.jitter_ms_p99:.1f} ms)")
        if self.late_frames:
            parts.append(f"{self.late_frames} late")
        if self.skipped:
            parts.append(f"{self.skipped} skipped")
        if self.pending:
            parts.append(f"{count(self.backlog, 'frame')} to be encoded")
        saving = f"saving took {1000 * self.save_seconds:.0f} ms"
        return f"episode {self.episode_index} saved: {', '.join(parts)}; {saving}"

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return asdict(self)


class CaptureClock:
    """Nanoseconds since 1970 that never step back: the wall's time once, then a steady clock."""

    def __init__(self) -> None:
        self._offset = time.time_ns() - time.perf_counter_ns()

    def now(self) -> int:
        """Return the time now."""
        return time.perf_counter_ns() + self._offset


def timing(captured: np.ndarray, *, fps: float) -> dict[str, Any]:
    """Return what an episode's capture times say, as fields of ``EpisodeReport``."""
    steps = np.diff(captured).astype(np.float64) / _NANOSECONDS
    if len(steps) == 0:
        return {"seconds": 0.0, "fps": None, "jitter_ms_p50": 0.0, "jitter_ms_p99": 0.0}
    seconds = int(captured[-1] - captured[0]) / _NANOSECONDS
    off = np.abs(steps - 1 / fps) * 1000
    late = np.flatnonzero(steps > _GAP / fps)
    p50, p99 = np.percentile(off, [50, 99]).tolist()
    return {
        "seconds": seconds,
        "fps": len(steps) / seconds if seconds > 0 else None,
        "jitter_ms_p50": p50,
        "jitter_ms_p99": p99,
        "gaps": [Gap(int(place) + 1, float(steps[place])) for place in late.tolist()],
        "late_frames": len(late),
    }
