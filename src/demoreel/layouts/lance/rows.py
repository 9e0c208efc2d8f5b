"""Rows of a Lance table, by their position in the dataset.

A row belongs to an episode because its ``episode_index`` and ``frame_index`` say so. Writers put
row N where frame N belongs, so that is where it is looked for first, and these two are compared;
only if it is another one, the two columns are read whole, and every row is looked up.

Random rows cost Lance as much as the pages they lie in: 32 of them took as long as 32 whole
episodes (15 ms, of 5 million rows). So numbers are taken an episode at a time, once, into a
``ColumnStore``. Text and language are taken as they are asked for; images are read from the data
files, without Lance, where ``files.py`` can do that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from demoreel.errors import TableError
from demoreel.layouts import arrow_in
from demoreel.layouts.column_store import ColumnStore, PassingColumns, StoredNumbers
from demoreel.layouts.find_rows import find_rows, runs
from demoreel.layouts.lance.files import LocalValues
from demoreel.layouts.lance.schemas import column_names
from demoreel.layouts.lance.tables import LanceTable
from demoreel.layouts.language import parsed_rows
from demoreel.model import Episodes, Feature, Info
from demoreel.storage.arrow import as_numpy, is_number

_ROWS_AT_ONCE = 1 << 16
_NAMED_BY = ("episode_index", "frame_index")


class LanceRows(StoredNumbers):
    """The table of one dataset.

    Args:
        root: The dataset's folder, for errors.
        table: Its table.
        info: Its info.
        episodes: Its episodes.
        fingerprint: Changes when the metadata do.
    """

    def __init__(
        self,
        root: Path,
        table: LanceTable,
        info: Info,
        episodes: Episodes,
        fingerprint: Sequence[object],
    ) -> None:
        numeric = [f for f in info.features.values() if f.is_numeric]
        super().__init__(episodes, numeric, (*table.identity, *fingerprint))
        self._root = root
        self._table = table
        self._names = column_names(info)
        self._places = _Places(root, table, episodes)
        self._values: dict[str, LocalValues | None] = {}

    def _fill(
        self, positions: np.ndarray, store: ColumnStore | PassingColumns | None = None
    ) -> None:
        store = store or self._store
        for part in _portions(positions, self._episodes):
            rows = _rows_of(part, self._episodes)
            self._write(rows, store)
            for position in part.tolist():
                store.mark_filled(position)

    def _write(self, rows: np.ndarray, store: ColumnStore | PassingColumns) -> None:
        names = [self._names[feature.key] for feature in self._numeric]
        table = self._table.take(self._places.of(rows), names)
        spans = list(runs(rows))
        for feature, name in zip(self._numeric, names, strict=True):
            array = table.column(name).combine_chunks()
            values = arrow_in.numbers(array, feature, where=self._table.path, from_floats=True)
            for at, stop in spans:
                store.write(feature.key, int(rows[at]), values[at:stop])

    def objects(self, rows: np.ndarray, feature: Feature) -> list[Any]:
        """Return a text, language or image column of these rows as Python values."""
        name = self._names[feature.key]
        places = self._places.of(rows)
        if feature.is_camera:
            return self._images(places, name, feature)
        values: list[Any] = self._table.take(places, [name]).column(name).to_pylist()
        if feature.is_language:
            where = self._table.path
            return [parsed_rows(value, key=feature.key, where=where) for value in values]
        return values

    def _images(self, places: np.ndarray, name: str, feature: Feature) -> list[bytes]:
        """Read encoded images; from the data files themselves where that is possible."""
        if name not in self._values:
            self._values[name] = self._table.values(name)
        values = self._values[name]
        read = values.read(places) if values is not None else None
        if read is not None:
            return read
        found: list[bytes] = []
        for chunk in self._table.take(places, [name]).column(name).chunks:
            array = arrow_in.images(chunk, key=feature.key, where=self._table.path)
            found += array.to_pylist()
        return found


class _Places:
    """Where the dataset's rows stand in its table."""

    def __init__(self, root: Path, table: LanceTable, episodes: Episodes) -> None:
        self._root = root
        self._table = table
        self._episodes = episodes
        self._in_order = table.count_rows() == episodes.total_frames
        self._compared = np.zeros(len(episodes), dtype=bool)
        self._looked_up: np.ndarray | None = None
        self._problem: dict[int, str] = {}

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Return the place of each row."""
        positions = np.unique(self._episodes.positions_of_rows(rows))
        if self._looked_up is None and not (self._in_order and self._stand_in_order(positions)):
            self._look_up()
        if self._looked_up is None:
            return rows
        for position in positions.tolist():
            self._refuse_problem(position)
        return np.asarray(self._looked_up[rows])

    def _stand_in_order(self, positions: np.ndarray) -> bool:
        """Whether the rows of these episodes stand where they belong; each is compared once."""
        for part in _portions(positions[~self._compared[positions]], self._episodes):
            rows = _rows_of(part, self._episodes)
            episode, frame = self._numbers(self._table.take(rows, _NAMED_BY))
            lengths = self._episodes.length[part]
            expected = np.repeat(self._episodes.episode_index[part], lengths)
            start = np.repeat(self._episodes.start[part], lengths)
            if not (np.array_equal(episode, expected) and np.array_equal(frame, rows - start)):
                return False
            self._compared[part] = True
        return True

    def _look_up(self) -> None:
        """Read the two columns of the whole table, and find every row."""
        episode, frame = self._numbers(self._table.scan(_NAMED_BY))
        every = np.arange(len(self._episodes))
        found, self._problem = find_rows(self._episodes, every, episode, frame)
        places = np.full(self._episodes.total_frames, -1, dtype=np.int64)
        for position, rows in found.items():
            start = int(self._episodes.start[position])
            places[start : start + len(rows)] = rows
        self._looked_up = places

    def _numbers(self, table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
        for name in _NAMED_BY:
            column = table.column(name)
            if not is_number(column.type) or column.null_count:
                raise TableError(
                    f"Column {name!r} holds {column.type}, or has missing values.",
                    hint="restore the table",
                    dataset=self._root,
                    file=self._table.name,
                )
        return as_numpy(table.column(_NAMED_BY[0])), as_numpy(table.column(_NAMED_BY[1]))

    def _refuse_problem(self, position: int) -> None:
        if position in self._problem:
            raise TableError(
                self._problem[position],
                hint="restore the table, or leave the episode out with episodes=",
                dataset=self._root,
                file=self._table.name,
                version=self._table.version,
                episode=int(self._episodes.episode_index[position]),
            )


def _rows_of(positions: np.ndarray, episodes: Episodes) -> np.ndarray:
    """Return the rows of these episodes, one after the other."""
    lengths = episodes.length[positions]
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    shift = np.repeat(episodes.start[positions] - (ends - lengths), lengths)
    return np.asarray(np.arange(total) + shift)


def _portions(positions: np.ndarray, episodes: Episodes) -> Iterator[np.ndarray]:
    """Cut positions so that the episodes of each part have about so many rows together."""
    if len(positions) == 0:
        return
    number = np.cumsum(episodes.length[positions]) // _ROWS_AT_ONCE
    yield from np.split(positions, np.flatnonzero(np.diff(number)) + 1)
