"""Reading LeRobot v3.0 where it lies."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from demoreel.layouts.base import VideoClip
from demoreel.layouts.file_reader import FileReader
from demoreel.layouts.v3.metadata import V3Metadata
from demoreel.model import Info
from demoreel.storage.folder import DatasetFolder


class V3Reader(FileReader, V3Metadata):
    """A v3.0 dataset.

    Opening reads ``info.json``, the tasks and the number columns of ``meta/episodes``; tables and
    videos are opened when a frame of theirs is asked for.
    """

    layout = "v3.0"

    def __init__(self, folder: DatasetFolder, info: Info) -> None:
        later = folder.later("meta/episodes/")
        V3Metadata.__init__(self, folder.local, info, info.video_keys, before_episodes=later)
        self._lie_in(folder)

    def _tables(self) -> tuple[np.ndarray, Sequence[object]]:
        meta = self._meta
        files = meta.column("data/chunk_index") << 32 | meta.column("data/file_index")
        return files, (os.path.realpath(self.root), *meta.identity)

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

    def clip(self, position: int, camera: str) -> VideoClip:
        """Return where the episode lies in its video, checked against its neighbours there."""
        return self._locate(position, camera, self._video(self.video_file(position, camera)))
