"""Parses the files of ``meta/``, of any version: returns usable values, and problems.

Readers, ``check`` and ``repair`` read through these functions and differ in the ``Note`` that they
give: see ``model/problems.py``. Files are read, not compared with one another.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from demoreel.errors import DatasetNotFoundError, MetadataError, first_line
from demoreel.model import Info, Stats, Tasks, combine_stats, stats_from_json
from demoreel.model.episodes import MISSING
from demoreel.model.feature import quoted
from demoreel.model.info import parse_info
from demoreel.model.problems import Note, Problem, refuse
from demoreel.storage.arrow import UNREADABLE, as_numpy, is_number
from demoreel.storage.json_files import json_lines, read_json, read_json_table
from demoreel.storage.parquet import open_parquet

TEXTS = pa.list_(pa.string())
_MOST_ROWS = 1 << 26  # of a table in meta/: each becomes a Python object, or a few numbers
_NUMBERS = ("episode_index", "length")
_TASK_TEXTS = ("task", "__index_level_0__")  # the second is what pandas calls an index
_MOST_PANDAS = 1 << 20  # bytes of what pandas says of a table
_BROKEN = (*UNREADABLE, ValueError, OverflowError)  # a MetadataError about a limit is one, too
_INFO_COPIES = 4  # parsed, checked, changed and written: at once, in a conversion


# info.json


def read_info(path: Path, *, is_whole: bool = True) -> Info:
    """Return an ``info.json`` that must be sound; errors as for ``Info.from_json``.

    Args:
        path: The file.
        is_whole: Whether the other metadata are beside it. Of a remote dataset, some may be fetched
            later: what is here then tells nothing of the version.
    """
    raw = read_raw_info(path)
    if not is_whole:
        return Info.from_json(raw, where=str(path))
    info = info_from(raw, path) if raw is not None else None
    assert info is not None  # all that leaves none is fatal
    return info


def info_from(raw: Mapping[str, Any], path: Path, note: Note = refuse) -> Info | None:
    """Return what can be used of the object in an ``info.json``; None if nothing.

    A version that the files beside it contradict is a problem.
    """
    has_lines = (path.parent / "episodes.jsonl").exists()
    has_tables = (path.parent / "episodes").is_dir()
    family = None if has_lines == has_tables else "v2" if has_lines else "v3"
    return parse_info(raw, where=str(path), note=note, family=family)


def read_raw_info(path: Path, note: Note = refuse) -> dict[str, Any] | None:
    """Return the object in an ``info.json``; None where there is none to be parsed."""
    twice: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(items)
        if len(made) < len(items):
            named = Counter(name for name, _ in items)
            twice.extend(sorted(name for name, times in named.items() if times > 1))
        return made

    try:
        raw = read_json(path, pairs=pairs, copies=_INFO_COPIES)
    except DatasetNotFoundError as error:
        note(Problem("info-missing", error))
        return None
    except MetadataError as error:
        note(Problem("info-unreadable", error))
        return None
    if twice:
        wrong = MetadataError(f"{quoted(twice[0])} stands twice in one object.", file=path)
        note(Problem("info-key-twice", wrong, is_fatal=False, count=len(twice)))
    if not isinstance(raw, dict):
        parse_info(raw, where=str(path), note=note)  # which notes that
        return None
    return raw


# Tasks


@dataclass(frozen=True, slots=True)
class TaskList:
    """The tasks in the order of their file.

    Attributes:
        indices: Each one's ``task_index``.
        texts: Each one's text.
    """

    indices: Sequence[int]
    texts: Sequence[str]


def read_tasks(path: Path) -> Tasks:
    """Read tasks, ``.jsonl`` (v2) or ``.parquet``."""
    tasks = parse_tasks(path)
    assert tasks is not None  # all that leaves none is fatal
    return Tasks(dict(zip(tasks.indices, tasks.texts, strict=True)))


def parse_tasks(path: Path, note: Note = refuse) -> TaskList | None:
    """Read tasks as far as they go; None where there is no list of any."""
    if not path.exists():
        wrong = MetadataError(f"There is no file of tasks, {path.name}.", file=path)
        note(Problem("tasks-missing", wrong))
        return None
    return (_task_lines if path.suffix == ".jsonl" else _task_table)(path, note)


def _task_lines(path: Path, note: Note) -> TaskList:
    found: dict[int, tuple[int, str]] = {}
    for number, line in json_lines(path, _noting("tasks-unreadable", note)):
        try:
            index, text = line["task_index"], line["task"]
            found[number] = int(index), str(text)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            wrong = MetadataError(f"A task has no {error}.", file=path, line=number)
            note(Problem("tasks-unreadable", wrong))
            continue
        if isinstance(index, float) and index.is_integer():
            note(_stored_as("task_index", "double", path))
        elif not isinstance(index, int) or text is None:
            wrong = MetadataError("A task has no index or no text.", file=path, line=number)
            note(Problem("tasks-unreadable", wrong, is_fatal=False))
    return TaskList(*map(list, zip(*found.values(), strict=True))) if found else TaskList([], [])


def _task_table(path: Path, note: Note) -> TaskList | None:
    table = _read_columns(path, note, "tasks-unreadable", "The tasks", lambda _: True)
    if table is None:
        return None
    labels = _index_of_pandas(table)
    names = table.column_names
    others = [name for name in labels if name in names and name != "task_index"]
    text = next((name for name in (*_TASK_TEXTS, *others) if name in names), None)
    if text is None or ("task_index" not in names and labels.get("task_index") is None):
        wrong = MetadataError("The tasks file has no task and task_index columns.", file=path)
        note(Problem("tasks-unreadable", wrong))
        return None
    if text not in labels:
        wrong = MetadataError(
            f"The texts of the tasks are in the column {text!r}, which is not the table's index: "
            "lerobot gives a number as the task.",
            file=path,
        )
        note(Problem("tasks-not-index", wrong, is_fatal=False))
    elif len(labels) > 1:
        wrong = MetadataError(
            f"The table's index has {len(labels)} columns: lerobot gives a tuple as the task.",
            file=path,
        )
        note(Problem("tasks-not-index", wrong, is_fatal=False))
    indices = list(_task_indices(table, labels, path, note))
    texts = table.column(text).to_pylist()
    if None in texts:
        wrong = MetadataError("The tasks file has a task without a text.", file=path)
        note(Problem("tasks-unreadable", wrong, is_fatal=False, count=texts.count(None)))
    known = [(i, str(text)) for i, text in zip(indices, texts, strict=True) if i is not None]
    return TaskList([index for index, _ in known], [text for _, text in known])


# Episodes


def listing_files(episodes: Path) -> list[Path]:
    """Return the tables in a folder ``meta/episodes``, sorted; not what macOS adds (``._*``)."""
    return sorted(episodes.glob("*/[!.]*.parquet"))


PLACE_OF_VIDEO = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
"""The columns that locate an episode's frames of a camera, below ``videos/CAMERA/``."""


