"""Writes LeRobot v3.0: many episodes in each table and each video.

``files.py`` names the files, ``writing.TableWriter`` writes rows, ``episode_columns`` makes what
``meta/episodes`` says of an episode, ``write_metadata`` writes all of ``meta/``. With these
``V3Writer`` makes a whole dataset, the appender (``appender.py``) adds an episode at a time, and
``edit`` and ``repair`` write what they have planned.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.layouts.spans import require_frames
from demoreel.layouts.v3.files import FilePlace, Files, files_of, place_columns
from demoreel.layouts.writing import (
    EpisodeDraft,
    PathLike,
    ProbedVideo,
    TableWriter,
    Writer,
    write_json,
)
from demoreel.media.remux import join
from demoreel.model import Info, Stats, stats_to_json
from demoreel.storage.arrow import from_numpy, from_texts

_ROWS_AT_ONCE = 256  # rows of metadata that are held as Python objects

_MOST_MOULDS = 8  # one for each task that the robot is given in turn
_KINDS = {pa.int64(): np.dtype("<i8"), pa.float64(): np.dtype("<f8")}


class V3Writer(Writer):
    """Writes a v3.0 dataset.

    Memory stays bounded: tables are written as they come (one row group an episode), videos are
    joined when a file is full.
    """

    versions = ("v3.0",)

    def __init__(self, root: PathLike, info: Info) -> None:
        super().__init__(root, info)
        tables, videos, self._metadata = files_of(info)
        self._tables = _TableFiles(self.root, tables, self._intake.schema)
        self._videos = {
            key: _VideoFiles(self.root, files, key, info.fps) for key, files in videos.items()
        }
        self._rows: list[dict[str, Any]] = []
        self._parts: list[pa.Table] = []

    def _write(
        self, draft: EpisodeDraft, table: pa.Table, videos: Mapping[str, ProbedVideo]
    ) -> None:
        row = episode_columns(
            self._intake.episodes,
            tasks=draft.task_names,
            length=draft.length,
            start=self._intake.frames,
            table=self._tables.add(table),
            videos={key: files.add(videos[key]) for key, files in self._videos.items()},
            fps=self.info.fps,
        )
        self._rows.append({**row, **stat_columns(draft.stats)})
        if len(self._rows) >= _ROWS_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            schema = self._parts[0].schema if self._parts else None
            self._parts.append(episode_rows(self._rows, schema))
            self._rows = []

    def _finish(self, info: Info, stats: Stats | None) -> None:
        self._tables.close()
        for files in self._videos.values():
            files.flush()
        self._flush()
        write_metadata(
            self.root / "meta", info, pa.concat_tables(self._parts), self._intake.tasks, stats=stats
        )

    def close(self) -> None:
        """Let go of open files without finishing the dataset. Safe to call at any time."""
        self._tables.close()


class _TableFiles:
    """The files under ``data/``: a row group an episode, a new file when one is full."""

    def __init__(self, root: Path, files: Files, schema: pa.Schema) -> None:
        self._root = root
        self._files = files
        self._schema = schema
        self._writer: TableWriter | None = None
        self._place = files.upcoming

    def add(self, table: pa.Table) -> FilePlace:
        if self._writer is not None:
            size = self._writer.size
            if size + len(table) * size / self._writer.rows > self._files.limit:
                self.close()
        if self._writer is None:
            self._place = self._files.skip()
            self._writer = TableWriter(self._root / self._files.name_of(self._place), self._schema)
        self._writer.write(table)
        return self._place

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None


@dataclass(slots=True)
class _VideoFiles:
    """One camera's files under ``videos/``: episodes wait until a file is full, then are joined."""

    root: Path
    files: Files
    camera: str
    fps: float
    waiting: list[ProbedVideo] = field(default_factory=list)
    frames: int = 0
    bytes: int = 0

    def add(self, video: ProbedVideo) -> tuple[FilePlace, float]:
        """Return the file of an episode's video, and when it begins there."""
        full = self.bytes + video.size > self.files.limit
        # Videos that cannot share a file (another encoder version, say) need not.
        differs = bool(self.waiting) and self.waiting[0].signature != video.signature
        if self.waiting and (full or differs):
            self.flush()
        start, self.frames = self.frames, self.frames + video.frames
        self.bytes += video.size
        self.waiting.append(video)
        return self.files.upcoming, start / self.fps

    def flush(self) -> None:
        """Join the waiting videos into their file."""
        target = self.root / self.files.name_of(self.files.skip())
        target.parent.mkdir(parents=True, exist_ok=True)
        require_frames(
            join([video.path for video in self.waiting], target, fps=self.fps),
            self.frames,
            of="joined video",
            shared=True,
            hint="a video was changed after its episode was added",
            camera=self.camera,
            file=target,
        )
        self.waiting, self.frames, self.bytes = [], 0, 0


