"""SQL queries on a dataset's tables, and conditions that choose episodes.

DuckDB answers, on the tables as they are: it asks Arrow or Lance for the columns and rows that a
query needs. It may read nothing else, and write nothing. Names of columns are untrusted: a
column is known to DuckDB by its place in the table, and by a quoted name only to the user's query.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import pyarrow as pa

from demoreel.errors import ArgumentError, DemoreelError, MissingExtraError, TableError
from demoreel.layouts.base import Reader
from demoreel.layouts.pending import PendingReader
from demoreel.layouts.row_tables import (
    FILE_COLUMN,
    RowTable,
    row_tables,
    table_with_engine,
    video_table,
)
from demoreel.layouts.v3.reader import V3Metadata
from demoreel.model import Feature
from demoreel.read.conditions import ColumnNode, Dialect, NotUnderstood, condition_sql

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

TABLES = ("frames", "episodes", "tasks", "videos")
"""The tables that a query may name."""

_ROWS, _CHOSEN, _KNOWN = "demoreel_rows", "demoreel_chosen", "demoreel_known"
_SQL_TYPES = {"bool": "boolean", "float32": "float", "float64": "double"}
_REFUSED = "DuckDB does not accept the query: "
_LOCKED = (
    "set python_enable_replacements = false",  # else a query could name our variables
    "set temp_directory = ''",
    "set enable_external_access = false",
    "set lock_configuration = true",
)


def query(reader: Reader, positions: np.ndarray, text: str) -> pa.Table:
    """Answer a query about the episodes at these positions.

    Cost: reads the columns that the query names, and holds the answer in memory.
    """
    refused: list[DemoreelError] = []
    with _database(reader, refused) as database:
        text.encode()  # DuckDB would ask for another type where it holds half of a character
        kinds = [statement.type.name for statement in database.extract_statements(text)]
        if [kind.split("_")[0] for kind in kinds] != ["SELECT"]:
            raise ArgumentError(
                "A query is one SELECT; nothing can be changed, written or attached.",
                hint=f"the tables are {', '.join(TABLES)}",
            )
        _offer_tables(database, reader, positions, text, refused)
        return _answered(database, text)


@contextmanager
def _database(reader: Reader, refused: Sequence[DemoreelError]) -> Iterator[DuckDBPyConnection]:
    """Yield an empty database; what it complains about becomes an error of ours.

    Args:
        reader: The dataset.
        refused: What its tables refused while they were scanned; DuckDB passes on the text alone.
    """
    duckdb = _import_duckdb()
    with duckdb.connect() as database:
        try:
            yield database
        except duckdb.Error as error:
            raise (refused[0] if refused else _explained(error, reader)) from error
        except UnicodeEncodeError as error:
            raise ArgumentError(f"The text is no Unicode: {error.reason}.") from error


def _answered(database: DuckDBPyConnection, text: str) -> pa.Table:
    """Return the answer of a database that can reach nothing but its own tables from now on."""
    for setting in _LOCKED:
        database.execute(setting)
    found: pa.Table = database.sql(text).to_arrow_table()
    return found


def check_expression(text: str, *, what: str) -> None:
    """Raise unless the whole of a text is one SQL expression.

    Args:
        text: What a query is about to hold in parentheses.
        what: What the text is, for the error.
    """
    duckdb = _import_duckdb()
    with duckdb.connect() as database:
        try:
            # A text that closes our parentheses is none without them; one with a clause behind
            # the expression (FROM, LIMIT, a second statement) is none within them; two expressions
            # are none in a CASE.
            wrapped = (f"{text}\n", f"({text}\n)", f"case when {text}\n then 1 end")
            kinds = [
                [statement.type.name for statement in database.extract_statements(f"select {each}")]
                for each in wrapped
            ]
        except (duckdb.Error, UnicodeEncodeError):
            kinds = []
    if kinds != [["SELECT"]] * 3:
        raise ArgumentError(
            f"{what} must be one SQL expression, and {text[:200]!r} is not.",
            hint="check for a word too many, and the parentheses",
        )


def _explained(error: Exception, reader: Reader) -> ArgumentError | TableError:
    """Return what DuckDB complains about, as an error of ours: the query's fault, or a file's."""
    import duckdb

    # In one line: the text of the query's own line is kept, what points into it is not.
    # What a remote file raised comes with its traceback, and with all that it says before.
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
    database: DuckDBPyConnection,
    reader: Reader,
    positions: np.ndarray,
    text: str,
    refused: list[DemoreelError],
) -> None:
    """Make those of the tables that the query mentions."""
    if _mentions(text, "frames"):
        _offer_frames(database, reader, positions, text, refused)
    if _mentions(text, "episodes"):
        database.register("episodes", _episodes(reader, positions))
    if _mentions(text, "tasks"):
        database.register("tasks", _tasks(reader))
    if _mentions(text, "videos"):
        database.register("videos", video_table(reader, positions))


def _mentions(text: str, word: str) -> bool:
    return re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) is not None


def _offer_frames(
    database: DuckDBPyConnection,
    reader: Reader,
    positions: np.ndarray,
    text: str,
    refused: list[DemoreelError],
) -> None:
    parts = []
    for number, (chosen, rows) in enumerate(row_tables(reader, positions, refused)):
        known = _offer_rows(database, reader, chosen, rows, number)
        columns = ", ".join(_offered(rows, _places(rows), reader.info.features, text))
        parts.append(f"select {columns} from {known}")
    database.execute(f"create view frames as {' union all by name '.join(parts)}")


def _places(rows: RowTable) -> dict[str, str]:
    """Return what each column is called in the view that ``_offer_rows`` makes.

    DuckDB takes names that differ in case alone for one, and would answer with the wrong column.
    """
    return {name: f"c{place}" for place, name in enumerate(rows.source.schema.names)}


def _offer_rows(
    database: DuckDBPyConnection, reader: Reader, positions: np.ndarray, rows: RowTable, number: int
) -> str:
    """Make a view of the chosen episodes' rows and return its name."""
    places = _places(rows)
    source, names, known = f"{_ROWS}{number}", f"{_CHOSEN}{number}", f"{_KNOWN}{number}"
    database.register(source, rows.source)
    belongs = _belongs(database, names, reader.episodes.episode_index[positions], rows, places)
    named = f"{source} as {source}({', '.join(places.values())})"
    database.execute(f"create view {known} as select * from {named} where {belongs}")
    return known


