"""A v3.0 dataset of what was kept: files as they are where nothing is wrong with them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from demoreel.edit.statistics.facts import Facts
from demoreel.edit.statistics.result import number_stats
from demoreel.edit.written import ParquetTables
from demoreel.errors import TableError
from demoreel.layouts import arrow_in
from demoreel.layouts.columns import arrow_type, table_schema
from demoreel.layouts.v3.meta_files import write_tasks
from demoreel.layouts.writing import write_json
from demoreel.model import DEFAULT_FEATURES, Feature, Info, Stats, stats_to_json
from demoreel.repair.decide import Decision, Kept, Lost
from demoreel.repair.tables import FoundTable
from demoreel.repair.videos import FoundVideo, Place, Videos

_ON_THE_GRID = 1e-3  # of a frame


@dataclass(frozen=True)
class Source:
    """All that is known of a dataset that is being mended.

    Attributes:
        root: Its folder.
        info: What it will say of itself; totals are not right yet.
        tables: Its tables.
        videos: Its videos.
        tasks: The text of each task, by ``task_index``.
        picture_stats: What its metadata say of pictures: a row an episode, with ``episode_index``.
        stats: The whole dataset's statistics, as far as it has them.
    """

    root: Path
    info: Info
    tables: Sequence[FoundTable]
    videos: Videos
    tasks: Mapping[int, str]
    picture_stats: pa.Table | None
    stats: Stats | None

    def knows_pictures(self, episodes: Collection[int]) -> bool:
        """Whether there are statistics of all cameras' pictures, and of these episodes' alone."""
        stats = self.picture_stats
        names = () if stats is None else stats.column_names
        known = set() if stats is None else set(stats.column("episode_index").to_pylist())
        return all(key in (self.stats or ()) for key in self.info.cameras) and (
            not episodes
            or (
                known.issuperset(episodes)
                and all(f"stats/{key}/mean" in names for key in self.info.cameras)
            )
        )


@dataclass
class Written:
    """What was written.

    Attributes:
        episodes: The ``episode_index`` that each one had.
        frames: How many rows.
        copied: Files that were copied as they were.
        lost: Episodes whose values no column can hold.
        mended: What was wrong with tables.
    """

    episodes: list[int]
    frames: int
    copied: int
    lost: list[Lost]
    mended: list[str]


def write_mended(source: Source, decision: Decision, folder: Path, *, link: bool) -> Written:
    """Write the episodes that are kept, numbered anew. Nothing is forced to disk.

    Cost: decodes all tables once, and copies the videos.

    Args:
        source: The dataset.
        decision: What is kept of it.
        folder: An empty folder.
        link: Whether videos may be other names of the source's: for a folder that does not last.
    """
    writing = _Writing(source, folder, link=link)
    for number, table in enumerate(source.tables):
        writing.take_table(table, [kept for kept in decision.kept if kept.run.table == number])
    if writing.written.episodes:
        writing.finish()
    return writing.written


class _Writing:
    def __init__(self, source: Source, folder: Path, *, link: bool) -> None:
        self._source = source
        self._link = link
        self._folder = folder
        self._features = source.info.features
        texts = {number: source.tasks.get(number) for number in _used_tasks(source.tables)}
        self._texts = {n: text or f"task {n}" for n, text in texts.items()}
        self._number = {n: place for place, n in enumerate(sorted(self._texts))}
        self._facts = Facts(self._features, [self._texts[n] for n in sorted(self._texts)])
        self._rows: list[dict[str, Any]] = []
        self._tables: list[str] = []
        self.written = Written([], 0, 0, [], [])
        self._place_of = _numbering(source.videos)
        for n, text in texts.items():
            if text is None:
                self.written.mended.append(f"task {n} has no text; it is called 'task {n}' now")

    def take_table(self, table: FoundTable, kept: Sequence[Kept]) -> None:
        """Write one table's episodes: as a copy of the file, if it holds them and nothing else."""
        if not kept:
            return
        file = len(self._tables)
        chunk, number = divmod(file, self._source.info.chunks_size)
        name = self._source.info.data_path.format(chunk_index=chunk, file_index=number)
        rows = pq.read_table(table.path)
        made, same = [], _holds_only(table, kept)
        for one in kept:
            part = rows.slice(one.run.first, one.length)
            columns = self._columns(part, one, table.name)
            if columns is None:
                same = False
                continue
            try:
                made.append(self._arrow(part, columns))
            except pa.ArrowException as error:
                self.written.lost.append(Lost(one.episode, str(error)))
                same = False
                continue
            same = same and _is_unchanged(part, columns, made[-1])
            self._note(one, columns, chunk, number)
        if not made:
            return
        target = self._folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        same = same and set(table.schema.names) == set(made[0].schema.names)
        if same and table.path == self._source.root / table.name:
            shutil.copyfile(table.path, target)
            self.written.copied += 1
        else:
            with pq.ParquetWriter(target, made[0].schema) as writer:
                for part in made:
                    writer.write_table(part, row_group_size=max(1, len(part)))
            self.written.mended.append(f"{table.name}: its table was written anew")
        self._tables.append(name)

    def _columns(self, part: pa.Table, kept: Kept, name: str) -> dict[str, Any] | None:
        """Return an episode's numbers as they are to be; None if some cannot be."""
        columns: dict[str, Any] = {}
        try:
            for key, feature in self._features.items():
                if feature.is_numeric and key not in DEFAULT_FEATURES:
                    array = part.column(key).combine_chunks()
                    columns[key] = arrow_in.numbers(array, feature, where=name)
            _refuse_missing_pictures(part, self._features)
        except (TableError, pa.ArrowException, ValueError) as error:
            what = error.what if isinstance(error, TableError) else str(error)
            self.written.lost.append(Lost(kept.episode, what))
            return None
        task = _numbers(part, "task_index")
        texts = np.zeros(kept.length, np.int64) if task is None else task
        frames = np.arange(kept.length)
        return {
            **columns,
            "timestamp": _timestamps(_numbers(part, "timestamp"), kept.length, self._fps),
            "frame_index": frames,
            "episode_index": np.full(kept.length, len(self.written.episodes)),
            "index": self.written.frames + frames,
            "task_index": np.array([self._number[n] for n in texts.tolist()], np.int64),
        }

    @property
    def _fps(self) -> float:
        return self._source.info.fps

    def _arrow(self, part: pa.Table, columns: Mapping[str, Any]) -> pa.Table:
        schema = table_schema(self._features.values())
        arrays = []
        for field in schema:
            if field.name in DEFAULT_FEATURES:
                arrays.append(pa.array(columns[field.name], field.type))
            else:
                kind = arrow_type(self._features[field.name])
                array = part.column(field.name).combine_chunks()
                array = array if array.type == kind else array.cast(kind)
                if pa.types.is_string(kind) and array.null_count:
                    array = array.fill_null("")
                    self.written.mended.append(f"{field.name}: texts that are missing are empty")
                arrays.append(array)
        return pa.Table.from_arrays(arrays, schema=schema)

    def _note(self, kept: Kept, columns: Mapping[str, Any], chunk: int, file: int) -> None:
        number, start = len(self.written.episodes), self.written.frames
        row: dict[str, Any] = {
            "episode_index": number,
            "length": kept.length,
            "data/chunk_index": chunk,
            "data/file_index": file,
            "dataset_from_index": start,
            "dataset_to_index": start + kept.length,
        }
        for camera, spot in kept.spots.items():
            video = self._source.videos.of[camera][spot.place]
            place = self._place_of[camera][spot.place]
            begin = float(video.seconds[spot.first])
            row |= {
                f"videos/{camera}/chunk_index": place[0],
                f"videos/{camera}/file_index": place[1],
                f"videos/{camera}/from_timestamp": begin,
                f"videos/{camera}/to_timestamp": begin + kept.length / self._fps,
            }
        self._facts.add(columns)
        self._rows.append(row)
        self.written.episodes.append(kept.episode)
        self.written.frames += kept.length

    def finish(self) -> None:
        """Put the videos in place, and write ``meta/``."""
        source, meta = self._source, self._folder / "meta"
        used = {
            (c, r[f"videos/{c}/chunk_index"], r[f"videos/{c}/file_index"])
            for r in self._rows
            for c in source.videos.of
            if f"videos/{c}/chunk_index" in r
        }
        for camera, videos in source.videos.of.items():
            for place, video in videos.items():
                chunk, file = self._place_of[camera][place]
                if (camera, chunk, file) in used:
                    self._put_video(camera, chunk, file, video)
        facts = self._facts.table()
        table = pa.Table.from_pylist(self._rows)
        for name in facts.column_names:
            table = table.append_column(name, facts.column(name))
        table = _with_picture_stats(table, source.picture_stats, self.written.episodes)
        table = table.append_column("meta/episodes/chunk_index", pa.array([0] * len(table)))
        table = table.append_column("meta/episodes/file_index", pa.array([0] * len(table)))
        (meta / "episodes" / "chunk-000").mkdir(parents=True)
        pq.write_table(table, meta / "episodes" / "chunk-000" / "file-000.parquet")
        tasks = {self._texts[n]: self._number[n] for n in sorted(self._texts)}
        write_tasks(meta / "tasks.parquet", tasks)
        stats: Stats = number_stats(
            ParquetTables([self._folder / name for name in self._tables]), self._features
        )
        for key in source.info.cameras:
            if source.stats is not None and key in source.stats:
                stats[key] = source.stats[key]
        write_json(meta / "stats.json", stats_to_json(stats))
        episodes = len(self._rows)
        info = replace(
            source.info,
            total_episodes=episodes,
            total_frames=self.written.frames,
            total_tasks=len(tasks),
            splits=_splits(source.info, episodes),
        )
        write_json(meta / "info.json", info.to_json())

    def _put_video(self, camera: str, chunk: int, file: int, video: FoundVideo) -> None:
        template = self._source.info.video_path
        assert template is not None
        name = template.format(video_key=camera, chunk_index=chunk, file_index=file)
        target = self._folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not (self._link and _linked(video.path, target)):
            shutil.copyfile(video.path, target)
        if video.path == self._source.root / video.name:
            self.written.copied += 1