# meta/


def episode_columns(
    index: Any,
    *,
    tasks: Any,
    length: Any,
    start: Any,
    table: tuple[Any, Any],
    videos: Mapping[str, tuple[tuple[Any, Any], Any]],
    fps: float,
) -> dict[str, Any]:
    """Return what ``meta/episodes`` says of an episode: what it is, and where it is.

    Args:
        index: Its number. This and all below may be arrays, of many episodes.
        tasks: Its tasks.
        length: Its frames.
        start: The number of its first frame in the dataset.
        table: Chunk and number of the table with its rows.
        videos: For each camera those of the video with its frames, and the second at which they
            begin there.
        fps: Frames per second.
    """
    row = {
        "episode_index": index,
        "tasks": tasks,
        "length": length,
        **place_columns("data", table),
        "dataset_from_index": start,
        "dataset_to_index": start + length,
    }
    for camera, (place, begin) in videos.items():
        row |= place_columns(f"videos/{camera}", place)
        row[f"videos/{camera}/from_timestamp"] = begin
        row[f"videos/{camera}/to_timestamp"] = begin + length / fps
    return row


def stat_columns(stats: Stats) -> dict[str, np.ndarray]:
    """Return the columns of ``meta/episodes`` that hold an episode's statistics."""
    return {
        f"stats/{key}/{name}": np.asarray(value)
        for key, kinds in stats.items()
        for name, value in kinds.items()
    }


def write_metadata(
    meta: Path,
    info: Info,
    episodes: pa.Table,
    tasks: Mapping[str, int],
    *,
    details: Mapping[str, Mapping[str, Any]] | None = None,
    stats: Stats | None = None,
) -> None:
    """Write all of ``meta/``; nothing is synced to disk.

    Args:
        meta: The folder; it is made.
        info: What the dataset is, with its totals.
        episodes: What is known of each episode, without the columns that name this very file.
        tasks: The number of each text.
        details: What else is said of a task, by its text.
        stats: Statistics of the whole dataset; without them there is no ``stats.json``.
    """
    _, _, files = files_of(info)
    for name, number in files.columns(files.upcoming).items():
        episodes = episodes.append_column(name, from_numpy(np.full(len(episodes), number)))
    path = meta.parent / files.name_of(files.upcoming)
    path.parent.mkdir(parents=True)
    pq.write_table(episodes, path, compression="snappy")
    write_tasks(meta / "tasks.parquet", tasks, details)
    if stats is not None:
        write_json(meta / "stats.json", stats_to_json(stats))
    write_json(meta / "info.json", info.to_json())