def _belongs(
    database: DuckDBPyConnection,
    names: str,
    numbers: np.ndarray,
    rows: RowTable,
    places: Mapping[str, str],
) -> str:
    """Return the condition for a row to be one of a chosen episode; orphan rows are not."""
    low, high = int(numbers.min()), int(numbers.max())
    episode = places[rows.columns["episode_index"]]
    if rows.files is None and high - low + 1 == len(numbers):
        return f"{episode} between {low} and {high}"  # a third of a look-up's cost
    if rows.files is None:
        database.register(names, pa.table({"episode_index": numbers}))
        return f"{episode} in (select episode_index from {names})"
    # A row belongs to an episode only in the file that the metadata name for it.
    database.register(names, pa.table({"episode_index": numbers, FILE_COLUMN: rows.files}))
    keys = f"(episode_index, {FILE_COLUMN})"
    return f"({episode}, {places[FILE_COLUMN]}) in (select {keys} from {names})"


def _offered(
    rows: RowTable, places: Mapping[str, str], features: Mapping[str, Feature], text: str
) -> Iterable[str]:
    """Yield the columns of ``frames``: with underscores, or as the query calls them."""
    kinds = rows.source.schema
    names = offered_names(rows.columns)
    spelled = Counter(name.lower() for name in {*names, *names.values()})
    for key, stored in rows.columns.items():
        if not _can_be_named(key) or spelled[key.lower()] > 1 or spelled[names[key].lower()] > 1:
            continue
        value = places[stored]
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


def _can_be_named(name: str) -> bool:
    return bool(name) and "\0" not in name


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
        "tasks": tasks_by_episode(reader, positions),
    }
    stored = {name: column[positions] for name, column in reader.episode_columns().items()}
    return pa.table({**columns, **{n: c for n, c in stored.items() if n not in columns}})


