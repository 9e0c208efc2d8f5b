"""What a push has done, or would do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PushReport:
    """What a push has done, or would do.

    Attributes:
        repo_id: The repository.
        branch: The branch.
        url: Where people look at it.
        layout: The dataset's layout.
        episodes: Its episodes.
        frames: Its frames.
        commit: The commit that holds it; before a dry run's, the one that is there.
        tag: The tag that names the commit; None if none was wanted.
        tag_moved: Whether it pointed elsewhere before, or nowhere.
        sent: Bytes of each file that was not there, or not with these bytes.
        deleted: Files of the dataset that it no longer has.
        unchanged: How many files were there already.
        created: Whether the repository was made.
        dry_run: Whether all this would be done, and was not.
        notes: What else is worth knowing.
    """

    repo_id: str
    branch: str
    url: str
    layout: str
    episodes: int
    frames: int
    commit: str | None
    tag: str | None
    tag_moved: bool
    sent: Mapping[str, int]
    deleted: tuple[str, ...]
    unchanged: int
    created: bool
    dry_run: bool
    notes: tuple[str, ...] = ()

    @property
    def bytes_sent(self) -> int:
        """Bytes of the files that were sent."""
        return sum(self.sent.values())

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {
            "repo_id": self.repo_id,
            "branch": self.branch,
            "url": self.url,
            "layout": self.layout,
            "episodes": self.episodes,
            "frames": self.frames,
            "commit": self.commit,
            "tag": self.tag,
            "tag_moved": self.tag_moved,
            "sent": dict(self.sent),
            "bytes_sent": self.bytes_sent,
            "deleted": list(self.deleted),
            "unchanged": self.unchanged,
            "created": self.created,
            "dry_run": self.dry_run,
            "notes": list(self.notes),
        }
