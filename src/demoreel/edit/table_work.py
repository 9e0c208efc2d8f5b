"""Making tables of the result: rows of its clips, renumbered, and the statistics of each."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.edit.clips import Clip, Source
from demoreel.edit.facts import Facts
from demoreel.edit.features import MASK, View
from demoreel.edit.sources import added_values, open_source
from demoreel.layouts.base import Column, Reader
from demoreel.layouts.columns import table_schema, to_arrow
from demoreel.model import Feature
from demoreel.run.staging import write_whole

_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class TableJob:
    """All that is needed to make some tables, in any process.

    Attributes:
        folder: The staging folder.
        name: The task's name.
        tables: The tables, relative to the dataset, and how many clips each holds.
        sources: The cut list's sources.
        views: Their features, as the result sees them.
        missing: Features that are filled where a source lacks them.
        features: The result's features.
        clips: The clips whose rows they hold.
        positions: Where each clip's episode stands in its source.
        episode: The first clip's new ``episode_index``.
        start: Its first row's new ``index``.
        tasks: The new number of each text.
        fps: Frames per second.
    """

    folder: str
    name: str
    tables: Sequence[tuple[str, int]]
    sources: Sequence[Source]
    views: Sequence[View]
    missing: Mapping[str, Feature]
    features: Mapping[str, Feature]
    clips: Sequence[Clip]
    positions: Sequence[int]
    episode: int
    start: int
    tasks: Mapping[str, int]
    fps: float


def write_tables(job: TableJob) -> dict[str, Any]:
    """Write tables, and beside them what the commit must know of each of their episodes.

    Memory: the numbers of 65,536 rows, and the pictures of one clip.

    Raises:
        TableError: A source's table is missing or damaged.
        MetadataError: A row names a task that does not exist.
    """
    folder = Path(job.folder)
    facts = Facts(job.features, list(job.tasks))
    rows = _numbered_clips(job, facts)
    files = []
    for name, clips in job.tables:
        write_whole(folder / "dataset" / name, partial(_write, job.features, rows, clips))
        files.append(f"dataset/{name}")
    files.append(f"parts/{job.name}.parquet")
    write_whole(folder / files[-1], lambda path: pq.write_table(facts.table(), path))
    return {"files": {name: os.path.getsize(folder / name) for name in files}}


def _write(
    features: Mapping[str, Feature], rows: Iterator[dict[str, Column]], clips: int, path: Path
) -> None:
    """Write the next clips into a table, a row group each."""
    schema = table_schema(features.values())
    # A dictionary of floats, or of numbers that never repeat, costs time and room.
    repeated = [key for key, feature in features.items() if _repeats(feature)]
    with (
        pa.OSFile(os.fspath(path), "wb") as sink,
        pq.ParquetWriter(sink, schema, use_dictionary=repeated) as writer,
    ):
        for columns in itertools.islice(rows, clips):
            length = len(columns["index"])
            arrays = [to_arrow(columns[k], features[k], length=length) for k in schema.names]
            table = pa.Table.from_arrays(arrays, schema=schema)
            writer.write_table(table, row_group_size=length)


def _numbered_clips(job: TableJob, facts: Facts) -> Iterator[dict[str, Column]]:
    """Yield the columns of one clip after the other, as they go into the tables."""
    row = job.start
    for number, (clip, columns) in enumerate(_clips(job)):
        task = _tasks(job, clip, columns)
        made = _numbered(columns, task, job.episode + number, row, clip, job.fps)
        facts.add(made)
        row += clip.length
        yield made


def _repeats(feature: Feature) -> bool:
    if feature.key in ("index", "frame_index"):
        return False
    return feature.is_string or (feature.is_numeric and feature.numpy_dtype.kind in "iub")


def _clips(job: TableJob) -> Iterator[tuple[Clip, dict[str, Column]]]:
    """Yield each clip with its columns: the source's, by their new names, added and filled ones."""
    for places in _windows(job):
        window = _Window(job, places)
        for place in places:
            yield job.clips[place], window.columns(place)


