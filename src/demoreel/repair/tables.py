"""Every row of a dataset that can be read, and the spans of rows that are episodes."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.errors import ArgumentError, DemoreelError, refuse_shortage
from demoreel.layouts.columns import table_schema
from demoreel.model import DEFAULT_FEATURES, Feature
from demoreel.model.limits import limit
from demoreel.repair.parquet_rescue import rescue_rows
from demoreel.repair.report import Changes
from demoreel.repair.values import default_numbers
from demoreel.storage.arrow import as_numpy
from demoreel.storage.parquet import Forward, Parquet, open_parquet
from demoreel.storage.parquet_pages import batch_rows

_TABLES = {
    True: re.compile(r"(?:^|/)(?:chunk-(\d+)/|[^/]+/)?episode[-_](\d+)\.parquet$"),
    False: re.compile(r"(?:^|/)(?:chunk-(\d+)/|[^/]+/)?file[-_](\d+)\.parquet$"),
}
"""The names of tables; of v2, one for each episode."""
_NUMBERING = ("episode_index", "index")
_ON_TIME = 0.25  # of a frame
_MOST_ROWS = 0.8
_ON_A_GRID = 0.02  # of a frame: rounded, not measured


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
        changes: Takes what was done to get at rows.
        lost: What could not be read, and why.
        is_v2: Whether a table is an episode, by its name.
        rescued: The tables of which rows were saved; some may be missing.
    """

    tables: list[FoundTable]
    changes: Changes
    lost: list[tuple[str, str]] = field(default_factory=list)
    is_v2: bool = False
    rescued: set[str] = field(default_factory=set)

    def runs(self, fps: float, lengths: Mapping[int, Collection[int]]) -> list[RowRun]:
        """Return all spans of rows, in the order of the tables.

        Args:
            fps: Frames per second.
            lengths: How many rows an episode may have, as far as anything else says so.
        """
        return [
            run
            for at, table in enumerate(self.tables)
            for run in _runs(at, table, fps, lengths, whole=self._is_one(table))
        ]

    def _is_one(self, table: FoundTable) -> bool:
        """Whether all rows of a table are an episode, whatever they say."""
        return self.is_v2 and table.name not in self.rescued


def is_table(name: str, *, is_v2: bool) -> bool:
    """Whether a file is a table of rows, by its name."""
    return _TABLES[is_v2].search(name) is not None and "meta" not in Path(name).parts


def find_tables(
    root: Path,
    files: Mapping[str, int],
    features: Mapping[str, Feature],
    scratch: Path,
    changes: Changes,
    *,
    is_v2: bool,
) -> FoundTables:
    """Read every table of a dataset as far as it goes.

    Cost: one read and decode of all tables. What is saved of damaged ones is written to
    ``scratch``.

    Args:
        root: The dataset's folder.
        files: The files in it, by name, with their sizes.
        features: The features as far as they are known.
        scratch: A folder to write to.
        changes: Takes what was done to get at rows.
        is_v2: Whether tables have the names of v2.
    """
    found = FoundTables([], changes, is_v2=is_v2)
    names = [name for name in files if is_table(name, is_v2=is_v2)] or _other_tables(files, is_v2)
    found.lost += [(name, "it is no file") for name in names if files[name] < 0]
    names = [name for name in names if files[name] >= 0]
    damaged = []
    for name in sorted(names, key=lambda name: (_place(name), name)):
        try:
            groups = _readable_groups(root / name, needs_episode=not is_v2)
            if groups is None:
                damaged.append(name)
                continue
            if all(groups):
                found.tables.append(_in_order(_table(name, root / name), scratch, found))
                continue
            found.lost.append((name, f"{groups.count(False)} of {len(groups)} row groups"))
            _save_groups(root / name, groups, scratch / f"{len(found.tables)}.parquet", name, found)
        except DemoreelError as error:
            refuse_shortage(error)
            found.lost.append((name, error.what))
    for number, name in enumerate(damaged):
        schemas = _possible_schemas([table.schema for table in found.tables], features)
        _rescue(root / name, name, schemas, features, scratch / f"rescued-{number}.parquet", found)
    found.tables.sort(key=lambda table: (table.chunk, table.number))
    return found


