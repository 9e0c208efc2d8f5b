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
import pyarrow.parquet as pq

from demoreel.edit.metadata_v2 import with_v2_totals, write_v2
from demoreel.edit.plan import Plan
from demoreel.edit.statistics.carried import Carried, carried_from
from demoreel.edit.statistics.levels import carry_levels
from demoreel.edit.statistics.result import PictureStats, number_stats, picture_stats
from demoreel.edit.written import Written
from demoreel.layouts.exactness import NOTE, write_note
from demoreel.layouts.histograms import histograms_name
from demoreel.layouts.v3.files import Place
from demoreel.layouts.v3.meta_files import write_tasks
from demoreel.layouts.writing import write_json
from demoreel.model import Stats, stats_to_json
from demoreel.run.task import Engine
from demoreel.storage.arrow import from_numpy

_ROBOT = "robot_type"


def write_metadata(
    plan: Plan,
    dataset: Path,
    parts: Sequence[Path],
    rows: Written,
    *,
    engine: Engine | None = None,
) -> None:
    """Write all of ``meta/``. It is not forced to disk.

    Args:
        plan: The plan.
        dataset: The folder that ``meta/`` goes into.
        parts: For each table, what its task has found out about its episodes.
        rows: The rows that were written.
        engine: What shares the statistics of long columns out; None is this process.

    Raises:
        MetadataError: A source's metadata cannot be read.
        OSError: The disk is full or not writable.
    """
    meta = dataset / "meta"
    shutil.rmtree(meta, ignore_errors=True)  # of a commit that was killed
    facts = pa.concat_tables([pq.ParquetFile(path).read(use_threads=False) for path in parts])
    cameras = plan.info.cameras
    is_v2 = plan.info.version.startswith("v2")
    with ThreadPoolExecutor(1, "demoreel-metadata") as thread:
        carrying = thread.submit(_carried, plan)  # parsing, while columns are read and sorted
        numbers = {} if is_v2 else number_stats(rows, plan.info.features, engine=engine)
        carried = carrying.result()
    levels = carry_levels(plan, carried, dataset / histograms_name(Place(0, 0)), facts)
    pictures = {key: picture_stats(plan, key, carried, levels[key]) for key in cameras}
    tasks = _used_tasks(plan, facts)
    stats = meta / "stats.json"
    if is_v2:
        stats = meta / "episodes_stats.jsonl"
        write_v2(plan, facts, pictures, _extra(plan, carried), tasks, meta)
    else:
        _write_episodes(plan, facts, pictures, carried, meta / "episodes" / "chunk-000")
        write_tasks(meta / "tasks.parquet", tasks)
        write_json(stats, stats_to_json(_whole_stats(plan, numbers, pictures)))
    write_note(meta / NOTE, {key: p.approximate for key, p in pictures.items()}, stats=stats)
    info = replace(plan.info, total_tasks=len(tasks))
    write_json(meta / "info.json", with_v2_totals(info).to_json())


def _carried(plan: Plan) -> list[Carried]:
    cameras = plan.info.cameras
    return [
        carried_from(reader, [str(view.origin[key]) for key in cameras if view.origin.get(key)])
        for reader, view in zip(plan.readers, plan.views, strict=True)
    ]


def _whole_stats(plan: Plan, numbers: Stats, pictures: Mapping[str, PictureStats]) -> Stats:
    stats = numbers | {
        key: dict(found.whole) for key, found in pictures.items() if found.whole is not None
    }
    return {key: stats[key] for key in plan.info.features if key in stats}


def _used_tasks(plan: Plan, facts: pa.Table) -> dict[str, int]:
    """Return the texts up to the last that a row uses; numbers must have no holes."""
    used = set(facts.column("tasks").combine_chunks().flatten().to_pylist())
    last = max(number for number, text in enumerate(plan.tasks) if text in used)
    return {text: number for number, text in enumerate(plan.tasks[: last + 1])}


def _write_episodes(
    plan: Plan,
    facts: pa.Table,
    pictures: dict[str, PictureStats],
    carried: Sequence[Carried],
    folder: Path,
) -> None:
    columns: dict[str, Any] = {
        "episode_index": np.arange(len(plan.clips)),
        "tasks": facts.column("tasks"),
        "length": np.diff(plan.start),
    }
    counts = [table.stop - table.first for table in plan.tables]
    columns["data/chunk_index"] = np.repeat([table.chunk for table in plan.tables], counts)
    columns["data/file_index"] = np.repeat([table.file for table in plan.tables], counts)
    columns["dataset_from_index"] = plan.start[:-1]
    columns["dataset_to_index"] = plan.start[1:]
    for camera, footage in plan.footage.items():
        columns[f"videos/{camera}/chunk_index"] = footage.chunk
        columns[f"videos/{camera}/file_index"] = footage.file
        columns[f"videos/{camera}/from_timestamp"] = footage.begin
        seconds = np.diff(plan.start) / plan.info.fps
        columns[f"videos/{camera}/to_timestamp"] = footage.begin + seconds
    for key in plan.info.features:
        columns |= {n: facts.column(n) for n in facts.column_names if _is_of(n, key)}
        columns |= pictures[key].columns if key in pictures else {}
    columns |= _extra(plan, carried)
    nothing = np.zeros(len(plan.clips), np.int64)
    columns |= {"meta/episodes/chunk_index": nothing, "meta/episodes/file_index": nothing}
    folder.mkdir(parents=True)
    table = pa.table({name: _as_array(column) for name, column in columns.items()})
    pq.write_table(table, folder / "file-000.parquet", compression="snappy")


def _is_of(column: str, key: str) -> bool:
    """Whether a column holds a statistic of this feature, and not of one whose name begins so."""
    return column.startswith(f"stats/{key}/") and column.count("/") == key.count("/") + 2


def _as_array(column: Any) -> Any:
    return from_numpy(column.astype(_kind(column))) if isinstance(column, np.ndarray) else column


def _kind(column: np.ndarray) -> type:
    return np.int64 if column.dtype.kind in "iu" else np.float64


def _extra(plan: Plan, carried: Sequence[Carried]) -> dict[str, Any]:
    """Return other programs' columns, and which robot an episode is of where there are several."""
    names = dict.fromkeys(name for part in carried for name in part.extra)
    before = np.concatenate([[0], np.cumsum([len(r.episodes) for r in plan.readers])])
    source = np.array([clip.source for clip in plan.clips])
    places = from_numpy(before[source] + plan.positions)
    found: dict[str, Any] = {}
    for name in names:
        tables = [
            pa.table({name: part.extra[name]})
            if name in part.extra
            else pa.table({name: pa.nulls(len(reader.episodes))})
            for part, reader in zip(carried, plan.readers, strict=True)
        ]
        try:
            every = pa.concat_tables(tables, promote_options="permissive").column(name)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            continue  # two programs mean different things by it
        found[name] = every.take(places)
    robots = [reader.info.robot_type for reader in plan.readers]
    if len(set(robots)) > 1 and _ROBOT not in found:
        found[_ROBOT] = pa.array([robots[number] for number in source.tolist()], pa.string())
    return found
