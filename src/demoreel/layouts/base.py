"""The contract between a layout on disk and the rest of demoreel.

A layout says what is there (info, episodes, tasks, statistics), hands out rows by their position in
the dataset, and tells where the images are. It does not decode images: that is ``read``'s work,
the same for every layout.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from demoreel.errors import MetadataError
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
        """Whether its images are in an object store or on the Hub."""
        ...

    def expect(self, images: Mapping[str, np.ndarray]) -> None:
        """Fetch what tells where images are that will be wanted, for all at the same time.

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
        """Whether a camera's images are encoded in the tables, and not in videos.

        What ``info.json`` calls a video may be in tables all the same (lance-frames).
        """
        ...

    def encoded(self, rows: np.ndarray, camera: str) -> list[bytes]:
        """Return the encoded images of a camera whose images are in the tables."""
        ...

    def clip(self, position: int, camera: str) -> VideoClip:
        """Return where the episode at ``position`` is in a camera's videos.

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


def episode_files(
    reader: Reader, positions: Sequence[int], *, cameras: Collection[str]
) -> list[str]:
    """Return the tables and videos that hold episodes of a dataset in LeRobot's own layouts.

    Cost: looks at metadata only; nothing but these need be on this machine.

    Args:
        reader: The dataset.
        positions: Positions of the episodes.
        cameras: Those whose videos are wanted; others, and such as are no videos, cost nothing.
    """
    columns = reader.episode_columns()
    chosen = np.asarray(positions, np.int64)
    found = dict.fromkeys(
        reader.data_file(position) for position in _one_of_each(columns, "data", chosen)
    )
    for camera in (key for key in reader.info.video_keys if key in cameras):
        for position in _one_of_each(columns, f"videos/{camera}", chosen):
            try:
                found[reader.video_file(position, camera)] = None
            except MetadataError:
                continue  # reading the episode says what is wrong with it
    return list(found)


def _one_of_each(
    columns: Mapping[str, np.ndarray], what: str, positions: np.ndarray
) -> Iterator[int]:
    """Yield one position for each file that episodes share; all where they share none."""
    numbers = [columns.get(f"{what}/{name}_index") for name in ("chunk", "file")]
    if len(positions) and all(column is not None for column in numbers):
        pairs = np.stack([column[positions] for column in numbers if column is not None])
        positions = positions[np.sort(np.unique(pairs, axis=1, return_index=True)[1])]
    yield from positions.tolist()
