"""Every row of a dataset that can be read, and the spans of rows that are episodes."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.errors import ArgumentError, DemoreelError, refuse_shortage
from demoreel.layouts.columns import table_schema
from demoreel.model import DEFAULT_FEATURES, Feature
from demoreel.model.limits import limit
from demoreel.repair.parquet_rescue import rescue_rows
from demoreel.storage.arrow import as_numpy, is_number
from demoreel.storage.parquet import Parquet, open_parquet
from demoreel.storage.parquet_pages import batch_rows

_TABLE = re.compile(r"(?:^|/)(?:chunk-(\d+)/|[^/]+/)?(?:file-|episode_)(\d+)\.parquet$")
_ON_TIME = 0.25  # of a frame
_LARGEST_NUMBER = 2.0**53


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table whose rows can be read.

    Attributes:
        name: Its path below the dataset's folder.
        path: Where it can be read: there, or what could be saved of it elsewhere.
        chunk: The chunk that its name says.
        number: The number that its name says.
        rows: How many it has.
        schema: Its columns.
        numbers: The columns that say which row is which, as far as it has them.
    """

    name: str
    path: Path
    chunk: int
    number: int
    rows: int
    schema: pa.Schema
    numbers: Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class RowRun:
    """Rows that follow one another in a table, and are an episode's or a part of one.

    Attributes:
        table: Which of the tables.
        first: Its first row there.
        length: How many rows it has.
        episode: The ``episode_index`` that they say.
        begins: Whether the first is an episode's first.
    """

    table: int
    first: int
    length: int
    episode: int
    begins: bool


@dataclass
class FoundTables:
    """What was found.

    Attributes:
        tables: The tables, in order.
        mended: What was done to get at rows.
        lost: What could not be read, and why.
    """

    tables: list[FoundTable]
    mended: list[str]
    lost: list[str]

    def runs(self, fps: float) -> list[RowRun]:
        """Return all spans of rows, in the order of the tables."""
        return [run for at, table in enumerate(self.tables) for run in _runs(at, table, fps)]


def find_tables(
    root: Path, files: Mapping[str, int], features: Mapping[str, Feature], scratch: Path
) -> FoundTables:
    """Read every table of a dataset as far as it goes.

    Cost: one read and decode of all tables. What is saved of damaged ones is written to
    ``scratch``.

    Args:
        root: The dataset's folder.
        files: The files in it, by name, with their sizes.
        features: The features as far as they are known.
        scratch: A folder to write to.
    """
    found = FoundTables([], [], [])
    names = [name for name in files if _TABLE.search(name) and "meta" not in Path(name).parts]
    found.lost += [f"{name}: it is no file" for name in names if files[name] < 0]
    names = [name for name in names if files[name] >= 0]
    damaged = []
    for name in sorted(names, key=_place):
        try:
            groups = _readable_groups(root / name)
            if groups is None:
                damaged.append(name)
                continue
            if all(groups):
                found.tables.append(_in_order(_table(name, root / name), scratch, found))
                continue
            found.lost.append(f"{name}: {groups.count(False)} of {len(groups)} row groups")
            _save_groups(root / name, groups, scratch / f"{len(found.tables)}.parquet", name, found)
        except DemoreelError as error:
            refuse_shortage(error)
            found.lost.append(f"{name}: {error.what}")
    for number, name in enumerate(damaged):
        schemas = _possible_schemas([table.schema for table in found.tables], features)
        _rescue(root / name, name, schemas, features, scratch / f"rescued-{number}.parquet", found)
    found.tables.sort(key=lambda table: (table.chunk, table.number))
    return found


def _place(name: str) -> tuple[int, int]:
    match = _TABLE.search(name)
    assert match is not None
    return int(match[1] or 0), int(match[2])


def _readable_groups(path: Path) -> list[bool] | None:
    """Return whether each row group of a table can be decoded; None if it does not open."""
    try:
        with open_parquet(path) as parquet:
            if "episode_index" not in parquet.schema_arrow.names:
                return None
            return [_is_readable(parquet, n) for n in range(parquet.num_row_groups)]
    except DemoreelError:
        raise
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        refuse_shortage(error)
        return None


def _is_integer(schema: pa.Schema, name: str) -> bool:
    return name in schema.names and bool(pa.types.is_integer(schema.field(name).type))


def _is_readable(parquet: Parquet, group: int) -> bool:
    rows = 0
    try:
        for block in parquet.blocks(groups=[group]):
            block.validate(full=True)
            rows += block.num_rows
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        refuse_shortage(error)
        return False  # a limit that is exceeded, too
    return bool(rows == parquet.metadata.row_group(group).num_rows)


def _save_groups(
    path: Path, groups: Sequence[bool], target: Path, name: str, found: FoundTables
) -> None:
    """Write the row groups that can be read to another file."""
    if not any(groups):
        return
    with open_parquet(path) as parquet:
        good = [number for number, readable in enumerate(groups) if readable]
        schema = parquet.schema_arrow
        with pq.ParquetWriter(target, schema, write_batch_size=batch_rows(schema)) as writer:
            for block in parquet.blocks(groups=good):
                writer.write_table(block)
    found.tables.append(_table(name, target))
    found.mended.append(f"{name}: rows around the damage were kept")