def _used_tasks(tables: Sequence[FoundTable]) -> set[int]:
    used: set[int] = set()
    for table in tables:
        if "task_index" in table.numbers:
            used |= set(np.unique(table.numbers["task_index"]).tolist())
    return used or {0}


def _numbering(videos: Videos) -> dict[str, dict[Place, Place]]:
    """Return where each video goes: where it is, or, of v2, a place of its own."""
    return {
        camera: {place: divmod(place[1], 1000) if place[0] == 0 else place for place in found}
        for camera, found in videos.of.items()
    }


def _holds_only(table: FoundTable, kept: Sequence[Kept]) -> bool:
    """Whether a table has these episodes' rows, in this order, and no others."""
    at = 0
    for one in kept:
        if one.run.first != at or one.length != one.run.length:
            return False
        at += one.length
    return at == table.rows


def _is_unchanged(part: pa.Table, columns: Mapping[str, Any], made: pa.Table) -> bool:
    if not set(made.column_names) <= set(part.column_names):
        return False
    if any(part.column(n).null_count != made.column(n).null_count for n in made.column_names):
        return False
    for key in DEFAULT_FEATURES:
        there = _numbers(part, key)
        if there is None or not np.array_equal(there, columns[key]):
            return False
    return True


def _numbers(part: pa.Table, key: str) -> np.ndarray | None:
    if key not in part.column_names or part.column(key).null_count:
        return None
    feature = Feature(key, DEFAULT_FEATURES[key], (1,))
    try:
        return arrow_in.numbers(part.column(key).combine_chunks(), feature, where=key)
    except (TableError, pa.ArrowException, ValueError):
        return None


