"""The episodes of v3.0 and the Lance layouts as their readers use them: columns by position."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from demoreel.errors import DemoreelError, refuse_shortage
from demoreel.layouts.meta import EpisodeList, no_episodes, read_episode_tables
from demoreel.model.problems import refuse
from demoreel.storage.arrow import from_numpy
from demoreel.storage.commit.consistent import consistent_read


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
        self._root = root
        self._folder = (meta or root / "meta") / "episodes"
        self._paths = sorted(self._folder.glob("*/*.parquet"))
        if not self._paths:
            refuse(no_episodes(self._folder))
        names = [path.relative_to(self._folder).as_posix() for path in self._paths]
        columns = read_episode_tables(self._folder, names, cameras).columns
        order = np.argsort(columns["episode_index"], kind="stable")
        self._order = order
        self.columns: dict[str, np.ndarray] = {n: values[order] for n, values in columns.items()}
        self.identity = self._identity()
        self._sorted: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def _identity(self) -> list[tuple[str, int, int]]:
        status = [(path.name, path.stat()) for path in self._paths]
        return [(name, found.st_mtime_ns, found.st_size) for name, found in status]

    def column(self, name: str) -> np.ndarray:
        """Return a column, one value an episode."""
        return self.columns[name]

    @cached_property
    def _tasks(self) -> pa.ChunkedArray | None:
        """The tasks of every episode; None where they cannot be had.

        Files may have been merged, and episodes added, since they were read: rows are found by what
        they say of themselves.
        """
        names = ("episode_index", "length")

        def read() -> EpisodeList:
            paths = sorted(self._folder.glob("*/*.parquet"))
            files = [path.relative_to(self._folder).as_posix() for path in paths]
            return read_episode_tables(self._folder, files, (), more=("tasks",))

        try:
            found = consistent_read(
                self._root, read
            )  # a commit may be merging these files just now
        except DemoreelError as error:
            refuse_shortage(error)
            return None  # a courtesy column: rows name their tasks by task_index
        order = np.argsort(found.columns["episode_index"], kind="stable")[: len(self._order)]
        same = (np.array_equal(found.columns[n][order], self.columns[n]) for n in names)
        if found.tasks is None or not all(same):
            return None
        return found.tasks.take(from_numpy(order))

    def tasks(self, position: int) -> tuple[str, ...]:
        """Return the tasks of the episode at ``position``; none where the column is missing."""
        if self._tasks is None:
            return ()
        return tuple(self._tasks[position].as_py() or ())

    def tasks_of(self, positions: np.ndarray) -> pa.ChunkedArray:
        """Return the tasks of many episodes, as lists of texts."""
        if self._tasks is None:
            return pa.chunked_array([pa.nulls(len(positions), pa.list_(pa.string()))])
        return self._tasks.take(pa.array(positions))

    def sharing(self, position: int, camera: str) -> np.ndarray:
        """Return the positions of the episodes in the same video, ascending."""
        if camera not in self._sorted:
            chunk = self.column(f"videos/{camera}/chunk_index")
            ids = chunk << 32 | self.column(f"videos/{camera}/file_index")
            self._sorted[camera] = (ids, np.argsort(ids, kind="stable"))
        ids, order = self._sorted[camera]
        begin, end = np.searchsorted(ids, [ids[position], ids[position] + 1], sorter=order)
        return np.asarray(np.sort(order[begin:end]))