def _in_order(table: FoundTable, scratch: Path, found: FoundTables) -> FoundTable:
    """Return a table with its rows in order, if nothing but their order is wrong."""
    frame = table.numbers.get("frame_index")
    if frame is None or not table.rows:
        return table
    episode = table.numbers["episode_index"]
    order = np.lexsort((frame, episode))
    if np.array_equal(order, np.arange(table.rows)):
        return table
    begins = np.diff(episode[order], prepend=episode[order[0]] - 1) != 0
    starts = np.maximum.accumulate(np.where(begins, np.arange(table.rows), 0))
    if not np.array_equal(frame[order], np.arange(table.rows) - starts):
        return table
    target = scratch / f"ordered-{len(found.tables)}.parquet"
    with open_parquet(table.path) as parquet:
        rows = parquet.read().take(pa.array(order))
        pq.write_table(rows, target, write_batch_size=batch_rows(rows.schema))
    found.mended.append(f"{table.name}: its rows were put in order")
    return _table(table.name, target)


def _possible_schemas(
    seen: Sequence[pa.Schema], features: Mapping[str, Feature]
) -> Iterator[pa.Schema]:
    yield from {schema.to_string(): schema for schema in seen}.values()
    try:
        yield table_schema(features.values())
        last = {**{k: f for k, f in features.items() if k not in DEFAULT_FEATURES}, **features}
        yield table_schema(last.values())
    except ArgumentError:
        return


def _rescue(
    path: Path,
    name: str,
    schemas: Iterator[pa.Schema],
    features: Mapping[str, Feature],
    target: Path,
    found: FoundTables,
) -> None:
    """Save the finished rows of a file that has no footer."""
    try:
        data = path.read_bytes() if path.stat().st_size <= limit("TABLE_BYTES") else b""
    except OSError as error:
        refuse_shortage(error)
        data = b""
    width = {
        key: math.prod(f.shape) for key, f in features.items() if f.is_numeric and f.item_shape
    }
    for schema in schemas:
        table = rescue_rows(data, schema, width=width)
        if table is not None and _makes_sense(table):
            batch = batch_rows(table.schema)
            pq.write_table(table, target, row_group_size=1 << 16, write_batch_size=batch)
            found.tables.append(_table(name, target))
            found.mended.append(f"{name}: {table.num_rows} rows were read without a footer")
            return
    found.lost.append(f"{name}: no row can be read" if data else f"{name}: it is empty")


def _makes_sense(table: pa.Table) -> bool:
    """Whether rows that were put together are rows: frames count up in every episode."""
    who = ("episode_index", "frame_index")
    if not all(_is_integer(table.schema, name) for name in who) or not table.num_rows:
        return False
    if any(table.column(name).null_count for name in who):
        return False
    episode, frame = (as_numpy(table.column(name)) for name in who)
    same = episode[1:] == episode[:-1]
    return bool((frame[1:][same] == frame[:-1][same] + 1).all() and (frame[1:][~same] == 0).all())


def _table(name: str, path: Path) -> FoundTable:
    chunk, number = _place(name)
    with open_parquet(path) as parquet:
        schema = parquet.schema_arrow
        wanted = [key for key in DEFAULT_FEATURES if key in schema.names]
        rows = parquet.read(wanted)
    numbers = {
        key: as_numpy(rows.column(key))
        for key in wanted
        if is_number(rows.column(key).type) and not rows.column(key).null_count
    }
    numbers = {k: values for k, values in numbers.items() if _are_counts(values)}
    if "episode_index" not in numbers:
        raise DemoreelError("A table does not say which episodes its rows are of.", file=name)
    return FoundTable(name, path, chunk, number, len(rows), schema, numbers)


def _are_counts(values: np.ndarray) -> bool:
    """Whether numbers can be those of rows: no infinity, nothing that no integer holds."""
    return values.dtype.kind in "biu" or bool((np.abs(values) < _LARGEST_NUMBER).all())


def _runs(at: int, table: FoundTable, fps: float) -> Iterator[RowRun]:
    """Cut a table where another episode begins, or frames do not follow one another."""
    episode = table.numbers["episode_index"]
    if len(episode) == 0:
        return
    frame, time = table.numbers.get("frame_index"), table.numbers.get("timestamp")
    changes = np.flatnonzero(episode[1:] != episode[:-1]) + 1
    for first, stop in itertools.pairwise([0, *changes.tolist(), len(episode)]):
        own = slice(first, stop)
        if frame is None or (time is not None and _counts_up(time[own], fps)):
            yield RowRun(at, first, stop - first, int(episode[first]), True)
            continue
        breaks = np.flatnonzero(np.diff(frame[own]) != 1) + first + 1
        for begin, end in itertools.pairwise([first, *breaks.tolist(), stop]):
            yield RowRun(at, begin, end - begin, int(episode[begin]), int(frame[begin]) == 0)


def _counts_up(time: np.ndarray, fps: float) -> bool:
    """Whether rows are shown one frame after the other, from 0 on, whatever their numbers say."""
    return bool(np.all(np.abs(time - np.arange(len(time)) / fps) < _ON_TIME / fps))


def rate_of_rows(tables: Sequence[FoundTable]) -> float | None:
    """Return the frame rate that most rows' times tell."""
    steps = []
    for table in tables:
        if "timestamp" in table.numbers:
            steps.append(np.diff(table.numbers["timestamp"].astype(np.float64)))
    every = np.concatenate(steps) if steps else np.zeros(0)
    forward = every[np.isfinite(every) & (every > 0)]
    if not len(forward):
        return None
    rate = 1 / float(np.median(forward))
    return float(round(rate)) if abs(rate - round(rate)) < 0.01 * rate else rate
