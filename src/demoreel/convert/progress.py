"""How far a conversion is, and the way to stop it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from demoreel.run.bar import progress_bar
from demoreel.storage.amounts import ShareDone

Stage = Literal["fetch", "write", "finish", "verify", "commit", "send"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a conversion is.

    Attributes:
        stage: What it does: write the parts, finish tables and metadata, verify, commit; before it
            fetch a source, and after it send a remote target.
        frames: Rows dealt with in this stage.
        total_frames: Rows to deal with.
        video_bytes: Bytes of video dealt with; of what is fetched or sent, thousandths.
        total_video_bytes: Bytes of video to deal with.
        seconds: Time since the stage began.
    """

    stage: Stage
    frames: int
    total_frames: int
    video_bytes: int
    total_video_bytes: int
    seconds: float

    @property
    def share(self) -> float:
        """How much of the stage is done, from 0 to 1: the part that is furthest behind."""
        shares = [
            done / total
            for done, total in (
                (self.frames, self.total_frames),
                (self.video_bytes, self.total_video_bytes),
            )
            if total
        ]
        return min(shares, default=1.0)


Report = Callable[[Progress], None]

_STAGES: dict[Stage, str] = {
    "fetch": "fetching",
    "write": "writing",
    "finish": "finishing",
    "verify": "verifying",
    "commit": "committing",
    "send": "sending",
}


@contextmanager
def shown_progress(*, enabled: bool = True) -> Iterator[Report | None]:
    """Yield a function that shows progress as a bar: share, counts and the time left.

    Args:
        enabled: Whether to show it; there is no function else.
    """
    if not enabled:
        yield None
        return
    with progress_bar("reading") as show:
        yield lambda now: show(_STAGES[now.stage], now.share, _counts(now))


def _counts(now: Progress) -> str:
    """Return ``120 of 400 frames, 1.2 of 3.4 GB``, as far as it is known."""
    if now.stage in ("fetch", "send"):
        return ""
    parts = []
    if now.total_frames:
        parts.append(ShareDone(now.frames, now.total_frames, "frame").counts)
    if now.total_video_bytes:
        parts.append(ShareDone(now.video_bytes, now.total_video_bytes, "bytes").counts)
    return ", ".join(parts)


class Stopped(Exception):
    """The conversion is being given up; what a thread was doing is of no use any more."""


class Meter:
    """Counts what threads have done; tells the caller in the caller's own thread.

    Args:
        report: Called with the progress; None is silent.
        frames: Rows to deal with in each stage.
        video_bytes: Bytes of video to deal with in each stage.
    """

    def __init__(self, report: Report | None, *, frames: int, video_bytes: int) -> None:
        self._report = report
        self._totals = (frames, video_bytes)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.begin("write")

    def begin(self, stage: Stage) -> None:
        """Begin a stage, and say so."""
        self._stage: Stage = stage
        self._frames = self._bytes = 0
        self._since = time.monotonic()
        self.tell()

    def add_frames(self, count: int) -> None:
        """Count rows; raises ``Stopped`` when the conversion is being given up."""
        self.check()
        with self._lock:
            self._frames += count

    def add_bytes(self, count: int) -> None:
        """Count bytes of video; raises ``Stopped`` when the conversion is being given up."""
        self.check()
        with self._lock:
            self._bytes += count

    def reach(self, share: float) -> None:
        """Set how much of the stage is done, and say so."""
        frames, size = self._totals
        with self._lock:
            self._frames, self._bytes = int(share * frames), int(share * size)
        self.tell()

    def check(self) -> None:
        """Raise ``Stopped`` when the conversion is being given up."""
        if self._stop.is_set():
            raise Stopped

    def stop(self) -> None:
        """Let every thread that counts something raise ``Stopped``."""
        self._stop.set()

    def tell(self) -> None:
        """Tell the caller how far things are."""
        if self._report is not None:
            seconds = time.monotonic() - self._since
            frames, size = self._totals
            self._report(Progress(self._stage, self._frames, frames, self._bytes, size, seconds))
