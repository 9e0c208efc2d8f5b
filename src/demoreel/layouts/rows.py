"""Rows by position in the dataset: numbers are decoded once, into columns.

Random rows of a compressed table cost a decode each; an indexing operation costs next to nothing.
So numbers are decoded an episode at a time, on first use, into columns as long as the dataset.
Small ones are in memory; large ones in a scratch folder that every process of the machine maps.
"""

from __future__ import annotations

import itertools
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from demoreel.layouts.base import Column
from demoreel.model import Episodes, Feature, Info
from demoreel.storage.commit.consistent import FolderState
from demoreel.storage.scratch import Scratch


def find_rows(
    episodes: Episodes, expected: np.ndarray, episode: np.ndarray, frame: np.ndarray | None
) -> tuple[dict[int, np.ndarray], dict[int, str]]:
    """Find the rows of the expected episodes, in frame order.

    Rows count by ``frame_index``; where a writer got that wrong but the number of rows is right,
    their order in the table is all there is, and it is used.

    Args:
        episodes: The dataset's episodes.
        expected: Positions of the episodes that the table should hold.
        episode: The table's ``episode_index``.
        frame: Its ``frame_index``; None if it has none.

    Returns:
        For each position, the places of its rows; and for those that are not whole, why.
    """
    found: dict[int, np.ndarray] = {}
    problem: dict[int, str] = {}
    order = np.argsort(episode, kind="stable")
    ordered = episode[order]
    for position in expected.tolist():
        number = int(episodes.episode_index[position])
        length = int(episodes.length[position])
        begin, end = np.searchsorted(ordered, [number, number + 1])
        rows = order[begin:end]
        if len(rows) != length:
            problem[position] = (
                f"Episode {number} has {len(rows)} rows in its table; the metadata says {length}."
            )
            continue
        if frame is not None:
            by_frame = np.argsort(frame[rows], kind="stable")
            if np.array_equal(frame[rows][by_frame], np.arange(length)):
                rows = rows[by_frame]
        found[position] = rows.astype(np.int32)
    return found, problem


def runs(target: np.ndarray) -> list[tuple[int, int]]:
    """Return spans of rows that are side by side in the dataset too."""
    if len(target) == 0:
        return []
    cuts = np.flatnonzero(np.diff(target) != 1) + 1
    edges = [0, *cuts.tolist(), len(target)]
    return list(itertools.pairwise(edges))


_MEMORY_BYTES = int(os.environ.get("DEMOREEL_TABLE_MEMORY", 64 << 20))

Fill = Callable[[np.ndarray], None]
"""Decodes the episodes at these positions: calls ``write``, then ``mark_filled``."""


class MemoryColumn:
    """A column in this process's memory; pages that are never filled cost nothing."""

    def __init__(self, rows: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.values = np.zeros((rows, *shape), dtype=dtype)

    def write(self, row: int, values: np.ndarray) -> None:
        """Put values there."""
        self.values[row : row + len(values)] = values


class SharedColumn:
    """A column in a sparse file that every process maps.

    Writing goes through ``pwrite``, not through the map: on a full disk a write to the map kills
    the process, a ``pwrite`` is an ordinary error. Two processes that fill the same rows write the
    same bytes, so no lock is needed.

    Args:
        path: The file; made if it is not there.
        rows: Rows of the column.
        dtype: Type of a value.
        shape: Shape of a row's value.
        reserve: Take the disk space now. For columns that are read before they are written: where
            the disk is memory (tmpfs), looking at a hole takes space too, and kills the process
            if there is none.
    """

    def __init__(
        self,
        path: Path,
        rows: int,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        *,
        reserve: bool = False,
    ) -> None:
        self._row_bytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        total = max(1, rows * self._row_bytes)
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._handle, total)
        if reserve and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._handle, 0, total)
        self._dtype = dtype
        pages = mmap.mmap(self._handle, total, prot=mmap.PROT_READ)
        count = rows * int(np.prod(shape, dtype=np.int64))
        self.values = np.frombuffer(pages, dtype, count).reshape(rows, *shape)

    def write(self, row: int, values: np.ndarray) -> None:
        """Put values there."""
        data = np.ascontiguousarray(values, dtype=self._dtype).reshape(-1).view(np.uint8).data
        at = row * self._row_bytes
        while data:
            written = os.pwrite(self._handle, data, at)
            data = data[written:]
            at += written

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle is not None:
            os.close(handle)


StoredColumn = MemoryColumn | SharedColumn


