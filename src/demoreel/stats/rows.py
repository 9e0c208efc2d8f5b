"""Yields all numbers of a dataset in order, in little memory, and computes their statistics.

Parquet tables whose rows are exactly their episodes' rows, one after the other, are streamed. All
others are read by the layout, which finds every row wherever it stands.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from demoreel.errors import refuse_shortage
from demoreel.layouts.base import Reader
from demoreel.layouts.columns import read_numbers
from demoreel.model import Episodes, Feature, Stats
from demoreel.stats.columns import EpisodeNumbers, whole_stats
from demoreel.storage.arrow import UNREADABLE
from demoreel.storage.parquet import open_parquet, rows_in

ROWS = 1 << 16
"""About how many rows a block has; more where an episode is longer."""

_WHO = ("episode_index", "frame_index")


@dataclass(frozen=True)
class NumberStats:
    """Statistics of a dataset's numbers.

    Attributes:
        whole: Those of all frames.
        columns: ``stats/KEY/KIND``: a value for each episode, by position.
    """

    whole: Stats
    columns: Mapping[str, pa.Array]


def all_numbers(
    reader: Reader,
    *,
    each_episode: bool = True,
    report: Callable[[float], None] | None = None,
) -> NumberStats:
    """Compute the statistics of all columns of numbers; no video is opened.

    Cost: reads them once for each episode's, and as ``whole_stats`` says; memory for that, for some
    100,000 rows, and about 70 bytes for each episode and dimension.

    Args:
        reader: The dataset.
        each_episode: Whether those of single episodes are wanted, too.
        report: Called with the share that is done.
    """
    numeric = {key: f for key, f in reader.info.features.items() if f.is_numeric}
    rows = DatasetRows(reader)
    each = EpisodeNumbers(numeric)
    say = report or (lambda share: None)
    if each_episode:
        start = reader.episodes.start
        # Reading and sorting continue without the GIL for the most part.
        with ThreadPoolExecutor(1) as reading:
            for block in _ahead(number_blocks(rows, list(numeric)), reading):
                begin = int(start[block.first])
                for position in range(block.first, block.stop):
                    own = slice(int(start[position]) - begin, int(start[position + 1]) - begin)
                    columns = {key: values[own] for key, values in block.columns.items()}
                    each.add(columns, own.stop - own.start)
                say(0.5 * block.stop / len(reader.episodes))
    whole = whole_stats(rows, numeric.values())
    say(1.0)
    return NumberStats(whole, each.columns() if each_episode else {})


class DatasetRows:
    """The rows of a dataset, which can be read several times."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.frames = reader.episodes.total_frames
        self._expected: set[str] = set()  # tables that were found to have their episodes' rows
        positions = range(len(reader.episodes))
        self._tables: list[tuple[str, int, int]] = []
        if reader.layout in ("v2.0", "v2.1", "v3.0"):
            for name, group in itertools.groupby(positions, key=reader.data_file):
                own = list(group)
                self._tables.append((name, own[0], own[-1] + 1))

    def portions(self, features: Sequence[Feature]) -> Iterator[dict[str, np.ndarray]]:
        """Yield columns of consecutive rows, from the first to the last."""
        keys = [feature.key for feature in features]
        episodes = self.reader.episodes
        if not self._tables:
            yield from _found(self.reader, keys, 0, len(episodes))
        for name, first, stop in self._tables:
            row = int(episodes.start[first])
            for piece in self._streamed(name, features, first, stop):
                yield piece
                row += len(piece[keys[0]])
            if row == int(episodes.start[stop]):
                self._expected.add(name)
                continue
            position = int(np.searchsorted(episodes.start, row, side="right")) - 1
            skip = row - int(episodes.start[position])
            for piece in _found(self.reader, keys, position, stop):
                yield {key: values[skip:] for key, values in piece.items()} if skip else piece
                skip = 0

    def _streamed(
        self, name: str, features: Sequence[Feature], first: int, stop: int
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield rows as they stand in a table, as long as they are those that are expected."""
        episodes, path = self.reader.episodes, self.reader.root / name
        begin, end = int(episodes.start[first]), int(episodes.start[stop])
        keys = [feature.key for feature in features]
        is_known = name in self._expected
        columns = keys if is_known else list(dict.fromkeys([*_WHO, *keys]))
        try:
            with open_parquet(path) as parquet:
                if parquet.metadata.num_rows != end - begin:
                    return
                if not set(columns) <= set(parquet.schema_arrow.names):
                    return
                for block in parquet.blocks(columns, rows=ROWS):
                    batch = block.combine_chunks()
                    if not is_known and not _is_expected(episodes, batch, begin):
                        return
                    begin += len(batch)
                    yield _numbers(batch, features, str(path))
        except UNREADABLE as error:
            refuse_shortage(error)
            return  # the layout says what is wrong with it


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Number columns of the episodes at positions ``first`` to ``stop`` - 1."""

    first: int
    stop: int
    columns: dict[str, np.ndarray]


def _ahead(blocks: Iterator[RowBlock], reading: Executor) -> Iterator[RowBlock]:
    """Yield the blocks; the next one is read meanwhile."""
    coming = reading.submit(next, blocks, None)
    while (block := coming.result()) is not None:
        coming = reading.submit(next, blocks, None)
        yield block


def number_blocks(rows: DatasetRows, keys: Sequence[str]) -> Iterator[RowBlock]:
    """Yield these columns of all episodes, in order.

    Cost: reads each column once; memory for some 100,000 rows.
    """
    episodes, features = rows.reader.episodes, rows.reader.info.features
    start = episodes.start
    waiting: list[dict[str, np.ndarray]] = []
    first = held = 0
    for piece in rows.portions([features[key] for key in keys]):
        waiting.append(piece)
        held += len(piece[keys[0]])
        begin = int(start[first])
        stop = int(np.searchsorted(start, begin + held, side="right")) - 1
        if stop > first and (held >= ROWS or stop == len(episodes)):
            columns = {key: np.concatenate([part[key] for part in waiting]) for key in keys}
            cut = int(start[stop]) - begin
            yield RowBlock(first, stop, {key: values[:cut] for key, values in columns.items()})
            waiting = [{key: values[cut:] for key, values in columns.items()}]
            first, held = stop, held - cut


def _is_expected(episodes: Episodes, batch: pa.Table, begin: int) -> bool:
    rows = np.arange(begin, begin + len(batch))
    position = episodes.positions_of_rows(rows)
    for name, wanted in (
        ("episode_index", episodes.episode_index[position]),
        ("frame_index", rows - episodes.start[position]),
    ):
        column = batch.column(name)
        if column.null_count or not np.array_equal(column.to_numpy(), wanted):
            return False
    return True


def _found(
    reader: Reader, keys: Sequence[str], first: int, stop: int
) -> Iterator[dict[str, np.ndarray]]:
    start = reader.episodes.start
    while first < stop:
        end = int(np.searchsorted(start, start[first] + ROWS, side="right")) - 1
        last = min(stop, max(first + 1, end))
        columns = reader.rows(np.arange(int(start[first]), int(start[last])), keys)
        yield {key: np.asarray(columns[key]) for key in keys}
        first = last


class ParquetTables:
    """Rows that are in parquet files, one behind the other, as they were written."""

    def __init__(self, paths: Sequence[Path], lengths: Sequence[int] | None = None) -> None:
        self._paths = paths
        self._lengths = lengths or [rows_in(path) for path in paths]
        self.frames = sum(self._lengths)

    def portions(self, features: Sequence[Feature]) -> Iterator[dict[str, np.ndarray]]:
        """Yield number columns in the order of the rows, by key, some rows at a time."""
        keys = [feature.key for feature in features]
        for path in self._paths:
            with open_parquet(path) as parquet:
                for block in parquet.blocks(keys, rows=ROWS, use_threads=False):
                    yield _numbers(block.combine_chunks(), features, str(path))

    def divided(self, parts: int) -> list[ParquetTables]:
        """Return the same rows in at most so many parts of whole files, in order."""
        ends = np.cumsum(self._lengths)
        shares = [round(self.frames * number / parts) for number in range(1, parts)]
        cuts = np.unique([0, *(np.searchsorted(ends, shares) + 1).tolist(), len(self._paths)])
        return [
            ParquetTables(self._paths[first:stop], self._lengths[first:stop])
            for first, stop in itertools.pairwise(cuts.tolist())
        ]


class LanceTableRows:
    """Rows that are in a Lance table, in its newest version, as they were written."""

    def __init__(self, table: Path) -> None:
        from demoreel.layouts.lance.tables import LanceTable

        self._table = LanceTable(str(table))
        self.frames = self._table.count_rows()

    def portions(self, features: Sequence[Feature]) -> Iterator[dict[str, np.ndarray]]:
        """Yield number columns in the order of the rows, by key, some rows at a time."""
        names = {feature.key: feature.key.replace(".", "_") for feature in features}
        for first in range(0, self.frames, ROWS):
            rows = np.arange(first, min(first + ROWS, self.frames))
            found = self._table.take(rows, list(names.values())).combine_chunks()
            yield _numbers(found.rename_columns(list(names)), features, self._table.path)


ResultRows = ParquetTables | LanceTableRows
"""The rows of a result, read back."""


def _numbers(rows: pa.Table, features: Sequence[Feature], where: str) -> dict[str, np.ndarray]:
    """Return columns of a table that has one chunk."""
    return {
        feature.key: read_numbers(rows.column(feature.key).chunk(0), feature, where=where)
        for feature in features
    }
