"""Writes the tables of a result: rows of its clips, renumbered, with their statistics."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.edit.clips import Clip, Frames, Source, frames_of
from demoreel.edit.features import View, feature_of
from demoreel.edit.labels import episode_times, labelled
from demoreel.edit.resample import events_of, moved
from demoreel.edit.sources import added_values, open_source, rows_of_source
from demoreel.layouts.base import Column, Reader
from demoreel.layouts.columns import image_steps, rows_at_once, table_schema, to_arrow
from demoreel.layouts.writing import TableWriter
from demoreel.media.images import ImageCodec, encode_image
from demoreel.model import DEFAULT_FEATURES, Feature
from demoreel.model.feature import LANGUAGE_KEYS
from demoreel.stats.columns import Facts
from demoreel.storage.commit.files import write_whole

Images = Callable[[int, int], list[bytes]]
"""Reads a clip's images, encoded: from a frame to another."""

_ROWS_AT_ONCE = 1 << 16
_IMAGES_AT_ONCE = 256
_EVENTS = LANGUAGE_KEYS[1]  # said once, at one row; the other language stands in every row


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
        verbatim: Whether rows keep their numbers, and nothing needs to be known of episodes.
        images_as: Of lance-frames that is verbatim: how images are encoded.
        threads: How many encode them; None is every core.
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
    verbatim: bool = False
    images_as: ImageCodec | None = None
    threads: int | None = None


def write_tables(job: TableJob) -> dict[str, Any]:
    """Write tables, and beside them what the commit must know of each of their episodes.

    Memory: the numbers of 65,536 rows or, where they are many, of an episode; 32 MB of images.
    """
    folder = Path(job.folder)
    facts = Facts(job.features, list(job.tasks))
    rows = verbatim_rows(job, by_episode=True) if job.verbatim else numbered_pieces(job, facts)
    files = []
    for name, clips in job.tables:
        write_whole(folder / "dataset" / name, partial(_write, job.features, rows, clips))
        files.append(f"dataset/{name}")
    files += write_facts(job, facts)
    return {"files": {name: os.path.getsize(folder / name) for name in files}}


def write_facts(job: TableJob, facts: Facts) -> list[str]:
    """Write what the commit must know of episodes, and return the files' names."""
    if job.verbatim:
        return []
    part = f"parts/{job.name}.parquet"
    write_whole(Path(job.folder) / part, lambda path: pq.write_table(facts.table(), path))
    return [part]


def _write(
    features: Mapping[str, Feature],
    rows: Iterator[Iterator[dict[str, Column]]],
    clips: int,
    path: Path,
) -> None:
    """Write the next clips into a table: a row group each, or several if there are images."""
    schema = table_schema(features.values())
    with TableWriter(path, schema) as writer:
        for columns in itertools.chain.from_iterable(itertools.islice(rows, clips)):
            length = len(columns["index"])
            arrays = [to_arrow(columns[k], features[k], length=length) for k in schema.names]
            writer.write(pa.Table.from_arrays(arrays, schema=schema))


def numbered_clips(job: TableJob, facts: Facts) -> Iterator[dict[str, Column]]:
    """Yield the columns of one clip after the other, as they go into the tables; no images."""
    for pieces in numbered_pieces(job, facts):
        yield from pieces


def numbered_pieces(job: TableJob, facts: Facts) -> Iterator[Iterator[dict[str, Column]]]:
    """Yield the rows of one clip after the other, in pieces: of images, some are read at a time."""
    row = job.start
    for number, (clip, columns, images) in enumerate(_clips(job)):
        task = _tasks(job, clip, columns)
        made = _numbered(columns, task, job.episode + number, row)
        facts.add(made)
        row += len(task)
        yield _pieces(made, images, len(task))


def verbatim_rows(job: TableJob, *, by_episode: bool) -> Iterator[Iterator[dict[str, Column]]]:
    """Yield the rows of episodes as they are in the only source, in pieces.

    Args:
        job: What is written.
        by_episode: Whether pieces end with each episode, or with what was read at once.
    """
    reader = open_source(job.sources[0])
    start = reader.episodes.start
    for places in _windows(job):
        positions = np.array([job.positions[place] for place in places])
        for run in np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1):
            first, stop = int(run[0]), int(run[-1]) + 1
            columns = default_columns(reader, first, stop)
            columns.update(rows_of_source(reader, first, stop))
            ends = range(first, stop + 1) if by_episode else (first, stop)
            for begin, end in itertools.pairwise(ends):
                rows = slice(int(start[begin] - start[first]), int(start[end] - start[first]))
                part = {key: column[rows] for key, column in columns.items()}
                yield _verbatim_pieces(job, reader, (begin, end), part)