class PassingColumns:
    """Numeric columns of a few episodes that follow one another, for a reader that needs them once.

    Takes what a ``ColumnStore`` takes, and releases rows of other episodes.

    Args:
        episodes: The dataset's episodes.
        features: Its numeric features.
        first: Position of the first episode.
        stop: One past the position of the last.
    """

    def __init__(
        self, episodes: Episodes, features: Iterable[Feature], first: int, stop: int
    ) -> None:
        self._begin, self._end = int(episodes.start[first]), int(episodes.start[stop])
        rows = self._end - self._begin
        self.columns = {f.key: np.empty((rows, *f.item_shape), f.numpy_dtype) for f in features}

    def write(self, key: str, row: int, values: np.ndarray) -> None:
        """Put a column's values there, from ``row`` on, as far as they belong here."""
        begin, end = max(row, self._begin), min(row + len(values), self._end)
        if begin < end:
            place = slice(begin - self._begin, end - self._begin)
            self.columns[key][place] = values[begin - row : end - row]

    def mark_filled(self, position: int) -> None:
        """Nothing is asked for a second time here."""


class ColumnStore:
    """Numeric columns, addressed by position in the dataset, filled episode by episode.

    Args:
        episodes: The dataset's episodes.
        features: Its numeric features.
        fingerprint: Changes when the dataset does; names the shared scratch folder.
    """

    def __init__(
        self, episodes: Episodes, features: Iterable[Feature], fingerprint: Sequence[object]
    ) -> None:
        self._episodes = episodes
        self._kinds = {f.key: (f.numpy_dtype, f.item_shape) for f in features}
        self._fingerprint = fingerprint
        self._scratch: Scratch | None = None
        self._columns: dict[str, StoredColumn] = {}
        self._filled: StoredColumn = MemoryColumn(0, np.dtype(np.uint8), ())
        self._allocate()

    def _allocate(self) -> None:
        sizes = (t.itemsize * int(np.prod(s, dtype=np.int64)) for t, s in self._kinds.values())
        if self._episodes.total_frames * sum(sizes) > _MEMORY_BYTES:
            try:
                self._allocate_shared()
                return
            except OSError:
                self._scratch = None  # no usable temporary folder: memory has to do
        self._allocate_memory()

    def _allocate_shared(self) -> None:
        self._scratch = Scratch(*self._fingerprint)
        folder = self._scratch.folder
        rows = self._episodes.total_frames
        names = sorted(self._kinds)
        self._columns = {
            key: SharedColumn(folder / f"{names.index(key)}.column", rows, *kind)
            for key, kind in self._kinds.items()
        }
        self._filled = SharedColumn(
            folder / "filled", len(self._episodes), np.dtype(np.uint8), (), reserve=True
        )

    def _allocate_memory(self) -> None:
        rows = self._episodes.total_frames
        self._columns = {key: MemoryColumn(rows, *kind) for key, kind in self._kinds.items()}
        self._filled = MemoryColumn(len(self._episodes), np.dtype(np.uint8), ())

    @property
    def is_shared(self) -> bool:
        """Whether other processes read what is written here."""
        return self._scratch is not None

    def holds(self, key: str) -> bool:
        """Whether a feature is one of the columns."""
        return key in self._columns

    def filled(self) -> np.ndarray:
        """Return the positions of the episodes that are wholly here."""
        return np.flatnonzero(self._filled.values)

    def numbers(self, rows: np.ndarray, keys: Sequence[str], fill: Fill) -> dict[str, np.ndarray]:
        """Return columns of these rows; one indexing operation each once decoded.

        Args:
            rows: Positions in the dataset.
            keys: Features.
            fill: Called for the episodes that are not there yet. It is not kept: a store that
                knew its owner would outlive it, and its scratch folder too.
        """
        self._ensure(rows, fill)
        return {key: self._columns[key].values[rows] for key in keys}

    def _ensure(self, rows: np.ndarray, fill: Fill) -> None:
        positions = self._episodes.positions_of_rows(rows)
        if self._filled.values[positions].all():
            return
        positions = np.unique(positions)
        missing = positions[self._filled.values[positions] == 0]
        try:
            fill(missing)
        except OSError:
            if self._scratch is None:
                raise
            # The scratch disk is full, or the dataset has changed: continue in memory rather than
            # stop a training run.
            self._scratch = None
            self._allocate_memory()
            fill(positions)

    def write(self, key: str, row: int, values: np.ndarray) -> None:
        """Put a column's values there, from ``row`` on."""
        self._columns[key].write(row, values)

    def mark_filled(self, position: int) -> None:
        """Say that the episode at ``position`` is wholly there."""
        self._filled.write(position, np.ones(1, dtype=np.uint8))


