"""Tables of a result, read back as they were written: to take statistics, and to check them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from demoreel.layouts.columns import read_numbers
from demoreel.layouts.lance.tables import LanceTable
from demoreel.model import Feature
from demoreel.run.task import Engine
from demoreel.storage.parquet import open_parquet, rows_in

_ROWS = 1 << 16
_SHARES = 3  # for each job, so that the slowest is not waited for long


class Written(Protocol):
    """The rows of a result.

    Attributes:
        frames: How many there are.
    """

    frames: int

    def portions(
        self, features: Sequence[Feature], *, at_once: int = _ROWS
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield number columns in the order of the rows, by key, some rows at a time."""
        ...

    def divided(self, parts: int) -> Sequence[Written]:
        """Return the same rows in at most so many parts, for other processes to read.

        Portions of all of them are portions of the parts, one part after the other.
        """
        ...


def shared_out(rows: Written, engine: Engine | None) -> Sequence[Written]:
    """Return rows in parts for the processes of an engine; in one where it has none."""
    jobs: int = getattr(engine, "jobs", 1)
    return rows.divided(_SHARES * jobs) if jobs > 1 else [rows]


class ParquetTables:
    """Rows that lie in parquet files, one behind the other."""

    def __init__(self, paths: Sequence[Path], lengths: Sequence[int] | None = None) -> None:
        self._paths = paths
        self._lengths = lengths or [rows_in(path) for path in paths]
        self.frames = sum(self._lengths)

    def portions(
        self, features: Sequence[Feature], *, at_once: int = _ROWS
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield number columns in the order of the rows, by key, some rows at a time."""
        keys = [feature.key for feature in features]
        for path in self._paths:
            with open_parquet(path) as parquet:
                for block in parquet.blocks(keys, rows=at_once, use_threads=False):
                    columns = {key: block.column(key).combine_chunks() for key in keys}
                    yield _numbers(columns, features, str(path))

    def divided(self, parts: int) -> Sequence[Written]:
        """Return the same rows in at most so many parts of whole files."""
        ends = np.cumsum(self._lengths)
        shares = [round(self.frames * number / parts) for number in range(1, parts)]
        cuts = np.unique([0, *(np.searchsorted(ends, shares) + 1).tolist(), len(self._paths)])
        return [
            ParquetTables(self._paths[first:stop], self._lengths[first:stop])
            for first, stop in itertools.pairwise(cuts.tolist())
        ]


class WrittenLanceRows:
    """Rows that lie in a Lance table, in its newest version.

    Args:
        table: The table's folder.
    """

    def __init__(self, table: Path) -> None:
        self._table = LanceTable(str(table))
        self.frames = self._table.count_rows()

    def portions(
        self, features: Sequence[Feature], *, at_once: int = _ROWS
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield number columns in the order of the rows, by key, some rows at a time."""
        names = {feature.key: feature.key.replace(".", "_") for feature in features}
        for first in range(0, self.frames, at_once):
            rows = np.arange(first, min(first + at_once, self.frames))
            found = self._table.take(rows, list(names.values()))
            columns = {key: found.column(name).combine_chunks() for key, name in names.items()}
            yield _numbers(columns, features, self._table.path)

    def divided(self, parts: int) -> Sequence[Written]:
        """Return all rows as one part: an open table does not go to another process."""
        return [self]


def _numbers(
    columns: dict[str, pa.Array], features: Sequence[Feature], where: str
) -> dict[str, np.ndarray]:
    return {
        feature.key: read_numbers(columns[feature.key], feature, where=where)
        for feature in features
    }
