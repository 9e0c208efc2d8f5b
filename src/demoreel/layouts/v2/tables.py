"""Many of v2's tables at once, where every one is as it should be.

An episode's table is small: finding out which row is which, file by file, takes longer than reading
it. So tables that follow one another are read, put together and looked at as one.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa

from demoreel.errors import TableError, refuse_shortage
from demoreel.layouts import arrow_in
from demoreel.model import Episodes, Feature
from demoreel.storage.arrow import UNREADABLE, as_numpy
from demoreel.storage.local import refuse_special
from demoreel.storage.parquet import open_parquet

_WHICH_ROW = ("episode_index", "frame_index")
_SMALL = 1 << 24  # bytes of a file that is read whole


def numbers_at_once(
    files: Iterable[Path], features: Iterable[Feature], episodes: Episodes, first: int, stop: int
) -> dict[str, np.ndarray] | None:
    """Return columns of the episodes at ``first`` to ``stop`` - 1; None where any file is unusual.

    Each table must hold its episode's rows, all of them and no others, in the order of frames, and
    all tables must have columns of the same types. For others the slower way finds what can be
    found, and says what is wrong.

    Cost: one read of each file, one copy of the columns.

    Args:
        files: The table of each of these episodes.
        features: Columns of numbers.
        episodes: The dataset's episodes.
        first: Position of the first episode.
        stop: One past the position of the last.
    """
    wanted = list(features)
    keys = list(dict.fromkeys([*_WHICH_ROW, *(feature.key for feature in wanted)]))
    lengths = episodes.length[first:stop]
    try:
        tables = [_columns_of(path, keys) for path in files]
        if [table.num_rows for table in tables] != lengths.tolist():
            return None
        together = pa.concat_tables(tables).combine_chunks()
        frame = np.arange(together.num_rows)
        frame -= np.repeat(episodes.start[first:stop] - episodes.start[first], lengths)
        episode = np.repeat(episodes.episode_index[first:stop], lengths)
        for key, expected in zip(_WHICH_ROW, (episode, frame), strict=True):
            if not _says(together.column(key), expected):
                return None
        return {
            feature.key: arrow_in.numbers(_array(together, feature.key), feature, where="")
            for feature in wanted
        }
    except (TableError, KeyError, *UNREADABLE) as error:
        refuse_shortage(error)
        return None


def _columns_of(path: Path, keys: list[str]) -> pa.Table:
    refuse_special(path)
    if path.stat().st_size > _SMALL:
        with open_parquet(path) as parquet:
            return parquet.read(keys)
    # One read of the file, and no thread: a few kilobytes are decoded before one has woken up.
    return open_parquet(path.read_bytes()).read(keys, use_threads=False)


def _says(column: pa.ChunkedArray, expected: np.ndarray) -> bool:
    """Whether a column that says which row is which says so."""
    if not pa.types.is_integer(column.type) or column.null_count:
        return False
    return np.array_equal(as_numpy(column), expected)


def _array(table: pa.Table, key: str) -> pa.Array:
    return table.column(key).chunk(0)
