"""What v2.0, v2.1 and v3.0 share: tables and videos that are files of the dataset's folder."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from demoreel.layouts.base import Column
from demoreel.layouts.rows import ParquetRows, rows_of, rows_once
from demoreel.media.video import Video, Videos
from demoreel.model import Episodes, Info
from demoreel.storage.commit.consistent import FolderState
from demoreel.storage.folder import DatasetFolder
from demoreel.storage.local import is_pointer_file


class FileReader:
    """Reads rows and videos from files, wherever they lie.

    Attributes:
        folder: The dataset's folder.
        is_remote: Whether reads wait for a server.
    """

    root: Path
    info: Info
    episodes: Episodes
    folder: DatasetFolder
    is_remote: bool
    video_file: Callable[[int, str], str]
    data_file: Callable[[int], str]
    episode_columns: Callable[[], Mapping[str, np.ndarray]]
    state: FolderState | None

    def _lie_in(self, folder: DatasetFolder) -> None:
        self.folder = folder
        self.is_remote = folder.waits
        self._videos = Videos(folder)

    @abstractmethod
    def _tables(self) -> tuple[np.ndarray, Sequence[object]]:
        """Return the number of each episode's table, and what changes when the dataset does."""

    @cached_property
    def _rows(self) -> ParquetRows:
        files, fingerprint = self._tables()
        return ParquetRows(
            self.folder, self.info, self.episodes, self.data_file, files, fingerprint, self.state
        )

    def in_tables(self, camera: str) -> bool:
        """Whether a camera's images lie encoded in the tables, and not in videos."""
        return self.info.features[camera].is_image

    def expect(self, images: Mapping[str, np.ndarray]) -> None:
        """Begin to open the videos in which images lie that will be wanted, where reads wait.

        Args:
            images: The rows of which images are wanted, by camera.
        """
        if not self.folder.waits:
            return
        for camera, rows in images.items():
            if not self.in_tables(camera):
                positions = np.unique(self.episodes.positions_of_rows(rows)).tolist()
                self._videos.begin(self.video_file(position, camera) for position in positions)

    def rows(self, rows: np.ndarray, keys: Sequence[str]) -> dict[str, Column]:
        """Return columns of these rows, by position in the dataset."""
        return rows_of(self._rows, self.info, rows, keys)

    def rows_once(self, first: int, stop: int) -> dict[str, Column]:
        """Return every column but the cameras' of the episodes at ``first`` to ``stop`` - 1."""
        return rows_once(self._rows, self.info, self.episodes, first, stop)

    def encoded(self, rows: np.ndarray, camera: str) -> list[bytes]:
        """Return the encoded images of an image camera."""
        return self._rows.objects(rows, self.info.features[camera])

    def absent(self) -> tuple[list[str], list[str]]:
        """Return the tables and videos that are not on this disk, and those not fetched by Git LFS.

        Cost: a stat a file.
        """
        names: dict[str, None] = {}
        for position in range(len(self.episodes)):
            names[self.data_file(position)] = None
            for camera in self.info.video_keys:
                names[self.video_file(position, camera)] = None
        sizes = {name: self.folder.known_size(name) for name in names}
        pointers = [n for n, size in sizes.items() if is_pointer_file(self.root / n, size or 0)]
        return [name for name, size in sizes.items() if size is None], pointers

    def _video(self, name: str) -> Video:
        return self._videos.open(name)
