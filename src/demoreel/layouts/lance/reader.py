"""Reading a Lance dataset where it lies: ``meta/`` as in v3.0, rows in a table, videos in another.

Lance versions tables, not the files beside them; the metadata of older versions are those that were
kept (``history.py``). An episode that is not whole in a version is an error when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np

from demoreel.errors import DemoreelError, UnsafePathError, VideoError
from demoreel.layouts.base import Column
from demoreel.layouts.lance.rows import LanceRows
from demoreel.layouts.lance.schemas import schema_of
from demoreel.layouts.lance.tables import LanceTable, newest_version
from demoreel.layouts.lance.videos import LanceBlob, LanceVideos
from demoreel.layouts.rows import rows_of, rows_once
from demoreel.layouts.v3.reader import V3Metadata
from demoreel.media.video import VideoClip
from demoreel.model import Info
from demoreel.storage.place import RemotePlace
from demoreel.storage.remote.cache import RangeCache

Place = Path | RemotePlace
"""A table, or the folder of some."""

_Told = TypeVar("_Told", bound=DemoreelError)

VIDEOS_VERSION = "demoreel.videos"
"""Where a table of rows notes, in its metadata, which version of the videos belongs to it."""


class LanceReader(V3Metadata):
    """A dataset in one of the Lance layouts.

    Opening reads ``meta/``; tables are opened when a frame is asked for, except where a version or
    a tag is named, which is checked at once.

    Args:
        root: The dataset's folder.
        info: Its info.
        layout: Its layout.
        table: Name of the table of rows, without its ending.
        version: A version of that table; None is the newest.
        tag: A version's name.
        tables: The folder of the tables, if not ``root``; it may lie in an object store.
        meta: The folder of the metadata, if not ``meta`` in ``root``.
        cache: Keeps ranges of videos that lie in a store.
        before_episodes: Called before ``meta/episodes`` is read.
    """

    def __init__(
        self,
        root: Path,
        info: Info,
        layout: str,
        table: str,
        *,
        version: int | None = None,
        tag: str | None = None,
        tables: Place | None = None,
        meta: Path | None = None,
        cache: RangeCache | None = None,
        before_episodes: Callable[[], None] | None = None,
    ) -> None:
        self.layout = layout
        self._cache = cache
        folder, schema = tables or root, schema_of(layout, table, info)
        self.is_remote = isinstance(folder, RemotePlace)
        filmed = info.video_keys if schema.videos is not None else ()
        super().__init__(root, info, filmed, meta=meta, before_episodes=before_episodes)
        self._frames, self._videos_table = tables_of(
            folder / schema.frames,
            folder / schema.videos if schema.videos is not None else None,
            version=version,
            tag=tag,
        )

    @property
    def is_as_opened(self) -> bool:
        """Whether the tables are read at the versions that the metadata belong to.

        Files of a version never change, so nothing else has to be looked at.
        """
        fell_back = any(table.fell_back for table in self.tables.values())
        return not fell_back or super().is_as_opened

    @property
    def _fills_videos(self) -> bool:
        return False  # an edit in place deletes rows, and leaves the videos as they are

    @cached_property
    def _rows(self) -> LanceRows:
        return LanceRows(self.root, self._frames, self.info, self.episodes, self._meta.identity)

    @cached_property
    def _videos(self) -> LanceVideos:
        assert self._videos_table is not None
        return LanceVideos(self._videos_table, self._cache)

    def share_videos(self, other: LanceReader) -> None:
        """Take the videos that another reader of the same table has found, and save the search."""
        self._videos_table = other._videos_table
        self.__dict__["_videos"] = other._videos

    @property
    def tables(self) -> dict[str, LanceTable]:
        """The Lance tables, by what they hold: ``frames`` and, if there is one, ``videos``."""
        found = {"frames": self._frames}
        if self._videos_table is not None:
            found["videos"] = self._videos_table
        return found

    def rows(self, rows: np.ndarray, keys: Sequence[str]) -> dict[str, Column]:
        """Return columns of these rows, by position in the dataset."""
        return rows_of(self._rows, self.info, rows, keys)

    def rows_once(self, first: int, stop: int) -> dict[str, Column]:
        """Return every column but the cameras' of the episodes at ``first`` to ``stop`` - 1."""
        return rows_once(self._rows, self.info, self.episodes, first, stop)

    def encoded(self, rows: np.ndarray, camera: str) -> list[bytes]:
        """Return the encoded images of a camera whose images lie with the rows."""
        return self._rows.objects(rows, self.info.features[camera])

    def data_file(self, position: int) -> str:
        """Return the table of the episode at ``position``: the same for all."""
        return self._frames.name

    def video_file(self, position: int, camera: str) -> str:
        """Return the row of the episode's video: the table, then the path that v3.0 gives it."""
        assert self._videos_table is not None
        chunk, file = self._video_numbers(position, camera)
        return f"{self._videos_table.name}#{camera}/chunk-{chunk:03d}/file-{file:03d}"

    def clip(self, position: int, camera: str) -> VideoClip:
        """Return where the episode lies in its video, checked against its neighbours there."""
        assert self._videos_table is not None
        name = self._videos_table.beside(self.video_file(position, camera))
        chunk, file = self._video_numbers(position, camera)
        try:
            video = self._videos.video(camera, chunk, file, name=name)
        except (VideoError, UnsafePathError) as error:
            raise self._with_episode(error, position, camera) from error
        return self._locate(position, camera, video)

    def expect(self, images: Mapping[str, np.ndarray]) -> None:
        """Fetch what tells where a batch's images lie in their videos, all at the same time.

        Args:
            images: The rows of which images are wanted, by camera.
        """
        if self._videos_table is None:
            return
        videos: dict[tuple[str, int, int], None] = {}
        for camera, rows in images.items():
            if not self.in_tables(camera):
                for position in np.unique(self.episodes.positions_of_rows(rows)).tolist():
                    videos[camera, *self._video_numbers(position, camera)] = None
        self._videos.expect(videos)

    def blob(self, camera: str, chunk: int, file: int) -> LanceBlob:
        """Return a video's bytes as Lance itself reads them, wherever they lie."""
        return self._videos.blob(camera, chunk, file)

    def external(self) -> dict[str, bool]:
        """Return the URIs outside themselves that the tables name, and whether each is refused.

        Cost: as ``LanceTable.named_outside``.
        """
        found: dict[str, bool] = {}
        for table in self.tables.values():
            found |= table.named_outside()
        return found

    def _with_episode(self, error: _Told, position: int, camera: str) -> _Told:
        where = {
            "dataset": self.root,
            "episode": int(self.episodes.episode_index[position]),
            "camera": camera,
            **error.where,
        }
        return type(error)(error.what, hint=error.hint, **where)