def _verbatim_pieces(
    job: TableJob, reader: Reader, episodes: tuple[int, int], columns: dict[str, Column]
) -> Iterator[dict[str, Column]]:
    if job.images_as is not None and reader.info.cameras:
        from demoreel.read.in_order import encoded_images

        at = 0
        first, stop = episodes
        encoded = encoded_images(
            reader, first=first, stop=stop, codec=job.images_as, threads=job.threads
        )
        with closing(encoded) as portions:  # threads that encode wait to be told
            for images in portions:
                end = at + len(next(iter(images.values())))
                yield {**{key: column[at:end] for key, column in columns.items()}, **images}
                at = end
        return
    cameras = [key for key, feature in job.features.items() if feature.is_image]
    first, stop = (int(reader.episodes.start[position]) for position in episodes)
    rows = np.arange(first, stop)
    most = _IMAGES_AT_ONCE if cameras else len(rows)
    for at, end in image_steps(reader.encoded, rows, cameras, most):
        part = {key: column[at:end] for key, column in columns.items()}
        yield part | {key: reader.encoded(rows[at:end], key) for key in cameras}


def default_columns(reader: Reader, first: int, stop: int) -> dict[str, Column]:
    """Return the columns that every dataset should have, for those whose info.json lacks some."""
    if all(key in reader.info.features for key in DEFAULT_FEATURES):
        return {}
    episodes = reader.episodes
    length = episodes.length[first:stop]
    row = np.arange(int(episodes.start[first]), int(episodes.start[stop]))
    frame = row - np.repeat(episodes.start[first:stop], length)
    return {
        "timestamp": (frame / reader.info.fps).astype(np.float32),
        "frame_index": frame,
        "episode_index": np.repeat(episodes.episode_index[first:stop], length),
        "index": row,
        "task_index": np.zeros(len(row), np.int64),
    }


def _pieces(
    columns: dict[str, Column], images: Mapping[str, Images], length: int
) -> Iterator[dict[str, Column]]:
    if not images:
        yield columns
        return
    rows = np.arange(length)
    keys = list(images)

    def first_of(at: np.ndarray, key: str) -> list[bytes]:
        return images[key](int(at[0]), int(at[0]) + 1)

    for first, stop in image_steps(first_of, rows, keys, length):
        part = {key: column[first:stop] for key, column in columns.items()}
        yield part | {key: read(first, stop) for key, read in images.items()}


def _clips(job: TableJob) -> Iterator[tuple[Clip, dict[str, Column], dict[str, Images]]]:
    """Yield each clip with its columns: the source's, by their new names, added and filled ones.

    Images come as what reads them.
    """
    for places in _windows(job):
        window = _Window(job, places)
        for place in places:
            yield job.clips[place], window.columns(place), window.images(place)