def _windows(job: TableJob) -> Iterator[list[int]]:
    """Group clips whose episodes are close together in one source: they are read in one go."""
    readers = [open_source(source) for source in job.sources]
    group: list[int] = []
    low = high = 0
    for place, clip in enumerate(job.clips):
        position = job.positions[place]
        if group:
            start = readers[clip.source].episodes.start
            same = job.clips[group[0]].source == clip.source
            wider = (min(low, position), max(high, position))
            if not same or start[wider[1] + 1] - start[wider[0]] > _ROWS_AT_ONCE:
                yield group
                group = []
        low, high = (min(low, position), max(high, position)) if group else (position, position)
        group.append(place)
    yield group


class _Window:
    """The rows of a source's episodes that stand side by side."""

    def __init__(self, job: TableJob, places: Sequence[int]) -> None:
        self._job = job
        clip = job.clips[places[0]]
        self._view = job.views[clip.source]
        self._reader: Reader = open_source(job.sources[clip.source])
        positions = [job.positions[place] for place in places]
        first, stop = min(positions), max(positions) + 1
        self._begin = int(self._reader.episodes.start[first])
        self._columns = self._reader.rows_once(first, stop)

    def columns(self, place: int) -> dict[str, Column]:
        job, clip = self._job, self._job.clips[place]
        begin = int(self._reader.episodes.start[job.positions[place]])
        rows = np.arange(begin + clip.start, begin + clip.stop)
        part = slice(int(rows[0]) - self._begin, int(rows[-1]) + 1 - self._begin)
        found: dict[str, Column] = {
            key: self._columns[key][part]
            for key in ("task_index", "timestamp")
            if key in self._columns
        }
        for key, feature in job.features.items():
            if key not in self._view.origin:
                continue
            origin = self._view.origin[key]
            if origin is None:
                values = added_values(self._view.added[key])[rows]
                found[key] = values.reshape(len(rows), *feature.item_shape)
            elif feature.is_image:
                found[key] = self._reader.encoded(rows, origin)
            elif not feature.is_video:
                found[key] = self._columns[origin][part]
            if feature.is_language and clip.start:
                found[key] = [_earlier(v, clip.start / job.fps) for v in found[key]]
        return found | self._filled(len(rows))

    def _filled(self, length: int) -> dict[str, Column]:
        filled: dict[str, Column] = {}
        for key, feature in self._job.missing.items():
            absent = key not in self._view.features
            filled[MASK.format(key)] = np.full(length, absent)
            if absent and feature.is_numeric:
                filled[key] = np.zeros((length, *feature.item_shape), feature.numpy_dtype)
            elif absent:
                filled[key] = ["" if feature.is_string else [] for _ in range(length)]
        return filled


def _earlier(rows: Sequence[Mapping[str, Any]], seconds: float) -> list[dict[str, Any]]:
    """Move language rows to a clip's own time; what began before it begins with it."""
    moved = []
    for row in rows:
        at = row.get("timestamp")
        moved.append(dict(row) if at is None else {**row, "timestamp": max(0.0, at - seconds)})
    return moved


def _tasks(job: TableJob, clip: Clip, columns: Mapping[str, Column]) -> np.ndarray:
    """Return the new task number of every frame."""
    if clip.task is not None:
        return np.full(clip.length, job.tasks[clip.task], np.int64)
    source = job.sources[clip.source]
    texts = open_source(source).tasks
    old = np.asarray(columns["task_index"])
    known, places = np.unique(old, return_inverse=True)
    numbers = [job.tasks[source.tasks.get(texts[n], texts[n])] for n in known.tolist()]
    return np.array(numbers, np.int64)[places.reshape(-1)]


def _numbered(
    columns: dict[str, Column],
    task: np.ndarray,
    episode: int,
    row: int,
    clip: Clip,
    fps: float,
) -> dict[str, Column]:
    frames = np.arange(clip.length)
    return {
        **columns,
        "timestamp": _timestamps(columns.get("timestamp"), clip, fps),
        "frame_index": frames,
        "episode_index": np.full(clip.length, episode),
        "index": row + frames,
        "task_index": task,
    }


def _timestamps(stored: Column | None, clip: Clip, fps: float) -> np.ndarray:
    """Return a clip's own time: as stored for one that begins with its episode."""
    ideal = (np.arange(clip.start, clip.stop) / fps).astype(np.float32)
    if stored is None or (clip.start and np.array_equal(np.asarray(stored, np.float32), ideal)):
        return (np.arange(clip.length) / fps).astype(np.float32)
    if clip.start == 0:
        return np.asarray(stored)
    return np.asarray(stored) - np.float32(clip.start / fps)
