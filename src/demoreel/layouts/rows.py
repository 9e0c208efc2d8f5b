"""Rows of a parquet dataset, by their position in the dataset.

A row belongs to an episode because its ``episode_index`` says so and its file is the one that the
metadata names; never because of where it stands. Rows and files that no episode names do no harm.

Parquet is decoded a row group at a time, on first use. Numbers go into a ``ColumnStore``, so that a
batch is one indexing operation; text, language and images stay in Arrow.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from demoreel.errors import TableError
from demoreel.layouts import arrow_in
from demoreel.layouts.column_store import ColumnStore, PassingColumns, StoredNumbers
from demoreel.layouts.find_rows import find_rows, runs
from demoreel.layouts.language import parsed_rows
from demoreel.model import Episodes, Feature, Info
from demoreel.storage.arrow import UNREADABLE, as_numpy, is_number
from demoreel.storage.commit.consistent import FolderState
from demoreel.storage.folder import DatasetFolder
from demoreel.storage.forks import renew_in_children
from demoreel.storage.local import count_opening
from demoreel.storage.lru import ByteCache
from demoreel.storage.parquet import Parquet, open_parquet

T = TypeVar("T")

_ARROW_BYTES = 256 << 20
_PASSING = 4  # rows of a large group pass by: they leave room for others
_LARGE = 1 << 24
_TABLE_BYTES = 64 << 20
_SMALL = 1 << 12  # rows
_WHICH_ROW = ("episode_index", "frame_index")


@dataclass(frozen=True, slots=True)
class _RowFile:
    """What is known of one parquet file.

    Attributes:
        rows: For each episode (by position) its rows in the file, in frame order.
        target: For each row of the file, its position in the dataset; -1 for orphans.
        edges: Where row groups begin, and the number of rows at the end.
        problem: Episodes (by position) that are not whole, and why.
        identity: Changes when another file takes its place.
    """

    rows: dict[int, np.ndarray]
    target: np.ndarray
    edges: np.ndarray
    problem: dict[int, str]
    identity: object

    def groups_of(self, positions: list[int]) -> list[int]:
        """Return the row groups that hold rows of these episodes."""
        rows = np.concatenate([self.rows[position] for position in positions])
        return [int(group) for group in np.unique(self.group_of(rows))]

    def group_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the row group of each row."""
        return np.searchsorted(self.edges, rows, side="right") - 1


@dataclass(slots=True)
class _Running:
    """A column of a row group that is being decoded, some rows at a time.

    Attributes:
        who: Which one.
        blocks: The blocks that follow.
        next: The number of the next one.
    """

    who: tuple[object, ...]
    blocks: Iterator[pa.Table]
    next: int = 0