@dataclass
class EpisodeList:
    """The episodes as they are listed, in the order of the files.

    Attributes:
        columns: Numbers by the names that v3.0 gives them; ``MISSING`` (or NaN) where one is none.
        tasks: Each episode's tasks as a list of texts; None where they were not read.
        file: For each episode, which of ``files`` it is listed in.
        files: The files' names.
        is_whole: Whether every file, and every line, could be read.
    """

    columns: dict[str, np.ndarray]
    tasks: pa.ChunkedArray | None
    file: np.ndarray
    files: tuple[str, ...]
    is_whole: bool = True

    def __len__(self) -> int:
        return len(self.columns["episode_index"])


def read_episode_tables(
    folder: Path,
    names: Sequence[str],
    cameras: Iterable[str],
    note: Note = refuse,
    *,
    more: Sequence[str] = (),
) -> EpisodeList:
    """Read the number columns of ``meta/episodes`` of v3.0 and Lance.

    Args:
        folder: The folder that ``names`` are relative to.
        names: The files.
        cameras: The cameras whose videos the columns must locate.
        note: Takes the problems.
        more: Columns that need not be there: numbers, and ``tasks``.
    """
    needed = [*_NUMBERS, "data/chunk_index", "data/file_index"]
    for camera in cameras:
        needed += [f"videos/{camera}/{name}" for name in PLACE_OF_VIDEO]
    optional = ["dataset_from_index", "dataset_to_index", *more]
    with ThreadPoolExecutor(8) as pool:  # Arrow reads without the GIL; files may be many
        parts = list(
            pool.map(lambda n: _episode_columns(folder / n, needed, optional, note), names)
        )
    read = [(number, part) for number, part in enumerate(parts) if part is not None]
    if not read:
        nothing = np.zeros(0, np.int64)
        return EpisodeList(dict.fromkeys(_NUMBERS, nothing), None, nothing, tuple(names), False)
    tables = [part for _, part in read]
    shared = [name for name in tables[0] if all(name in part for part in tables)]
    columns = {n: tables[0][n] for n in shared if n != "tasks"}
    if len(tables) > 1:
        columns = {n: np.concatenate([part[n] for part in tables]) for n in columns}
    tasks = None
    if "tasks" in shared:
        tasks = pa.chunked_array([c for part in tables for c in part["tasks"].chunks], TEXTS)
    file = np.repeat([number for number, _ in read], [len(part["length"]) for part in tables])
    return EpisodeList(columns, tasks, file, tuple(names), len(read) == len(names))