def episode_rows(rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None = None) -> pa.Table:
    """Return a table of episodes, in the columns of those before them.

    Args:
        rows: What is known of each episode; statistics are arrays.
        schema: The columns of the files before; what they lack is left out, what a row lacks is
            missing in it. None: the first row decides.
    """
    if schema is None:
        schema = pa.schema([(name, _kind_of(value)) for name, value in rows[0].items()])
    columns = [
        pa.array([_fitting(row.get(field.name), field.type) for row in rows], field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _kind_of(value: Any) -> pa.DataType:
    """Return the column type for a value: statistics are lists as deep as their shape."""
    if isinstance(value, list):
        return pa.list_(pa.string())
    if isinstance(value, np.ndarray):
        kind = pa.int64() if value.dtype.kind in "iu" else pa.float64()
        for _ in range(max(1, value.ndim)):
            kind = pa.list_(kind)
        return kind
    return pa.int64() if isinstance(value, int) else pa.float64()


def _fitting(value: Any, kind: pa.DataType) -> Any:
    """Return a value for a column of this type; None where it would lose something."""
    if not isinstance(value, np.ndarray):
        return value
    depth = 0
    while pa.types.is_list(kind):
        kind, depth = kind.value_type, depth + 1
    array = np.atleast_1d(value)
    if array.ndim != depth:
        return None
    if pa.types.is_integer(kind) and array.dtype.kind == "f":
        whole = np.isfinite(array).all() and np.array_equal(array, np.round(array))
        return array.astype(np.int64).tolist() if whole else None
    return array.tolist()


def write_tasks(
    path: Path, tasks: Mapping[str, int], details: Mapping[str, Mapping[str, Any]] | None = None
) -> None:
    """Write the tasks so that pandas reads them with the texts as index, as lerobot expects.

    Args:
        path: The file to make.
        tasks: The number of each text.
        details: What else is said of a task, by its text: more columns.
    """
    text = {"pandas_type": "unicode", "numpy_type": "object", "metadata": None}
    number = {"pandas_type": "int64", "numpy_type": "int64", "metadata": None}
    pandas = {
        "index_columns": ["task"],
        "column_indexes": [
            {**text, "name": None, "field_name": None, "metadata": {"encoding": "UTF-8"}}
        ],
        "columns": [
            {"name": "task_index", "field_name": "task_index", **number},
            {"name": "task", "field_name": "task", **text},
        ],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.2.0",
    }
    table = pa.table(
        {
            "task_index": from_numpy(np.array(list(tasks.values()), np.int64)),
            "task": from_texts(list(tasks)),
            **_more_columns(tasks, details or {}),
        }
    ).replace_schema_metadata({"pandas": json.dumps(pandas)})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="snappy")


def _more_columns(
    tasks: Mapping[str, int], details: Mapping[str, Mapping[str, Any]]
) -> dict[str, pa.Array]:
    """Return what else is said of tasks, as columns; as JSON where values have no common type."""
    rows = [details.get(text, {}) for text in tasks]
    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        try:
            columns[name] = pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            texts = [None if value is None else json.dumps(value, default=str) for value in values]
            columns[name] = pa.array(texts, pa.string())
    return columns


@dataclass(frozen=True, slots=True)
class _Mould:
    """A file, and where in it the numbers of each column are.

    Attributes:
        shapes: The shape of each column's numbers, and the value of each that is no number.
        data: The file.
        ends: Where each column's numbers end; they are the last of its page.
    """

    shapes: list[Any]
    data: bytes
    ends: dict[str, int]


class RowFiles:
    """Makes files of one row, all of the same columns: metadata of episodes appended one by one.

    A row has a column for everything that is known of an episode, more than a hundred of them, and
    from one episode to the next only numbers change. So the first file is written by Arrow, which
    takes milliseconds, and the next ones are that file with other numbers in it: byte for byte what
    Arrow would have written.

    Args:
        metadata: Entries that each file's schema is to have, beside its own.
    """

    def __init__(self, metadata: Mapping[bytes, bytes]) -> None:
        self._metadata = dict(metadata)
        self._columns: pa.Schema | None = None
        self._kinds: dict[str, tuple[np.dtype[Any], int] | None] = {}
        self._moulds: deque[_Mould] = deque(maxlen=_MOST_MOULDS)

    def encoded(self, row: Mapping[str, Any], schema: pa.Schema | None) -> bytes:
        """Return a file.

        Args:
            row: What is known of the episode, as for ``episode_rows``.
            schema: The columns of the files before; None: the row decides.
        """
        if self._columns is None or not (schema is None or schema.equals(self._columns)):
            self._moulds.clear()
            return self._write(row, schema)
        numbers, shapes = self._numbers(row)
        mould = next((mould for mould in self._moulds if mould.shapes == shapes), None)
        if mould is None:
            return self._write(row, schema)
        data = bytearray(mould.data)
        for name, values in numbers.items():
            end = mould.ends[name]
            data[end - len(values) : end] = values
        return bytes(data)

    def _write(self, row: Mapping[str, Any], schema: pa.Schema | None) -> bytes:
        """Have Arrow write the file; keep it as a mould if its numbers are found in it."""
        table = episode_rows([row], schema)
        known = table.schema.metadata or {}
        table = table.replace_schema_metadata({**known, **self._metadata})
        buffer = pa.BufferOutputStream()
        # Of one row neither a dictionary nor extremes are of use; merging writes both.
        pq.write_table(
            table, buffer, compression="none", use_dictionary=False, write_statistics=False
        )
        data: bytes = buffer.getvalue().to_pybytes()
        self._columns = table.schema
        self._kinds = {field.name: _numbers_of_type(field.type) for field in table.schema}
        numbers, shapes = self._numbers(row)
        ends = _ends_of_columns(data, table.schema)
        found = all(data[ends[n] - len(v) : ends[n]] == v for n, v in numbers.items() if n in ends)
        if found and numbers.keys() <= ends.keys():
            self._moulds.append(_Mould(shapes, data, ends))
        return data

    def _numbers(self, row: Mapping[str, Any]) -> tuple[dict[str, bytes], list[Any]]:
        """Return the bytes of the numbers that may change, and what must not for that."""
        numbers: dict[str, bytes] = {}
        shapes: list[Any] = []
        for name, value in row.items():
            if name not in self._kinds:
                continue  # left out of every file
            array = _as_stored(value, self._kinds[name])
            if array is not None:
                shapes.append((name, array.shape))
                numbers[name] = array.tobytes()
            else:
                shapes.append((name, value.tolist() if isinstance(value, np.ndarray) else value))
        return numbers, shapes


def _numbers_of_type(kind: pa.DataType) -> tuple[np.dtype[Any], int] | None:
    """Return type and depth of a column of numbers, or of lists of them; None of others."""
    depth = 0
    while pa.types.is_list(kind):
        kind, depth = kind.value_type, depth + 1
    return (_KINDS[kind], depth) if kind in _KINDS else None


def _as_stored(value: Any, kind: tuple[np.dtype[Any], int] | None) -> np.ndarray | None:
    """Return numbers as a column holds them; None where it does not hold just these."""
    if kind is None or not isinstance(value, np.ndarray | int | float):
        return None
    wanted, depth = kind
    array = np.atleast_1d(value) if depth else np.asarray(value)
    if array.dtype.kind not in "if" or array.ndim != depth or not array.size:
        return None
    if array.dtype == wanted:
        return array
    fitting = array.astype(wanted)
    return fitting if np.array_equal(fitting, array) else None


def _ends_of_columns(data: bytes, schema: pa.Schema) -> dict[str, int]:
    """Return where the only page of each column ends; nothing where columns have several parts."""
    metadata = pq.read_metadata(pa.BufferReader(data))
    if metadata.num_columns != len(schema) or metadata.num_row_groups != 1:
        return {}
    columns = [metadata.row_group(0).column(number) for number in range(len(schema))]
    return {
        name: column.data_page_offset + column.total_compressed_size
        for name, column in zip(schema.names, columns, strict=True)
        if not column.has_dictionary_page
    }