class ParquetRows(StoredNumbers):
    """The tables of one dataset.

    Args:
        root: The dataset's folder.
        info: Its info.
        episodes: Its episodes.
        file_of: Path of the table of the episode at a position, relative to ``root``.
        file_ids: A number for each episode, equal for those that share a table.
        fingerprint: Changes when the dataset does; names the shared scratch folder.
        state: What the dataset was when its metadata were read; None where that cannot change.
    """

    def __init__(
        self,
        root: Path,
        info: Info,
        episodes: Episodes,
        file_of: Callable[[int], str],
        file_ids: np.ndarray,
        fingerprint: Sequence[object],
        state: FolderState | None = None,
    ) -> None:
        numeric = [f for f in info.features.values() if f.is_numeric]
        super().__init__(episodes, numeric, fingerprint)
        self._root = root
        self._state = state
        self._info = info
        self._file_of = file_of
        self._file_ids = file_ids
        # Sorted once, so that the episodes of a file are found without a look at all of them.
        self._by_file = np.argsort(file_ids, kind="stable")
        self._files: ByteCache[tuple[str, object], _RowFile] = ByteCache(_TABLE_BYTES)
        self._arrow: ByteCache[tuple[object, ...], pa.Array] = ByteCache(_ARROW_BYTES)
        self._steps: dict[tuple[object, ...], int] = {}
        self._running: _Running | None = None
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Begin with a lock of its own in a forked child, and with files of its own."""
        self._lock = threading.Lock()
        self._running = None

    def _fill(
        self, positions: np.ndarray, store: ColumnStore | PassingColumns | None = None
    ) -> None:
        files: dict[str, list[int]] = {}
        for position in positions.tolist():
            files.setdefault(self._file_of(position), []).append(position)
        for name, wanted in files.items():
            self._fill_from(name, wanted, store or self._store)

    def _fill_from(
        self, name: str, positions: list[int], store: ColumnStore | PassingColumns
    ) -> None:
        file, table = self._file_and_table(positions[0])
        for position in positions:
            self._refuse_problem(file, position)
        needed = file.groups_of(positions)
        target = np.concatenate([file.target[file.edges[g] : file.edges[g + 1]] for g in needed])
        if table is not None and len(needed) == len(file.edges) - 1:
            self._refuse_stale(store)
            self._fill_rows(name, table, target, store)
        else:
            at = 0
            for block in self._blocks(name, file, needed, [f.key for f in self._numeric]):
                self._refuse_stale(store)
                self._fill_rows(name, block, target[at : at + len(block)], store)
                at += len(block)
        self._mark_filled(file, target[target >= 0], store)

    def _fill_rows(
        self,
        name: str,
        table: pa.Table,
        target: np.ndarray,
        store: ColumnStore | PassingColumns,
    ) -> None:
        """Store rows of a table at their positions in the dataset."""
        keep = np.flatnonzero(target >= 0)
        where = str(self._root / name)
        for feature in self._numeric:
            array = table.column(feature.key).combine_chunks()
            values = arrow_in.numbers(array, feature, where=where)
            for at, stop in runs(target[keep]):
                start_row = int(target[keep[at]])
                store.write(feature.key, start_row, _of_rows(values, keep[at:stop]))

    def _refuse_stale(self, store: ColumnStore | PassingColumns) -> None:
        """Refuse to share rows of a later state: other processes have this one open."""
        shared = store is self._store and store.is_shared
        if shared and self._state is not None and not self._state.is_current():
            raise OSError(errno.ESTALE, "The dataset has changed since it was opened")

    def _refuse_problem(self, file: _RowFile, position: int) -> None:
        if position in file.problem:
            raise TableError(
                file.problem[position],
                hint="restore the file, or leave the episode out with episodes=",
                dataset=self._root,
                file=self._file_of(position),
                episode=int(self._episodes.episode_index[position]),
            )

    def _mark_filled(
        self, file: _RowFile, target: np.ndarray, store: ColumnStore | PassingColumns
    ) -> None:
        """Mark the episodes that lie wholly in the row groups that were just decoded."""
        found, counts = np.unique(self._episodes.positions_of_rows(target), return_counts=True)
        whole = found[counts == self._episodes.length[found]]
        for position in whole.tolist():
            if position not in file.problem:
                store.mark_filled(position)

    def _file(self, position: int) -> _RowFile:
        return self._file_and_table(position)[0]

    def _file_and_table(self, position: int) -> tuple[_RowFile, pa.Table | None]:
        """Return what is known of a file, and its numbers if they were read to find out."""
        name = self._file_of(position)
        now = self._identity(name)
        read: list[pa.Table] = []
        file = self._files.get(
            (name, now), lambda: self._inspect(name, now, self._positions_in(position), read)
        )
        return file, read[0] if read else None

    def _identity(self, name: str) -> object:
        """Return what changes when another file takes this one's place, as merging has it."""
        try:
            status = os.stat(self._root / name)
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns

    def _inspect(
        self, name: str, identity: object, expected: np.ndarray, read: list[pa.Table]
    ) -> tuple[_RowFile, int]:
        """Read a file's footer and its two smallest columns: which row is which.

        Of a small file, as v2's are, all numbers are read in one go, and put into ``read``.
        """
        with self._open(name) as parquet:
            sizes = [parquet.metadata.row_group(g).num_rows for g in range(parquet.num_row_groups)]
            present = set(parquet.schema_arrow.names)
            keys = [key for key in _WHICH_ROW if key in present]
            if "episode_index" not in keys:
                raise TableError(
                    "The table has no episode_index column.", dataset=self._root, file=name
                )
            if parquet.num_row_groups == 1 and sizes[0] <= _SMALL:
                own = [feature.key for feature in self._numeric]
                if present.issuperset(own):
                    keys = list(dict.fromkeys([*keys, *own]))
            table = self._decoded(name, lambda: parquet.read(keys))
        if len(keys) > len(_WHICH_ROW):
            read.append(table)
        episode = self._counting(table, "episode_index", name)
        frame = self._counting(table, "frame_index", name) if "frame_index" in keys else None
        rows, problem = find_rows(self._episodes, expected, episode, frame)
        target = np.full(len(episode), -1, dtype=np.int64)
        for position, places in rows.items():
            target[places] = int(self._episodes.start[position]) + np.arange(len(places))
        edges = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return _RowFile(rows, target, edges, problem, identity), target.nbytes * 2 + 200 * len(rows)

    def _counting(self, table: pa.Table, key: str, name: str) -> np.ndarray:
        """Return a column that says which row is which."""
        column = table.column(key)
        if not is_number(column.type) or column.null_count:
            raise TableError(
                f"The table's {key} is not a number in every row.",
                hint="restore the file, or mend the dataset with demoreel repair",
                dataset=self._root,
                file=name,
            )
        return as_numpy(column)

    def _positions_in(self, position: int) -> np.ndarray:
        """Return the positions of the episodes that share this one's file."""
        number = self._file_ids[position]
        edges = [number, number + 1]
        begin, end = np.searchsorted(self._file_ids, edges, sorter=self._by_file)
        return self._by_file[begin:end]

    def objects(self, rows: np.ndarray, feature: Feature) -> list[Any]:
        """Return a text, language or image column of these rows as Python values."""
        result: list[Any] = [None] * len(rows)
        positions = self._episodes.positions_of_rows(rows)
        for position in np.unique(positions).tolist():
            file = self._file(position)
            self._refuse_problem(file, position)
            places = np.flatnonzero(positions == position)
            at = file.rows[position][rows[places] - int(self._episodes.start[position])]
            groups = file.group_of(at)
            for place, row, group in zip(places, at, groups.tolist(), strict=True):
                inside = int(row - file.edges[group])
                array, first = self._arrow_rows(
                    self._file_of(position), file, group, feature, inside
                )
                result[place] = array[inside - first].as_py()
        if feature.is_language:
            where = str(self._root)
            return [parsed_rows(value, key=feature.key, where=where) for value in result]
        return result

    def _arrow_rows(
        self, name: str, file: _RowFile, group: int, feature: Feature, row: int
    ) -> tuple[pa.Array, int]:
        """Return values of a column of a row group, among them a row's; and the first one's row.

        They are all of the group's, unless that is large: then some of them are decoded at a time.
        """
        who = (name, file.identity, group, feature.key)
        length = int(file.edges[group + 1] - file.edges[group])
        step = self._steps.get(who, length)
        array = self._arrow.peek((*who, row // step))
        if array is None and step == length:
            with self._checked(name, file, [feature.key]) as parquet:
                step = self._decoded(name, lambda: parquet.rows_at_once(group, [feature.key]))
                if step >= length:
                    read = partial(parquet.read, [feature.key], groups=[group])
                    return self._keep((*who, 0), self._decoded(name, read), feature), 0
            self._steps[who] = step
        if array is None:
            with self._lock:
                array = self._decode_on(who, file, feature, row // step)
        return array, row // step * step

    def _decode_on(
        self, who: tuple[str, object, int, str], file: _RowFile, feature: Feature, number: int
    ) -> pa.Array:
        """Return a block of a large row group; go on from where the last call ended, if it can."""
        array = self._arrow.peek((*who, number))
        if array is not None:  # another thread was here first
            return array
        running = self._running
        if running is None or running.who != who or running.next > number:
            parquet = self._checked(who[0], file, [feature.key])
            blocks = parquet.blocks([feature.key], groups=[who[2]], rows=self._steps[who])
            running = self._running = _Running(who, blocks)
        while running.next <= number:
            block = self._decoded(who[0], lambda: next(running.blocks, None))
            if block is None:
                raise self._shorter(who[0])
            array = self._keep((*who, running.next), block, feature, weight=_PASSING)
            running.next += 1
        return array

    def _keep(
        self, key: tuple[object, ...], table: pa.Table, feature: Feature, *, weight: int = 1
    ) -> pa.Array:
        """Return a column as an array, and keep it for a while."""
        array = table.column(feature.key).combine_chunks()
        if feature.is_image:
            where = str(self._root / str(key[0]))
            array = arrow_in.images(array, key=feature.key, where=where)
        self._arrow.put(key, array, weight * array.nbytes)
        if array.nbytes > _LARGE:
            pa.default_memory_pool().release_unused()  # what it took the place of
        return array

    def _blocks(
        self, name: str, file: _RowFile, groups: list[int], keys: list[str]
    ) -> Iterator[pa.Table]:
        with self._checked(name, file, keys) as parquet:
            blocks = parquet.blocks(keys, groups=groups)
            while (block := self._decoded(name, lambda: next(blocks, None))) is not None:
                yield block

    def _checked(self, name: str, file: _RowFile, keys: list[str]) -> Parquet:
        """Open a table; refuse one that is another than it was, or lacks a column."""
        parquet = self._open(name)
        if self._identity(name) != file.identity:
            raise TableError(
                "A table was replaced while it was being read.",
                hint="another process merges the dataset's files; read again",
                dataset=self._root,
                file=name,
            )
        present = set(parquet.schema_arrow.names)
        absent = [key for key in keys if key not in present]
        if absent:
            raise TableError(
                f"The table lacks the column {absent[0]!r} that info.json declares.",
                hint="the table and info.json were not written together",
                dataset=self._root,
                file=name,
            )
        return parquet

    def _shorter(self, name: str) -> TableError:
        return TableError(
            "A table has fewer rows than its footer says.",
            hint="restore the file, or leave its episodes out with episodes=",
            dataset=self._root,
            file=name,
        )

    def _open(self, name: str) -> Parquet:
        path = self._root / name
        try:
            count_opening()
            return open_parquet(path)
        except FileNotFoundError as error:
            raise TableError(
                "A table that the metadata names is missing.",
                hint="fetch or restore the file",
                dataset=self._root,
                file=name,
            ) from error
        except UNREADABLE as error:
            raise TableError(
                "A table is not readable: it is cut off, or was never finished "
                f"({_first_line(error)}).",
                hint="restore the file, or leave its episodes out with episodes=",
                dataset=self._root,
                file=name,
            ) from error

    def _decoded(self, name: str, read: Callable[[], T]) -> T:
        try:
            return read()
        except UNREADABLE as error:
            raise TableError(
                f"A table is damaged ({_first_line(error)}).",
                hint="restore the file, or leave its episodes out with episodes=",
                dataset=self._root,
                file=name,
            ) from error


class Rows(Protocol):
    """The rows of a dataset, however they are stored."""

    def numbers(self, rows: np.ndarray, keys: Sequence[str]) -> dict[str, np.ndarray]:
        """Return numeric columns of these rows."""
        ...

    def numbers_once(self, first: int, stop: int) -> dict[str, np.ndarray]:
        """Return all numeric columns of the episodes at these positions, and keep nothing."""
        ...

    def objects(self, rows: np.ndarray, feature: Feature) -> list[Any]:
        """Return a text, language or image column of these rows as Python values."""
        ...


def open_rows(
    folder: DatasetFolder,
    info: Info,
    episodes: Episodes,
    file_of: Callable[[int], str],
    file_ids: np.ndarray,
    fingerprint: Sequence[object],
    state: FolderState | None,
) -> Rows:
    """Return the rows of a dataset's tables; for the arguments see ``ParquetRows``.

    Where reads wait, only the row groups and columns that are wanted are fetched.
    """
    if folder.waits:
        from demoreel.layouts.fetched_rows import FetchedRows

        return FetchedRows(folder, info, episodes, file_of)
    return ParquetRows(folder.local, info, episodes, file_of, file_ids, fingerprint, state)


def rows_of(
    tables: Rows, info: Info, rows: np.ndarray, keys: Sequence[str]
) -> dict[str, np.ndarray | list[Any]]:
    """Return number columns as arrays and the others as lists, in the order of ``keys``."""
    features = [info.features[key] for key in keys]
    numeric = tables.numbers(rows, [f.key for f in features if f.is_numeric])
    return {f.key: numeric[f.key] if f.is_numeric else tables.objects(rows, f) for f in features}


def rows_once(
    tables: Rows, info: Info, episodes: Episodes, first: int, stop: int
) -> dict[str, np.ndarray | list[Any]]:
    """Return every column but the cameras' of the episodes at ``first`` to ``stop`` - 1."""
    columns: dict[str, np.ndarray | list[Any]] = dict(tables.numbers_once(first, stop))
    rows = np.arange(int(episodes.start[first]), int(episodes.start[stop]))
    for feature in info.features.values():
        if feature.is_string or feature.is_language:
            columns[feature.key] = tables.objects(rows, feature)
    return columns


def _of_rows(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return some rows, ascending: no copy where none is left out."""
    first, last = int(rows[0]), int(rows[-1])
    return values[first : last + 1] if last - first + 1 == len(rows) else values[rows]


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