def read_episode_columns(
    path: Path, is_wanted: Callable[[str], bool], note: Note = refuse
) -> pa.Table | None:
    """Return columns of one file of ``meta/episodes`` as they are; None where it is unreadable."""
    return _read_columns(path, note, "episodes-unreadable", "The episodes' metadata", is_wanted)


def _episode_columns(
    path: Path, needed: Sequence[str], optional: Sequence[str], note: Note
) -> dict[str, Any] | None:
    """Return the columns of one file; None where it does not say which episodes it lists."""
    table = read_episode_columns(path, {*needed, *optional}.__contains__, note)
    if table is None:
        return None
    present = set(table.column_names)
    for name in (name for name in needed if name not in present):
        wrong = MetadataError(
            f"The episodes' metadata lacks the column {name!r}.",
            file=path,
        )
        if name.startswith("data/"):  # the tables' rows tell, too
            note(Problem("episodes-place-missing", wrong, is_fatal=False))
        else:
            note(Problem("episodes-column-missing", wrong))
    if not present.issuperset(_NUMBERS):
        return None
    columns: dict[str, Any] = {}
    for name in (name for name in (*needed, *optional) if name in present):
        if name != "tasks":
            columns[name] = _numbers(table.column(name), name, path, note)
            continue
        try:
            texts = table.column(name)
            columns[name] = texts if texts.type == TEXTS else texts.cast(TEXTS)
        except pa.ArrowException:
            wrong = MetadataError("The column 'tasks' does not hold texts.", file=path)
            note(Problem("episodes-value-missing", wrong, is_fatal=False))
    return columns


def _numbers(column: pa.ChunkedArray, name: str, path: Path, note: Note) -> np.ndarray:
    """Return a column as numbers: ``MISSING`` (NaN for seconds) where there is none."""
    is_seconds = name.endswith("_timestamp")
    kind, missing = (pa.float64(), float("nan")) if is_seconds else (pa.int64(), MISSING)

    def wrong(what: str, count: int = 1, *, is_fatal: bool = True) -> None:
        error = MetadataError(f"The column {name!r} {what}.", file=path)
        note(Problem("episodes-value-missing", error, is_fatal, count))

    if column.null_count:
        wrong("has missing values", column.null_count)
    try:
        # Most are of that type: then Arrow's functions, which are slow to import, are not needed.
        cast = column if column.type == kind else column.cast(kind)
    except _BROKEN:
        wrong("does not hold numbers")
        return np.full(len(column), missing)
    if not is_number(column.type) and not pa.types.is_null(column.type):
        wrong(f"holds {quoted(str(column.type))}, not numbers", is_fatal=False)
    elif is_number(column.type) and not is_seconds and not pa.types.is_integer(column.type):
        note(_stored_as(name, column.type, path))
    return as_numpy(cast.fill_null(missing) if cast.null_count else cast)


