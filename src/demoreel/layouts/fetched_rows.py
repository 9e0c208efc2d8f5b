"""Rows of a parquet dataset whose reads wait for a server.

A row belongs to an episode for the same reasons as on a disk (``rows.py``), but no file is looked
through for it: a table's footer says which episodes a row group holds, and only those groups are
fetched, all that a batch needs at the same time. What comes back is asked who it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from demoreel.errors import TableError
from demoreel.layouts import arrow_in
from demoreel.layouts.column_store import ColumnStore, PassingColumns, StoredNumbers
from demoreel.layouts.find_rows import find_rows, runs
from demoreel.layouts.language import parsed_rows
from demoreel.model import Episodes, Feature, Info
from demoreel.storage.arrow import UNREADABLE, as_numpy, from_numpy, is_number
from demoreel.storage.folder import DatasetFolder
from demoreel.storage.lru import ByteCache
from demoreel.storage.parquet_ranges import ParquetRanges
from demoreel.storage.threads import transfer

_ARROW_BYTES = 256 << 20
_FOOTER_BYTES = 64 << 20
_WHICH_ROW = ("episode_index", "frame_index")


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of some row groups of one table.

    Attributes:
        table: The columns.
        rows: For each episode (by position) its rows in ``table``, in frame order.
    """

    table: pa.Table
    rows: dict[int, np.ndarray]


class FetchedRows(StoredNumbers):
    """The tables of one dataset.

    Args:
        folder: The dataset's folder.
        info: Its info.
        episodes: Its episodes.
        file_of: Name of the table of the episode at a position.
    """

    def __init__(
        self,
        folder: DatasetFolder,
        info: Info,
        episodes: Episodes,
        file_of: Callable[[int], str],
    ) -> None:
        numeric = [f for f in info.features.values() if f.is_numeric]
        super().__init__(episodes, numeric, (folder.uri, folder.local.name))
        self._folder = folder
        self._root: Path = folder.local
        self._file_of = file_of
        self._tables: ByteCache[tuple[object, ...], ParquetRanges] = ByteCache(_FOOTER_BYTES)
        self._arrow: ByteCache[tuple[object, ...], pa.Array] = ByteCache(_ARROW_BYTES)

    def _fill(
        self, positions: np.ndarray, store: ColumnStore | PassingColumns | None = None
    ) -> None:
        store = store or self._store
        keys = [feature.key for feature in self._numeric]
        for name, found in self._fetched(positions.tolist(), keys):
            where = f"{self._folder.uri}/{name}"
            for feature in self._numeric:
                array = found.table.column(feature.key).combine_chunks()
                values = arrow_in.numbers(array, feature, where=where)
                for position, rows in found.rows.items():
                    start = int(self._episodes.start[position])
                    for at, stop in runs(rows):
                        store.write(feature.key, start + at, values[rows[at:stop]])
            for position in found.rows:
                store.mark_filled(position)

    def _fetched(
        self, positions: Sequence[int], keys: Sequence[str]
    ) -> Iterator[tuple[str, _Rows]]:
        """Yield columns of these episodes, table by table; all are fetched at the same time."""
        files: dict[str, list[int]] = {}
        for position in positions:
            files.setdefault(self._file_of(position), []).append(position)
        opening = {name: transfer(partial(self._table, name)) for name in files}
        arriving = {
            name: self._begin(name, opening[name].result(), wanted, keys)
            for name, wanted in files.items()
        }
        for name, wanted in files.items():
            yield name, self._found(name, arriving[name], wanted)

    def _begin(
        self, name: str, table: ParquetRanges, positions: Sequence[int], keys: Sequence[str]
    ) -> Callable[[], pa.Table]:
        """Begin to fetch columns of these episodes from one table."""
        who = [key for key in _WHICH_ROW if key in table.columns]
        if "episode_index" not in who:
            raise self._error("The table has no episode_index column.", name)
        absent = [key for key in keys if key not in table.columns]
        if absent:
            raise self._error(
                f"The table lacks the column {absent[0]!r} that info.json declares.",
                name,
                hint="the table and info.json were not written together",
            )
        numbers = self._episodes.episode_index[list(positions)]
        groups = table.groups_with("episode_index", numbers)
        return table.begin(groups, list(dict.fromkeys([*who, *keys])))

    def _found(self, name: str, arrived: Callable[[], pa.Table], positions: Sequence[int]) -> _Rows:
        """Find out which row is which."""
        try:
            table = arrived()
        except UNREADABLE as error:
            raise self._error(f"A table is damaged ({_first_line(error)}).", name) from error
        episode, frame = (self._counting(table, key, name) for key in _WHICH_ROW)
        assert episode is not None
        rows, problem = find_rows(self._episodes, np.asarray(positions), episode, frame)
        for position in positions:
            if position in problem:
                raise self._error(problem[position], name, position=position)
        return _Rows(table, rows)

    def _table(self, name: str) -> ParquetRanges:
        file = self._folder.file(name)

        def make() -> tuple[ParquetRanges, int]:
            try:
                table = ParquetRanges(file, f"{self._folder.uri}/{name}")
            except UNREADABLE as error:
                raise self._error(
                    "A table is not readable: it is cut off, or was never finished "
                    f"({_first_line(error)}).",
                    name,
                ) from error
            return table, table.nbytes

        # Its identity is known once its footer was read; before, there is one state of it.
        return self._tables.get((name, self._folder.known_size(name)), make)

    def _counting(self, table: pa.Table, key: str, name: str) -> np.ndarray | None:
        """Return a column that says which row is which, if there is one."""
        if key not in table.column_names:
            return None
        column = table.column(key)
        if not is_number(column.type) or column.null_count:
            raise self._error(f"The table's {key} is not a number in every row.", name)
        return as_numpy(column)

    def objects(self, rows: np.ndarray, feature: Feature) -> list[Any]:
        """Return a text, language or image column of these rows as Python values."""
        positions = self._episodes.positions_of_rows(rows)
        wanted = np.unique(positions).tolist()
        arrays = self._columns_of(wanted, feature)
        result: list[Any] = [None] * len(rows)
        for position in wanted:
            array, start = arrays[position], int(self._episodes.start[position])
            for place in np.flatnonzero(positions == position).tolist():
                result[place] = array[int(rows[place]) - start].as_py()
        if feature.is_language:
            where = self._folder.uri
            return [parsed_rows(value, key=feature.key, where=where) for value in result]
        return result

    def _columns_of(self, positions: Sequence[int], feature: Feature) -> dict[int, pa.Array]:
        """Return a column of whole episodes, in frame order; those fetched before are kept."""
        key = feature.key
        known = {position: self._arrow.peek((position, key)) for position in positions}
        missing = [position for position, array in known.items() if array is None]
        for name, found in self._fetched(missing, [key]):
            column = found.table.column(key).combine_chunks()
            if feature.is_image:
                column = arrow_in.images(column, key=key, where=f"{self._folder.uri}/{name}")
            for position, rows in found.rows.items():
                array = column.take(from_numpy(rows))
                self._arrow.put((position, key), array, array.nbytes)
                known[position] = array
        return {position: array for position, array in known.items() if array is not None}

    def _error(
        self,
        what: str,
        name: str,
        *,
        position: int | None = None,
        hint: str = "restore the file, or leave its episodes out with episodes=",
    ) -> TableError:
        number = None if position is None else int(self._episodes.episode_index[position])
        return TableError(what, hint=hint, dataset=self._folder.uri, file=name, episode=number)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
