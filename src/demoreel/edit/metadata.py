"""``meta/`` of the result: written last, when every table and video is there."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from demoreel.edit.annotations import ANNOTATIONS, follow_annotations
from demoreel.edit.beside import inherit_times
from demoreel.edit.features import View
from demoreel.edit.foreign import carry_files, task_details
from demoreel.edit.plan import Plan
from demoreel.edit.statistics import FrameStats, frame_stats, inherit_levels
from demoreel.edit.target_info import split_column, split_places
from demoreel.layouts.beside import NOTE, histograms_name, write_note
from demoreel.layouts.capture_times import CAPTURE_TIMES
from demoreel.layouts.v2 import writer as v2
from demoreel.layouts.v3 import writer as v3
from demoreel.layouts.v3.files import FilePlace
from demoreel.model import DEFAULT_FEATURES, Stats
from demoreel.stats.columns import RowFile, split_checks, whole_stats
from demoreel.stats.files import quiet_stats
from demoreel.stats.inherited import RECOMPUTED, Inherited, inherited_from
from demoreel.storage.arrow import from_numpy
from demoreel.storage.parquet import open_parquet

_ROBOT = "robot_type"
_SPLIT = "split"


def write_metadata(
    plan: Plan,
    dataset: Path,
    parts: Sequence[Path],
    rows: RowFile,
) -> list[str]:
    """Write all of ``meta/``. It is not synced to disk.

    Args:
        plan: The plan.
        dataset: The folder that ``meta/`` goes into.
        parts: For each table, what its task has found out about its episodes.
        rows: The rows that were written.

    Returns:
        What the sources state and the result does not, besides what the plan says of that.
    """
    meta = dataset / "meta"
    shutil.rmtree(meta, ignore_errors=True)  # of a commit that was killed
    facts = pa.concat_tables([open_parquet(path).read(use_threads=False) for path in parts])
    cameras = plan.info.cameras
    is_v2 = plan.info.version.startswith("v2")
    with ThreadPoolExecutor(1, "demoreel-metadata") as thread:
        inheriting = thread.submit(_inherited, plan)  # parsing, while columns are read and sorted
        numbers = {} if is_v2 else whole_stats(rows, plan.info.features.values())
        inherited = inheriting.result()
    facts, checks = split_checks(facts)
    inherit_times(plan, dataset / CAPTURE_TIMES.path(FilePlace(0, 0)), checks)
    levels = inherit_levels(plan, inherited, dataset / histograms_name(FilePlace(0, 0)), facts)
    dropped: list[str] = []
    images = {key: frame_stats(plan, key, inherited, levels[key], dropped) for key in cameras}
    tasks = _used_tasks(plan, facts)
    details = task_details(plan.readers, [source.tasks for source in plan.cutlist.sources])
    facts = _with_other_stats(plan, facts, inherited, dropped)
    extra = _extra(plan, inherited, dropped)
    whole = _whole_stats(plan, numbers, images, dropped)
    info = replace(plan.info, total_tasks=len(tasks))
    stats = meta / ("episodes_stats.jsonl" if is_v2 else "stats.json")
    if is_v2:
        v2.write_metadata(
            meta,
            info,
            _episode_lines(plan, facts, extra),
            tasks,
            details=details,
            stats=whole,  # what is known of no single episode
            episode_stats=_stats_lines(plan, facts, images),
        )
    else:
        episodes = _episodes(plan, facts, images, extra)
        v3.write_metadata(meta, info, episodes, tasks, details=details, stats=whole)
    as_is = plan.is_unchanged and not any(clip.labels for clip in plan.clips)
    if not as_is:
        follow_annotations(plan, dataset, dropped)
    carry_files(
        plan.readers,
        meta,
        known=() if as_is else (ANNOTATIONS,),
        unchanged=plan.is_unchanged,
        same_features=plan.has_same_features,
        dropped=dropped,
    )
    write_note(meta / NOTE, {key: p.approximate for key, p in images.items()}, stats=stats)
    return dropped


def _inherited(plan: Plan) -> list[Inherited]:
    cameras = plan.info.cameras
    return [
        inherited_from(reader, [str(view.origin[key]) for key in cameras if view.origin.get(key)])
        for reader, view in zip(plan.readers, plan.views, strict=True)
    ]


def _whole_stats(
    plan: Plan, numbers: Stats, images: Mapping[str, FrameStats], dropped: list[str]
) -> Stats:
    """Return the statistics of all: taken again, of images, and what else still is true.

    Of v2.1, whose episodes have statistics of their own, only what they do not say.
    """
    is_v2, is_unchanged = plan.info.version.startswith("v2"), plan.is_unchanged
    stats = dict(numbers) | {
        key: dict(found.whole)
        for key, found in images.items()
        if found.whole is not None and not (is_v2 and found.columns)
    }
    for reader, view in zip(plan.readers, plan.views, strict=True):
        new_name = _new_names(view)
        for key, kinds in (quiet_stats(reader) or {}).items():
            feature = reader.info.features.get(key)
            if feature is not None and (feature.is_camera or key not in new_name):
                continue  # of images, see above; of what is removed, there is nothing to say
            taken = RECOMPUTED if feature is not None and feature.is_numeric else ()
            more = {kind: value for kind, value in kinds.items() if kind not in taken}
            if more and is_unchanged:
                own = new_name.get(key, key)
                stats[own] = {**stats.get(own, {}), **more}
            elif more:
                dropped.append(f"stats.json: {', '.join(more)} of {key}, true of all episodes only")
    order = [key for key in plan.info.features if key in stats]
    return {key: stats[key] for key in [*order, *(key for key in stats if key not in order)]}


def _new_names(view: View) -> dict[str, str]:
    """Return what each feature of a source is called in the result; removed ones are left out."""
    renamed = {str(origin): key for key, origin in view.origin.items() if origin is not None}
    return {key: key for key in DEFAULT_FEATURES} | renamed


def _used_tasks(plan: Plan, facts: pa.Table) -> dict[str, int]:
    """Return the texts up to the last that a row uses; numbers must have no holes."""
    if plan.is_unchanged and all(len(plan.tasks) == len(reader.tasks) for reader in plan.readers):
        return {text: number for number, text in enumerate(plan.tasks)}
    used = set(facts.column("tasks").combine_chunks().flatten().to_pylist())
    last = max(number for number, text in enumerate(plan.tasks) if text in used)
    return {text: number for number, text in enumerate(plan.tasks[: last + 1])}


def _episodes(
    plan: Plan, facts: pa.Table, images: dict[str, FrameStats], extra: Mapping[str, Any]
) -> pa.Table:
    """Return ``meta/episodes``: what each clip is, where it is, and all that is known of it."""
    counts = [table.stop - table.first for table in plan.tables]
    chunk = np.repeat([table.chunk for table in plan.tables], counts)
    file = np.repeat([table.file for table in plan.tables], counts)
    columns: dict[str, Any] = v3.episode_columns(
        np.arange(len(plan.clips)),
        tasks=facts.column("tasks"),
        length=np.diff(plan.start),
        start=plan.start[:-1],
        table=(chunk, file),
        videos={
            camera: ((of_camera.chunk, of_camera.file), of_camera.begin)
            for camera, of_camera in plan.video_plans.items()
        },
        fps=plan.info.fps,
    )
    others = [n for n in facts.column_names if n.startswith("stats/")]
    for key in plan.info.features:
        columns |= {n: facts.column(n) for n in facts.column_names if _is_of(n, key)}
        columns |= images[key].columns if key in images else {}
    columns |= {n: facts.column(n) for n in others if n not in columns}
    columns |= {name: column for name, column in extra.items() if name not in columns}
    return pa.table({name: _as_array(column) for name, column in columns.items()})


def _is_of(column: str, key: str) -> bool:
    """Whether a column holds a statistic of this feature, and not of one whose name begins so."""
    return column.startswith(f"stats/{key}/") and column.count("/") == key.count("/") + 2


def _as_array(column: Any) -> Any:
    return from_numpy(column.astype(_kind(column))) if isinstance(column, np.ndarray) else column


def _kind(column: np.ndarray) -> type:
    return np.int64 if column.dtype.kind in "iu" else np.float64


def _extra(plan: Plan, inherited: Sequence[Inherited], dropped: list[str]) -> dict[str, Any]:
    """Return other programs' columns, and what only single episodes can say in the result."""
    names = dict.fromkeys(name for part in inherited for name in part.extra)
    found: dict[str, Any] = {}
    for name in names:
        column = _of_clips(plan, [part.extra.get(name) for part in inherited])
        if column is None:
            dropped.append(f"meta/episodes: {name}, which is of different types in the datasets")
        else:
            found[name] = column
    source = [clip.source for clip in plan.clips]
    robots = [reader.info.robot_type for reader in plan.readers]
    if len(set(robots)) > 1 and _ROBOT not in found:
        found[_ROBOT] = pa.array([robots[number] for number in source], pa.string())
    if _SPLIT not in found:
        stated = [reader.info.splits for reader in plan.readers]
        places = split_places(stated, np.array(source), plan.positions)
        column = split_column(places, plan.info.splits, len(source))
        if column is not None:
            found[_SPLIT] = pa.array(column, pa.string())
    return found