def read_episode_lines(path: Path, note: Note = refuse) -> tuple[pa.Table, bool]:
    """Read ``meta/episodes.jsonl`` of v2.

    Returns:
        The fields of every episode as columns; where lines are irregular, a column ``line`` of JSON
        beside their numbers and ``tasks``. And whether all lines could be read.
    """
    if not path.exists():
        note(no_episodes(path))
    table = read_json_table(path)
    if table is not None and _is_regular(table):
        return table, True
    unread: list[Problem] = []

    def noted(problem: Problem) -> None:
        unread.append(problem)
        note(problem)

    numbers: list[list[int]] = []
    lines: list[dict[str, Any]] = []
    for number, line in json_lines(path, _noting("episodes-unreadable", noted)):
        numbers.append([_count(line.get(name), name, path, number, note) for name in _NUMBERS])
        lines.append(line)
    columns = np.array(numbers, np.int64).reshape(-1, len(_NUMBERS)).T
    made = {
        **{name: pa.array(column) for name, column in zip(_NUMBERS, columns, strict=True)},
        "tasks": pa.array([texts_of(line.get("tasks")) for line in lines], TEXTS),
        # Regular in what matters, irregular in the rest: the rest stays as it is, line by line.
        "line": pa.array([json.dumps(line) for line in lines], pa.string()),
    }
    return pa.table(made), not unread


def no_episodes(path: Path) -> Problem:
    """Return the problem that there is no list of episodes in this place."""
    wrong = MetadataError(
        f"There are no episodes in meta/{path.name}.",
        hint="an unfinished recording has none; finish or restore it",
        file=path,
    )
    return Problem("episodes-missing", wrong)


def _count(value: object, name: str, path: Path, line: int, note: Note) -> int:
    whole = _whole(value)
    if whole is not None and 0 <= whole < 1 << 62:
        if isinstance(value, float):
            note(_stored_as(name, "double", path))
        return whole
    error = MetadataError(f"An episode has no {name}.", file=path, line=line)
    note(Problem("episodes-value-missing", error))
    return int(MISSING)


def texts_of(tasks: object) -> tuple[str, ...]:
    """Return an episode's tasks: a courtesy in v2, so anything odd is shown as it is."""
    if isinstance(tasks, list):
        return tuple(str(task) for task in tasks)
    return () if tasks is None else (str(tasks),)


def _is_regular(table: pa.Table) -> bool:
    """Whether the numbers are whole, and the rest is what the lines say."""
    return all(_is_whole_column(table, name) for name in _NUMBERS) and all(
        _is_as_stored(field.type) for field in table.schema
    )


def _is_as_stored(kind: pa.DataType) -> bool:
    # Arrow takes texts that look like dates for dates, and fills objects up with nulls.
    if pa.types.is_list(kind):
        return _is_as_stored(kind.value_type)
    return is_number(kind) or pa.types.is_string(kind) or pa.types.is_null(kind)


def _is_whole_column(table: pa.Table, name: str) -> bool:
    if name not in table.column_names:
        return False
    column = table.column(name)
    return bool(pa.types.is_integer(column.type)) and column.null_count == 0


# Statistics


def read_stats(path: Path, note: Note = refuse) -> Stats | None:
    """Read ``meta/stats.json``; None where it cannot be parsed."""
    try:
        raw = read_json(path)
    except (MetadataError, DatasetNotFoundError) as error:
        note(Problem("stats-unreadable", error))
        return None
    stats = stats_from_json(raw, where=str(path), note=note)
    return stats if isinstance(raw, Mapping) else None


@dataclass(frozen=True, slots=True)
class RecordedStats:
    """Statistics as v2 records them.

    Attributes:
        whole: The whole dataset's: combined from its episodes', and what only ``stats.json`` says.
        parts: Each episode's (``episode_index``, -1 where it is not said; statistics).
    """

    whole: Stats | None
    parts: Sequence[tuple[int, Stats]] = ()