def _refuse_missing_pictures(part: pa.Table, features: Mapping[str, Feature]) -> None:
    for key, feature in features.items():
        if feature.is_image:
            data = part.column(key).combine_chunks().field("bytes")
            missing = data.null_count or pc.min(pc.binary_length(data)).as_py() == 0
            if missing:
                raise TableError(f"Some pictures of {key!r} are missing.")


def _timestamps(stored: np.ndarray | None, length: int, fps: float) -> np.ndarray:
    """Return the stored time where it is that of the frames, else the frames'."""
    ideal = np.arange(length) / fps
    if stored is not None and np.all(np.abs(stored - ideal) <= _ON_THE_GRID / fps):
        return stored
    return ideal.astype(np.float32)


def _with_picture_stats(
    table: pa.Table, stats: pa.Table | None, episodes: Sequence[int]
) -> pa.Table:
    """Add what the metadata said of each episode's pictures, if they said it of all of them."""
    if stats is None:
        return table
    known = {n: at for at, n in enumerate(stats.column("episode_index").to_pylist())}
    if not all(episode in known for episode in episodes):
        return table
    chosen = stats.take(pa.array([known[episode] for episode in episodes]))
    for name in chosen.column_names:
        if name != "episode_index":
            table = table.append_column(name, chosen.column(name))
    return table


def _splits(info: Info, episodes: int) -> dict[str, str]:
    """Return the splits as they are, if they still are the dataset's; else one of all."""
    ranges = []
    for text in info.splits.values():
        first, _, last = str(text).partition(":")
        if not (first.isdigit() and last.isdigit()):
            break
        ranges.append((int(first), int(last)))
    else:
        ends = [0, *(last for _, last in sorted(ranges))]
        starts = [*(first for first, _ in sorted(ranges)), episodes]
        if ranges and starts == ends:
            return dict(info.splits)
    return {"train": f"0:{episodes}"}


def _linked(path: Path, target: Path) -> bool:
    """Give a file a second name; False where the disk cannot."""
    try:
        os.link(path, target)
    except OSError:
        return False
    return True
