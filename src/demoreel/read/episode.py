"""One episode of a dataset: its columns, and its images in order."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from demoreel.errors import ArgumentError, UnknownKeyError, nearest
from demoreel.layouts.base import Column, Reader
from demoreel.media.decode import group_frames
from demoreel.media.video import VideoClip
from demoreel.model import Episode, Feature
from demoreel.read.cameras import Camera

if TYPE_CHECKING:
    from demoreel.read.dataset import Dataset

_FRAMES_AT_ONCE = 64


class EpisodeView:
    """One episode of a dataset; made by ``Dataset.episode``."""

    def __init__(self, dataset: Dataset, position: int) -> None:
        self._dataset = dataset
        self._position = position

    @property
    def _reader(self) -> Reader:
        return self._dataset.reader

    @property
    def meta(self) -> Episode:
        """Its metadata: index, length, tasks, files."""
        return self._reader.episodes[self._position]

    def __len__(self) -> int:
        return int(self._reader.episodes.length[self._position])

    def column(self, key: str) -> Column:
        """Return a whole column: an array of (frames, ...), or a list for text and language.

        Never opens a video.

        Raises:
            UnknownKeyError: There is no such column.
        """
        features = self._reader.info.features
        columns = [name for name, feature in features.items() if not feature.is_camera]
        if key not in columns:
            hint = nearest(key, columns)
            if key in features:
                hint = f"{key!r} is a camera: use frames({key!r})"
            raise UnknownKeyError(
                f"There is no column {key!r}.", hint=hint, dataset=self._reader.root
            )
        rows = self._rows(0, len(self))
        return self._dataset.following(lambda: self._reader.rows(rows, [key])[key])

    def frames(self, camera: str, start: int = 0, stop: int | None = None) -> Iterator[np.ndarray]:
        """Iterate over a camera's images in order: (height, width, 3), uint8.

        Depth cameras give (height, width) float32 in millimetres. Memory stays bounded: about 64
        images are decoded at a time, or one GOP where that is larger.

        Args:
            camera: The camera's key.
            start: First frame.
            stop: One past the last frame; None is the end.

        Raises:
            UnknownKeyError: There is no such camera.
            ArgumentError: The span is not inside the episode.
        """
        features = self._reader.info.features
        if camera not in self._reader.info.cameras:
            raise UnknownKeyError(
                f"There is no camera {camera!r}.",
                hint=nearest(camera, self._reader.info.cameras),
                dataset=self._reader.root,
            )
        end = len(self) if stop is None else stop
        if not 0 <= start <= end <= len(self):
            raise ArgumentError(f"Frames {start} to {end} are not inside {len(self)} frames.")
        return self._images(features[camera], start, end)

    def _images(self, camera: Feature, start: int, stop: int) -> Iterator[np.ndarray]:
        follow = self._dataset.following
        for rows in follow(lambda: list(self._portions(camera.key, start, stop))):
            for image in follow(partial(self._decoded, camera, rows)):
                yield image[0] if len(image) == 1 else image.transpose(1, 2, 0)

    def _decoded(self, camera: Feature, rows: np.ndarray) -> np.ndarray:
        out, jobs = Camera(self._reader, camera, None, "mm").plan(rows, np.empty)
        self._dataset.decode_pool.run(jobs)
        return out

    def _portions(self, camera: str, start: int, stop: int) -> Iterator[np.ndarray]:
        """Cut the rows into portions that end where GOPs end."""
        rows = self._rows(start, stop)
        if self._reader.in_tables(camera):
            for at in range(0, len(rows), _FRAMES_AT_ONCE):
                yield rows[at : at + _FRAMES_AT_ONCE]
            return
        if len(rows) == 0:
            return
        clip = self._reader.clip(self._position, camera)
        portion: list[int] = []
        for group in group_frames(clip.video.index, clip.frames(np.arange(start, stop))):
            portion += group
            if len(portion) >= _FRAMES_AT_ONCE:
                yield self._rows_of_frames(portion, clip)
                portion = []
        if portion:
            yield self._rows_of_frames(portion, clip)

    def _rows_of_frames(self, frames: list[int], clip: VideoClip) -> np.ndarray:
        begin = int(self._reader.episodes.start[self._position])
        return (np.sort(np.array(frames, dtype=np.int64)) - clip.first) // clip.step + begin

    def _rows(self, start: int, stop: int) -> np.ndarray:
        begin = int(self._reader.episodes.start[self._position])
        return np.arange(begin + start, begin + stop, dtype=np.int64)
