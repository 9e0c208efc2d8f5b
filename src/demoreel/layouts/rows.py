"""Rows of a parquet dataset, by their position in the dataset.

A row belongs to an episode because its ``episode_index`` says so and its file is the one that the
metadata names; never because of where it stands. Rows and files that no episode names do no harm.

Parquet is decoded a row group at a time, on first use. Numbers go into a ``ColumnStore``, so that a
batch is one indexing operation; text, language and pictures stay in Arrow.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.errors import TableError
from demoreel.layouts import arrow_in
from demoreel.layouts.column_store import ColumnStore, PassingColumns, StoredNumbers
from demoreel.layouts.find_rows import find_rows, runs
from demoreel.layouts.language import parsed_rows
from demoreel.model import Episodes, Feature, Info
from demoreel.storage.arrow import UNREADABLE, as_numpy, is_number
from demoreel.storage.local import refuse_special
from demoreel.storage.lru import ByteCache

_ARROW_BYTES = 256 << 20
_TABLE_BYTES = 64 << 20
_SMALL = 1 << 12  # rows
_WHICH_ROW = ("episode_index", "frame_index")


@dataclass(frozen=True, slots=True)
class _File:
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


class ParquetRows(StoredNumbers):
    """The tables of one dataset.

    Args:
        root: The dataset's folder.
        info: Its info.
        episodes: Its episodes.
        file_of: Path of the table of the episode at a position, relative to ``root``.
        file_ids: A number for each episode, equal for those that share a table.
        fingerprint: Changes when the dataset does; names the shared scratch folder.
    """

    def __init__(
        self,
        root: Path,
        info: Info,
        episodes: Episodes,
        file_of: Callable[[int], str],
        file_ids: np.ndarray,
        fingerprint: Sequence[object],
    ) -> None:
        numeric = [f for f in info.features.values() if f.is_numeric]
        super().__init__(episodes, numeric, fingerprint)
        self._root = root
        self._info = info
        self._file_of = file_of
        self._file_ids = file_ids
        # Sorted once, so that the episodes of a file are found without a look at all of them.
        self._by_file = np.argsort(file_ids, kind="stable")
        self._files: ByteCache[tuple[str, object], _File] = ByteCache(_TABLE_BYTES)
        self._arrow: ByteCache[tuple[str, object, int, str], pa.Array] = ByteCache(_ARROW_BYTES)

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
        if table is None or len(needed) < len(file.edges) - 1:
            table = self._read(name, file, needed, [f.key for f in self._numeric])
        target = np.concatenate([file.target[file.edges[g] : file.edges[g + 1]] for g in needed])
        keep = np.flatnonzero(target >= 0)
        where = str(self._root / name)
        for feature in self._numeric:
            array = table.column(feature.key).combine_chunks()
            values = arrow_in.numbers(array, feature, where=where)
            for at, stop in runs(target[keep]):
                start_row = int(target[keep[at]])
                store.write(feature.key, start_row, _of_rows(values, keep[at:stop]))
        self._mark_filled(file, target[keep], store)

    def _refuse_problem(self, file: _File, position: int) -> None:
        if position in file.problem:
            raise TableError(
                file.problem[position],
                hint="restore the file, or leave the episode out with episodes=",
                dataset=self._root,
                file=self._file_of(position),
                episode=int(self._episodes.episode_index[position]),
            )

    def _mark_filled(
        self, file: _File, target: np.ndarray, store: ColumnStore | PassingColumns
    ) -> None:
        """Mark the episodes that lie wholly in the row groups that were just decoded."""
        found, counts = np.unique(self._episodes.positions_of_rows(target), return_counts=True)
        whole = found[counts == self._episodes.length[found]]
        for position in whole.tolist():
            if position not in file.problem:
                store.mark_filled(position)

    def _file(self, position: int) -> _File:
        return self._file_and_table(position)[0]

    def _file_and_table(self, position: int) -> tuple[_File, pa.Table | None]:
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
    ) -> tuple[_File, int]:
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
            table = self._decoded(name, lambda: parquet.read(columns=keys))
        if len(keys) > len(_WHICH_ROW):
            read.append(table)
        episode = self._counting(table, "episode_index", name)
        frame = self._counting(table, "frame_index", name) if "frame_index" in keys else None
        rows, problem = find_rows(self._episodes, expected, episode, frame)
        target = np.full(len(episode), -1, dtype=np.int64)
        for position, places in rows.items():
            target[places] = int(self._episodes.start[position]) + np.arange(len(places))
        edges = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return _File(rows, target, edges, problem, identity), target.nbytes * 2 + 200 * len(rows)

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
                array = self._arrow_column(self._file_of(position), file, group, feature)
                result[place] = array[int(row - file.edges[group])].as_py()
        if feature.is_language:
            where = str(self._root)
            return [parsed_rows(value, key=feature.key, where=where) for value in result]
        return result

    def _arrow_column(self, name: str, file: _File, group: int, feature: Feature) -> pa.Array:
        def make() -> tuple[pa.Array, int]:
            table = self._read(name, file, [group], [feature.key])
            array = table.column(feature.key).combine_chunks()
            if feature.is_image:
                array = arrow_in.pictures(array, key=feature.key, where=str(self._root / name))
            return array, array.nbytes

        return self._arrow.get((name, file.identity, group, feature.key), make)

    def _read(self, name: str, file: _File, groups: list[int], keys: list[str]) -> pa.Table:
        with self._open(name) as parquet:
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
            return self._decoded(name, lambda: parquet.read_row_groups(groups, columns=keys))

    def _open(self, name: str) -> pq.ParquetFile:
        path = self._root / name
        try:
            refuse_special(path)
            return pq.ParquetFile(path, memory_map=False)
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

    def _decoded(self, name: str, read: Callable[[], pa.Table]) -> pa.Table:
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
