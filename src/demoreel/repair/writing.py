"""A v3.0 dataset of what was kept: files as they are where nothing is wrong with them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from demoreel.check.recorded_stats import counts_too_many
from demoreel.edit.foreign import carry_file, details_in, other_files
from demoreel.edit.target_info import merged_splits
from demoreel.errors import TableError, count, refuse_shortage
from demoreel.layouts.beside import (
    NOTE,
    HistogramWriter,
    histograms_name,
    noted,
    read_histograms,
    write_note,
)
from demoreel.layouts.capture_times import CAPTURE_TIMES, agrees, stated_times, write_capture_times
from demoreel.layouts.columns import arrow_type, read_images, table_schema, to_arrow
from demoreel.layouts.v3 import writer as v3
from demoreel.layouts.v3.files import FilePlace
from demoreel.layouts.writing import TableWriter
from demoreel.model import DEFAULT_FEATURES, Feature, Info, Stats
from demoreel.repair.decide import Decision, Kept
from demoreel.repair.report import Changes, Lost, examples
from demoreel.repair.tables import FoundTable
from demoreel.repair.values import as_column, default_numbers, in_words, is_as_written, numbers_of
from demoreel.repair.videos import FoundVideo, Place, RepairVideos
from demoreel.stats.columns import Facts, split_checks, whole_stats
from demoreel.stats.rows import ParquetTables
from demoreel.storage.amounts import ShareDone
from demoreel.storage.parquet import Forward, open_parquet

_ON_THE_GRID = 1e-3  # of a frame
_FLOAT_SLACK = 2.0**-23  # timestamps are 32-bit floats
_NO_TEXT, _UNKNOWN = "task 0", "unknown task"
_SAID = {
    "timestamp": "was set to frame_index / fps",
    "frame_index": "was renumbered",
    "episode_index": "was renumbered",
    "index": "was renumbered",
    "task_index": "follows the tasks' new numbers",
}
"""What was done to a column of the format's own."""


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
        is_v2: Whether every episode has videos of its own.
        said: The texts of tasks that the metadata of each episode name.
        counted: How many episodes ``info.json`` counts, if it does.
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
    is_v2: bool
    said: Mapping[int, Sequence[str]]
    counted: int | None

    def knows_images(self, episodes: Collection[int], frames: int) -> bool:
        """Whether there are statistics of all cameras' images, and of these episodes' alone.

        Args:
            episodes: The episodes that need statistics of their own.
            frames: How many frames are kept: statistics of more are of others, too.
        """
        if not self.info.cameras:
            return True
        whole = self.stats or {}
        counts = [whole[key].get("count") for key in self.info.cameras if key in whole]
        if any(said is not None and counts_too_many(said, frames) for said in counts):
            return False
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
        changes: Takes what was wrong with tables.
        dropped: What the source states and the result does not.
    """

    changes: Changes
    episodes: list[int] = field(default_factory=list)
    frames: int = 0
    copied: int = 0
    lost: list[Lost] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)


def write_repaired(
    source: RepairSource,
    decision: Decision,
    folder: Path | None,
    *,
    link: bool,
    report: Callable[[float], None] | None = None,
) -> RepairedFiles:
    """Write the episodes that are kept, renumbered. Nothing is forced to disk.

    Cost: decodes all tables once, and copies the videos.

    Args:
        source: The dataset.
        decision: What is kept of it.
        folder: An empty folder; None only looks what would be written.
        link: Whether videos may be other names of the source's: for a folder that does not last.
        report: Called with the share of tables that are written.
    """
    writing = _Writing(source, decision, folder, link=link)
    for number, table in enumerate(source.tables):
        writing.take_table(table, [kept for kept in decision.kept if kept.run.table == number])
        if report is not None:
            report(ShareDone(number + 1, len(source.tables), "table"))
    if writing.written.episodes and folder is not None:
        writing.finish(folder)
    return writing.written


class _Writing:
    def __init__(
        self, source: RepairSource, decision: Decision, folder: Path | None, *, link: bool
    ) -> None:
        self._source = source
        self._is_whole = not decision.lost
        self._link = link
        self._folder = folder
        self._features = source.info.features
        # Also those that no row has: other columns may refer to tasks by their numbers.
        used = _used_tasks(source.tables, decision)
        texts = {n: source.tasks.get(n) for n in {*used, *source.tasks}}
        texts = {n: text for n, text in texts.items() if text or n in used}
        self._texts = {n: text or f"task {n}" for n, text in texts.items()}
        # Rows without a number have the text that their episode's metadata name.
        alone = [self._only_text(kept.episode) for kept in _without_task(source.tables, decision)]
        every = [*(self._texts[n] for n in sorted(self._texts)), *alone]
        distinct = list(dict.fromkeys(every)) or [_NO_TEXT]
        self._number = {n: distinct.index(text) for n, text in self._texts.items()}
        self._distinct = distinct
        self._facts = Facts(self._features, distinct)
        self._rows: list[dict[str, Any]] = []
        self._used: set[tuple[str, Place]] = set()
        self._tables: list[str] = []
        self._changes = decision.changes
        self.written = RepairedFiles(decision.changes)
        self._place_of = _numbering(source.videos, source.is_v2)
        for n, text in sorted(texts.items()):
            if not text:
                self._changes.add("had no text; its number is its text now", f"task {n}")
        named = {text for own in source.said.values() for text in own}
        unused = sorted({*source.tasks.values(), *named} - {"", *distinct})
        if unused:
            said = f"{count(len(unused), 'task')} that no row has: {examples(unused)}"
            self.written.dropped.append(said)

    def _only_text(self, episode: int) -> str:
        """Return the text of an episode whose rows have no number of a task."""
        own = self._source.said.get(episode) or ()
        if len(own) == 1:
            return own[0]
        every = set(self._source.tasks.values()) - {""}
        if len(every) == 1:
            return every.pop()
        return _UNKNOWN if every else _NO_TEXT

    def take_table(self, table: FoundTable, kept: Sequence[Kept]) -> None:
        """Write one table's episodes: as a copy of the file, if it holds them and nothing else."""
        if not kept:
            return
        file = len(self._tables)
        chunk, number = divmod(file, self._source.info.chunks_size)
        name = self._source.info.data_path.format(chunk_index=chunk, file_index=number)
        schema = table_schema(self._features.values())
        same = _holds_only(table, kept) and set(table.schema.names) == set(schema.names)
        same = self._has_types(table) and same
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
            self._tables.append(name)
            if self._folder is None:
                return
            target = self._folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if same and table.path == self._source.root / table.name:
                shutil.copyfile(table.path, target)
                self.written.copied += 1
                return
            with TableWriter(target, schema) as writer:
                for one, columns in good:
                    for part, own in _parts(rows, one, columns):
                        writer.write(self._arrow(part, own, table.name))

    def _has_types(self, table: FoundTable) -> bool:
        """Whether a table's columns are of the types that LeRobot writes; others are noted."""
        same = True
        for key, feature in self._features.items():
            if feature.is_video or key not in table.schema.names:
                continue
            kind = table.schema.field(key).type
            if not is_as_written(kind, feature):
                same = False
                stored, wanted = in_words(kind), in_words(arrow_type(feature))
                if stored == f"lists of {wanted}":
                    stored, wanted = "lists of one value", "single values"
                self._changes.add(f"stored as {stored}, and as {wanted} now", key)
        return same

    def _is_unchanged(self, rows: Forward, kept: Kept, columns: Mapping[str, Any]) -> bool | None:
        """Whether an episode's rows are as they are to be; None, and it is lost, if none can be."""
        changed: dict[str, int] = {}
        texts = 0
        try:
            for part, own in _parts(rows, kept, columns):
                _refuse_missing_images(part, self._features)
                made = self._arrow(part, own, f"episode {kept.episode}")
                for key in DEFAULT_FEATURES:
                    changed[key] = changed.get(key, 0) + _count_changed(part, key, own[key])
                texts += _count_missing_texts(part, made)
        except (TableError, pa.ArrowException, ValueError) as error:
            refuse_shortage(error)
            what = error.what if isinstance(error, TableError) else str(error)
            self.written.lost.append(Lost(kept.episode, what))
            return None
        if texts:
            self._changes.add("{n} texts that were missing are empty now", amount=texts)
        for key, rows_changed in changed.items():
            if rows_changed:
                done = _SAID[key] if key in part.column_names else "was added"
                said = f"{key} {done}, in {{n}} rows"
                self._changes.add(said, kept.episode, amount=rows_changed)
        return not texts and not any(changed.values())

    def _columns(self, rows: Forward, kept: Kept, name: str) -> dict[str, Any] | None:
        """Return an episode's numbers as they are to be; None if some cannot be."""
        columns: dict[str, Any] = {}
        try:
            part = pa.concat_tables(rows.pieces(kept.run.first, kept.length))
            for key, feature in self._features.items():
                if feature.is_numeric and key not in DEFAULT_FEATURES:
                    columns[key] = numbers_of(part.column(key), feature, where=name)
        except (TableError, pa.ArrowException, ValueError) as error:
            refuse_shortage(error)
            what = error.what if isinstance(error, TableError) else str(error)
            self.written.lost.append(Lost(kept.episode, what))
            return None
        task = default_numbers(part, "task_index")
        if task is None:
            text = self._only_text(kept.episode)
            own = np.full(kept.length, self._distinct.index(text))
            if text == _UNKNOWN:
                said = f"nothing says which of the tasks it is; its task is {_UNKNOWN!r} now"
                self._changes.add(said, kept.episode)
        else:
            own = np.array([self._number[n] for n in task.tolist()])
        self._note_tasks(kept, own)
        frames = np.arange(kept.length)
        return {
            **columns,
            "timestamp": _timestamps(default_numbers(part, "timestamp"), kept.length, self._fps),
            "frame_index": frames,
            "episode_index": np.full(kept.length, len(self.written.episodes)),
            "index": self.written.frames + frames,
            "task_index": own.astype(np.int64),
        }

    def _note_tasks(self, kept: Kept, own: np.ndarray) -> None:
        """Note that an episode's metadata name other tasks than its rows."""
        said = set(self._source.said.get(kept.episode) or ()) - {""}
        if said and said != {self._distinct[n] for n in np.unique(own).tolist()}:
            what = "the metadata named other tasks than the rows; those of the rows are kept"
            self._changes.add(what, kept.episode)

    @property
    def _fps(self) -> float:
        return self._source.info.fps

    def _arrow(self, part: pa.Table, columns: Mapping[str, Any], where: str) -> pa.Table:
        schema = table_schema(self._features.values())
        arrays = []
        for name in schema.names:
            if name in columns:
                arrays.append(to_arrow(columns[name], self._features[name], length=len(part)))
                continue
            array = as_column(part.column(name), self._features[name], where=where)
            if self._features[name].is_string and array.null_count:
                array = array.fill_null("")
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

    def finish(self, folder: Path) -> None:
        """Put the videos in place, and write ``meta/``."""
        source, meta = self._source, folder / "meta"
        for camera, place in sorted(self._used):
            chunk, file = self._place_of[camera][place]
            self._put_video(folder, camera, chunk, file, source.videos.of[camera][place])
        facts, checks = split_checks(self._facts.table())
        self._keep_times(folder, checks)
        self._keep_histograms(folder)
        table = v3.episode_rows(self._rows).drop_columns("tasks")
        for name in facts.column_names:
            table = table.append_column(name, facts.column(name))
        for stated in (source.picture_stats, source.others):
            is_needed = stated is source.picture_stats  # of all, or they are recomputed
            table = _with_columns(table, stated, self.written.episodes, of_all=is_needed)
        tables = ParquetTables([folder / name for name in self._tables])
        stats: Stats = whole_stats(tables, self._features.values())
        for key in source.info.cameras:
            if source.stats is not None and key in source.stats:
                stats[key] = source.stats[key]
        stats = {key: stats[key] for key in self._features if key in stats}
        tasks = {text: number for number, text in enumerate(self._distinct)}
        info = replace(
            source.info,
            total_episodes=len(self._rows),
            total_frames=self.written.frames,
            total_tasks=len(tasks),
            splits=_splits(source, self.written.episodes, self.written.dropped),
        )
        v3.write_metadata(meta, info, table, tasks, details=details_in(source.meta), stats=stats)
        self._keep_note(meta)
        is_whole = self._is_whole and not self.written.lost
        for name in other_files(source.meta):
            carry_file(
                source.root, source.meta, name, meta, kept=is_whole, dropped=self.written.dropped
            )

    def _keep_times(self, folder: Path, checks: Sequence[Mapping[str, int]]) -> None:
        """Keep the capture times that lie beside the metadata, of episodes that are whole."""
        number = {episode: at for at, episode in enumerate(self.written.episodes)}
        found = []
        for stated in stated_times(self._source.meta):
            at = number.get(stated.episode)
            if at is None or len(stated.times) != self._rows[at]["length"]:
                continue
            if agrees(stated, checks[at]):
                found.append(replace(stated, episode=at, checks=checks[at]))
        write_capture_times(folder / CAPTURE_TIMES.path(FilePlace(0, 0)), found)

    def _keep_histograms(self, folder: Path) -> None:
        """Keep the histograms of episodes that are whole; readers compare them with statistics."""
        number = {episode: at for at, episode in enumerate(self.written.episodes)}
        with HistogramWriter(folder / histograms_name(FilePlace(0, 0))) as writer:
            for one in read_histograms(self._source.meta):
                at = number.get(one.episode)
                if at is not None and one.frames == self._rows[at]["length"]:
                    writer.add(replace(one, episode=at))

    def _keep_note(self, meta: Path) -> None:
        """Say which statistics are exact, where the source says it: those of numbers are."""
        known = noted(self._source.meta)
        if known is not None:
            cameras = {key: known.get(key, ()) for key in self._source.info.cameras}
            write_note(meta / NOTE, cameras, stats=meta / "stats.json")

    def _put_video(
        self, folder: Path, camera: str, chunk: int, file: int, video: FoundVideo
    ) -> None:
        template = self._source.info.video_path
        assert template is not None
        name = template.format(video_key=camera, chunk_index=chunk, file_index=file)
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not (self._link and _linked(video.path, target)):
            shutil.copyfile(video.path, target)
        if video.path == self._source.root / video.name:
            self.written.copied += 1


