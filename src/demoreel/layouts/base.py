"""The contract between a layout on disk and the rest of demoreel.

A layout says what is there (info, episodes, tasks, statistics), hands out rows by their position in
the dataset, and tells where the images are. It does not decode images: that is ``read``'s work,
the same for every layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from demoreel.media.video import VideoClip
from demoreel.model import Episodes, Info, Stats, Tasks
from demoreel.storage.commit.consistent import FolderState

Column = np.ndarray | list[Any]
"""A column of rows: an array for numbers, a list for text and language."""


class Reader(Protocol):
    """What every layout's reader offers.

    Attributes:
        layout: The layout's name.
        root: The dataset's folder.
        meta: The folder of its metadata: of an older version of a Lance dataset, that version's.
        info: What the dataset says of itself.
        tasks: Its tasks.
        state: The state of the folder that they belong to; None where objects in a store are
            pinned one by one.
    """

    layout: str
    root: Path
    meta: Path
    info: Info
    tasks: Tasks
    state: FolderState | None

    @property
    def is_as_opened(self) -> bool:
        """Whether all files that were opened so far belong to the metadata that were read."""
        ...

    @property
    def is_remote(self) -> bool:
        """Whether its images lie in an object store or on the Hub."""
        ...

    def expect(self, images: Mapping[str, np.ndarray]) -> None:
        """Fetch what tells where images lie that will be wanted, for all at the same time.

        Does nothing where the dataset is local.

        Args:
            images: The rows of which images are wanted, by camera.
        """
        ...

    @property
    def episodes(self) -> Episodes:
        """Its episodes."""
        ...

    @property
    def stats(self) -> Stats | None:
        """Statistics of the whole dataset; None where the dataset has none."""
        ...

    def rows(self, rows: np.ndarray, keys: Sequence[str]) -> dict[str, Column]:
        """Return columns of these rows, by position in the dataset, in the order asked for."""
        ...

    def rows_once(self, first: int, stop: int) -> dict[str, Column]:
        """Return every column but the cameras' of the episodes at ``first`` to ``stop`` - 1.

        For a reader that goes through the dataset once: nothing is kept for the next call.
        """
        ...

    def in_tables(self, camera: str) -> bool:
        """Whether a camera's images lie encoded in the tables, and not in videos.

        What ``info.json`` calls a video may lie in tables all the same (lance-frames).
        """
        ...

    def encoded(self, rows: np.ndarray, camera: str) -> list[bytes]:
        """Return the encoded images of a camera whose images lie in the tables."""
        ...

    def clip(self, position: int, camera: str) -> VideoClip:
        """Return where the episode at ``position`` lies in a camera's videos.

        Raises:
            VideoError: The video is missing or broken.
            FrameMismatchError: Metadata and video do not agree about its frames.
        """
        ...

    def episode_columns(self) -> Mapping[str, np.ndarray]:
        """Return per-episode numbers by the names that LeRobot v3.0 gives them."""
        ...

    def data_file(self, position: int) -> str:
        """Return the table of the episode at ``position``, relative to the root."""
        ...

    def video_file(self, position: int, camera: str) -> str:
        """Return the video of the episode at ``position``, relative to the root."""
        ...