def tasks_by_episode(reader: Reader, positions: np.ndarray) -> pa.Array | pa.ChunkedArray:
    """Return the tasks of the episodes at these positions, as lists of texts."""
    if isinstance(reader, V3Metadata):  # where it is a column: a million take no time
        return reader.episode_tasks(positions)
    if isinstance(reader, PendingReader) and _has_engine(reader.base):
        waits = positions >= reader.committed
        rest = [list(reader.episodes[place].tasks) for place in positions[waits].tolist()]
        before = tasks_by_episode(reader.base, positions[~waits])
        listed = [*before.to_pylist(), *rest]  # positions ascend
        return pa.array(listed, pa.list_(pa.string()))
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
    """
    if not condition.strip():
        raise ArgumentError("filter= is empty.", hint="leave it out to read all episodes")
    found = _numbers_where(reader, positions, condition)
    chosen = positions[np.isin(reader.episodes.episode_index[positions], found)]
    if len(chosen) == 0:
        raise ArgumentError(
            f"No episode has a frame where {condition}.",
            hint="ask for other frames, or leave filter= out",
            dataset=reader.root,
        )
    return np.asarray(chosen)


def frames_where(reader: Reader, positions: np.ndarray, condition: str) -> np.ndarray:
    """Return which frames of these episodes meet a condition, counted from the first of them.

    Cost: as ``episodes_where``, and the column ``index`` of these episodes.

    Args:
        reader: The dataset.
        positions: Episodes.
        condition: An SQL expression over the columns of ``frames``.
    """
    if not condition.strip():
        raise ArgumentError("The condition is empty.", hint="leave it out to read all frames")
    start = reader.episodes.start
    rows = np.concatenate([np.arange(start[p], start[p + 1]) for p in positions.tolist()])
    index = np.asarray(reader.rows(rows, ["index"])["index"])
    if len(np.unique(index)) < len(index):
        raise TableError(
            "Several frames have the same index, so a condition cannot name one of them.",
            hint="demoreel repair renumbers them",
            dataset=reader.root,
        )
    found = np.flatnonzero(np.isin(index, _numbers_where(reader, positions, condition, "index")))
    if not len(found):
        raise ArgumentError(
            f"There is no frame where {condition}.",
            hint="ask for other frames, or leave the condition out",
            dataset=reader.root,
        )
    return found


def _numbers_where(
    reader: Reader, positions: np.ndarray, condition: str, column: str = "episode_index"
) -> np.ndarray:
    """Return a column's values in such frames; those of other episodes may be among them."""
    table = table_with_engine(reader)
    if table is not None:
        names = {key: key.replace(".", "_") for key in reader.info.features}
        columns = {
            key: ColumnNode(name, reader.info.features[key], table.types[name])
            for key, name in names.items()
            if name in table.types and not reader.info.features[key].is_camera
        }
        understood = _understood(reader, condition, columns, "lance")
        return np.asarray(table.matching(understood, column))
    if isinstance(reader, PendingReader) and _has_engine(reader.base):
        waiting = positions[positions >= reader.committed]
        found = _numbers_where(reader.base, positions, condition, column)
        if len(waiting):  # which are not in the table
            found = np.concatenate([found, _asked_of_duckdb(reader, waiting, condition, column)])
        return found
    return _asked_of_duckdb(reader, positions, condition, column)


def _has_engine(reader: Reader | None) -> TypeGuard[Reader]:
    return reader is not None and table_with_engine(reader) is not None


def _asked_of_duckdb(
    reader: Reader, positions: np.ndarray, condition: str, wanted: str
) -> np.ndarray:
    _import_duckdb()  # before anything is read
    parts = []
    refused: list[DemoreelError] = []
    with _database(reader, refused) as database:
        for number, (chosen, rows) in enumerate(row_tables(reader, positions, refused)):
            places, schema = _places(rows), rows.source.schema
            columns = {
                key: ColumnNode(
                    places[stored], reader.info.features[key], schema.field(stored).type
                )
                for key, stored in rows.columns.items()
            }
            understood = _understood(reader, condition, columns, "duckdb")
            known = _offer_rows(database, reader, chosen, rows, number)
            column = places[rows.columns[wanted]]
            parts.append(f"select distinct {column} from {known} where {understood}")
        answer = _answered(database, " union all ".join(parts))
    return np.array(answer.column(0).to_pylist(), dtype=np.int64)


def _understood(
    reader: Reader, condition: str, columns: Mapping[str, ColumnNode], dialect: Dialect
) -> str:
    """Return a condition over features as SQL for an engine."""
    names = offered_names(columns)
    by_name = {names[key]: column for key, column in columns.items()} | dict(columns)
    try:
        return condition_sql(condition, by_name, dialect)
    except NotUnderstood as error:
        raise ArgumentError(
            f"The condition {condition[:200]!r} is not understood: {error}.",
            hint=f"the columns are: {', '.join(names.values())}",
            dataset=reader.root,
        ) from error
