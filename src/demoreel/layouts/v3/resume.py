"""Reads the state of a v3.0 dataset before episodes are appended to it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from demoreel.errors import MetadataError
from demoreel.layouts.meta import listing_files, read_info, read_stats, read_tasks
from demoreel.layouts.v3.files import FilePlace, FileRun, Files, files_of
from demoreel.layouts.v3.reader import PLACES, EpisodeTable
from demoreel.model import Info, Stats
from demoreel.storage.parquet import open_parquet, read_schema

APPENDED = b"demoreel.appended"
"""Marks metadata of episodes whose files were appended one by one, and may be merged."""

_NAME = re.compile(r"chunk-(\d+)/file-(\d+)\.parquet")


@dataclass(slots=True)
class Book:
    """The state of the dataset that an appender keeps.

    Attributes:
        info: What the dataset says of itself.
        tables: Its tables.
        videos: Its videos, by camera.
        metadata: The files under ``meta/episodes``.
        tasks: Every task and its index.
        lengths: Frames of every episode.
        stats: Statistics of the whole; None where there are none.
        schema: Columns of ``meta/episodes``; None before the first episode.
    """

    info: Info
    tables: Files
    videos: dict[str, Files]
    metadata: Files
    tasks: dict[str, int] = field(default_factory=dict)
    lengths: list[int] = field(default_factory=list)
    stats: Stats | None = None
    schema: pa.Schema | None = None

    @property
    def files(self) -> Iterator[Files]:
        """Tables and videos: the files that the metadata name."""
        yield self.tables
        yield from self.videos.values()


def read_book(root: Path) -> Book:
    """Look at a dataset. Reads the metadata's columns of numbers, and the footers of some files."""
    info_path = root / "meta" / "info.json"
    info = read_info(info_path)
    book = Book(info, *files_of(info))
    paths = listing_files(root / "meta" / "episodes")
    if not paths:
        if info.total_episodes:
            raise _cannot_follow(root, "meta/episodes is empty, and info.json names episodes")
        return book
    table = EpisodeTable(root, info.video_keys)
    if not set(PLACES) <= table.columns.keys():
        raise _cannot_follow(root, f"meta/episodes has no columns {' and '.join(PLACES)}")
    _check_episodes(root, table)
    book.lengths = table.column("length").tolist()
    book.tasks = _tasks(root)
    book.schema = _schema(paths[0])
    stats_path = root / "meta" / "stats.json"
    if stats_path.exists():
        book.stats = read_stats(stats_path)
    book.metadata.runs = _metadata_runs(paths)
    _find_places(root, book, table, paths)
    _refuse_orphans(root, book, table)
    return book


def _check_episodes(root: Path, table: EpisodeTable) -> None:
    numbers = table.column("episode_index")
    if not len(numbers):
        raise _cannot_follow(root, "the tables in meta/episodes have no rows")
    if not np.array_equal(numbers, np.arange(len(numbers))):
        raise _cannot_follow(root, "its episodes are not numbered from 0 without gaps")
    ends = np.cumsum(table.column("length"))
    if "dataset_to_index" in table.columns and not np.array_equal(
        table.column("dataset_to_index"), ends
    ):
        raise _cannot_follow(root, "dataset_to_index and the lengths of its episodes disagree")


def _tasks(root: Path) -> dict[str, int]:
    tasks = read_tasks(root / "meta" / "tasks.parquet")
    if list(tasks) != list(range(len(tasks))):
        raise _cannot_follow(root, "its tasks are not numbered from 0 without gaps")
    return {text: index for index, text in tasks.items()}


def _schema(path: Path) -> pa.Schema:
    """Return the columns that further files must have: lerobot takes those of the first file."""
    schema = read_schema(path)
    return schema.with_metadata({**(schema.metadata or {}), APPENDED: b"1"})


