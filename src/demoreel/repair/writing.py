"""A v3.0 dataset of what was kept: files as they are where nothing is wrong with them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from demoreel.edit.stated import carry_file, details_in, merged_splits, other_files
from demoreel.edit.written import ParquetTables
from demoreel.errors import TableError, refuse_shortage
from demoreel.layouts import arrow_in
from demoreel.layouts.columns import arrow_type, table_schema
from demoreel.layouts.v3 import writer as v3
from demoreel.layouts.writing import TableWriter
from demoreel.model import DEFAULT_FEATURES, Feature, Info, Stats
from demoreel.repair.decide import Decision, Kept, Lost
from demoreel.repair.tables import FoundTable
from demoreel.repair.videos import FoundVideo, Place, RepairVideos
from demoreel.stats.columns import Facts, whole_stats
from demoreel.storage.parquet import Forward, open_parquet

_ON_THE_GRID = 1e-3  # of a frame


@dataclass(frozen=True)
class RepairSource:
    """All that is known of a dataset that is being repaired.

    Attributes:
        root: Its folder.
        info: What it will say of itself; totals are not right yet.
        tables: Its tables.
        videos: Its videos.
        tasks: The text of each task, by ``task_index``.
        picture_stats: What its metadata say of images: a row an episode, with ``episode_index``.
        stats: The whole dataset's statistics, as far as it has them.
        meta: Its folder of metadata.
        others: Other programs' columns: a row an episode, with ``episode_index``.
    """

    root: Path
    info: Info
    tables: Sequence[FoundTable]
    videos: RepairVideos
    tasks: Mapping[int, str]
    picture_stats: pa.Table | None
    stats: Stats | None
    meta: Path
    others: pa.Table | None

    def knows_images(self, episodes: Collection[int]) -> bool:
        """Whether there are statistics of all cameras' images, and of these episodes' alone."""
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
class RepairedFiles:
    """What was written.

    Attributes:
        episodes: The ``episode_index`` that each one had.
        frames: How many rows.
        copied: Files that were copied as they were.
        lost: Episodes whose values no column can hold.
        mended: What was wrong with tables.
        dropped: What the source states and the result does not.
    """

    episodes: list[int]
    frames: int
    copied: int
    lost: list[Lost]
    mended: list[str]
    dropped: list[str]


def write_repaired(
    source: RepairSource, decision: Decision, folder: Path, *, link: bool
) -> RepairedFiles:
    """Write the episodes that are kept, numbered anew. Nothing is forced to disk.

    Cost: decodes all tables once, and copies the videos.

    Args:
        source: The dataset.
        decision: What is kept of it.
        folder: An empty folder.
        link: Whether videos may be other names of the source's: for a folder that does not last.
    """
    writing = _Writing(source, folder, link=link, is_whole=not decision.lost)
    for number, table in enumerate(source.tables):
        writing.take_table(table, [kept for kept in decision.kept if kept.run.table == number])
    if writing.written.episodes:
        writing.finish()
    return writing.written


class _Writing:
    def __init__(self, source: RepairSource, folder: Path, *, link: bool, is_whole: bool) -> None:
        self._source = source
        self._is_whole = is_whole
        self._link = link
        self._folder = folder
        self._features = source.info.features
        texts = {number: source.tasks.get(number) for number in _used_tasks(source.tables)}
        self._texts = {n: text or f"task {n}" for n, text in texts.items()}
        self._number = {n: place for place, n in enumerate(sorted(self._texts))}
        self._facts = Facts(self._features, [self._texts[n] for n in sorted(self._texts)])
        self._rows: list[dict[str, Any]] = []
        self._used: set[tuple[str, Place]] = set()
        self._tables: list[str] = []
        self.written = RepairedFiles([], 0, 0, [], [], [])
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
        schema = table_schema(self._features.values())
        same = _holds_only(table, kept) and set(table.schema.names) == set(schema.names)
        good: list[tuple[Kept, dict[str, Any]]] = []
        with open_parquet(table.path) as parquet:
            images = {key for key, feature in self._features.items() if feature.is_image}
            numbers = Forward(parquet, [n for n in table.schema.names if n not in images])
            rows = Forward(parquet)
            for one in kept:
                columns = self._columns(numbers, one, table.name)
                unchanged = None if columns is None else self._is_unchanged(rows, one, columns)
                same = same and unchanged is True
                if columns is not None and unchanged is not None:
                    good.append((one, columns))
                    self._note(one, columns, chunk, number)
            if not good:
                return
            target = self._folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if same and table.path == self._source.root / table.name:
                shutil.copyfile(table.path, target)
                self.written.copied += 1
            else:
                with TableWriter(target, schema) as writer:
                    for one, columns in good:
                        for part, own in _parts(rows, one, columns):
                            writer.write(self._arrow(part, own))
                self.written.mended.append(f"{table.name}: its table was written anew")
        self._tables.append(name)

    def _is_unchanged(self, rows: Forward, kept: Kept, columns: Mapping[str, Any]) -> bool | None:
        """Whether an episode's rows are as they are to be; None, and it is lost, if none can be."""
        try:
            same = True
            for part, own in _parts(rows, kept, columns):
                _refuse_missing_images(part, self._features)
                same = _is_unchanged(part, own, self._arrow(part, own)) and same
            return same
        except (TableError, pa.ArrowException, ValueError) as error:
            what = error.what if isinstance(error, TableError) else str(error)
            self.written.lost.append(Lost(kept.episode, what))
            return None

    def _columns(self, rows: Forward, kept: Kept, name: str) -> dict[str, Any] | None:
        """Return an episode's numbers as they are to be; None if some cannot be."""
        columns: dict[str, Any] = {}
        try:
            part = pa.concat_tables(rows.pieces(kept.run.first, kept.length))
            for key, feature in self._features.items():
                if feature.is_numeric and key not in DEFAULT_FEATURES:
                    array = part.column(key).combine_chunks()
                    columns[key] = arrow_in.numbers(array, feature, where=name)
        except (TableError, pa.ArrowException, ValueError) as error:
            refuse_shortage(error)
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
                array = array if array.type == kind else _cast(array, kind, field.name)
                if pa.types.is_string(kind) and array.null_count:
                    array = array.fill_null("")
                    said = f"{field.name}: texts that are missing are empty"
                    if said not in self.written.mended:
                        self.written.mended.append(said)
                arrays.append(array)
        return pa.Table.from_arrays(arrays, schema=schema)

    def _note(self, kept: Kept, columns: Mapping[str, Any], chunk: int, file: int) -> None:
        found = self._source.videos.of
        videos = {
            camera: (
                self._place_of[camera][spot.place],
                float(found[camera][spot.place].seconds[spot.first]),
            )
            for camera, spot in kept.spots.items()
        }
        self._used |= {(camera, spot.place) for camera, spot in kept.spots.items()}
        row = v3.episode_columns(
            len(self.written.episodes),
            tasks=[],  # the rows tell them
            length=kept.length,
            start=self.written.frames,
            table=(chunk, file),
            videos=videos,
            fps=self._fps,
        )
        self._facts.add(columns)
        self._rows.append(row)
        self.written.episodes.append(kept.episode)
        self.written.frames += kept.length

    def finish(self) -> None:
        """Put the videos in place, and write ``meta/``."""
        source, meta = self._source, self._folder / "meta"
        for camera, place in sorted(self._used):
            chunk, file = self._place_of[camera][place]
            self._put_video(camera, chunk, file, source.videos.of[camera][place])
        facts, table = self._facts.table(), v3.episode_rows(self._rows).drop_columns("tasks")
        for name in facts.column_names:
            table = table.append_column(name, facts.column(name))
        for stated in (source.picture_stats, source.others):
            table = _with_columns(table, stated, self.written.episodes, self.written.dropped)
        tables = ParquetTables([self._folder / name for name in self._tables])
        stats: Stats = whole_stats(tables, self._features.values())
        for key in source.info.cameras:
            if source.stats is not None and key in source.stats:
                stats[key] = source.stats[key]
        tasks = {self._texts[n]: self._number[n] for n in sorted(self._texts)}
        info = replace(
            source.info,
            total_episodes=len(self._rows),
            total_frames=self.written.frames,
            total_tasks=len(tasks),
            splits=_splits(source.info, self.written.episodes, self.written.dropped),
        )
        v3.write_metadata(meta, info, table, tasks, details=details_in(source.meta), stats=stats)
        is_whole = self._is_whole and not self.written.lost
        for name in other_files(source.meta):
            carry_file(
                source.root, source.meta, name, meta, kept=is_whole, dropped=self.written.dropped
            )

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


