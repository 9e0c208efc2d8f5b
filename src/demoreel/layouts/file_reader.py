"""The common part of the v2.x and v3.0 readers: tables and videos in files.

A row belongs to an episode because its ``episode_index`` says so and its file is the one that the
metadata names; never because of where it stands. Rows and files that no episode names do no harm.

A table's footer says which row groups may hold an episode; only those are read, on first use, and
where reads wait, all that a batch needs at the same time. Numbers are kept (``rows.py``), so
that a batch is one indexing operation; text, language and images stay in Arrow.
"""

from __future__ import annotations

import errno
import threading
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from demoreel.errors import DemoreelError, TableError
from demoreel.layouts.columns import as_counts, parsed_rows, read_images, read_numbers, read_texts
from demoreel.layouts.rows import (
    ColumnStore,
    PassingColumns,
    StoredReader,
    StoredRows,
    find_rows,
    runs,
)
from demoreel.media.video import Videos
from demoreel.model import Episodes, Feature, Info
from demoreel.storage.arrow import UNREADABLE
from demoreel.storage.cache import ByteCache
from demoreel.storage.commit.consistent import FolderState
from demoreel.storage.folder import DatasetFolder
from demoreel.storage.local import FETCH, is_pointer_file
from demoreel.storage.parquet import Parquet
from demoreel.storage.threads import renew_in_children


class FileReader(StoredReader):
    """Reads rows and videos from files, wherever they are.

    Attributes:
        folder: The dataset's folder.
        is_remote: Whether reads wait for a server.
    """

    root: Path
    episodes: Episodes
    folder: DatasetFolder
    is_remote: bool
    video_file: Callable[[int, str], str]
    data_file: Callable[[int], str]
    episode_columns: Callable[[], Mapping[str, np.ndarray]]

    def _lie_in(self, folder: DatasetFolder) -> None:
        self.folder = folder
        self.is_remote = folder.waits
        self._videos = Videos(folder)

    @abstractmethod
    def _tables(self) -> tuple[np.ndarray, Sequence[object]]:
        """Return the number of each episode's table, and what changes when the dataset does."""

    @cached_property
    def _rows(self) -> ParquetRows:
        files, fingerprint = self._tables()
        return ParquetRows(
            self.folder, self.info, self.episodes, self.data_file, files, fingerprint, self.state
        )

    def expect(self, images: Mapping[str, np.ndarray]) -> None:
        """Begin to open the videos in which images are that will be wanted, where reads wait.

        Args:
            images: The rows of which images are wanted, by camera.
        """
        if not self.folder.waits:
            return
        for camera, rows in images.items():
            if not self.in_tables(camera):
                positions = np.unique(self.episodes.positions_of_rows(rows)).tolist()
                self._videos.begin(self.video_file(position, camera) for position in positions)

    def absent(self) -> tuple[list[str], list[str]]:
        """Return the tables and videos that are not on this disk, and those not fetched by Git LFS.

        Cost: a stat a file.
        """
        names: dict[str, None] = {}
        for position in range(len(self.episodes)):
            names[self.data_file(position)] = None
            for camera in self.info.video_keys:
                names[self.video_file(position, camera)] = None
        sizes = {name: self.folder.known_size(name) for name in names}
        pointers = [n for n, size in sizes.items() if is_pointer_file(self.root / n, size or 0)]
        return [name for name, size in sizes.items() if size is None], pointers


T = TypeVar("T")

_ARROW_BYTES = 256 << 20
_PASSING = 4  # rows of a large group pass by: they leave room for others
_LARGE = 1 << 24
_INDEX_BYTES = 64 << 20
_WHICH_ROW = ("episode_index", "frame_index")
_RESTORE = "restore the file, or leave its episodes out with episodes="


class _Table(NamedTuple):
    """A table that is being read, for some episodes.

    Attributes:
        name: The file.
        identity: Changes when another file takes its place.
        positions: The episodes, by position.
        which: Its columns that say which row is which.
        groups: The row groups that may hold rows of the episodes.
        sizes: Rows of each of these groups.
        neighbours: The positions of all episodes that can be in no other group.
        arrived: Gives the open file; waits for the bytes of the columns.
    """

    name: str
    identity: Hashable
    positions: Sequence[int]
    which: list[str]
    groups: list[int]
    sizes: list[int]
    neighbours: np.ndarray
    arrived: Callable[[], Parquet]


