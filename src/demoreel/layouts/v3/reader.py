"""Reading LeRobot v3.0 where it lies."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from demoreel.layouts.base import Clip, Column
from demoreel.layouts.rows import ParquetRows, Rows, rows_of, rows_once
from demoreel.layouts.v3.metadata import V3Metadata
from demoreel.media.video import Video, open_video
from demoreel.model import Info


class V3Reader(V3Metadata):
    """A v3.0 dataset on this machine's disk.

    Opening reads ``info.json``, the tasks and the number columns of ``meta/episodes``; tables and
    videos are opened when a frame of theirs is asked for.
    """

    layout = "v3.0"

    def __init__(
        self, root: Path, info: Info, *, before_episodes: Callable[[], None] | None = None
    ) -> None:
        super().__init__(root, info, filmed=info.video_keys, before_episodes=before_episodes)

    @cached_property
    def _rows(self) -> Rows:
        return ParquetRows(
            self.root,
            self.info,
            self.episodes,
            self.data_file,
            self._meta.column("data/chunk_index") << 32 | self._meta.column("data/file_index"),
            (os.path.realpath(self.root), *self._meta.identity),
        )

    def rows(self, rows: np.ndarray, keys: Sequence[str]) -> dict[str, Column]:
        """Return columns of these rows, by position in the dataset."""
        return rows_of(self._rows, self.info, rows, keys)

    def rows_once(self, first: int, stop: int) -> dict[str, Column]:
        """Return every column but the cameras' of the episodes at ``first`` to ``stop`` - 1."""
        return rows_once(self._rows, self.info, self.episodes, first, stop)

    def encoded(self, rows: np.ndarray, camera: str) -> list[bytes]:
        """Return the encoded pictures of an image camera."""
        return self._rows.objects(rows, self.info.features[camera])

    def data_file(self, position: int) -> str:
        """Return the table of the episode at ``position``."""
        return self.info.data_path.format(
            chunk_index=int(self._meta.column("data/chunk_index")[position]),
            file_index=int(self._meta.column("data/file_index")[position]),
        )

    def video_file(self, position: int, camera: str) -> str:
        """Return the video of the episode at ``position``."""
        assert self.info.video_path is not None
        chunk, file = self._video_numbers(position, camera)
        return self.info.video_path.format(video_key=camera, chunk_index=chunk, file_index=file)

    def clip(self, position: int, camera: str) -> Clip:
        """Return where the episode lies in its video, checked against its neighbours there."""
        return self._locate(position, camera, self._video(self.video_file(position, camera)))

    def _video(self, name: str) -> Video:
        return open_video(self.root / name)
