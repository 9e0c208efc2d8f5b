"""Questions in SQL to a dataset's tables, and conditions that choose episodes.

DuckDB answers, on the tables as they lie: it asks Arrow or Lance for the columns and rows that a
query needs. It may read nothing else, and write nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from demoreel.errors import ArgumentError, MissingExtraError, TableError
from demoreel.layouts.base import Reader
from demoreel.layouts.lance_reader import LanceReader
from demoreel.layouts.row_tables import FILE_COLUMN, RowTable, row_table, video_table
from demoreel.layouts.v3.metadata import V3Metadata
from demoreel.model import Feature

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

TABLES = ("frames", "episodes", "tasks", "videos")
"""The tables that a query may name."""

_ROWS, _CHOSEN = "demoreel_rows", "demoreel_chosen"
_SQL_TYPES = {"bool": "boolean", "float32": "float", "float64": "double"}
_REFUSED = "DuckDB does not accept the query: "
_LITERAL = re.compile(r"('(?:[^']|'')*')")
_LOCKED = (
    "set python_enable_replacements = false",  # else a query could name our variables
    "set temp_directory = ''",
    "set enable_external_access = false",
    "set lock_configuration = true",
)


def query(reader: Reader, positions: np.ndarray, text: str) -> pa.Table:
    """Answer a query about the episodes at these positions.

    Cost: reads the columns that the query names, and holds the answer in memory.

    Args:
        reader: The dataset.
        positions: The episodes whose rows the query sees.
        text: One SELECT in DuckDB's SQL, over ``TABLES``.

    Raises:
        ArgumentError: It is not one SELECT, or DuckDB does not accept it.
        TableError: A table is missing or damaged.
        MissingExtraError: DuckDB is not installed.
    """
    duckdb = _import_duckdb()
    with duckdb.connect() as database:
        try:
            kinds = [statement.type.name for statement in database.extract_statements(text)]
            if [kind.split("_")[0] for kind in kinds] != ["SELECT"]:
                raise ArgumentError(
                    "A query is one SELECT; nothing can be changed, written or attached.",
                    hint=f"the tables are {', '.join(TABLES)}",
                )
            _offer_tables(database, reader, positions, text)
            for setting in _LOCKED:
                database.execute(setting)
            found: pa.Table = database.sql(text).to_arrow_table()
            return found
        except duckdb.Error as error:
            raise _explained(error, reader) from error


def _explained(error: Exception, reader: Reader) -> ArgumentError | TableError:
    """Return what DuckDB complains about, as an error of ours: the query's fault, or a file's."""
    import duckdb

    # In one line: the text of the query's own line is kept, what points into it is not.
    # What a file far away raised comes with its traceback, and with all that it says before.
    said = str(error).partition(" Detail: Python exception")[0]
    lines = (line.strip() for line in said.splitlines())
    reason = "; ".join(line for line in lines if line.strip("^ ~"))
    if isinstance(error, duckdb.OutOfMemoryException):
        return ArgumentError(
            f"The answer does not fit in memory: {reason}", hint="ask for fewer rows or columns"
        )
    # What goes wrong while Arrow reads is "invalid input" to DuckDB, and names the stream.
    reading = isinstance(error, duckdb.InvalidInputException) and _ROWS in reason
    if reading or isinstance(error, duckdb.OperationalError | duckdb.InternalError):
        return TableError(
            f"The tables cannot be queried: {reason}", hint="restore the file", dataset=reader.root
        )
    return ArgumentError(
        f"{_REFUSED}{reason}",
        hint=f"the tables are {', '.join(TABLES)}; `describe frames` lists the columns of one",
        dataset=reader.root,
    )


def _import_duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise MissingExtraError(
            "Queries need DuckDB, which is not installed.", hint="pip install 'demoreel[sql]'"
        ) from error
    return duckdb


def _offer_tables(
    database: DuckDBPyConnection, reader: Reader, positions: np.ndarray, text: str
) -> None:
    """Make those of the tables that the query mentions."""
    if _mentions(text, "frames"):
        _offer_frames(database, reader, positions, text)
    if _mentions(text, "episodes"):
        database.register("episodes", _episodes(reader, positions))
    if _mentions(text, "tasks"):
        database.register("tasks", _tasks(reader))
    if _mentions(text, "videos"):
        database.register("videos", video_table(reader, positions))


def _mentions(text: str, word: str) -> bool:
    return re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) is not None


def _offer_frames(
    database: DuckDBPyConnection, reader: Reader, positions: np.ndarray, text: str
) -> None:
    rows = row_table(reader, positions)
    database.register(_ROWS, rows.source)
    columns = ", ".join(_offered(rows, reader.info.features, text))
    numbers = reader.episodes.episode_index[positions]
    belongs = _belongs(database, numbers, rows.files)
    database.execute(f"create view frames as select {columns} from {_ROWS} where {belongs}")


def _belongs(database: DuckDBPyConnection, numbers: np.ndarray, files: np.ndarray | None) -> str:
    """Return the condition for a row to be one of a chosen episode; orphan rows are not."""
    low, high = int(numbers.min()), int(numbers.max())
    if files is None and high - low + 1 == len(numbers):
        return f"episode_index between {low} and {high}"  # a third of a look-up's cost
    if files is None:
        database.register(_CHOSEN, pa.table({"episode_index": numbers}))
        return f"episode_index in (select episode_index from {_CHOSEN})"
    # A row belongs to an episode only in the file that the metadata name for it.
    database.register(_CHOSEN, pa.table({"episode_index": numbers, FILE_COLUMN: files}))
    keys = f"(episode_index, {FILE_COLUMN})"
    return f"{keys} in (select {keys} from {_CHOSEN})"


def _offered(rows: RowTable, features: Mapping[str, Feature], text: str) -> Iterable[str]:
    """Yield the columns of ``frames``: with underscores, or as the query calls them."""
    kinds = rows.source.schema
    names = offered_names(rows.columns)
    for key, stored in rows.columns.items():
        value = _quoted(stored)
        kind, feature = kinds.field(stored).type, features[key]
        if feature.is_numeric and not feature.item_shape and pa.types.is_fixed_size_list(kind):
            # An older tool makes lists of floats of all numbers.
            value = f"cast({value}[1] as {_SQL_TYPES.get(feature.dtype, 'bigint')})"
        called_by_key = _quoted(key) in text
        if called_by_key:
            yield f"{value} as {_quoted(key)}"
        if names[key] != key and (not called_by_key or _mentions(text, names[key])):
            yield f"{value} as {_quoted(names[key])}"
        elif not called_by_key:
            yield f"{value} as {_quoted(key)}"


def offered_names(keys: Iterable[str]) -> dict[str, str]:
    """Return the column name of each feature: dots become underscores, as in Lance.

    In layouts where keys are columns themselves, one that would collide keeps its dots.
    """
    names: dict[str, str] = {}
    for key in keys:
        name = key.replace(".", "_")
        names[key] = key if name in names.values() else name
    return names


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _episodes(reader: Reader, positions: np.ndarray) -> pa.Table:
    columns: dict[str, Any] = {
        "episode_index": reader.episodes.episode_index[positions],
        "length": reader.episodes.length[positions],
        "tasks": _tasks_by_episode(reader, positions),
    }
    stored = {name: column[positions] for name, column in reader.episode_columns().items()}
    return pa.table({**columns, **{n: c for n, c in stored.items() if n not in columns}})


def _tasks_by_episode(reader: Reader, positions: np.ndarray) -> pa.Array | pa.ChunkedArray:
    if isinstance(reader, V3Metadata):  # where it is a column: a million take no time
        return reader.episode_tasks(positions)
    each = [list(reader.episodes[place].tasks) for place in positions.tolist()]
    return pa.array(each, pa.list_(pa.string()))


def _tasks(reader: Reader) -> pa.Table:
    numbers = pa.array(reader.tasks.keys(), pa.int64())
    return pa.table({"task_index": numbers, "task": pa.array(reader.tasks.values(), pa.string())})


def episodes_where(reader: Reader, positions: np.ndarray, condition: str) -> np.ndarray:
    """Return which of these episodes have a frame that meets a condition.

    Cost: reads the columns that the condition names; of a Lance dataset, less where a scalar
    index helps.

    Args:
        reader: The dataset.
        positions: Episodes.
        condition: An SQL expression over the columns of ``frames``.

    Raises:
        ArgumentError: The condition is not understood, or no frame meets it.
        TableError: A table is missing or damaged.
        MissingExtraError: The dataset is no Lance dataset, and DuckDB is not installed.
    """
    if not condition.strip():
        raise ArgumentError("filter= is empty.", hint="leave it out to read all episodes")
    names = offered_names(reader.info.features)
    if isinstance(reader, LanceReader):
        table = reader.tables["frames"]
        found = table.matching(_with_columns(condition, names, quote="`"), "episode_index")
    else:
        found = _asked_of_duckdb(reader, positions, condition, names)
    chosen = positions[np.isin(reader.episodes.episode_index[positions], found)]
    if len(chosen) == 0:
        raise ArgumentError(
            f"No episode has a frame where {condition}.",
            hint="ask for other frames, or leave filter= out",
            dataset=reader.root,
        )
    return np.asarray(chosen)


def _asked_of_duckdb(
    reader: Reader, positions: np.ndarray, condition: str, names: Mapping[str, str]
) -> np.ndarray:
    understood = _with_columns(condition, names, quote='"')
    try:
        # The end of the line ends a comment, should the condition have one.
        text = f"select distinct episode_index from frames where ({understood}\n)"
        answer = query(reader, positions, text)
    except ArgumentError as error:
        raise ArgumentError(
            f"The condition {condition!r} is not understood: {_reason(error)}.",
            hint=f"the columns are: {', '.join(names.values())}",
            dataset=reader.root,
        ) from error
    return np.array(answer.column(0).to_pylist(), dtype=np.int64)


def _reason(error: ArgumentError) -> str:
    """Return what DuckDB says, without the query, which the user has not written like this."""
    return error.what.removeprefix(_REFUSED).split("; LINE ")[0].rstrip(".!")


def _with_columns(condition: str, names: Mapping[str, str], *, quote: str) -> str:
    """Return a condition whose features, quoted or not, are called by their columns' names."""
    dotted = sorted((key for key in names if "." in key), key=len, reverse=True)
    bare = "|".join(map(re.escape, dotted)) or r"(?!)"
    name = re.compile(rf'"([^"]+)"|`([^`]+)`|(?<![\w."`])({bare})(?![\w."`])')

    def column(match: re.Match[str]) -> str:
        key = next(filter(None, match.groups()))
        return f"{quote}{names.get(key, key)}{quote}"

    parts = _LITERAL.split(condition)  # every second one is a text, which stays as it is
    return "".join(p if n % 2 else name.sub(column, p) for n, p in enumerate(parts))
