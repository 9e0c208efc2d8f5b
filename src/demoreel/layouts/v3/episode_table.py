"""Reading the files under ``meta/`` that are parquet: episodes and tasks.

v3.0 has them, and so has every Lance layout. The way to disk is ``meta_files.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.errors import MetadataError
from demoreel.model import Tasks
from demoreel.storage.arrow import UNREADABLE, as_numpy
from demoreel.storage.local import refuse_special


class EpisodeTable:
    """The number columns of ``meta/episodes``, in order of episode index; the rest on demand.

    Args:
        root: The dataset's folder.
        cameras: The cameras whose videos the columns must locate.
        meta: The folder of the metadata, if not ``meta`` in ``root``.

    Raises:
        MetadataError: A file is cut off, lacks a column or has missing values, or there is none.
    """

    def __init__(self, root: Path, cameras: Iterable[str], *, meta: Path | None = None) -> None:
        self._folder = (meta or root / "meta") / "episodes"
        self._paths = sorted(self._folder.glob("*/*.parquet"))
        if not self._paths:
            raise MetadataError(
                "There are no episodes in meta/episodes.",
                hint="an unfinished recording has none; finish or restore it",
                dataset=root,
            )
        table = self._read(cameras)
        order = np.argsort(as_numpy(table.column("episode_index")), kind="stable")
        self._order = order
        self.columns: dict[str, np.ndarray] = {
            name: as_numpy(table.column(name))[order] for name in table.column_names
        }
        self.identity = self._identity()
        self._sorted: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def _read(self, cameras: Iterable[str]) -> pa.Table:
        names = ["episode_index", "length", "data/chunk_index", "data/file_index"]
        optional = ["dataset_from_index", "dataset_to_index"]
        for camera in cameras:
            fields = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
            names += [f"videos/{camera}/{field}" for field in fields]
        with ThreadPoolExecutor(8) as pool:  # Arrow reads without the GIL; files may be many
            parts = list(pool.map(lambda path: _read_columns(path, names, optional), self._paths))
        shared = [
            name for name in (*names, *optional) if all(name in p.column_names for p in parts)
        ]
        return pa.concat_tables([part.select(shared) for part in parts])

    def _identity(self) -> list[tuple[str, int, int]]:
        status = [(path.name, path.stat()) for path in self._paths]
        return [(name, found.st_mtime_ns, found.st_size) for name, found in status]

    def column(self, name: str) -> np.ndarray:
        """Return a column, one value an episode."""
        return self.columns[name]

    @cached_property
    def _tasks(self) -> pa.ChunkedArray | None:
        try:
            parts = [_read_parquet(path, columns=["tasks"]) for path in self._paths]
            if self._identity() != self.identity:
                return None  # the files were merged meanwhile, and their rows are others
            return pa.concat_tables(parts).column("tasks")
        except (KeyError, *UNREADABLE):
            return None  # a courtesy column: rows name their tasks by task_index

    def tasks(self, position: int) -> tuple[str, ...]:
        """Return the tasks of the episode at ``position``; none where the column is missing."""
        if self._tasks is None:
            return ()
        return tuple(self._tasks[int(self._order[position])].as_py() or ())

    def tasks_of(self, positions: np.ndarray) -> pa.ChunkedArray:
        """Return the tasks of many episodes, as lists of texts."""
        if self._tasks is None:
            return pa.chunked_array([pa.nulls(len(positions), pa.list_(pa.string()))])
        return self._tasks.take(pa.array(self._order[positions]))

    def sharing(self, position: int, camera: str) -> np.ndarray:
        """Return the positions of the episodes in the same video, ascending."""
        if camera not in self._sorted:
            chunk = self.column(f"videos/{camera}/chunk_index")
            ids = chunk << 32 | self.column(f"videos/{camera}/file_index")
            self._sorted[camera] = (ids, np.argsort(ids, kind="stable"))
        ids, order = self._sorted[camera]
        begin, end = np.searchsorted(ids, [ids[position], ids[position] + 1], sorter=order)
        return np.asarray(np.sort(order[begin:end]))


def _read_parquet(path: Path, columns: list[str] | None = None) -> pa.Table:
    # Not ``read_table``: that imports pyarrow.dataset and, where it is installed, pandas with it,
    # which takes longer than everything else in opening a dataset.
    refuse_special(path)
    with pq.ParquetFile(path) as parquet:
        return parquet.read(columns=columns)


def _read_columns(path: Path, names: list[str], optional: list[str]) -> pa.Table:
    try:
        refuse_special(path)
        with pq.ParquetFile(path) as parquet:
            present = set(parquet.schema_arrow.names)
            absent = [name for name in names if name not in present]
            if absent:
                raise MetadataError(
                    f"The episodes' metadata lacks the column {absent[0]!r}.",
                    hint="info.json and meta/episodes were not written together",
                    file=path,
                )
            wanted = names + [name for name in optional if name in present]
            table = parquet.read(columns=wanted)
    except UNREADABLE as error:
        raise MetadataError(
            f"The episodes' metadata cannot be read ({str(error).splitlines()[0]}).",
            hint="the file is cut off or was never finished; restore it from a copy",
            file=path,
        ) from error
    return _as_numbers(table.select(wanted), path)


def _as_numbers(table: pa.Table, path: Path) -> pa.Table:
    columns = []
    for name in table.column_names:
        column = table.column(name)
        kind = pa.float64() if name.endswith("_timestamp") else pa.int64()
        if column.null_count:
            raise MetadataError(f"The column {name!r} has missing values.", file=path)
        try:
            columns.append(column.cast(kind))
        except pa.ArrowException as error:
            raise MetadataError(f"The column {name!r} does not hold numbers.", file=path) from error
    return pa.table(columns, names=table.column_names)


def read_tasks(path: Path) -> Tasks:
    """Read ``meta/tasks.parquet``: a text column (or pandas index) and ``task_index``.

    Raises:
        MetadataError: The file is missing, cut off, or has other columns.
    """
    try:
        table = _read_parquet(path)
    except UNREADABLE as error:
        raise MetadataError(
            f"The tasks cannot be read ({str(error).splitlines()[0]}).",
            hint="restore the file from a copy",
            file=path,
        ) from error
    texts = next(
        (name for name in ("task", "__index_level_0__") if name in table.column_names), None
    )
    if texts is None or "task_index" not in table.column_names:
        raise MetadataError("The tasks file has no task and task_index columns.", file=path)
    if not pa.types.is_integer(table["task_index"].type) or table["task_index"].null_count:
        raise MetadataError("The tasks file has a task_index that is no number.", file=path)
    indices = table["task_index"].to_pylist()
    return Tasks(dict(zip(indices, map(str, table[texts].to_pylist()), strict=True)))