def _other_tables(files: Mapping[str, int], is_v2: bool) -> list[str]:
    """Return tables with names of other tools, where none has its own."""
    if is_v2:
        return []
    return [n for n in files if n.endswith(".parquet") and "meta" not in Path(n).parts]


def number_by_name(
    tables: Sequence[FoundTable], listed: Collection[int], chunks_size: int
) -> list[FoundTable]:
    """Return the tables of v2 with the episode that each one's name says, whatever its rows say.

    A table that was copied in from another dataset has the numbers that it had there. One whose
    number another table has already gets the next that is free.
    """
    several = [len(np.unique(table.numbers["episode_index"])) > 1 for table in tables]
    taken = {
        int(number)
        for table, many in zip(tables, several, strict=True)
        if many
        for number in np.unique(table.numbers["episode_index"])
    }
    chosen: dict[int, int] = {}
    in_place = [table.chunk == table.number // chunks_size for table in tables]
    for wanted in (True, False):
        for at, table in enumerate(tables):
            is_free = table.number not in taken and at not in chosen
            if not several[at] and in_place[at] == wanted and is_free:
                chosen[at] = table.number
                taken.add(table.number)
    fresh = itertools.count(max([*taken, *listed, *(table.number for table in tables), -1]) + 1)
    made = []
    for at, table in enumerate(tables):
        if not several[at]:
            number = chosen[at] if at in chosen else next(fresh)
            own = np.full(table.rows, number, np.int64)
            table = replace(table, numbers={**table.numbers, "episode_index": own})
        made.append(table)
    return made


def _place(name: str) -> tuple[int, int]:
    for kind in _TABLES.values():
        match = kind.search(name)
        if match is not None:
            return int(match[1] or 0), int(match[2])
    return 0, 0


def _readable_groups(path: Path, *, needs_episode: bool) -> list[bool] | None:
    """Return whether each row group of a table can be decoded; None if it does not open."""
    try:
        with open_parquet(path) as parquet:
            if needs_episode and "episode_index" not in parquet.schema_arrow.names:
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
    found.rescued.add(name)
    found.changes.add("rows around the damage were kept", name)


def _in_order(table: FoundTable, scratch: Path, found: FoundTables) -> FoundTable:
    """Return a table with its rows in order, if nothing but their order is wrong."""
    frame = table.numbers.get("frame_index")
    if frame is None or not table.rows:
        return table
    episode = table.numbers["episode_index"]
    order = np.lexsort((frame, episode))
    begins = np.diff(episode[order], prepend=episode[order[0]] - 1) != 0
    starts = np.maximum.accumulate(np.where(begins, np.arange(table.rows), 0))
    if not np.array_equal(frame[order], np.arange(table.rows) - starts):
        blocks = 1 + int((episode[1:] != episode[:-1]).sum())
        if blocks > len(np.unique(episode)):
            return table
        order = np.argsort(episode, kind="stable")  # whole episodes, in another order
    if np.array_equal(order, np.arange(table.rows)):
        return table
    target = scratch / f"ordered-{len(found.tables)}.parquet"
    with open_parquet(table.path) as parquet:
        rows = parquet.read().take(pa.array(order))
        pq.write_table(rows, target, write_batch_size=batch_rows(rows.schema))
    found.changes.add("rows were put in order", table.name)
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
            found.rescued.add(name)
            said = "{n} rows were read without a footer"
            found.changes.add(said, name, amount=table.num_rows)
            return
    found.lost.append((name, "no row can be read" if data else "it is empty"))


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
        count = int(parquet.metadata.num_rows)
        rows = parquet.read(wanted) if wanted else pa.table({})
    found = {key: default_numbers(rows, key) for key in wanted}
    numbers = {key: values for key, values in found.items() if values is not None}
    if "episode_index" not in numbers:
        if not _TABLES[True].search(name):
            raise DemoreelError("A table does not say which episodes its rows are of.", file=name)
        numbers["episode_index"] = np.full(count, number, np.int64)
    return FoundTable(name, path, chunk, number, count, schema, numbers)


def _runs(
    at: int,
    table: FoundTable,
    fps: float,
    lengths: Mapping[int, Collection[int]],
    *,
    whole: bool,
) -> Iterator[RowRun]:
    """Cut a table where another episode begins, or frames do not follow one another."""
    episode = table.numbers["episode_index"]
    if len(episode) == 0:
        return
    frame, time = table.numbers.get("frame_index"), table.numbers.get("timestamp")
    changes = np.flatnonzero(episode[1:] != episode[:-1]) + 1
    for first, stop in itertools.pairwise([0, *changes.tolist(), len(episode)]):
        own, number = slice(first, stop), int(episode[first])
        is_expected = stop - first in lengths.get(number, ())
        if (
            frame is None
            or (time is not None and _counts_up(time[own], fps))
            or (is_expected and (whole or bool((np.diff(frame[own]) > 0).all())))
        ):
            yield RowRun(at, first, stop - first, number, True)
            continue
        breaks = np.flatnonzero(np.diff(frame[own]) != 1) + first + 1
        for begin, end in itertools.pairwise([first, *breaks.tolist(), stop]):
            yield RowRun(at, begin, end - begin, number, int(frame[begin]) == 0)


def _counts_up(time: np.ndarray, fps: float) -> bool:
    """Whether rows are shown one frame after the other, from 0 on, whatever their numbers say."""
    return bool(np.all(np.abs(time - np.arange(len(time)) / fps) < _ON_TIME / fps))


def are_regular(tables: Sequence[FoundTable], fps: float) -> bool:
    """Whether most rows' times count frames of this rate: times that were measured do not."""
    even = rows = 0
    for table in tables:
        if "timestamp" in table.numbers and table.rows > 1:
            steps = np.diff(table.numbers["timestamp"])
            even += int((np.abs(steps * fps - 1) < _ON_A_GRID).sum())
            rows += len(steps)
    return rows > 0 and even > rows * _MOST_ROWS


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
    return rounded(1 / float(np.median(forward)))


def rounded(rate: float) -> float:
    """Return a rate as a whole number, where it is about one."""
    return round(rate) if abs(rate - round(rate)) < 0.01 * rate else rate


class SameRows:
    """Tells whether spans of rows hold the same values, but for the numbers of rows and episodes.

    Cost: reads each span once that has the length of another.
    """

    def __init__(self, tables: Sequence[FoundTable]) -> None:
        self._tables = tables
        self._seen: dict[tuple[int, int, int], bytes] = {}

    def __call__(self, one: RowRun, other: RowRun) -> bool:
        """Whether two spans do."""
        return one.length == other.length and self._told_by(one) == self._told_by(other)

    def _told_by(self, run: RowRun) -> bytes:
        place = (run.table, run.first, run.length)
        if place not in self._seen:
            told = hashlib.sha256()
            with open_parquet(self._tables[run.table].path) as parquet:
                names = [n for n in parquet.schema_arrow.names if n not in _NUMBERING]
                rows = pa.concat_tables(Forward(parquet, names).pieces(run.first, run.length))
            for name, column in _without_paths(rows.flatten()):
                told.update(repr((name, str(column.type))).encode())
                sink = pa.BufferOutputStream()  # what is written does not depend on pieces
                table = pa.table([column.combine_chunks()], names=["values"])
                with pa.ipc.new_stream(sink, table.schema) as stream:
                    stream.write_table(table)
                told.update(sink.getvalue())
            self._seen[place] = told.digest()
        return self._seen[place]


def _without_paths(rows: pa.Table) -> Iterator[tuple[str, pa.ChunkedArray]]:
    """Yield the columns without the names that writers invent for images."""
    for name in sorted(rows.column_names):
        if not name.endswith(".path"):
            yield name, rows.column(name)