def read_v2_stats(
    meta: Path,
    note: Note = refuse,
    *,
    lengths: Mapping[int, int] | None = None,
    most_bytes: int | None = None,
) -> RecordedStats | None:
    """Read the statistics of v2.0 (``stats.json``) or v2.1 (``episodes_stats.jsonl``).

    Args:
        meta: The folder of the metadata.
        note: Takes the problems.
        lengths: Frames by ``episode_index``: counts of statistics that have none.
        most_bytes: How much of the episodes' statistics is read; None is all of them.

    Returns:
        The statistics; None where there is no file of any.
    """
    path, each = meta / "stats.json", meta / "episodes_stats.jsonl"
    if not each.exists():
        return RecordedStats(read_stats(path, note)) if path.exists() else None
    parts = []
    for number, line in json_lines(each, _noting("stats-unreadable", note), most_bytes=most_bytes):
        episode = line.get("episode_index")
        if not isinstance(episode, int) or not -1 << 63 <= episode < 1 << 63:
            wrong = MetadataError("Statistics have no episode_index.", file=each, line=number)
            note(Problem("stats-unreadable", wrong, is_fatal=False))
            episode = -1
        stats = stats_from_json(line.get("stats"), where=str(each), note=note, episode=episode)
        length = (lengths or {}).get(episode)
        for kinds in stats.values() if length is not None else ():
            kinds.setdefault("count", np.array([length]))
        parts.append((episode, stats))
    try:
        whole = combine_stats([stats for _, stats in parts])
    except MetadataError as error:
        note(Problem("stats-unreadable", MetadataError(error.what, file=each)))
        return RecordedStats(None, parts)
    if path.exists():
        whole = {**(read_stats(path, note) or {}), **(whole or {})}
    return RecordedStats(whole, parts)


# Files


def _noting(code: str, note: Note) -> Callable[[MetadataError], None]:
    return lambda error: note(Problem(code, error))


def _index_of_pandas(table: pa.Table) -> dict[str, range | None]:
    """Return the columns that pandas takes for a table's index; ranges are stored as such."""
    said = (table.schema.metadata or {}).get(b"pandas", b"")
    if len(said) > _MOST_PANDAS:
        return {}
    found: dict[str, range | None] = {}
    try:
        for each in json.loads(said)["index_columns"]:
            if isinstance(each, str):
                found[each] = None
            elif each["kind"] == "range":
                numbers = range(each["start"], each["stop"], each["step"])
                found[str(each["name"])] = numbers if len(numbers) == len(table) else None
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return {}
    return found


def _task_indices(
    table: pa.Table, labels: Mapping[str, range | None], path: Path, note: Note
) -> Iterable[int | None]:
    """Return the index of each task; None where it is no whole number, which is a problem."""
    stored = labels.get("task_index")
    if "task_index" not in table.column_names and stored is not None:
        return stored
    column = table.column("task_index")
    indices = [_whole(index) for index in column.to_pylist()]
    none = indices.count(None)
    if none or not is_number(column.type):
        wrong = MetadataError("The tasks file has a task_index that is no number.", file=path)
        note(Problem("tasks-unreadable", wrong, count=max(1, none)))
    elif not pa.types.is_integer(column.type):
        note(_stored_as("task_index", column.type, path))
    return indices


def _whole(value: object) -> int | None:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _stored_as(name: str, kind: object, path: Path) -> Problem:
    """Return the problem that whole numbers are stored in another type: every value is there."""
    error = MetadataError(f"The column {name!r} holds {kind}, not whole numbers.", file=path)
    return Problem("column-stored-type", error, is_fatal=False)


def _read_columns(
    path: Path, note: Note, code: str, what: str, is_wanted: Callable[[str], bool]
) -> pa.Table | None:
    """Return columns of a parquet file of metadata; None where it cannot be read."""
    try:
        # Not ``read_table``: that imports pyarrow.dataset and, where it is installed, pandas with
        # it, which takes longer than everything else in opening a dataset.
        with open_parquet(path, kind=MetadataError) as parquet:
            rows = parquet.metadata.num_rows
            if rows > _MOST_ROWS:
                raise MetadataError(f"{what} have {rows:,} rows in one file.", file=path)
            wanted = [name for name in parquet.schema_arrow.names if is_wanted(name)]
            if len(set(wanted)) < len(wanted):
                raise MetadataError(f"{what} have two columns of one name.", file=path)
            return parquet.read(wanted)
    except MetadataError as error:
        note(Problem(code, error))
    except _BROKEN as error:
        wrong = MetadataError(
            f"{what} cannot be read ({first_line(error)}).",
            hint="the file is cut off or was never finished; restore it from a copy",
            file=path,
        )
        note(Problem(code, wrong))
    return None
