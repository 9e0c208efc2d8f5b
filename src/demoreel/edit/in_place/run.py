"""A cut as a new version of the Lance dataset that it is made of: no video byte is written.

Rows of numbers are few bytes: they are written again, in any order. Where images are in them, they
stay, and only what changes is written: which rows are gone, and the columns of numbers.

The table of rows gets a new version, ``meta/`` other files, and what they were before is kept
(``layouts/lance/history.py``). All is made aside first: the rows in a stand-in for their table, the
metadata beside it, with a link to the table of videos, so that it can be opened and compared like
any result. Then one commit (``storage/commit/journal.py``) puts everything in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.edit.beside import follow_cut
from demoreel.edit.clips import CutList
from demoreel.edit.in_place.plan import lance_layout
from demoreel.edit.labels import labelled_keys
from demoreel.edit.metadata import write_metadata
from demoreel.edit.plan import Plan, make_plan
from demoreel.edit.render import Rendered
from demoreel.edit.sources import open_source
from demoreel.edit.tables import TableJob, numbered_clips
from demoreel.edit.verify import Verify, verify_rows, verify_videos
from demoreel.errors import ArgumentError, TableError
from demoreel.layouts.appending import no_room_is_an_error, only_writer
from demoreel.layouts.base import Column
from demoreel.layouts.detect import open_reader
from demoreel.layouts.lance.append import renew_copy
from demoreel.layouts.lance.history import keep_metadata, note_version
from demoreel.layouts.lance.reader import LanceReader
from demoreel.layouts.lance.schemas import FEATURE_NOTE, LanceSchema, column_names, rows_batch
from demoreel.layouts.lance.versions import (
    GrowingTable,
    StandIn,
    change_columns,
    indices_of,
    keep_rows,
    scan_ids,
)
from demoreel.layouts.rows import find_rows
from demoreel.model import DEFAULT_FEATURES
from demoreel.stats.columns import Facts
from demoreel.stats.rows import LanceTableRows
from demoreel.storage.arrow import as_numpy
from demoreel.storage.commit.journal import (
    Transaction,
    carry_out,
    transaction,
)
from demoreel.storage.commit.writer_lock import HIDDEN
from demoreel.storage.folder import score_files

_RECORDING = f"{HIDDEN}/lance.json"  # what a recording that was killed may prune when it continues


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
    with only_writer(root, "edited"):
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
        found = self._changes.folder / "facts.parquet"
        pq.write_table(facts.table(), found)
        rows = LanceTableRows(stand_in.folder)
        self.dropped = write_metadata(plan, aside, [found], rows)
        follow_cut(plan, aside, self.dropped)
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
        for name in score_files(aside):
            self._changes.take(aside / name, name)
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
    labelled = sum(clip.labels is not None for clip in plan.clips)
    changes = [
        f"deleted {_episodes(gone)}" if gone else "",
        f"trimmed {_episodes(cut)}" if cut else "",
        "changed the order" if order != sorted(order) else "",
        "changed tasks" if retasked else "",
        f"labelled {_episodes(labelled)}" if labelled else "",
        _listed("removed", source.remove),
        _listed("renamed", tuple(f"{old} to {new}" for old, new in source.rename.items())),
        _listed("added", tuple(source.add)),
    ]
    return "; ".join(text for text in changes if text) or "changed nothing"


def _episodes(number: int) -> str:
    return "1 episode" if number == 1 else f"{number:,} episodes"


def _listed(what: str, names: tuple[str, ...]) -> str:
    return f"{what} {', '.join(names)}" if names else ""


_WHO = ("episode_index", "frame_index")


def rewrite_rows(
    plan: Plan, tables: LanceSchema, frames: GrowingTable, folder: Path, facts: Facts
) -> StandIn:
    """Make the next version of the table of rows, with the indices that it had.

    Args:
        plan: The plan.
        tables: The dataset's tables.
        frames: The table of rows.
        folder: Where the stand-in is made.
        facts: Takes what there is to know of each episode.
    """
    imaged = bool(plan.info.image_keys)
    before = frames.open()
    columns = _Columns(plan, tables, before.schema)
    stand_in = frames.stand_in(folder, with_files=imaged)
    clips = numbered_clips(_job(plan), facts)
    if imaged:
        _keep_images(plan, tables, columns, stand_in, clips)
    else:
        batches = (rows_batch(columns.schema, clip) for clip in clips)
        stand_in.replace_rows(columns.schema, batches)
    stand_in.make_indices(columns.renamed_keys(indices_of(before)))
    return stand_in


def _job(plan: Plan) -> TableJob:
    """Return all clips as one job; images stay where they are."""
    features = {key: f for key, f in plan.info.features.items() if not f.is_camera}
    return TableJob(
        folder="",
        name="",
        tables=[],
        sources=plan.cutlist.sources,
        views=plan.views,
        missing={key: f for key, f in plan.missing.items() if key in features},
        features=features,
        clips=plan.clips,
        positions=plan.positions.tolist(),
        episode=0,
        start=0,
        tasks={text: number for number, text in enumerate(plan.tasks)},
        fps=plan.info.fps,
    )


class _Columns:
    """The columns of the new version: those of the old one in their types, and added ones.

    Attributes:
        schema: The columns of the new version, in the order of the old ones.
        origin: The old column of each; those that are added have none.
    """

    def __init__(self, plan: Plan, tables: LanceSchema, before: pa.Schema) -> None:
        view, names = plan.views[0], column_names(plan.readers[0].info)
        self.origin: dict[str, str] = {}
        fields = []
        for field in tables.rows(plan.info):
            key = field.metadata[FEATURE_NOTE].decode()
            old = key if key in DEFAULT_FEATURES else view.origin.get(key)
            if old is not None and names[old] in before.names:
                self.origin[field.name] = names[old]
                kept = before.field(names[old])
                note = {**(kept.metadata or {}), FEATURE_NOTE: key.encode()}
                field = kept.with_name(field.name).with_metadata(note)
            fields.append(field)
        order = {name: number for number, name in enumerate(before.names)}
        fields.sort(key=lambda field: order.get(self.origin.get(field.name, ""), len(order)))
        self.schema = pa.schema(fields, metadata=before.metadata)
        self._before = before

    @property
    def removed(self) -> list[str]:
        """Columns of the old version that are gone."""
        return [name for name in self._before.names if name not in self.origin.values()]

    @property
    def renamed(self) -> dict[str, pa.Field]:
        """Columns that have another name now, by their old one."""
        return {old: self.schema.field(name) for name, old in self.origin.items() if name != old}

    @property
    def added(self) -> pa.Schema:
        """Columns that the old version does not have."""
        return pa.schema([field for field in self.schema if field.name not in self.origin])

    def renamed_keys(self, kinds: dict[str, str]) -> dict[str, str]:
        """Return what is said of old columns by their names now; of those that are still there."""
        now = {old: name for name, old in self.origin.items()}
        return {now[name]: kind for name, kind in kinds.items() if name in now}

    def replaced(self, others: set[str]) -> pa.Schema:
        """Return the columns, by their old names, whose values change: the default ones, others."""
        changed = []
        for field in self.schema:
            key = field.metadata[FEATURE_NOTE].decode()
            if field.name in self.origin and (key in DEFAULT_FEATURES or key in others):
                changed.append(field.with_name(self.origin[field.name]))
        return pa.schema(changed)


def _keep_images(
    plan: Plan,
    tables: LanceSchema,
    columns: _Columns,
    stand_in: StandIn,
    clips: Iterator[dict[str, Column]],
) -> None:
    ids, who = scan_ids(stand_in, _WHO)
    places = _places(plan, as_numpy(who.column(0)), as_numpy(who.column(1)))
    if np.any(np.diff(places) <= 0):
        raise ArgumentError(
            "The rows of this dataset hold images, and cannot change their order in place.",
            hint="write a new dataset",
            dataset=plan.readers[0].root,
        )
    others = set().union(*(labelled_keys(clip.labels) for clip in plan.clips))
    if not plan.has_whole_episodes:  # what is said moves with a clip's beginning
        others |= {key for key, feature in plan.info.features.items() if feature.is_language}
    replaced, added = columns.replaced(others), columns.added
    changed, new = [], []
    for clip in clips:
        changed.append(rows_batch(replaced, clip))
        if len(added):
            new.append(rows_batch(added, clip))
    keep_rows(stand_in, ids[places], pa.Table.from_batches(changed, replaced))
    change_columns(
        stand_in,
        remove=columns.removed,
        rename=columns.renamed,
        add=pa.Table.from_batches(new, added),
    )


def _places(plan: Plan, episode: np.ndarray, frame: np.ndarray) -> np.ndarray:
    """Return where in the table the rows of all clips stand."""
    reader = plan.readers[0]
    found, problem = find_rows(reader.episodes, np.unique(plan.positions), episode, frame)
    for what in problem.values():
        raise TableError(what, hint="restore the table", dataset=reader.root)
    return np.concatenate(
        [
            found[position][clip.start : clip.stop]
            for clip, position in zip(plan.clips, plan.positions.tolist(), strict=True)
        ]
    )