def _of_clips(plan: Plan, columns: Sequence[pa.ChunkedArray | None]) -> pa.ChunkedArray | None:
    """Return the values of each clip's episode; None where sources have different types."""
    tables = [
        pa.table({"": pa.nulls(len(reader.episodes)) if column is None else column})
        for column, reader in zip(columns, plan.readers, strict=True)
    ]
    before = np.concatenate([[0], np.cumsum([len(r.episodes) for r in plan.readers])])
    source = np.array([clip.source for clip in plan.clips])
    try:
        every = pa.concat_tables(tables, promote_options="permissive").column("")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None
    return every.take(from_numpy(before[source] + plan.positions))


def _with_other_stats(
    plan: Plan, facts: pa.Table, inherited: Sequence[Inherited], dropped: list[str]
) -> pa.Table:
    """Add what sources say of single episodes that is not taken again, where episodes are whole."""
    names: dict[tuple[str, str], list[pa.ChunkedArray | None]] = {}
    for number, (part, view, reader) in enumerate(
        zip(inherited, plan.views, plan.readers, strict=True)
    ):
        new_name = _new_names(view)
        for (key, kind), column in part.stats.items():
            if key in reader.info.features and key not in new_name:
                continue  # the feature is removed
            own = (new_name.get(key, key), kind)
            names.setdefault(own, [None] * len(inherited))[number] = column
    is_whole = bool(names) and plan.has_whole_episodes
    for (key, kind), columns in names.items():
        name = f"stats/{key}/{kind}"
        taken = _of_clips(plan, columns) if is_whole else None
        if taken is None:
            dropped.append(f"meta/episodes: {name}, true of whole episodes only")
        elif name not in facts.column_names:
            facts = facts.append_column(name, taken)
    return facts