def _numbering(videos: RepairVideos) -> dict[str, dict[Place, Place]]:
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


def _parts(
    rows: Forward, kept: Kept, columns: Mapping[str, Any]
) -> Iterator[tuple[pa.Table, dict[str, Any]]]:
    """Yield pieces of an episode's rows, each with its share of the columns."""
    at = 0
    for part in rows.pieces(kept.run.first, kept.length):
        yield part, {key: values[at : at + len(part)] for key, values in columns.items()}
        at += len(part)


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
    except (TableError, pa.ArrowException, ValueError) as error:
        refuse_shortage(error)
        return None


def _refuse_missing_images(part: pa.Table, features: Mapping[str, Feature]) -> None:
    for key, feature in features.items():
        if feature.is_image:
            data = part.column(key).combine_chunks().field("bytes")
            missing = data.null_count or pc.min(pc.binary_length(data)).as_py() == 0
            if missing:
                raise TableError(f"Some images of {key!r} are missing.")


def _timestamps(stored: np.ndarray | None, length: int, fps: float) -> np.ndarray:
    """Return the stored time where it is that of the frames, else the frames'."""
    ideal = np.arange(length) / fps
    if stored is not None and np.all(np.abs(stored - ideal) <= _ON_THE_GRID / fps):
        return stored
    return ideal.astype(np.float32)


