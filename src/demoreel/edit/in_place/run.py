"""A cut as a new version of the Lance dataset that it is made of: no video byte is written.

The table of rows gets a new version, ``meta/`` other files, and what they were before is kept
(``layouts/lance/history.py``). All is made aside first: the rows in a stand-in for their table, the
metadata beside it, with a link to the table of videos, so that it can be opened and compared like
any result. Then one commit (``storage/commit/journal.py``) puts everything in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq

from demoreel.edit.clips import CutList
from demoreel.edit.in_place.plan import lance_layout
from demoreel.edit.in_place.rows import rewrite_rows
from demoreel.edit.metadata import write_metadata
from demoreel.edit.plan import Plan, make_plan
from demoreel.edit.render import Rendered
from demoreel.edit.sources import open_source
from demoreel.edit.verify import Verify, verify_rows, verify_videos
from demoreel.edit.written import WrittenLanceRows
from demoreel.layouts.appending import no_room_is_an_error
from demoreel.layouts.detect import open_reader
from demoreel.layouts.lance.append import renew_copy
from demoreel.layouts.lance.history import keep_metadata, note_version
from demoreel.layouts.lance.reader import LanceReader
from demoreel.layouts.lance.schemas import LanceSchema
from demoreel.layouts.lance.versions import GrowingTable
from demoreel.layouts.pending import refuse_waiting
from demoreel.stats.columns import Facts
from demoreel.storage.commit.journal import (
    Transaction,
    carry_out,
    clear_staging,
    roll_forward,
    transaction,
)
from demoreel.storage.commit.writer_lock import HIDDEN, WriterLock
from demoreel.storage.links import refuse_links_out

_RECORDING = f"{HIDDEN}/lance.json"  # what a recording that was killed may prune when it goes on


def render_in_place(cutlist: CutList, *, verification: Verify = "ends") -> Rendered:
    """Make a cut a new version of the dataset that it is a cut of.

    Cost: writes the rows (of layouts with images in their rows, the numbers that change) and
    ``meta/``; no video. Killed at any instant, the dataset is what it was, or what it is to be.

    Args:
        cutlist: The cut list; all clips are of one Lance dataset, in its newest version.
        verification: What is read back and compared before the version appears.
    """
    reader = open_source(cutlist.sources[0])
    lance_layout(cutlist, reader)
    root = reader.root
    with only_writer(root):
        plan = make_plan(cutlist, in_place=True)
        with no_room_is_an_error(root), transaction(root) as changes:
            edit = _InPlaceEdit(root, plan, changes)
            version, size = edit.make(verification)
            changes.record()
            carry_out(root)
    return Rendered(
        path=root,
        episodes=len(plan.clips),
        frames=int(plan.start[-1]),
        bytes=size,
        resumed=0,
        committed=True,
        version=version,
        dropped=(*plan.dropped, *edit.dropped),
    )


@contextmanager
def only_writer(root: Path) -> Iterator[None]:
    """Hold the right to change a dataset, as the last writer left it."""
    refuse_links_out(root)
    lock = WriterLock(root)
    try:
        lock.sign()
        roll_forward(root)
        clear_staging(root)
        refuse_waiting(root, "edited")
        yield
    finally:
        lock.release(remove=True)


class _InPlaceEdit:
    """One edit, made aside."""

    def __init__(self, root: Path, plan: Plan, changes: Transaction) -> None:
        reader = plan.readers[0]
        assert isinstance(reader, LanceReader)
        self._root, self._plan, self._changes, self._reader = root, plan, changes, reader
        names = {kind: table.name for kind, table in reader.tables.items()}
        self._tables = LanceSchema(plan.layout, names["frames"], names.get("videos"))
        self._aside = changes.folder / "dataset"
        self.dropped: list[str] = []

    def make(self, verification: Verify) -> tuple[int, int]:
        """Make everything, look at it, announce it; return the version, and how many bytes."""
        plan, aside, tables = self._plan, self._aside, self._tables
        aside.mkdir()
        if tables.videos is not None:
            (aside / tables.videos).symlink_to((self._root / tables.videos).resolve())
        frames = GrowingTable(self._root / tables.frames)
        facts = Facts(plan.info.features, plan.tasks)
        stand_in = rewrite_rows(plan, tables, frames, aside, facts)
        found = aside / "facts.parquet"
        pq.write_table(facts.table(), found)
        rows = WrittenLanceRows(stand_in.folder)
        self.dropped = write_metadata(plan, aside, [found], rows)
        if verification != "none":
            full = verification == "full"
            result = open_reader(aside)
            assert isinstance(result, LanceReader)
            if tables.videos is not None:
                result.share_videos(self._reader)
            verify_rows(plan, result, rows, full=full)
            verify_videos(plan, result, full=full)
        keep_metadata(self._root, frames.version)
        version = stand_in.version  # those before it were steps on the way
        stand_in.move_into(self._changes, self._root, since=version)
        note_version(self._changes, version, _changelog(plan))
        replace_metadata(self._root, aside / "meta", self._changes)
        return version, sum(path.stat().st_size for path in self._changes.folder.glob("[0-9]*"))


def replace_metadata(root: Path, meta: Path, changes: Transaction) -> None:
    """Announce other metadata in the place of all, ``info.json`` last, and of their copy.

    Args:
        root: The dataset's folder.
        meta: The new metadata, on the same disk; the files are linked, or copied.
        changes: What they come into place with.
    """
    renew_copy(root, changes, meta)
    new = {path.relative_to(meta).as_posix() for path in meta.rglob("*") if path.is_file()}
    old = (path for path in (root / "meta").rglob("*") if path.is_file())
    for path in old:
        if path.relative_to(root / "meta").as_posix() not in new:
            changes.delete(path.relative_to(root).as_posix())
    if (root / _RECORDING).exists():
        changes.delete(_RECORDING)
    for name in sorted(new, key=lambda name: (name == "info.json", name)):
        changes.take(meta / name, f"meta/{name}")


def _changelog(plan: Plan) -> str:
    """Return what a cut of one dataset does to it."""
    reader, source = plan.readers[0], plan.cutlist.sources[0]
    lengths = reader.episodes.length[plan.positions]
    kept = set(plan.positions.tolist())
    gone = len(reader.episodes) - len(kept)
    cut = sum(
        clip.length < length for clip, length in zip(plan.clips, lengths.tolist(), strict=True)
    )
    order = plan.positions.tolist()
    retasked = source.tasks or any(clip.task is not None for clip in plan.clips)
    changes = [
        f"deleted {_episodes(gone)}" if gone else "",
        f"trimmed {_episodes(cut)}" if cut else "",
        "changed the order" if order != sorted(order) else "",
        "changed tasks" if retasked else "",
        _listed("removed", source.remove),
        _listed("renamed", tuple(f"{old} to {new}" for old, new in source.rename.items())),
        _listed("added", tuple(source.add)),
    ]
    return "; ".join(text for text in changes if text) or "changed nothing"


def _episodes(number: int) -> str:
    return "1 episode" if number == 1 else f"{number:,} episodes"


def _listed(what: str, names: tuple[str, ...]) -> str:
    return f"{what} {', '.join(names)}" if names else ""