def tables_of(
    frames: Place, videos: Place | None, *, version: int | None, tag: str | None
) -> tuple[LanceTable, LanceTable | None]:
    """Return the tables of a dataset, at one version.

    A version counts for the table of rows. The table of videos has versions of its own: with a tag
    it is read at the same tag if it has one; with a version, at the one that the table of rows has
    noted (``demoreel.videos`` in its metadata); else at its newest, which holds at least the videos
    of the older ones.

    Args:
        frames: The table of rows.
        videos: The table of videos, if there is one.
        version: A version's number; None is the newest as of now.
        tag: A version's name.
    """
    if version is None and tag is None:
        return _as_of_now(frames), _as_of_now(videos) if videos is not None else None
    rows = LanceTable(frames, version=version, tag=tag)
    noted = rows.metadata.get(VIDEOS_VERSION)
    if videos is None:
        return rows, None
    table = LanceTable(videos)
    if tag is not None and tag in table.tags():
        table = LanceTable(videos, tag=tag)
    elif tag is None and noted is not None and noted.isdigit():
        table = LanceTable(videos, version=int(noted))
    return rows, table


def _as_of_now(table: Place) -> LanceTable:
    """Return a table at the version that belongs to the metadata as they are read just now.

    Tables are opened later, when rows may have been appended; a newer version has these rows, too,
    but others besides. In an object store that is found out when they are opened.
    """
    if isinstance(table, RemotePlace):
        return LanceTable(table)
    return LanceTable(table, version=newest_version(table), or_newest=True)
