"""Rows as ``datasets.Dataset`` has them, with lerobot's values: what ``ds.hf_dataset`` gives."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from demoreel.model.feature import LANGUAGE_KEYS
from demoreel.read.dataset import Dataset

_ROWS_AT_ONCE = 1 << 16


def rows_as_dataset(datasets: Any, source: Dataset) -> Any:
    """Return the rows of a dataset; see ``LeRobotDataset.hf_dataset``.

    Args:
        datasets: The package.
        source: The dataset.
    """
    total, images = len(source), _images(source)
    keys = [key for key, feature in source.features.items() if not feature.is_camera]
    parts = []
    for begin in range(0, total, _ROWS_AT_ONCE):
        items = np.arange(begin, min(begin + _ROWS_AT_ONCE, total))
        rows = source.rows_of(items)
        # Asked of the reader anew each time: it may have followed files that were moved.
        columns = source.following(partial(_rows, source, rows, keys))
        table = _arrow(columns) | {key: pa.array(items) for key in images}
        parts.append(pa.table(table))
    order = [key for key in source.features if key in keys or key in images]
    made = datasets.Dataset(pa.concat_tables(parts).select(order))
    made.set_transform(_Tensors(source, images))
    return made


class _Tensors:
    """Makes tensors of a batch of rows, as lerobot does.

    Args:
        source: Reads the images.
        images: Columns that hold the number of an item instead of its image.
    """

    def __init__(self, source: Dataset, images: tuple[str, ...]) -> None:
        self._images = {key: _images_of(source, key) for key in images}

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return {key: self._values(key, values) for key, values in batch.items()}

    def _values(self, key: str, values: list[Any]) -> list[Any]:
        if key in self._images:
            return [self.image(key, int(number)) for number in values]
        if key in LANGUAGE_KEYS or not values or values[0] is None or isinstance(values[0], dict):
            return values
        return [value if isinstance(value, str) else torch.tensor(value) for value in values]

    def image(self, camera: str, item: int) -> torch.Tensor:
        """Return an image as lerobot's rows have it: floats up to 1; depth in the unit it has."""
        source = self._images[camera]
        image = torch.from_numpy(source.batch([item])[camera][0])
        return image / 255.0 if image.dtype is torch.uint8 else image


def raw_item(source: Dataset, index: int) -> dict[str, Any]:
    """Return one row as ``rows_as_dataset`` has it."""
    images = _images(source)
    keys = [key for key, feature in source.features.items() if not feature.is_camera]
    place = range(len(source))[index]
    columns = source.following(partial(_rows, source, source.rows_of(np.array([place])), keys))
    tensors = _Tensors(source, images)
    row: dict[str, Any] = {}
    for key in source.features:
        if key in images:
            row[key] = tensors.image(key, place)
        elif key in keys:
            column = columns[key]
            values = column.tolist() if isinstance(column, np.ndarray) else list(column)
            row[key] = tensors({key: values})[key][0]
    return row


def _images(source: Dataset) -> tuple[str, ...]:
    return tuple(key for key in source.cameras if source.features[key].is_image)


def _images_of(source: Dataset, camera: str) -> Dataset:
    """Return what reads the stored images of a camera, and nothing else."""
    stored = source.features[camera].info.get("depth_unit")
    unit = {} if stored not in ("m", "mm") else {"depth_unit": stored}
    return source.changed(cameras=[camera], windows={}, image_size=None, **unit)


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