def _windows(job: TableJob) -> Iterator[list[int]]:
    """Group clips whose episodes are close together in one source: they are read at once."""
    readers = [open_source(source) for source in job.sources]
    most = [rows_at_once(reader.info.features.values(), _ROWS_AT_ONCE) for reader in readers]
    group: list[int] = []
    low = high = 0
    for place, clip in enumerate(job.clips):
        position = job.positions[place]
        if group:
            start = readers[clip.source].episodes.start
            same = job.clips[group[0]].source == clip.source
            if readers[clip.source].layout.startswith("v2"):
                # Each has a table of its own, and that of an episode left out may be missing.
                same = same and low - 1 <= position <= high + 1
            wider = (min(low, position), max(high, position))
            if not same or start[wider[1] + 1] - start[wider[0]] > most[clip.source]:
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
        self._columns = rows_of_source(self._reader, first, stop)

    def columns(self, place: int) -> dict[str, Column]:
        job, clip = self._job, self._job.clips[place]
        begin = int(self._reader.episodes.start[job.positions[place]])
        frames = frames_of(clip, rate=self._reader.info.fps, fps=job.fps)
        rows = begin + np.array(frames)
        found: dict[str, Column] = {
            key: _of_rows(self._columns[key], rows - self._begin)
            for key in ("task_index", "timestamp")
            if key in self._columns
        }
        stored, rate = found.get("timestamp"), self._reader.info.fps
        found["timestamp"] = time = timestamps(stored, clip, rate, job.fps, len(rows))
        for key, feature in job.features.items():
            if key not in self._view.origin:
                continue
            origin = self._view.origin[key]
            if origin is None:
                values = added_values(self._view.added[key])[rows]
                found[key] = values.reshape(len(rows), *feature.item_shape)
            elif feature.is_language:
                found[key] = self._language(place, frames, origin, time)
            elif not feature.is_camera:
                found[key] = _of_rows(self._columns[origin], rows - self._begin)
        found |= self._filled(len(rows))
        if clip.labels is not None:
            found |= labelled(clip, job.features, found, self._times(place), frames, time)
        return found

    def _times(self, place: int) -> np.ndarray:
        """Return the time of each frame of a clip's episode."""
        return episode_times(self._columns.get("timestamp"), *self._span(place), self._reader)

    def _span(self, place: int) -> tuple[int, int]:
        """Return where the rows of a clip's episode stand among those that were read."""
        start, position = self._reader.episodes.start, self._job.positions[place]
        return int(start[position]) - self._begin, int(start[position + 1]) - self._begin

    def images(self, place: int) -> dict[str, Images]:
        """Return what reads the images of a clip, by key: encoded, from a frame to another."""
        job, clip = self._job, self._job.clips[place]
        begin = int(self._reader.episodes.start[job.positions[place]])
        rows = begin + np.array(frames_of(clip, rate=self._reader.info.fps, fps=job.fps))
        encoded = self._reader.encoded
        return {
            key: partial(_encoded, encoded, rows, origin)
            for key, feature in job.features.items()
            if feature.is_image and (origin := self._view.origin.get(key)) is not None
        }

    def _language(self, place: int, frames: Frames, key: str, time: np.ndarray) -> list[Any]:
        """Return language rows in the clip's own time; events of rows left out go to others."""
        clip = self._job.clips[place]
        begin, end = self._span(place)
        column = self._columns[key][begin:end]
        if frames == range(end - begin):
            return list(column)
        if key == _EVENTS:
            return events_of(list(column), clip, frames)
        old = self._times(place)
        said: list[Any] = []
        before: Any = None
        for frame in frames:
            if not said or column[frame] != before:
                before = column[frame]
                last = moved(before or (), old, clip, frames, time)
            said.append(last)
        return said

    def _filled(self, length: int) -> dict[str, Column]:
        filled: dict[str, Column] = {}
        lacking = {k: f for k, f in self._job.missing.items() if k not in self._view.features}
        for key, feature in lacking.items():
            of = feature_of(key, self._job.features)
            if of is not None:
                filled[key] = np.full(length, of not in self._view.features)
            elif feature.is_numeric:
                filled[key] = np.zeros((length, *feature.item_shape), feature.numpy_dtype)
            elif feature.is_image:
                filled[key] = [_black(feature)] * length
            elif not feature.is_video:
                filled[key] = ["" if feature.is_string else [] for _ in range(length)]
        return filled


def _encoded(
    read: Callable[[np.ndarray, str], list[bytes]],
    rows: np.ndarray,
    key: str,
    first: int,
    stop: int,
) -> list[bytes]:
    return read(rows[first:stop], key)


def _of_rows(column: Column, rows: np.ndarray) -> Column:
    """Return some rows of a column: a view of it, where they follow one another."""
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):
        return column[first : last + 1]
    return column[rows] if isinstance(column, np.ndarray) else [column[row] for row in rows]


def _black(feature: Feature) -> bytes:
    """Return a black image, encoded: what stands for those that a source does not have."""
    height, width, _ = feature.image_shape
    if feature.is_depth:
        return encode_image(np.zeros((height, width), np.uint16), ImageCodec("png"))
    return encode_image(np.zeros((height, width, 3), np.uint8), ImageCodec("png"))


def _tasks(job: TableJob, clip: Clip, columns: Mapping[str, Column]) -> np.ndarray:
    """Return the new task number of every frame."""
    old = np.asarray(columns["task_index"])
    if clip.task is not None:
        return np.full(len(old), job.tasks[clip.task], np.int64)
    source = job.sources[clip.source]
    texts = open_source(source).tasks
    known, places = np.unique(old, return_inverse=True)
    numbers = [job.tasks[source.tasks.get(texts[n], texts[n])] for n in known.tolist()]
    return np.array(numbers, np.int64)[places.reshape(-1)]


def _numbered(
    columns: dict[str, Column],
    task: np.ndarray,
    episode: int,
    row: int,
) -> dict[str, Column]:
    frames = np.arange(len(task))
    return {
        **columns,
        "frame_index": frames,
        "episode_index": np.full(len(task), episode),
        "index": row + frames,
        "task_index": task,
    }


def timestamps(
    stored: Column | None, clip: Clip, rate: float, fps: float, length: int
) -> np.ndarray:
    """Return a clip's own time: as stored for one that begins with its episode."""
    if rate != fps:
        return (np.arange(length) / fps).astype(np.float32)
    ideal = (np.arange(clip.start, clip.stop) / fps).astype(np.float32)
    if stored is None or (clip.start and np.array_equal(np.asarray(stored, np.float32), ideal)):
        return (np.arange(clip.length) / fps).astype(np.float32)
    if clip.start == 0:
        return np.asarray(stored)
    return np.asarray(stored) - np.float32(clip.start / fps)
