"""Appending to the Lance layouts with videos, an episode a commit.

An episode is a version of the table of videos (a row per camera: its mp4, byte for byte), a version
of the table of rows, and metadata as in v3.0. Lance makes both versions aside
(``storage/lance_versions.py``); the journal puts them in place with the metadata, in this order:
videos, rows, metadata, tasks, statistics, ``info.json``. What is killed in between is all there
when the dataset is opened next, or not at all: neither table ever has rows that the metadata do not
know, but for other programs during the milliseconds of a commit.

Small fragments are merged while episodes come, neighbours only, so that row N stays where frame N
belongs; scalar indices are brought up to date at the end. Versions that appending made are pruned
once they were merged into others; those from before the recording, and tagged ones, stay.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from demoreel.errors import MetadataError
from demoreel.layouts import lance_fit
from demoreel.layouts.appending import no_room_is_an_error
from demoreel.layouts.lance_history import has_history, keep_metadata
from demoreel.layouts.lance_out import BYTES_COLUMN, FEATURE_NOTE, FiledVideo
from demoreel.layouts.v3.appender import V3Appender, Videos
from demoreel.layouts.v3.compact import Merger, next_group
from demoreel.layouts.v3.copying import Copying, copy_here
from demoreel.layouts.v3.files import Files, Place, Run
from demoreel.layouts.v3.resume import Book, read_book
from demoreel.layouts.writing import NewEpisode, NewVideo
from demoreel.media.packet_bytes import PACKETS_COLUMN
from demoreel.media.video import open_video
from demoreel.model import Info, Stats
from demoreel.storage.atomic import write_file
from demoreel.storage.journal import Transaction, transaction
from demoreel.storage.json_files import read_json
from demoreel.storage.lance_versions import (
    GrowingTable,
    StandIn,
    hint_name,
    hint_of,
    indexed_fragments,
)
from demoreel.storage.lance_write import BlobPart, append_rows
from demoreel.storage.local import LocalFile
from demoreel.storage.writer_lock import HIDDEN

_KEPT = f"{HIDDEN}/lance.json"  # which versions were there before the recording
_FRAME_INDICES = {"episode_index": "BTREE", "task_index": "BITMAP"}
_VIDEO_INDICES = {"video_key": "BITMAP"}


@dataclass(frozen=True, slots=True)
class LanceFormat:
    """What one of the layouts has of its own.

    Attributes:
        frames: Name of the table of rows.
        videos: Name of the table of videos; None if the dataset has none.
        video_schema: The columns of a table of videos, without the bytes.
        rows_batch: Puts rows together.
        video_rows: Puts rows of videos together.
        copy: Name of the table with a copy of ``meta/``; None if there is none.
        meta_rows: Reads ``meta/`` into rows of it.
    """

    frames: str
    videos: str | None
    video_schema: pa.Schema
    rows_batch: lance_fit.RowsBatch
    video_rows: Callable[[Sequence[FiledVideo]], pa.Table]
    copy: str | None = None
    meta_rows: Callable[[Path], pa.Table] | None = None


class LanceAppender(V3Appender):
    """Appends to a Lance dataset; see ``layouts/appending.py`` for the contract.

    Opening finishes what a dead writer had begun, and reads the metadata.

    Args:
        root: The dataset's folder.
        form: What its layout has of its own.

    Raises:
        DatasetBusyError: Another process is appending to it.
        MetadataError: Its metadata are broken, or such that no episode can follow, or its tables
            are not as ``info.json`` declares them.
        TableError: A table does not open.
    """

    def __init__(self, root: Path, form: LanceFormat) -> None:
        self._form = form
        self._made: dict[GrowingTable, int] = {}  # versions of the commit that is going on
        self._fragment = 0  # and the number of its rows' fragment
        super().__init__(root)

    def _read_book(self) -> Book:
        book = read_book(self.root)
        self._tables = Tables(self.root, self._form, new=not book.lengths)
        frames = self._tables.frames.open()
        videos = self._tables.videos.open() if self._tables.videos is not None else None
        self._refuse_differences(book, frames, videos)
        self._rows_schema = lance_fit.keyed(frames.schema, book.info)
        self._videos_schema = videos.schema if videos is not None else None
        book.tables = _PartsOfOneTable(book.tables)
        book.tables.runs, self._tables.fragments = _fragment_runs(frames, book)
        book.videos = {key: _Films(files) for key, files in book.videos.items()}
        if videos is not None:
            _skip_used(videos, book.videos)
        return book

    def _refuse_differences(self, book: Book, frames: Any, videos: Any) -> None:
        found = lance_fit.rows_differences(book.info, frames.schema)
        if videos is not None:
            found += lance_fit.videos_differences(videos.schema, self._form.video_schema)
        rows, expected = frames.count_rows(), sum(book.lengths)
        if rows != expected:
            found.append(f"the table has {rows} rows, and its episodes {expected}")
        if found:
            raise MetadataError(
                f"No episode can be appended to this dataset: {'; '.join(found)}.",
                hint="demoreel convert makes a dataset of it that can be appended to",
                dataset=self.root,
            )

    def _new_merger(self) -> Merger:
        return LanceMerger(self.root, self._book, self._turn, self._commit, self._tables)

    def _write(
        self,
        changes: Transaction,
        episode: NewEpisode,
        videos: Videos,
        stats: Stats | None,
        info: Info,
    ) -> list[Run]:
        runs = super()._write(changes, episode, videos, stats, info)
        self._tables.write_hints(changes, self._made)
        return runs

    def _write_content(
        self, changes: Transaction, episode: NewEpisode, videos: Videos
    ) -> Callable[[], list[Run]]:
        one = (episode.index, episode.index + 1)
        self._made = {}
        if self._tables.videos is not None and (filmed := videos()):
            stand_in = self._tables.videos.stand_in(changes.folder)
            stand_in.append(self._write_videos(stand_in, filmed))
            self._made[self._tables.videos] = stand_in.move_into(changes, self.root)
        stand_in = self._tables.frames.stand_in(changes.folder)
        rows = lance_fit.fitted_rows(
            self._rows_schema, episode.table, self.info, self._form.rows_batch
        )
        written = append_rows(stand_in.folder, rows)
        self._fragment = stand_in.append(written)
        self._made[self._tables.frames] = stand_in.move_into(changes, self.root)
        runs = [
            Run(*one, self._book.tables.upcoming, _size(written)),
            *(Run(*one, files.upcoming, 0) for files in self._book.videos.values()),
        ]
        return lambda: runs

    def _write_videos(self, stand_in: StandIn, videos: Mapping[str, NewVideo]) -> list[str]:
        blobs = BlobPart(stand_in.folder, BYTES_COLUMN, append=True)
        filed = []
        for camera, files in self._book.videos.items():
            video = open_video(videos[camera].path)
            assert isinstance(video.file, LocalFile)
            blobs.take(video.file)
            filed.append(FiledVideo(camera, *files.upcoming, video))
        assert self._videos_schema is not None
        rows = lance_fit.fitted_videos(self._videos_schema, self._form.video_rows(filed))
        return blobs.finish(rows)

    def _count_in(
        self, episode: NewEpisode, stats: Stats | None, info: Info, runs: list[Run]
    ) -> None:
        super()._count_in(episode, stats, info, runs)
        self._tables.fragments[episode.index] = self._fragment
        self._tables.grow(self._made)

    def _tidy_up(self) -> None:
        """Bring the copy of the metadata up to date."""
        copy, read = self._tables.copy, self._form.meta_rows
        if copy is not None and read is not None and not self._unusable:
            rows = read(self.root / "meta")
            if not copy.open().to_table().equals(rows):
                with no_room_is_an_error(self.root), transaction(self.root) as changes:
                    stand_in = copy.stand_in(changes.folder)
                    stand_in.overwrite(rows)
                    made = {copy: stand_in.move_into(changes, self.root)}
                    self._tables.write_hints(changes, made)
                    changes.record()
                    self._put_in_place(changes)
                self._tables.grow(made)
                copy.prune()


class Tables:
    """The Lance tables of one dataset, and what is known of them.

    Args:
        root: The dataset's folder.
        form: Their names.
        new: Whether the dataset has no episode yet, and no version worth keeping.

    Attributes:
        frames: The table of rows.
        videos: The table of videos.
        copy: The table with a copy of ``meta/``.
        fragments: The number of the fragment that begins with an episode, if one does.
    """

    def __init__(self, root: Path, form: LanceFormat, *, new: bool) -> None:
        self._root = root
        kept = _read_kept(root)

        def table(name: str) -> GrowingTable:
            return GrowingTable(root / name, keep=0 if new else kept.get(name))

        self.frames = table(form.frames)
        self.videos = table(form.videos) if form.videos else None
        there = form.copy is not None and (root / form.copy).is_dir()
        self.copy = table(form.copy) if form.copy and there else None
        self.fragments: dict[int, int] = {}
        if has_history(root) and not new:
            keep_metadata(root, self.frames.version)  # episodes are about to be added to them
        every = [self.frames, self.videos, self.copy]
        self._every = [one for one in every if one is not None]
        kept = {one.path.name: one.keep for one in self._every}
        write_file(root / _KEPT, json.dumps(kept).encode())

    def write_hints(self, changes: Transaction, made: Mapping[GrowingTable, int]) -> None:
        """Announce what Lance notes of the newest version beside its manifests."""
        for table, version in made.items():
            name = table.path.relative_to(self._root).as_posix()
            changes.new(hint_name(name)).write_bytes(hint_of(version))

    def grow(self, made: Mapping[GrowingTable, int]) -> None:
        """Take note that new versions are in place."""
        for table, version in made.items():
            table.grow(version)

    def prune(self, before: float) -> None:
        """Remove versions that appending made, and that were replaced before an instant."""
        for table in self._every:
            table.prune(before)


class LanceMerger(Merger):
    """Merges the fragments of a table of rows, and keeps its indices.

    Args:
        root: The dataset's folder.
        book: What the appender knows; kept up to date here.
        turn: Held while the dataset or the book is changed.
        commit: Commits a transaction that adds no episode.
        tables: The Lance tables.
    """

    def __init__(
        self,
        root: Path,
        book: Book,
        turn: threading.RLock,
        commit: Callable[[Transaction], None],
        tables: Tables,
    ) -> None:
        super().__init__(root, book, turn, commit)
        self._tables = tables
        self._prunes = False

    def step(self, *, finish: bool, copy: Copying = copy_here) -> bool:
        """Make one merge, or bring the indices up to date; return whether there is more to do."""
        if super().step(finish=finish, copy=copy):
            return True
        with self.alone:
            return finish and self._renew_indices()

    def _merge_content(self, *, finish: bool) -> bool:
        files = self._book.tables
        group = next_group(files.runs, files.limit, finish=finish)
        if group is None:
            return False
        runs = files.runs[group]
        numbers = [self._tables.fragments[run.first] for run in runs]
        frames = self._tables.frames
        with transaction(self._root) as changes:
            with self._turn:
                stand_in = frames.stand_in(changes.folder)
                table = frames.open()
            rows = pa.concat_tables([table.get_fragment(number).to_table() for number in numbers])
            written = append_rows(stand_in.folder, rows)
            merged = Run(runs[0].first, runs[-1].stop, runs[0].place, _size(written))
            with self._turn:
                stand_in.rebase()  # episodes may have come meanwhile
                stand_in.rewrite(numbers, written)
                self._publish(changes, {frames: stand_in.move_into(changes, self._root)})
                files.runs[group] = [merged]
                for run in runs:
                    del self._tables.fragments[run.first]
                self._tables.fragments[merged.first] = numbers[-1]
        self._prunes = True
        return True

    def _renew_indices(self) -> bool:
        self._prunes = True
        made = {}
        with self._turn, transaction(self._root) as changes:
            for table, wanted in (
                (self._tables.frames, _FRAME_INDICES),
                (self._tables.videos, _VIDEO_INDICES),
            ):
                missing = _stale_indices(table.open(), wanted) if table is not None else None
                if table is not None and missing is not None:
                    stand_in = table.stand_in(changes.folder, with_files=True)
                    stand_in.renew_indices(missing)
                    made[table] = stand_in.move_into(changes, self._root)
            if made:
                self._publish(changes, made)
                files = self._book.tables
                files.runs = [_sealed(run) for run in files.runs]
        return bool(made)

    def _publish(self, changes: Transaction, made: Mapping[GrowingTable, int]) -> None:
        self._tables.write_hints(changes, made)
        self._commit(changes)
        self._tables.grow(made)

    def forget_stale(self) -> None:
        """Remove every version that was merged into others."""
        super().forget_stale()
        (self._root / _KEPT).unlink(missing_ok=True)

    def _forget(self, before: float) -> None:
        if self._prunes:
            with self._turn:
                self._tables.prune(before)


class _PartsOfOneTable(Files):
    """Files of a dataset that has one table: numbers that a conversion to v3.0 will go by."""

    __slots__ = ("_filled",)

    def __init__(self, like: Files) -> None:
        super().__init__(
            like.prefix, like.name_of, like.limit, like.per_chunk, upcoming=like.upcoming
        )
        self._filled = 0

    def add(self, run: Run) -> None:
        """Count in rows that were just committed."""
        self.runs.append(run)
        self._filled += run.size
        if self._filled >= self.limit:
            self._filled = 0
            self.skip()


class _Films(Files):
    """Videos of a dataset where they are never merged."""

    __slots__ = ()

    def __init__(self, like: Files) -> None:
        super().__init__(
            like.prefix, like.name_of, like.limit, like.per_chunk, upcoming=like.upcoming
        )

    def add(self, run: Run) -> None:
        """Count in a video that was just committed at the upcoming place."""
        assert run.place == self.upcoming
        self.skip()


def _fragment_runs(table: Any, book: Book) -> tuple[list[Run], dict[int, int]]:
    """Return which fragments hold which episodes, and the numbers of those that may be merged."""
    first = book.metadata.runs[0].first if book.metadata.runs else len(book.lengths)
    starts = np.cumsum([0, *book.lengths])
    indexed = set().union(*indexed_fragments(table).values())
    runs, fragments, row = [], {}, 0
    for fragment in table.get_fragments():
        meta = fragment.metadata
        begin, row = row, row + meta.num_rows
        episode, stop = np.searchsorted(starts, [begin, row]).tolist()
        whole = (starts[episode], starts[stop]) == (begin, row) and not meta.num_deletions
        may_be = whole and stop > episode >= first and meta.id not in indexed
        size = sum(file.file_size_bytes or 0 for file in meta.files)
        runs.append(Run(episode, stop, book.tables.upcoming, size, sealed=not may_be))
        if may_be:
            fragments[episode] = meta.id
    return runs, fragments


def _sealed(run: Run) -> Run:
    return Run(run.first, run.stop, run.place, run.size, sealed=True)


def _skip_used(videos: Any, books: Mapping[str, Files]) -> None:
    """Go on behind every video that is in the table, whether an episode names it or not."""
    table = videos.to_table(columns=["video_key", "chunk_index", "file_index"])
    for camera, chunk, file in zip(*(column.to_pylist() for column in table.columns), strict=True):
        files = books.get(camera)
        if files is not None and Place(chunk, file) >= files.upcoming:
            files.upcoming = files.after(Place(chunk, file))


def _stale_indices(table: Any, wanted: Mapping[str, str]) -> dict[str, str] | None:
    """Return which indices are missing; None if all are there and know every fragment."""
    there = {int(fragment.fragment_id) for fragment in table.get_fragments()}
    if not there:
        return None
    covered = indexed_fragments(table)
    ours = PACKETS_COLUMN in table.schema.names or any(
        FEATURE_NOTE in (field.metadata or {}) for field in table.schema
    )
    missing = {name: kind for name, kind in wanted.items() if ours and name not in covered}
    stale = any(not there <= numbers for numbers in covered.values())
    return missing if missing or stale else None


def _size(fragments: Sequence[str]) -> int:
    files = (file for text in fragments for file in json.loads(text)["files"])
    return sum(file["file_size_bytes"] or 0 for file in files)


def _read_kept(root: Path) -> dict[str, int]:
    """Return the versions that a recording which was killed had found."""
    path = root / _KEPT
    found: Any = read_json(path) if path.is_file() else {}
    noted = found.items() if isinstance(found, dict) else ()
    return {name: number for name, number in noted if isinstance(number, int)}