def _episode_lines(plan: Plan, facts: pa.Table, extra: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what ``episodes.jsonl`` says of each clip, other programs' columns included."""
    texts = facts.column("tasks").to_pylist()
    others = {name: column.to_pylist() for name, column in extra.items()}
    lengths = (plan.start[1:] - plan.start[:-1]).tolist()
    return [
        {
            "episode_index": number,
            "tasks": texts[number],
            "length": length,
            **{name: values[number] for name, values in others.items()},
        }
        for number, length in enumerate(lengths)
    ]


def _stats_lines(
    plan: Plan, facts: pa.Table, images: Mapping[str, FrameStats]
) -> list[dict[str, Any]]:
    """Return what ``episodes_stats.jsonl`` says of each clip."""
    columns = {name: facts.column(name).to_pylist() for name in facts.column_names}
    for found in images.values():
        columns |= {name: column.to_pylist() for name, column in found.columns.items()}
    lines = []
    for number in range(len(plan.clips)):
        stats: dict[str, dict[str, Any]] = {}
        for name, values in columns.items():
            if name.startswith("stats/") and values[number] is not None:
                key, kind = name.removeprefix("stats/").rsplit("/", 1)
                stats.setdefault(key, {})[kind] = values[number]
        lines.append({"episode_index": number, "stats": stats})
    return lines
