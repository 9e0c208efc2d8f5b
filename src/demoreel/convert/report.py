"""What a conversion did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from demoreel.edit.verify import Verified
from demoreel.run.anywhere import is_here


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
        kept: Where the source lies now, if it was converted in place.
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
        """Return the report that plain values were made of."""
        verified, source = noted["verified"], noted["source"]
        changes = {
            "source": Path(source) if is_here(source) else source,
            "verified": None if verified is None else Verified(**verified),
            "notes": tuple(noted["notes"]),
            "dropped": tuple(noted.get("dropped", ())),
        }
        return cls(**{**noted, **changes})

    def called(self, names: Mapping[str, str]) -> ConvertReport:
        """Return the same with other names for folders: URIs, of copies."""
        notes = self.notes
        for copy, name in names.items():
            notes = tuple(note.replace(copy, name) for note in notes)
        source, target = (names.get(str(place), place) for place in (self.source, self.target))
        return replace(self, source=source, target=target, notes=notes)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        paths = {"source": str(self.source), "target": str(self.target)}
        return {**asdict(self), **paths, "kept": None if self.kept is None else str(self.kept)}
