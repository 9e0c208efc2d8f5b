"""Reading v2.0, v2.1 and v3.0 where they lie far away; their metadata lie in a copy here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial

import numpy as np

from demoreel.layouts.base import Column, Reader
from demoreel.layouts.far_rows import FarRows
from demoreel.layouts.lance_reader import LanceReader
from demoreel.layouts.rows import rows_once
from demoreel.layouts.v2.reader import V2Reader
from demoreel.layouts.v3.reader import V3Reader
from demoreel.media.far_video import FarVideos
from demoreel.media.video import Video
from demoreel.model import Episodes, Info
from demoreel.storage.far.folder import FarFolder


class _Far:
    """What both share: files that are opened where they lie.

    Attributes:
        far: The dataset's folder.
        videos: Its videos.
    """

    info: Info
    episodes: Episodes
    data_file: Callable[[int], str]

    def _lie_in(self, folder: FarFolder) -> None:
        self.far = folder
        self.videos = FarVideos(folder)

    @cached_property
    def _rows(self) -> FarRows:
        return FarRows(self.far, self.info, self.episodes, self.data_file)

    def rows_once(self, first: int, stop: int) -> dict[str, Column]:
        """Return every column but the cameras' of the episodes at ``first`` to ``stop`` - 1."""
        return rows_once(self._rows, self.info, self.episodes, first, stop)

    def _video(self, name: str) -> Video:
        return self.videos.open(name)


class FarV3Reader(_Far, V3Reader):
    """A v3.0 dataset that lies far away.

    Args:
        folder: The dataset's folder.
        info: Its info.
    """

    def __init__(self, folder: FarFolder, info: Info) -> None:
        V3Reader.__init__(self, folder.local, info, before_episodes=episodes_later(folder))
        self._lie_in(folder)


class FarV2Reader(_Far, V2Reader):
    """A v2.0 or v2.1 dataset that lies far away.

    Args:
        folder: The dataset's folder.
        info: Its info.
    """

    def __init__(self, folder: FarFolder, info: Info) -> None:
        V2Reader.__init__(self, folder.local, info)
        self._lie_in(folder)


def episodes_later(folder: FarFolder, meta: str = "meta") -> Callable[[], None] | None:
    """Return what brings the tables of episodes; None if they lie here already."""
    under = f"{meta}/episodes/"
    return partial(folder.bring, under) if folder.waits(under) else None


def is_far(reader: Reader) -> bool:
    """Whether a dataset's pictures lie in an object store or on the Hub."""
    if isinstance(reader, LanceReader):
        return reader.lies_far
    return isinstance(reader, FarV2Reader | FarV3Reader)


def expect_pictures(reader: Reader, pictures: Mapping[str, np.ndarray]) -> None:
    """Ask for what tells where pictures lie that will be wanted: for all at the same time.

    Args:
        reader: A dataset that lies far away.
        pictures: The rows of which pictures are wanted, by camera.

    Raises:
        TableError: A Lance table is missing or damaged.
    """
    if isinstance(reader, LanceReader):
        reader.expect(pictures)
    if not isinstance(reader, FarV2Reader | FarV3Reader):
        return
    for camera, rows in pictures.items():
        if not reader.in_tables(camera):
            positions = np.unique(reader.episodes.positions_of_rows(rows)).tolist()
            reader.videos.begin(reader.video_file(position, camera) for position in positions)
