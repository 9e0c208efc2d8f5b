"""Appends episodes to Lance layouts with videos, one commit for each episode.

An episode is a version of the table of videos (a row per camera: its mp4, byte for byte), a version
of the table of rows, and metadata as in v3.0. Lance makes both versions aside
(``versions.py``); the journal puts them in place with the metadata, in this order:
videos, rows, metadata, tasks, statistics, ``info.json``. What is killed in between is all there
when the dataset is opened next, or not at all: neither table ever has rows that the metadata do not
know, but for other programs during the milliseconds of a commit.

Small fragments are merged while episodes come, neighbours only, so that row N stays where frame N
belongs; scalar indices are brought up to date at the end. Versions that appending made are pruned
once they were merged into others; those from before the recording, and tagged ones, stay.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from demoreel.errors import ArgumentError, MetadataError
from demoreel.layouts.appending import no_room_is_an_error
from demoreel.layouts.columns import arrow_type
from demoreel.layouts.lance.history import has_history, keep_metadata
from demoreel.layouts.lance.schemas import (
    BYTES_COLUMN,
    COPY,
    COPY_SCHEMA,
    FEATURE_NOTE,
    IMAGE,
    PACKETS_COLUMN,
    ROW_INDICES,
    VIDEO_INDICES,
    VIDEO_NAMES,
    FiledVideo,
    LanceSchema,
    column_names,
    column_type,
    meta_rows,
    named_after,
    rows_batch,
    schema_of,
)
from demoreel.layouts.lance.versions import (
    GrowingTable,
    StandIn,
    indexed_fragments,
)
from demoreel.layouts.lance.write import (
    BlobPart,
    append_rows,
    commit_table,
    make_rows_table,
    make_videos_table,
)
from demoreel.layouts.v3.appender import V3Appender, Videos
from demoreel.layouts.v3.compact import Merger, next_group
from demoreel.layouts.v3.copying import Copying, copy_here
from demoreel.layouts.v3.files import FilePlace, FileRun, Files
from demoreel.layouts.v3.resume import Book, read_book
from demoreel.layouts.writing import EpisodeDraft, ProbedVideo
from demoreel.media.video import open_video
from demoreel.model import Feature, Info, Stats
from demoreel.storage.arrow import as_numpy
from demoreel.storage.commit.files import write_file
from demoreel.storage.commit.journal import Transaction, is_pending, transaction
from demoreel.storage.commit.writer_lock import HIDDEN
from demoreel.storage.json_files import read_json
from demoreel.storage.local import LocalFile

_KEPT = f"{HIDDEN}/lance.json"  # which versions were there before the recording


def write_empty_tables(folder: Path, info: Info, layout: str, *, name: str) -> None:
    """Write the tables of a dataset without episodes.

    Args:
        folder: The dataset's folder.
        info: What it is to be.
        layout: Its layout.
        name: What the dataset is called; its table of rows may be named after it.
    """
    schema = schema_of(layout, named_after(name), info)
    make_rows_table(schema, folder, info, ())
    make_videos_table(schema, folder, ())
    if schema.is_native:
        commit_table(folder / COPY, COPY_SCHEMA, ())


def renew_copy(
    root: Path,
    changes: Transaction,
    meta: Path,
    *,
    changed: Mapping[str, Path | None] | None = None,
) -> None:
    """Announce a version of ``meta.lance``, if there is one, that holds ``meta/`` as it will be.

    Args:
        root: The dataset's folder.
        changes: What it comes into place with.
        meta: The metadata.
        changed: Files of them that change, too; see ``meta_rows``.
    """
    if (root / COPY).is_dir():
        stand_in = GrowingTable(root / COPY).stand_in(changes.folder)
        stand_in.overwrite(meta_rows(meta, changed=changed))
        stand_in.move_into(changes, root)


class LanceAppender(V3Appender):
    """Appends to a Lance dataset; see ``layouts/appending.py`` for the contract.

    Opening finishes what a dead writer had begun, and reads the metadata.
    """

    def __init__(self, root: Path, schema: LanceSchema) -> None:
        self._schema = schema
        self._made: dict[GrowingTable, int] = {}  # versions of the commit that is going on
        self._fragment = 0  # and the number of its rows' fragment
        super().__init__(root)

    def _read_book(self) -> Book:
        book = read_book(self.root)
        self._tables = LanceTables(self.root, self._schema, new=not book.lengths)
        frames = self._tables.frames.open()
        videos = self._tables.videos.open() if self._tables.videos is not None else None
        self._refuse_differences(book, frames, videos)
        self._rows_schema = keyed(frames.schema, book.info)
        self._videos_schema = videos.schema if videos is not None else None
        book.tables = _PartsOfOneTable(book.tables)
        book.tables.runs, self._tables.fragments = _fragment_runs(frames, book)
        book.videos = {key: _UnmergedVideos(files) for key, files in book.videos.items()}
        if videos is not None:
            _skip_used(videos, book.videos)
        return book

    def _refuse_differences(self, book: Book, frames: Any, videos: Any) -> None:
        found = rows_differences(book.info, frames.schema)
        if videos is not None:
            found += videos_differences(videos.schema, self._schema.video_columns)
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

    def _write_content(
        self, changes: Transaction, draft: EpisodeDraft, table: pa.Table, videos: Videos
    ) -> Callable[[], list[FileRun]]:
        one = (self.episodes, self.episodes + 1)
        self._made = {}
        if self._tables.videos is not None and (finished := videos()):
            stand_in = self._tables.videos.stand_in(changes.folder)
            stand_in.append(self._write_videos(stand_in, finished))
            self._made[self._tables.videos] = stand_in.move_into(changes, self.root)
        stand_in = self._tables.frames.stand_in(changes.folder)
        rows = fitted_rows(self._rows_schema, table, self.info)
        written = append_rows(stand_in.folder, rows)
        self._fragment = stand_in.append(written)
        self._made[self._tables.frames] = stand_in.move_into(changes, self.root)
        runs = [
            FileRun(*one, self._book.tables.upcoming, _size(written)),
            *(FileRun(*one, files.upcoming, 0) for files in self._book.videos.values()),
        ]
        return lambda: runs

    def _write_videos(self, stand_in: StandIn, videos: Mapping[str, ProbedVideo]) -> list[str]:
        blobs = BlobPart(stand_in.folder, BYTES_COLUMN, append=True)
        filed = []
        for camera, files in self._book.videos.items():
            video = open_video(videos[camera].path)
            assert isinstance(video.file, LocalFile)
            blobs.take(video.file)
            filed.append(FiledVideo(camera, *files.upcoming, video))
        assert self._videos_schema is not None
        rows = fitted_videos(self._videos_schema, self._schema.video_rows(filed))
        return blobs.finish(rows)

    def _count_in(self, draft: EpisodeDraft, stats: Stats | None, runs: list[FileRun]) -> None:
        super()._count_in(draft, stats, runs)
        self._tables.fragments[self.episodes - 1] = self._fragment
        self._tables.grow(self._made)

    def _tidy_up(self) -> None:
        """Bring the copy of the metadata up to date."""
        copy = self._tables.copy
        if copy is not None and not self._unusable:
            rows = meta_rows(self.root / "meta")
            if not copy.open().to_table().equals(rows):
                with no_room_is_an_error(self.root), transaction(self.root) as changes:
                    stand_in = copy.stand_in(changes.folder)
                    stand_in.overwrite(rows)
                    version = stand_in.move_into(changes, self.root)
                    self._carry_out(changes)
                copy.grow(version)
                copy.prune()


class LanceTables:
    """The Lance tables of one dataset, and what is known of them.

    Args:
        root: The dataset's folder.
        schema: Their names.
        new: Whether the dataset has no episode yet, and no version worth keeping.

    Attributes:
        frames: The table of rows.
        videos: The table of videos.
        copy: The table with a copy of ``meta/``.
        fragments: The number of the fragment that begins with an episode, if one does.
    """

    def __init__(self, root: Path, schema: LanceSchema, *, new: bool) -> None:
        self._root = root
        kept = _read_kept(root)

        def table(name: str) -> GrowingTable:
            return GrowingTable(root / name, keep=0 if new else kept.get(name))

        self.frames = table(schema.frames)
        self.videos = table(schema.videos) if schema.videos else None
        has_copy = schema.is_native and (root / COPY).is_dir()
        self.copy = table(COPY) if has_copy else None
        self.fragments: dict[int, int] = {}
        if has_history(root) and not new:
            keep_metadata(root, self.frames.version)  # episodes are about to be added to them
        every = [self.frames, self.videos, self.copy]
        self._every = [one for one in every if one is not None]
        kept = {one.path.name: one.keep for one in self._every}
        write_file(root / _KEPT, json.dumps(kept).encode())

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
        book: The state of the dataset; kept up to date here.
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
        tables: LanceTables,
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
            merged = FileRun(runs[0].first, runs[-1].stop, runs[0].place, _size(written))
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
                (self._tables.frames, ROW_INDICES),
                (self._tables.videos, VIDEO_INDICES),
            ):
                missing = _stale_indices(table.open(), wanted) if table is not None else None
                if table is not None and missing is not None:
                    stand_in = table.stand_in(changes.folder, with_files=True)
                    stand_in.renew_indices(missing)
                    made[table] = stand_in.move_into(changes, self._root)
            if made:
                self._publish(changes, made)
                files = self._book.tables
                files.runs = [_fixed(run) for run in files.runs]
        return bool(made)

    def _publish(self, changes: Transaction, made: Mapping[GrowingTable, int]) -> None:
        self._commit(changes)
        self._tables.grow(made)

    def forget_stale(self) -> None:
        """Remove every version that was merged into others."""
        super().forget_stale()
        (self._root / _KEPT).unlink(missing_ok=True)

    def _forget(self, before: float) -> None:
        if self._prunes:
            with self._turn:
                # The record of a commit that is not settled may name files of old versions.
                if not is_pending(self._root):
                    self._tables.prune(before)


class _PartsOfOneTable(Files):
    """Files of a dataset that has one table: numbers that a conversion to v3.0 will go by."""

    __slots__ = ("_filled",)

    def __init__(self, like: Files) -> None:
        super().__init__(
            like.prefix, like.name_of, like.limit, like.per_chunk, upcoming=like.upcoming
        )
        self._filled = 0

    def add(self, run: FileRun) -> None:
        """Count in rows that were just committed."""
        self.runs.append(run)
        self._filled += run.size
        if self._filled >= self.limit:
            self._filled = 0
            self.skip()


class _UnmergedVideos(Files):
    """Videos of a dataset where they are never merged."""

    __slots__ = ()

    def __init__(self, like: Files) -> None:
        super().__init__(
            like.prefix, like.name_of, like.limit, like.per_chunk, upcoming=like.upcoming
        )

    def add(self, run: FileRun) -> None:
        """Count in a video that was just committed at the upcoming place."""
        assert run.place == self.upcoming
        self.skip()


def _fragment_runs(table: Any, book: Book) -> tuple[list[FileRun], dict[int, int]]:
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
        runs.append(FileRun(episode, stop, book.tables.upcoming, size, fixed=not may_be))
        if may_be:
            fragments[episode] = meta.id
    return runs, fragments


def _fixed(run: FileRun) -> FileRun:
    return FileRun(run.first, run.stop, run.place, run.size, fixed=True)


def _skip_used(videos: Any, books: Mapping[str, Files]) -> None:
    """Go on behind every video that is in the table, whether an episode names it or not."""
    table = videos.to_table(columns=["video_key", "chunk_index", "file_index"])
    for camera, chunk, file in zip(*(column.to_pylist() for column in table.columns), strict=True):
        files = books.get(camera)
        if files is not None and FilePlace(chunk, file) >= files.upcoming:
            files.upcoming = files.after(FilePlace(chunk, file))


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


def rows_differences(info: Info, schema: pa.Schema) -> list[str]:
    """Return in words where a table of rows is not such that ``info`` fits into it."""
    names = column_names(info)
    stored = {names[f.key]: f for f in info.features.values() if not f.is_video}
    found = [f"the table of rows lacks {name!r}" for name in stored if name not in schema.names]
    found += [f"info.json does not declare {n!r}" for n in schema.names if n not in stored]
    for field in schema:
        feature = stored.get(field.name)
        if feature is not None and not _holds(field.type, feature):
            found.append(f"{field.name!r} is {field.type} there, {_declared(feature)} in info.json")
    return found


def videos_differences(schema: pa.Schema, known: pa.Schema) -> list[str]:
    """Return in words where a table of videos is not such that a row can be added."""
    found = [
        f"the table of videos lacks {name!r}"
        for name in (*VIDEO_NAMES, BYTES_COLUMN)
        if name not in schema.names
    ]
    unknown = (n for n in schema.names if n != BYTES_COLUMN and n not in known.names)
    found += [f"the table of videos has a column {name!r}, which is not known" for name in unknown]
    if not found and schema.names[-1] != BYTES_COLUMN:
        found.append(f"{BYTES_COLUMN!r} is not the last column of the table of videos")
    if not found and "blob.v2" not in str(schema.field(BYTES_COLUMN)):
        found.append(f"{BYTES_COLUMN!r} is not a blob of Lance's second kind")
    return found


def _holds(kind: pa.DataType, feature: Feature) -> bool:
    if feature.is_image:
        return bool(pa.types.is_binary(kind) or kind == IMAGE)
    if not feature.is_numeric:
        return bool(kind in (column_type(feature), arrow_type(feature)))
    size = 1
    while pa.types.is_fixed_size_list(kind):
        size, kind = size * kind.list_size, kind.value_type
    if size != math.prod(feature.item_shape):
        return False
    if pa.types.is_boolean(kind):
        return feature.dtype == "bool"
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return False
    wide = bool(np.can_cast(feature.numpy_dtype, kind.to_pandas_dtype()))
    return wide or feature.numpy_dtype.kind in "iub"  # narrow ones are looked at, value by value


def _declared(feature: Feature) -> str:
    return f"{feature.dtype} of shape {tuple(feature.shape)}"


def keyed(schema: pa.Schema, info: Info) -> pa.Schema:
    """Return a table's schema with each column's feature noted in it."""
    keys = {name: key for key, name in column_names(info).items()}
    return pa.schema(
        [
            field.with_metadata({**(field.metadata or {}), FEATURE_NOTE: keys[field.name]})
            for field in schema
        ]
    )


def fitted_rows(schema: pa.Schema, rows: pa.Table, info: Info) -> pa.Table:
    """Return an episode's rows in the columns of a table."""
    columns: dict[str, Any] = {}
    images = {}
    for field in schema:
        key = field.metadata[FEATURE_NOTE].decode()
        feature, values = info.features[key], rows.column(key).combine_chunks()
        if feature.is_image:
            images[key] = values.field("bytes").to_pylist()
        elif feature.is_numeric:
            columns[key] = as_numpy(_flat(values)).reshape(len(rows), -1)
            _refuse_loss(columns[key], field.type, feature)
        else:
            columns[key] = values
    return pa.Table.from_batches([rows_batch(schema, columns, images)])


def _refuse_loss(numbers: np.ndarray, kind: pa.DataType, feature: Feature) -> None:
    while pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    narrow = np.dtype(kind.to_pandas_dtype())
    if np.can_cast(feature.numpy_dtype, narrow):
        return
    if not np.array_equal(numbers.astype(narrow).astype(numbers.dtype), numbers):
        raise ArgumentError(
            f"Column {feature.key!r} is stored as {narrow} in this dataset, which does not hold "
            "these values as they are.",
            hint="convert the dataset with demoreel convert: its tables are as wide as declared",
        )


def _flat(array: pa.Array) -> pa.Array:
    while pa.types.is_fixed_size_list(array.type) or pa.types.is_list(array.type):
        array = array.flatten()
    return array


def fitted_videos(schema: pa.Schema, rows: pa.Table) -> pa.Table:
    """Return rows of videos in the columns of a table, all but the bytes."""
    wanted = pa.schema([field for field in schema if field.name != BYTES_COLUMN])
    return rows.select(wanted.names).cast(wanted)
