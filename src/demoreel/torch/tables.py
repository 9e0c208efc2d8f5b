"""Rows and row numbers as lerobot's own tools ask for them: ``hf_dataset``, relative indices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa

from demoreel.errors import MissingExtraError
from demoreel.read.dataset import Dataset

_ROWS_AT_ONCE = 1 << 16


class RelativeIndices(Mapping[int, int]):
    """Which item a frame of the whole dataset is, where only some episodes were chosen.

    Costs memory by the episode, where a dict would by the frame.

    Args:
        first: The number in the whole dataset of each chosen episode's first frame.
        start: Where each chosen episode begins among the items; one more for the end.
    """

    def __init__(self, first: np.ndarray, start: np.ndarray) -> None:
        order = np.argsort(first)
        self._first = first[order]
        self._start = start[:-1][order]
        self._length = np.diff(start)[order]

    def __getitem__(self, frame: int) -> int:
        place = int(np.searchsorted(self._first, frame, side="right")) - 1
        offset = int(frame) - int(self._first[place]) if place >= 0 else -1
        if not 0 <= offset < self._length[max(place, 0)]:
            raise KeyError(frame)
        return int(self._start[place]) + offset

    def __iter__(self) -> Iterator[int]:
        for place in np.argsort(self._start):
            yield from range(self._first[place], self._first[place] + self._length[place])

    def __len__(self) -> int:
        return int(self._length.sum())


def hf_dataset(dataset: Dataset) -> Any:
    """Return every column but the cameras as a Hugging Face ``datasets.Dataset`` of tensors.

    Cost: reads all rows of the chosen episodes into memory.

    Raises:
        MissingExtraError: ``datasets`` is not installed.
    """
    try:
        datasets = import_module("datasets")
    except ImportError as error:
        raise MissingExtraError(
            "hf_dataset is an object of the package `datasets`, which is not installed.",
            hint="pip install datasets, or read rows with demoreel.open(...)",
        ) from error
    keys = [key for key, feature in dataset.features.items() if not feature.is_camera]
    starts = range(0, len(dataset), _ROWS_AT_ONCE)
    rows = (dataset.rows_of(np.arange(s, min(s + _ROWS_AT_ONCE, len(dataset)))) for s in starts)
    parts = [pa.table(_arrow(dataset.following(partial(_rows, dataset, p, keys)))) for p in rows]
    return datasets.Dataset(pa.concat_tables(parts)).with_format("torch")


def _rows(dataset: Dataset, rows: np.ndarray, keys: list[str]) -> Mapping[str, Any]:
    return dataset.reader.rows(rows, keys)


def _arrow(columns: Mapping[str, Any]) -> dict[str, pa.Array]:
    return {
        key: _nested(column) if isinstance(column, np.ndarray) else pa.array(column)
        for key, column in columns.items()
    }


def _nested(column: np.ndarray) -> pa.Array:
    array = pa.array(column.reshape(-1))
    for size in reversed(column.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array