def _with_columns(
    table: pa.Table, stated: pa.Table | None, episodes: Sequence[int], dropped: list[str]
) -> pa.Table:
    """Add what the metadata said of each episode, if they said it of all of them."""
    if stated is None:
        return table
    known = {n: at for at, n in enumerate(stated.column("episode_index").to_pylist())}
    names = [n for n in stated.column_names if n not in table.column_names]
    if not all(episode in known for episode in episodes):
        dropped += [f"meta/episodes: {name}, which not all episodes have" for name in names]
        return table
    chosen = stated.take(pa.array([known[episode] for episode in episodes]))
    for name in names:
        table = table.append_column(name, chosen.column(name))
    return table


def _splits(info: Info, episodes: Sequence[int], dropped: list[str]) -> dict[str, str]:
    """Return the splits of the episodes that are kept, if each is in one; else one of all."""
    kept = np.array(episodes)
    unchanged = np.array_equal(kept, np.arange(len(kept)))
    said: list[str] = []
    splits = merged_splits(
        [info.splits], np.zeros_like(kept), kept, unchanged=unchanged, dropped=said
    )
    parts = [str(text).split(":") for text in splits.values()]
    if all(len(part) == 2 and part[0].isdecimal() and part[1].isdecimal() for part in parts):
        ranges = sorted((int(first), int(last)) for first, last in parts)
        if [0, *(last for _, last in ranges)] == [*(first for first, _ in ranges), len(episodes)]:
            dropped += said
            return splits
    if set(info.splits) - {"train"}:
        dropped.append(f"splits: {', '.join(info.splits)}, which do not divide the episodes")
    return {"train": f"0:{len(episodes)}"}


def _linked(path: Path, target: Path) -> bool:
    """Give a file a second name; False where the disk cannot."""
    try:
        os.link(path, target)
    except OSError:
        return False
    return True


def _cast(array: pa.Array, kind: pa.DataType, key: str) -> pa.Array:
    try:
        return array.cast(kind)
    except pa.ArrowException as error:
        raise TableError(
            f"The column {key!r} holds what its type {kind} does not hold ({error})."
        ) from error