def _metadata_runs(paths: list[Path]) -> list[FileRun]:
    """Return the last files that an appender wrote; from the end, up to the first other one."""
    runs: list[FileRun] = []
    for path in reversed(paths):
        named = _NAME.fullmatch("/".join(path.parts[-2:]))
        with open_parquet(path, kind=MetadataError) as parquet:
            if named is None or APPENDED not in (parquet.schema_arrow.metadata or {}):
                break
            episodes = parquet.read(["episode_index"]).column(0).to_numpy()
        if not len(episodes):
            break
        first, stop = int(episodes[0]), int(episodes[-1]) + 1
        in_order = np.array_equal(episodes, np.arange(first, stop))
        if not in_order or (runs and stop != runs[-1].first):
            break
        place = FilePlace(int(named[1]), int(named[2]))
        runs.append(FileRun(first, stop, place, path.stat().st_size))
    return runs[::-1]


def _find_places(root: Path, book: Book, table: EpisodeTable, paths: list[Path]) -> None:
    """Fill in which files were appended, and which come next."""
    begin = book.metadata.runs[0].first if book.metadata.runs else len(book.lengths)
    for files in book.files:
        chunks = table.column(f"{files.prefix}/chunk_index")
        numbers = table.column(f"{files.prefix}/file_index")
        places = [FilePlace(*pair) for pair in zip(chunks.tolist(), numbers.tolist(), strict=True)]
        files.runs = _runs(root, files, places, begin)
        files.upcoming = _unused(root, files, files.after(max(places)))
    for files in book.videos.values():
        begins = table.column(f"{files.prefix}/from_timestamp")
        files.runs = [_fixed_if_odd(run, begins, book) for run in files.runs]
    names = [_NAME.fullmatch("/".join(path.parts[-2:])) for path in paths]
    last = max(
        (FilePlace(int(name[1]), int(name[2])) for name in names if name), default=FilePlace(0, -1)
    )
    book.metadata.upcoming = _unused(root, book.metadata, book.metadata.after(last))


def _runs(root: Path, files: Files, places: list[FilePlace], begin: int) -> list[FileRun]:
    runs: list[FileRun] = []
    before = set(places[:begin])
    for episode in range(begin, len(places)):
        place = places[episode]
        if runs and runs[-1].place == place:
            runs[-1] = replace(runs[-1], stop=episode + 1)
            continue
        path = root / files.name_of(place)
        size = path.stat().st_size if path.exists() else 0
        odd = place in before or not size
        before.add(place)
        runs.append(FileRun(episode, episode + 1, place, size, fixed=odd))
    twice = {run.place for run in runs if run.fixed}
    return [replace(run, fixed=run.place in twice) for run in runs]


def _fixed_if_odd(run: FileRun, begins: np.ndarray, book: Book) -> FileRun:
    """Leave a video alone whose episodes do not fill it one after the other."""
    frames = np.cumsum([0, *book.lengths[run.first : run.stop - 1]])
    regular = np.allclose(begins[run.first : run.stop], frames / book.info.fps, rtol=0, atol=1e-6)
    return run if regular else replace(run, fixed=True)


def _unused(root: Path, files: Files, place: FilePlace) -> FilePlace:
    while os.path.lexists(root / files.name_of(place)):
        place = files.after(place)
    return place


def _refuse_orphans(root: Path, book: Book, table: EpisodeTable) -> None:
    """A table that no episode names would shift the rows of all that follow, for lerobot."""
    chunks, numbers = table.column("data/chunk_index"), table.column("data/file_index")
    pairs = set(zip(chunks.tolist(), numbers.tolist(), strict=True))
    named = {book.tables.name_of(FilePlace(*pair)) for pair in pairs}
    there = {path.relative_to(root).as_posix() for path in (root / "data").glob("*/[!.]*.parquet")}
    for name in sorted(there - named):
        raise _cannot_follow(root, f"no episode names the table {name}")


def _cannot_follow(root: Path, why: str) -> MetadataError:
    return MetadataError(
        f"No episode can be appended to this dataset: {why}.",
        hint="an unfinished recording leaves such things; repair the dataset first",
        dataset=root,
    )