def _used_tasks(tables: Sequence[FoundTable], decision: Decision) -> set[int]:
    used: set[int] = set()
    for kept in decision.kept:
        numbers = tables[kept.run.table].numbers.get("task_index")
        if numbers is not None:
            own = slice(kept.run.first, kept.run.first + kept.length)
            used |= set(np.unique(numbers[own]).tolist())
    return used


def _without_task(tables: Sequence[FoundTable], decision: Decision) -> list[Kept]:
    return [k for k in decision.kept if "task_index" not in tables[k.run.table].numbers]


def _numbering(videos: RepairVideos, is_v2: bool) -> dict[str, dict[Place, Place]]:
    """Return where each video goes: where it is, or, of v2, numbered in their order."""
    return {
        camera: {
            place: divmod(number, 1000) if is_v2 else place
            for number, place in enumerate(sorted(found))
        }
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


def _count_changed(part: pa.Table, key: str, now: np.ndarray) -> int:
    """Return in how many rows a column of the format's own is another number now."""
    there = default_numbers(part, key)
    if there is None:
        return len(now)
    return int((there.astype(now.dtype, copy=False) != now).sum())


def _count_missing_texts(part: pa.Table, made: pa.Table) -> int:
    return sum(
        int(part.column(name).null_count)
        for name in made.column_names
        if pa.types.is_string(made.schema.field(name).type)
    )


def _refuse_missing_images(part: pa.Table, features: Mapping[str, Feature]) -> None:
    for key, feature in features.items():
        if feature.is_image:
            data = read_images(part.column(key).combine_chunks(), key=key, where=key)
            missing = data.null_count or pc.min(pc.binary_length(data)).as_py() == 0
            if missing:
                raise TableError(f"Some images of {key!r} are missing.")


def _timestamps(stored: np.ndarray | None, length: int, fps: float) -> np.ndarray:
    """Return the stored time where it is that of the frames, else the frames'."""
    ideal = np.arange(length) / fps
    slack = _ON_THE_GRID / fps + _FLOAT_SLACK * ideal
    if stored is not None and np.all(np.abs(stored - ideal) <= slack):
        return stored
    return ideal.astype(np.float32)


def _with_columns(
    table: pa.Table, stated: pa.Table | None, episodes: Sequence[int], *, of_all: bool
) -> pa.Table:
    """Add what the metadata said of each episode; nothing of those that they do not list."""
    if stated is None:
        return table
    known = {n: at for at, n in enumerate(stated.column("episode_index").to_pylist())}
    names = [n for n in stated.column_names if n not in table.column_names]
    places = [known.get(episode) for episode in episodes]
    if (of_all and None in places) or not any(place is not None for place in places):
        return table
    chosen = stated.take(pa.array(places, pa.int64()))
    for name in names:
        table = table.append_column(name, chosen.column(name))
    return table


def _splits(source: RepairSource, episodes: Sequence[int], dropped: list[str]) -> dict[str, str]:
    """Return the splits of the episodes that are kept; one of all where they make no sense.

    Episodes that are in no split stay in none, but for those that were added to a dataset whose
    only split had all of them.
    """
    kept, splits = np.array(episodes), source.info.splits
    every = {"train": f"0:{len(episodes)}"}
    said: list[str] = []
    merged = merged_splits(
        [splits],
        np.zeros_like(kept),
        kept,
        unchanged=np.array_equal(kept, np.arange(len(kept))),
        dropped=said,
    )
    if list(splits.values()) == [f"0:{source.counted}"]:
        return dict.fromkeys(splits, every["train"])
    parts = [str(text).split(":") for text in merged.values()]
    if all(len(part) == 2 and part[0].isdecimal() and part[1].isdecimal() for part in parts):
        ranges = sorted((int(first), int(last)) for first, last in parts)
        ends = [0, *(last for _, last in ranges)]
        firsts = [*(first for first, _ in ranges), len(episodes)]
        if ranges and all(end <= first for end, first in zip(ends, firsts, strict=True)):
            dropped += said
            return merged
    if set(splits) - {"train"}:
        dropped.append(f"splits: {', '.join(splits)}, which share episodes or are no ranges")
    return every


def _linked(path: Path, target: Path) -> bool:
    """Give a file a second name; False where the disk cannot."""
    try:
        os.link(path, target)
    except OSError:
        return False
    return True
