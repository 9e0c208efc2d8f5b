"""``ds.reader``: what reads a dataset, under the names that LeRobot users know as well.

``hf_dataset`` has the rows as a ``datasets.Dataset``, with lerobot's values.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import torch

from demoreel.layouts.base import episode_files
from demoreel.model.feature import LANGUAGE_KEYS
from demoreel.read.dataset import Dataset
from demoreel.torch.episodes import hugging_face_datasets

_ROWS_AT_ONCE = 1 << 16


class _Owner(Protocol):
    """Of ``LeRobotDataset``, what its reader hands on to."""

    def __getitem__(self, index: int, /) -> dict[str, Any]: ...
    def set_image_transforms(self, image_transforms: Callable[..., Any] | None) -> None: ...


class ItemReader(Dataset):
    """A dataset as ``demoreel.open`` gives it, with the names that lerobot's reader has.

    Samples (``reader[3]``) are demoreel's; ``get_item`` gives the items of the ``LeRobotDataset``.
    ``episodes`` are those that are read, as everywhere in demoreel, and no list of numbers.
    """

    _owner: Callable[[], _Owner | None] = staticmethod(lambda: None)

    @property
    def has_owner(self) -> bool:
        """Whether it hands on to a dataset that lives."""
        return self._owner() is not None

    def belong_to(self, owner: _Owner) -> None:
        """Hand ``get_item`` and transforms on to this dataset, which lives as long."""
        self._owner = weakref.ref(owner)

    @property
    def num_frames(self) -> int:
        """Frames in the chosen episodes."""
        return len(self)

    @property
    def num_episodes(self) -> int:
        """Chosen episodes."""
        return len(self.episodes)

    @property
    def delta_indices(self) -> dict[str, list[int]] | None:
        """Windows in frames; None if there are none."""
        return {key: offsets.tolist() for key, offsets in self.offsets.items()} or None

    @cached_property
    def hf_dataset(self) -> Any:
        """The rows as a Hugging Face dataset; see ``LeRobotDataset.hf_dataset``."""
        return rows_as_dataset(hugging_face_datasets("hf_dataset"), self)

    @property
    def absolute_to_relative_idx(self) -> RelativeIndices | None:
        """Which item each frame of the chosen episodes is; None if all were chosen."""
        if self._arguments["episodes"] is None:
            return None
        every = self.reader.episodes
        chosen = [every.position_of(int(number)) for number in self.episodes.episode_index]
        return RelativeIndices(every.start[chosen], self.episodes.start)

    _absolute_to_relative_idx = absolute_to_relative_idx  # scripts of lerobot's look here

    def get_episodes_file_paths(self) -> list[str]:
        """Return the tables and videos of the chosen episodes, relative to the root."""
        places = [self.reader.episodes.position_of(int(n)) for n in self.episodes.episode_index]
        cameras = self.reader.info.video_keys
        return episode_files(self.reader, places, cameras=cameras)

    def get_item(self, idx: int) -> dict[str, Any]:
        """Return an item of the ``LeRobotDataset`` that this reads for."""
        owner = self._owner()
        assert owner is not None, "this reader belongs to no LeRobotDataset"
        return owner[idx]

    def set_image_transforms(self, image_transforms: Callable[..., Any] | None) -> None:
        """Apply this to images of ``get_item`` from now on."""
        owner = self._owner()
        if owner is not None:
            owner.set_image_transforms(image_transforms)

    def clear_image_transforms(self) -> None:
        """Hand images out as they are."""
        self.set_image_transforms(None)

    def try_load(self) -> bool:
        """Return that what is read is there, which opening it has found."""
        return True

    def load_and_activate(self) -> None:
        """Do nothing: rows are read when they are asked for."""


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


def rows_as_dataset(datasets: Any, source: Dataset) -> Any:
    """Return the rows of a dataset; see ``LeRobotDataset.hf_dataset``."""
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
