"""Reading the list of episodes as far as it goes, whatever its version."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.storage.arrow import as_numpy, is_number
from demoreel.storage.json_files import read_json_table
from demoreel.storage.local import refuse_special

Found = Callable[..., None]

LINES = "meta/episodes.jsonl"
FOLDER = "meta/episodes/"
LONGEST = 1 << 36  # frames; more is a mistake, and sums would run over
_MOST_EPISODES = 1 << 26
UNREADABLE = (pa.ArrowException, OSError, MemoryError, ValueError, OverflowError)
"""What reading a damaged parquet file may raise; names that are not UTF-8 are ValueErrors."""
_THREADS = 4
_MISSING = -1


@dataclass
class Listing:
    """The episodes as they are listed, in the order of the files.

    Attributes:
        columns: Numbers by the names that v3.0 gives them; -1 (or NaN) where a value is missing.
        tasks: Each episode's tasks as a list of texts; None where there is no such column.
        file: For each episode, which of ``files`` it is listed in.
        files: The files.
        is_whole: Whether every file could be read.
    """

    columns: dict[str, np.ndarray]
    tasks: pa.ChunkedArray | None
    file: np.ndarray
    files: tuple[str, ...]
    is_whole: bool = True

    def __len__(self) -> int:
        return len(self.columns["episode_index"])


@dataclass
class Usable:
    """The episodes that can be told apart and have a possible length, by ``episode_index``.

    Attributes:
        index: Their ``episode_index``, ascending.
        length: Frames of each.
        start: Where each one's rows begin in the dataset, and the end of the last.
        columns: The other columns, in the same order.
        tasks: Each episode's tasks.
        is_whole: Whether these are all the episodes there are.
        listed: Where each one stands in the listing.
    """

    index: np.ndarray
    length: np.ndarray
    columns: dict[str, np.ndarray]
    tasks: pa.ChunkedArray | None
    is_whole: bool
    listed: np.ndarray
    start: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.start = np.concatenate([[0], np.cumsum(self.length)])

    def __len__(self) -> int:
        return len(self.index)

    def positions_of(self, episodes: np.ndarray) -> np.ndarray:
        """Return where the episodes with these indices stand here; -1 for those that do not."""
        if len(self.index) == 0:
            return np.full(len(episodes), -1)
        places = np.minimum(np.searchsorted(self.index, episodes), len(self.index) - 1)
        return np.where(self.index[places] == episodes, places, -1)


def usable(listing: Listing) -> Usable:
    """Return the episodes that rows and videos can be compared with."""
    index, length = listing.columns["episode_index"], listing.columns["length"]
    fits = np.flatnonzero((index >= 0) & (length > 0) & (length < LONGEST))
    _, first = np.unique(index[fits], return_index=True)
    chosen = fits[first]
    total = np.concatenate([[0.0], np.cumsum(length[chosen].astype(np.float64))])
    chosen = chosen[total[1:] < LONGEST]
    every = {name: column[chosen] for name, column in listing.columns.items()}
    tasks = listing.tasks
    if tasks is not None and not np.array_equal(chosen, np.arange(len(listing))):
        # Not ``pa.array``: that imports pandas, which takes longer than all the rest.
        places = np.ascontiguousarray(chosen, np.int64)
        buffers = [None, pa.py_buffer(places)]
        tasks = tasks.take(pa.Array.from_buffers(pa.int64(), len(places), buffers))
    is_whole = listing.is_whole and len(chosen) == len(listing)
    return Usable(index[chosen], length[chosen], every, tasks, is_whole, chosen)


def read_tables(
    root: Path, files: Mapping[str, int], cameras: Sequence[str], found: Found
) -> Listing | None:
    """Read ``meta/episodes`` of v3.0."""
    names = [name for name in files if name.startswith(FOLDER) and name.endswith(".parquet")]
    names = [name for name in names if name.count("/") == 3]
    if not names:
        return None
    with ThreadPoolExecutor(_THREADS) as pool:  # Arrow reads without the GIL
        parts = list(pool.map(lambda name: _read_table(root, name, cameras, found), names))
    read = [(number, part) for number, part in enumerate(parts) if part is not None]
    if not read:
        return Listing({"episode_index": _nothing(), "length": _nothing()}, None, _nothing(),
                       tuple(names), False)  # fmt: skip
    shared = [n for n in read[0][1] if all(n in part for _, part in read)]
    columns = {
        name: np.concatenate([part[name] for _, part in read]) for name in shared if name != "tasks"
    }
    tasks = None
    if "tasks" in shared:
        tasks = pa.chunked_array(
            [chunk for _, part in read for chunk in part["tasks"].chunks], _TASKS
        )
    sizes = [len(part["episode_index"]) for _, part in read]
    file = np.repeat([number for number, _ in read], sizes)
    return Listing(columns, tasks, file, tuple(names), len(read) == len(names))


def _nothing() -> np.ndarray:
    return np.zeros(0, np.int64)


_TASKS = pa.list_(pa.string())
_OPTIONAL = (
    "dataset_from_index",
    "dataset_to_index",
    "meta/episodes/chunk_index",
    "meta/episodes/file_index",
)


def needed_columns(cameras: Sequence[str]) -> list[str]:
    """Return the columns that readers cannot do without."""
    names = ["episode_index", "length", "data/chunk_index", "data/file_index"]
    for camera in cameras:
        fields = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
        names += [f"videos/{camera}/{name}" for name in fields]
    return names


def _read_table(
    root: Path, name: str, cameras: Sequence[str], found: Found
) -> dict[str, Any] | None:
    needed = needed_columns(cameras)
    try:
        refuse_special(root / name)
        with pq.ParquetFile(root / name) as parquet:
            if parquet.metadata.num_rows > _MOST_EPISODES:
                raise pa.ArrowInvalid(f"{parquet.metadata.num_rows} episodes in one file")
            present = set(parquet.schema_arrow.names)
            wanted = [n for n in (*needed, *_OPTIONAL, "tasks") if n in present]
            table = parquet.read(columns=wanted)
    except UNREADABLE as error:
        found("episodes-unreadable", f"It cannot be read: {first_line(error)}.", file=name)
        return None
    for missing in (n for n in needed if n not in present):
        found("episodes-column-missing", f"There is no column {missing!r}.", file=name)
    if "episode_index" not in present or "length" not in present:
        return None
    columns: dict[str, Any] = {}
    for column in wanted:
        if column == "tasks":
            continue
        columns[column] = _numbers(table.column(column), column, name, found)
    if "tasks" in wanted:
        try:
            columns["tasks"] = table.column("tasks").cast(_TASKS)
        except pa.ArrowException as error:
            found(
                "episodes-value-missing",
                f"The column 'tasks' does not hold texts: {first_line(error)}.",
                file=name,
            )
    return columns


def _numbers(column: pa.ChunkedArray, name: str, file: str, found: Found) -> np.ndarray:
    """Return a column as numbers; what is none is -1 (NaN for seconds), and a finding."""
    is_seconds = name.endswith("_timestamp")
    kind, missing = (pa.float64(), float("nan")) if is_seconds else (pa.int64(), _MISSING)
    try:
        if not is_number(column.type) and not pa.types.is_null(column.type):
            raise pa.ArrowInvalid(f"it holds {column.type}")
        cast = column.cast(kind)
    except UNREADABLE as error:
        found(
            "episodes-value-missing",
            f"The column {name!r} does not hold the numbers it should: {first_line(error)}.",
            file=file,
        )
        return np.full(len(column), missing)
    if cast.null_count:
        found(
            "episodes-value-missing",
            f"{cast.null_count} values of the column {name!r} are missing.",
            count=cast.null_count,
            file=file,
        )
        cast = cast.fill_null(missing)
    return as_numpy(cast)


def read_lines(root: Path, files: Mapping[str, int], found: Found) -> Listing | None:
    """Read ``meta/episodes.jsonl`` of v2."""
    if LINES not in files:
        return None
    table = read_json_table(root / LINES)
    if table is not None and _is_regular(table):
        numbers = {
            n: as_numpy(table.column(n).cast(pa.int64())) for n in ("episode_index", "length")
        }
        tasks = None
        if "tasks" in table.column_names and table.schema.field("tasks").type == _TASKS:
            tasks = table.column("tasks").cast(_TASKS)
        return Listing(numbers, tasks, np.zeros(len(table), np.int64), (LINES,))
    return _line_by_line(root, found)


def _is_regular(table: pa.Table) -> bool:
    names = ("episode_index", "length")
    return all(
        name in table.column_names
        and pa.types.is_integer(table.column(name).type)
        and table.column(name).null_count == 0
        for name in names
    )


def _line_by_line(root: Path, found: Found) -> Listing:
    rows: list[tuple[int, int]] = []
    tasks: list[list[str]] = []
    is_whole = True
    try:
        refuse_special(root / LINES)
        lines = (root / LINES).read_bytes().splitlines()
    except OSError as error:
        found("episodes-unreadable", f"It cannot be read: {error.strerror}.", file=LINES)
        lines, is_whole = [], False
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict):
                raise ValueError("it is not an object")
        except (ValueError, RecursionError) as error:
            found("episodes-unreadable", f"Line {number} is not JSON: {error}.", file=LINES)
            is_whole = False
            continue
        values = []
        for name in ("episode_index", "length"):
            value = entry.get(name)
            if not isinstance(value, int) or isinstance(value, bool) or abs(value) > 1 << 62:
                found("episodes-value-missing", f"Line {number} has no {name}.", file=LINES)
                value = _MISSING
            values.append(value)
        rows.append((values[0], values[1]))
        said = entry.get("tasks")
        tasks.append([str(task) for task in said] if isinstance(said, list) else [])
    index, length = np.array(rows, np.int64).reshape(-1, 2).T
    texts = pa.chunked_array([pa.array(tasks, _TASKS)])
    columns = {"episode_index": index.copy(), "length": length.copy()}
    return Listing(columns, texts, np.zeros(len(rows), np.int64), (LINES,), is_whole)


def first_line(error: BaseException) -> str:
    """Return what an error says, in one line."""
    text = str(error).strip()
    return text.splitlines()[0].rstrip(".") if text else type(error).__name__