class StoredRows(ABC):
    """The rows of a dataset, whose numbers are decoded once; what tables of all kinds share.

    Args:
        info: The dataset's info.
        episodes: Its episodes.
        fingerprint: Changes when the dataset does; names the shared scratch folder.
    """

    def __init__(self, info: Info, episodes: Episodes, fingerprint: Sequence[object]) -> None:
        self._info = info
        self._episodes = episodes
        self._numeric = [f for f in info.features.values() if f.is_numeric]
        self._store = ColumnStore(episodes, self._numeric, fingerprint)

    def read(self, rows: np.ndarray, keys: Sequence[str]) -> dict[str, Column]:
        """Return number columns as arrays and the others as lists, in the order of ``keys``."""
        numeric = self.numbers(rows, [key for key in keys if self._store.holds(key)])
        features = self._info.features
        return {
            key: numeric[key] if key in numeric else self.objects(rows, features[key])
            for key in keys
        }

    def read_once(self, first: int, stop: int) -> dict[str, Column]:
        """Return every column but the cameras' of the episodes at ``first`` to ``stop`` - 1."""
        columns: dict[str, Column] = dict(self.numbers_once(first, stop))
        rows = np.arange(int(self._episodes.start[first]), int(self._episodes.start[stop]))
        for feature in self._info.features.values():
            if feature.is_string or feature.is_language:
                columns[feature.key] = self.objects(rows, feature)
        return columns

    def numbers(self, rows: np.ndarray, keys: Sequence[str]) -> dict[str, np.ndarray]:
        """Return numeric columns of these rows; one indexing operation each once decoded."""
        return self._store.numbers(rows, keys, self._fill)

    def decoded(self, most: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return rows of episodes that were decoded before, and their numbers; no file is read.

        Args:
            most: Episodes to choose, spread over all that were decoded.
        """
        filled = self._store.filled()
        if len(filled) > most:
            filled = filled[np.linspace(0, len(filled) - 1, most).astype(np.intp)]
        start, keys = self._episodes.start, [feature.key for feature in self._numeric]
        spans = [np.arange(int(start[p]), int(start[p + 1])) for p in filled.tolist()]
        rows = np.concatenate([np.zeros(0, np.int64), *spans])
        return rows, self.numbers(rows, keys) if len(rows) else {}

    def numbers_once(self, first: int, stop: int) -> dict[str, np.ndarray]:
        """Return all numeric columns of the episodes at these positions, and keep nothing."""
        passing = PassingColumns(self._episodes, self._numeric, first, stop)
        self._fill(np.arange(first, stop), passing)
        return passing.columns

    @abstractmethod
    def _fill(
        self, positions: np.ndarray, store: ColumnStore | PassingColumns | None = None
    ) -> None:
        """Decode the episodes at these positions, into the store if no other is named."""

    @abstractmethod
    def objects(self, rows: np.ndarray, feature: Feature) -> list[Any]:
        """Return a text, language or image column of these rows as Python values."""


class StoredReader(ABC):
    """The part of a reader that its rows answer.

    Attributes:
        info: What the dataset says of itself.
        state: See ``layouts.base.Reader``.
    """

    info: Info
    state: FolderState | None = None
    _video_cameras: tuple[str, ...]  # the cameras whose images are in videos

    @cached_property
    @abstractmethod
    def _rows(self) -> StoredRows:
        """The dataset's rows."""

    @property
    def is_as_opened(self) -> bool:
        """Whether all files that were opened so far belong to the metadata that were read."""
        return self.state is None or self.state.is_current()

    def in_tables(self, camera: str) -> bool:
        """Whether a camera's images are encoded in the tables, and not in videos."""
        return camera not in self._video_cameras

    def rows(self, rows: np.ndarray, keys: Sequence[str]) -> dict[str, Column]:
        """Return columns of these rows, by position in the dataset."""
        return self._rows.read(rows, keys)

    def rows_once(self, first: int, stop: int) -> dict[str, Column]:
        """Return every column but the cameras' of the episodes at ``first`` to ``stop`` - 1."""
        return self._rows.read_once(first, stop)

    def encoded(self, rows: np.ndarray, camera: str) -> list[bytes]:
        """Return the encoded images of a camera whose images are in the tables."""
        return self._rows.objects(rows, self.info.features[camera])