def _outside(numbers: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return for each number whether it is in none of the ranges from ``first`` to ``last``."""
    order = np.argsort(numbers)
    begin = np.searchsorted(numbers[order], first)
    end = np.maximum(begin, np.searchsorted(numbers[order], last, side="right"))
    ranges = np.zeros(len(numbers) + 1, np.int64)  # that begin at each number, less those that end
    np.add.at(ranges, begin, 1)
    np.add.at(ranges, end, -1)
    found = np.empty(len(numbers), bool)
    found[order] = np.cumsum(ranges[:-1]) == 0
    return found


class _EpisodeRows(NamedTuple):
    """Where the rows of an episode are.

    Attributes:
        name: The table.
        identity: Changes when another file takes its place.
        at: For each frame its row group, and its row in that.
    """

    name: str
    identity: Hashable
    at: np.ndarray


_Column = tuple[str, Hashable, int, str]  # a table, its identity, a row group, a feature


@dataclass(slots=True)
class _Running:
    """A column of a row group that is being decoded, some rows at a time.

    Attributes:
        column: Which one.
        blocks: The blocks that follow.
        next: The number of the next one.
    """

    column: _Column
    blocks: Iterator[pa.Table]
    next: int = 0


class ParquetRows(StoredRows):
    """The tables of one dataset.

    Args:
        folder: The dataset's folder.
        info: Its info.
        episodes: Its episodes.
        file_of: Name of the table of the episode at a position.
        file_ids: A number for each episode, equal for those that share a table.
        fingerprint: Changes when the dataset does; names the shared scratch folder.
        state: What the dataset was when its metadata were read; None where that cannot change.
    """

    def __init__(
        self,
        folder: DatasetFolder,
        info: Info,
        episodes: Episodes,
        file_of: Callable[[int], str],
        file_ids: np.ndarray,
        fingerprint: Sequence[object],
        state: FolderState | None = None,
    ) -> None:
        super().__init__(info, episodes, fingerprint)
        self._folder = folder
        self._state = state
        self._file_of = file_of
        self._file_ids = file_ids
        # Sorted once, so that the episodes of a file are found without a look at all of them.
        self._by_file = np.argsort(file_ids, kind="stable")
        self._index: ByteCache[tuple[str, Hashable, int], _EpisodeRows] = ByteCache(_INDEX_BYTES)
        self._arrow: ByteCache[tuple[_Column, int], pa.Array] = ByteCache(_ARROW_BYTES)
        self._steps: dict[_Column, int] = {}
        self._running: _Running | None = None
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Begin with a lock of its own in a forked child, and with files of its own."""
        self._lock = threading.Lock()
        self._running = None

    def _tables(self, positions: Sequence[int], keys: Sequence[str]) -> Iterator[_Table]:
        """Yield the tables of these episodes; where reads wait, all are begun before the first."""
        files: dict[str, list[int]] = {}
        for position in positions:
            files.setdefault(self._file_of(position), []).append(position)
        begun = [
            self._folder.begin(partial(self._begin, name, wanted, keys))
            for name, wanted in files.items()
        ]
        for table in begun:
            yield table()

    def _begin(self, name: str, positions: Sequence[int], keys: Sequence[str]) -> _Table:
        """Open a table, and begin to read columns of the row groups that may hold episodes."""
        before = self._folder.identity(name)
        parquet = self._open(name)
        identity = self._folder.identity(name)
        if before not in (None, identity):
            raise self._error(
                "A table was replaced while it was being read.",
                name,
                hint="another process merges the dataset's files; read again",
            )
        present = set(parquet.schema_arrow.names)
        if "episode_index" not in present:
            raise self._error("The table has no episode_index column.", name, hint=None)
        absent = [key for key in keys if key not in present]
        if absent:
            raise self._error(
                f"The table lacks the column {absent[0]!r} that info.json declares.",
                name,
                hint="the table and info.json were not written together",
            )
        which = [key for key in _WHICH_ROW if key in present]
        first, last = self._decoded(name, lambda: parquet.bounds("episode_index"))
        wanted = np.append(np.sort(self._episodes.episode_index[list(positions)]), np.inf)
        groups = np.flatnonzero(wanted[np.searchsorted(wanted, first)] <= last).tolist()
        sizes = [parquet.metadata.row_group(group).num_rows for group in groups]
        others = self._positions_in(positions[0])
        numbers = self._episodes.episode_index[others]
        neighbours = others[_outside(numbers, np.delete(first, groups), np.delete(last, groups))]
        columns = list(dict.fromkeys([*which, *keys]))
        arrived = self._decoded(name, lambda: parquet.begin(groups, columns))
        return _Table(name, identity, positions, which, groups, sizes, neighbours, arrived)

    def _rows_in(self, table: _Table, columns: pa.Table) -> dict[int, np.ndarray]:
        """Return the rows of the episodes that are whole in the row groups, in frame order."""
        episode = self._counting(columns, "episode_index", table.name)
        frame = None
        if "frame_index" in table.which:
            frame = self._counting(columns, "frame_index", table.name)
        is_here = np.isin(self._episodes.episode_index[table.neighbours], episode)
        expected = np.union1d(table.neighbours[is_here], table.positions)
        rows, problem = find_rows(self._episodes, expected, episode, frame)
        for position in table.positions:
            if position in problem:
                raise self._error(
                    problem[position],
                    table.name,
                    hint="restore the file, or leave the episode out with episodes=",
                    episode=int(self._episodes.episode_index[position]),
                )
        return rows

    def _counting(self, table: pa.Table, key: str, name: str) -> np.ndarray:
        """Return a column that says which row is which."""
        whole = as_counts(table.column(key))
        if whole is None:
            raise self._error(
                f"The table's {key} is not a whole number in every row.",
                name,
                hint="restore the file, or repair the dataset: demoreel repair",
            )
        return whole

    def _positions_in(self, position: int) -> np.ndarray:
        """Return the positions of the episodes that share this one's file."""
        number = self._file_ids[position]
        edges = [number, number + 1]
        begin, end = np.searchsorted(self._file_ids, edges, sorter=self._by_file)
        return self._by_file[begin:end]

    def _fill(
        self, positions: np.ndarray, store: ColumnStore | PassingColumns | None = None
    ) -> None:
        for table in self._tables(positions.tolist(), [feature.key for feature in self._numeric]):
            self._fill_from(table, store or self._store)

    def _fill_from(self, table: _Table, store: ColumnStore | PassingColumns) -> None:
        """Store the numbers of all episodes that are whole in the row groups of a table."""
        total, at = sum(table.sizes), 0
        keys = list(dict.fromkeys([*table.which, *(feature.key for feature in self._numeric)]))
        with self._decoded(table.name, table.arrived) as parquet:
            blocks = parquet.blocks(keys, groups=table.groups)
            block = self._decoded(table.name, lambda: next(blocks, None))
            if block is not None and len(block) == total:
                rows = self._rows_in(table, block)
            else:
                rows = self._rows_in(table, self._read(table, parquet))
            target = np.full(total, -1, dtype=np.int64)
            for position, places in rows.items():
                target[places] = int(self._episodes.start[position]) + np.arange(len(places))
            while block is not None:
                self._refuse_stale(store)
                self._fill_rows(table.name, block, target[at : at + len(block)], store)
                at += len(block)
                block = self._decoded(table.name, lambda: next(blocks, None))
        if at < total:
            raise self._shorter(table.name)
        for position in rows:
            store.mark_filled(position)

    def _read(self, table: _Table, parquet: Parquet) -> pa.Table:
        """Return the columns that say which row is which."""
        return self._decoded(table.name, lambda: parquet.read(table.which, groups=table.groups))

    def _fill_rows(
        self,
        name: str,
        table: pa.Table,
        target: np.ndarray,
        store: ColumnStore | PassingColumns,
    ) -> None:
        """Store rows of a table at their positions in the dataset."""
        keep = np.flatnonzero(target >= 0)
        for feature in self._numeric:
            array = table.column(feature.key).combine_chunks()
            values = read_numbers(array, feature, where=f"{self._folder.uri}/{name}")
            for at, stop in runs(target[keep]):
                start_row = int(target[keep[at]])
                store.write(feature.key, start_row, _of_rows(values, keep[at:stop]))

    def _refuse_stale(self, store: ColumnStore | PassingColumns) -> None:
        """Refuse to share rows of a later state: other processes have this one open."""
        shared = store is self._store and store.is_shared
        if shared and self._state is not None and not self._state.is_current():
            raise OSError(errno.ESTALE, "The dataset has changed since it was opened")

    def objects(self, rows: np.ndarray, feature: Feature) -> list[Any]:
        """Return a text, language or image column of these rows as Python values."""
        result: list[Any] = [None] * len(rows)
        positions = self._episodes.positions_of_rows(rows)
        frames = rows - self._episodes.start[positions]
        left = {}
        for position in np.unique(positions).tolist():
            wanted = np.flatnonzero(positions == position).tolist()
            name = self._file_of(position)
            places = self._index.peek((name, self._folder.identity(name), position))
            if places is not None:
                wanted = self._take(result, wanted, frames, places, feature)
            if wanted:
                left[position] = wanted
        for table in self._tables(list(left), [feature.key]):
            with self._decoded(table.name, table.arrived) as parquet:
                indexed = self._indexed(table, parquet)
                for position in table.positions:
                    places = indexed[position]
                    self._take(result, left[position], frames, places, feature, parquet)
        if feature.is_language:
            where = self._folder.uri
            return [parsed_rows(value, key=feature.key, where=where) for value in result]
        return result

    def _indexed(self, table: _Table, parquet: Parquet) -> dict[int, _EpisodeRows]:
        """Return where the rows of a table's episodes are."""
        name, identity = table.name, table.identity
        kept = {p: self._index.peek((name, identity, p)) for p in table.positions}
        known = {position: places for position, places in kept.items() if places is not None}
        if len(known) == len(kept):
            return known
        edges = np.cumsum([0, *table.sizes])
        for position, rows in self._rows_in(table, self._read(table, parquet)).items():
            group = np.searchsorted(edges, rows, side="right") - 1
            at = np.stack([np.asarray(table.groups)[group], rows - edges[group]], axis=1)
            places = _EpisodeRows(name, identity, at.astype(np.int32))
            self._index.put((name, identity, position), places, places.at.nbytes + 200)
            if position in kept:
                known[position] = places
        return known

    def _take(
        self,
        result: list[Any],
        wanted: list[int],
        frames: np.ndarray,
        places: _EpisodeRows,
        feature: Feature,
        parquet: Parquet | None = None,
    ) -> list[int]:
        """Put values of an episode into a result; return those that need a file."""
        left = []
        for number in wanted:
            group, row = places.at[frames[number]].tolist()
            column = (places.name, places.identity, group, feature.key)
            step = self._steps.get(column, row + 1)
            array = self._arrow.peek((column, row // step))
            if array is None and parquet is not None:
                array, step = self._decode(parquet, column, feature, row)
            if array is None:
                left.append(number)
            else:
                result[number] = array[row % step].as_py()
        return left

    def _decode(
        self, parquet: Parquet, column: _Column, feature: Feature, row: int
    ) -> tuple[pa.Array, int]:
        """Return values of a column of a row group, among them a row's, and how many at a time.

        They are all of the group's, unless that is large: then some of them are decoded at a time.
        Where reads wait, a part would cost as many bytes as the whole.
        """
        name, _, group, key = column
        length = parquet.metadata.row_group(group).num_rows
        step = self._decoded(name, lambda: parquet.rows_at_once(group, [key]))
        if step >= length or self._folder.waits:
            table = self._decoded(name, lambda: parquet.read([key], groups=[group]))
            return self._keep((column, 0), table, feature), length
        self._steps[column] = step
        with self._lock:
            return self._decode_on(parquet, column, feature, row // step), step

    def _decode_on(
        self, parquet: Parquet, column: _Column, feature: Feature, number: int
    ) -> pa.Array:
        """Return a block of a large row group; continue where the last call ended, if it can."""
        array = self._arrow.peek((column, number))
        if array is not None:  # another thread was here first
            return array
        name, _, group, key = column
        running = self._running
        if running is None or running.column != column or running.next > number:
            blocks = parquet.blocks([key], groups=[group], rows=self._steps[column])
            running = self._running = _Running(column, blocks)
        while running.next <= number:
            block = self._decoded(name, lambda: next(running.blocks, None))
            if block is None:
                raise self._shorter(name)
            array = self._keep((column, running.next), block, feature, weight=_PASSING)
            running.next += 1
        return array

    def _keep(
        self, key: tuple[_Column, int], table: pa.Table, feature: Feature, *, weight: int = 1
    ) -> pa.Array:
        """Return a column as an array, and keep it for a while."""
        array = table.column(feature.key).combine_chunks()
        if feature.is_image:
            where = f"{self._folder.uri}/{key[0][0]}"
            array = read_images(array, key=feature.key, where=where)
        elif feature.is_string:
            array = read_texts(array)
        self._arrow.put(key, array, weight * array.nbytes)
        if array.nbytes > _LARGE:
            pa.default_memory_pool().release_unused()  # what it took the place of
        return array

    def _open(self, name: str) -> Parquet:
        try:
            return self._folder.parquet(name)
        except DemoreelError:
            raise
        except FileNotFoundError as error:
            raise self._error(
                "A table that the metadata names is missing: not downloaded, moved or deleted.",
                name,
                hint=FETCH,
            ) from error
        except UNREADABLE as error:
            raise self._error(
                "A table is not readable: it is cut off, or was never finished "
                f"({_first_line(error)}).",
                name,
            ) from error

    def _decoded(self, name: str, read: Callable[[], T]) -> T:
        try:
            return read()
        except DemoreelError:
            raise
        except UNREADABLE as error:
            raise self._error(f"A table is damaged ({_first_line(error)}).", name) from error

    def _shorter(self, name: str) -> TableError:
        return self._error("A table has fewer rows than its footer says.", name)

    def _error(
        self, what: str, name: str, *, hint: str | None = _RESTORE, episode: int | None = None
    ) -> TableError:
        return TableError(what, hint=hint, dataset=self._folder.uri, file=name, episode=episode)


def _of_rows(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return some rows, ascending: no copy where none is left out."""
    first, last = int(rows[0]), int(rows[-1])
    return values[first : last + 1] if last - first + 1 == len(rows) else values[rows]


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
