"""What a repair did, what it could not, and what is still wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from demoreel.check.report import Report
from demoreel.repair.decide import Lost


@dataclass(frozen=True)
class Repaired:
    """What became of a dataset.

    Attributes:
        source: The dataset that was repaired: its folder, or its URI.
        target: The repaired one; None after a dry run.
        episodes: How many were kept.
        frames: How many rows they have.
        mended: What was wrong and is not any more, a sentence for each kind of change.
        lost: Episodes that could not be kept, and why.
        unreadable: Files, or parts of them, that could not be read.
        copied: Files that were copied as they were.
        before: What ``check`` said of the source.
        after: What it says of the result; None after a dry run.
        dropped: What the source holds or states, and the result does not, a sentence each.
        absent: Files that the metadata name and that are not there, where that costs an episode or
            a camera.
        cameras_lost: Cameras that were left out as asked, or, of a dry run, have no video.
        columns_lost: Columns of the tables that no feature can hold, or not of all episodes.
    """

    source: Path | str
    target: Path | str | None
    episodes: int
    frames: int
    mended: tuple[str, ...]
    lost: tuple[Lost, ...]
    unreadable: tuple[str, ...]
    copied: int
    before: Report
    after: Report | None
    dropped: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    cameras_lost: tuple[str, ...] = ()
    columns_lost: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether all episodes, cameras and columns of the source are in the result."""
        return not (self.lost or self.cameras_lost or self.columns_lost or self.unreadable)

    @property
    def is_clean(self) -> bool:
        """Whether ``check`` finds no error and no warning in the result."""
        return self.after is not None and self.after.worst not in ("error", "warning")

    def called(self, names: Mapping[str, str]) -> Repaired:
        """Return the same with other names for folders: URIs, of copies."""
        return replace(
            self,
            source=names.get(str(self.source), self.source),
            target=None if self.target is None else names.get(str(self.target), self.target),
            before=self.before.called(names),
            after=None if self.after is None else self.after.called(names),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {
            "source": str(self.source),
            "target": None if self.target is None else str(self.target),
            "episodes": self.episodes,
            "frames": self.frames,
            "mended": list(self.mended),
            "lost": [{"episode": lost.episode, "why": lost.why} for lost in self.lost],
            "unreadable": list(self.unreadable),
            "copied_files": self.copied,
            "dropped": list(self.dropped),
            "absent": list(self.absent),
            "cameras_lost": list(self.cameras_lost),
            "columns_lost": list(self.columns_lost),
            "clean": self.is_clean,
            "before": self.before.to_json(),
            "after": None if self.after is None else self.after.to_json(),
        }
