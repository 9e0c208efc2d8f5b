"""All numbers of a dataset, whole episodes at a time, in order, in little memory.

Parquet tables whose rows are exactly their episodes' rows, one after the other, are streamed. All
others are read by the layout, which finds every row wherever it stands.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.layouts import arrow_in
from demoreel.layouts.base import Reader
from demoreel.model import Episodes
from demoreel.storage.arrow import UNREADABLE

ROWS = 1 << 16
"""About how many rows a block has; more where an episode is longer."""

_WHO = ("episode_index", "frame_index")


@dataclass(frozen=True, slots=True)
class Block:
    """Number columns of the episodes at positions ``first`` to ``stop`` - 1."""

    first: int
    stop: int
    columns: dict[str, np.ndarray]


def number_blocks(reader: Reader, keys: Sequence[str]) -> Iterator[Block]:
    """Yield these columns of all episodes, in order.

    Cost: reads each column once; memory for some 100,000 rows.

    Args:
        reader: The dataset.
        keys: Columns of numbers.

    Raises:
        TableError: A table is missing or damaged, or lacks rows.
    """
    start = reader.episodes.start
    waiting: list[dict[str, np.ndarray]] = []
    first, rows = 0, 0
    for piece in _pieces(reader, keys):
        waiting.append(piece)
        rows += len(piece[keys[0]])
        begin = int(start[first])
        stop = int(np.searchsorted(start, begin + rows, side="right")) - 1
        if stop > first and (rows >= ROWS or stop == len(reader.episodes)):
            columns = {key: np.concatenate([part[key] for part in waiting]) for key in keys}
            cut = int(start[stop]) - begin
            yield Block(first, stop, {key: values[:cut] for key, values in columns.items()})
            waiting = [{key: values[cut:] for key, values in columns.items()}]
            first, rows = stop, rows - cut


def _pieces(reader: Reader, keys: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
    """Yield consecutive rows, from the first to the last."""
    if reader.layout not in ("v2.0", "v2.1", "v3.0"):
        yield from _found(reader, keys, 0, len(reader.episodes))
        return
    positions = range(len(reader.episodes))
    for name, group in itertools.groupby(positions, key=reader.data_file):
        own = list(group)
        first, stop = own[0], own[-1] + 1
        row = int(reader.episodes.start[first])
        for piece in _streamed(reader, reader.root / name, keys, first, stop):
            yield piece
            row += len(piece[keys[0]])
        if row < int(reader.episodes.start[stop]):
            position = int(np.searchsorted(reader.episodes.start, row, side="right")) - 1
            skip = row - int(reader.episodes.start[position])
            for piece in _found(reader, keys, position, stop):
                yield {key: values[skip:] for key, values in piece.items()} if skip else piece
                skip = 0


def _streamed(
    reader: Reader, path: Path, keys: Sequence[str], first: int, stop: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yield rows as they stand in a table, as long as they are those that are expected."""
    episodes = reader.episodes
    begin, end = int(episodes.start[first]), int(episodes.start[stop])
    features = [reader.info.features[key] for key in keys]
    columns = list(dict.fromkeys([*_WHO, *keys]))
    try:
        with pq.ParquetFile(path, memory_map=False) as parquet:
            if parquet.metadata.num_rows != end - begin:
                return
            if not set(columns) <= set(parquet.schema_arrow.names):
                return
            for batch in parquet.iter_batches(ROWS, columns=columns):
                if not _is_expected(episodes, batch, begin):
                    return
                begin += len(batch)
                yield {
                    feature.key: arrow_in.numbers(
                        batch.column(feature.key), feature, where=str(path)
                    )
                    for feature in features
                }
    except UNREADABLE:
        return  # the layout says what is wrong with it


def _is_expected(episodes: Episodes, batch: pa.RecordBatch, begin: int) -> bool:
    rows = np.arange(begin, begin + len(batch))
    position = episodes.positions_of_rows(rows)
    for name, wanted in (
        ("episode_index", episodes.episode_index[position]),
        ("frame_index", rows - episodes.start[position]),
    ):
        column = batch.column(name)
        if column.null_count or not np.array_equal(column.to_numpy(zero_copy_only=False), wanted):
            return False
    return True


def _found(
    reader: Reader, keys: Sequence[str], first: int, stop: int
) -> Iterator[dict[str, np.ndarray]]:
    start = reader.episodes.start
    while first < stop:
        far = int(np.searchsorted(start, start[first] + ROWS, side="right")) - 1
        last = min(stop, max(first + 1, far))
        columns = reader.rows(np.arange(int(start[first]), int(start[last])), keys)
        yield {key: np.asarray(columns[key]) for key in keys}
        first = last
