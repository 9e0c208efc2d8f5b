"""Reports of a conversion: progress while it runs, and the result."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from demoreel.edit.verify import Verified
from demoreel.run.anywhere import is_here
from demoreel.run.bar import progress_bar
from demoreel.storage.amounts import ShareDone

_STAGES: dict[Stage, str] = {
    "fetch": "fetching",
    "write": "writing",
    "finish": "finishing",
    "verify": "verifying",
    "commit": "committing",
    "send": "sending",
}


@dataclass(frozen=True, slots=True)
class ConvertReport:
    """What a conversion did, or with ``dry_run`` would do.

    Attributes:
        source: The source's folder, or its URI.
        target: The folder that was made, or its URI.
        source_layout: The source's layout.
        to: The target's.
        table: Name of its table of rows, where that is free to choose.
        episodes: Episodes.
        frames: Frames of each camera.
        videos: Videos.
        video_bytes: Their bytes.
        linked: Whether the videos stayed where they were; then the source must stay too.
        image_codec: How images were encoded, for lance-frames.
        parts: Parts that the work was cut into.
        resumed_parts: Parts that a killed conversion had already written.
        bytes_written: Size of the target; 0 for a dry run.
        seconds: How long it took.
        verified: What was compared; None without verification.
        dry_run: Whether nothing was written.
        kept: Where the source is now, if it was converted in place.
        notes: What else is worth knowing: episodes that were left out or have other numbers,
            statistics that were computed or are missing.
        dropped: What the source holds or states and the target does not, a sentence each.
    """

    source: Path | str
    target: Path | str
    source_layout: str
    to: str
    table: str | None
    episodes: int
    frames: int
    videos: int
    video_bytes: int
    linked: bool
    image_codec: str | None
    parts: int
    resumed_parts: int
    bytes_written: int
    seconds: float
    verified: Verified | None
    dry_run: bool
    kept: Path | None = None
    notes: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, noted: Mapping[str, Any]) -> ConvertReport:
        """Return the report that was noted.

        Args:
            noted: Plain values, as JSON holds them.
        """
        verified, source = noted["verified"], noted["source"]
        changes = {
            "source": Path(source) if is_here(source) else source,
            "verified": None if verified is None else Verified(**verified),
            "notes": tuple(noted["notes"]),
            "dropped": tuple(noted.get("dropped", ())),
        }
        return cls(**{**noted, **changes})

    def called(self, names: Mapping[str, str]) -> ConvertReport:
        """Return the same report with other names for folders.

        Args:
            names: The new names by the old ones, such as URIs by the paths of their copies.
        """
        notes = self.notes
        for copy, name in names.items():
            notes = tuple(note.replace(copy, name) for note in notes)
        source, target = (names.get(str(place), place) for place in (self.source, self.target))
        return replace(self, source=source, target=target, notes=notes)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        paths = {"source": str(self.source), "target": str(self.target)}
        return {**asdict(self), **paths, "kept": None if self.kept is None else str(self.kept)}


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
