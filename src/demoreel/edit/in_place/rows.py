"""The table of rows of an edit in place.

Rows of numbers are few bytes: they are written anew, in any order. Where images lie in them, they
stay, and only what changes is written: which rows are gone, and the columns of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from demoreel.edit.plan import Plan
from demoreel.edit.table_work import TableJob, numbered_clips
from demoreel.errors import ArgumentError, TableError
from demoreel.layouts.base import Column
from demoreel.layouts.find_rows import find_rows
from demoreel.layouts.lance.schemas import FEATURE_NOTE, LanceSchema, column_names, rows_batch
from demoreel.layouts.lance.versions import (
    GrowingTable,
    StandIn,
    change_columns,
    indices_of,
    keep_rows,
    scan_ids,
)
from demoreel.model import DEFAULT_FEATURES
from demoreel.stats.columns import Facts
from demoreel.storage.arrow import as_numpy

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
        missing={},
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

    Args:
        plan: The plan.
        tables: The dataset's tables.
        before: The schema of the version before.

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
            old = key if key in DEFAULT_FEATURES else view.origin[key]
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
            "Pictures lie in the rows of this dataset, which cannot change their order in place.",
            hint="write a new dataset",
            dataset=plan.readers[0].root,
        )
    said = {key for key, feature in plan.info.features.items() if feature.is_language}
    moved = any(clip.start for clip in plan.clips)  # and with a clip's beginning, what is said
    replaced, added = columns.replaced(said if moved else set()), columns.added
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
