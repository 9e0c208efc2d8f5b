"""Reads a Lance dataset in place: ``meta/`` as in v3.0, one table of rows, one of videos.

Lance versions tables, not the files beside them; the metadata of older versions are those that were
kept (``history.py``). An episode that is not whole in a version is an error when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from demoreel.errors import DemoreelError, TableError, UnsafePathError, VideoError
from demoreel.layouts.columns import parsed_rows, read_images, read_numbers
from demoreel.layouts.lance.schemas import column_names, schema_of
from demoreel.layouts.lance.tables import LanceTable, LocalValues, newest_version
from demoreel.layouts.lance.videos import LanceBlob, LanceVideos
from demoreel.layouts.rows import ColumnStore, PassingColumns, StoredRows, find_rows, runs
from demoreel.layouts.v3.reader import V3Metadata
from demoreel.media.video import VideoClip
from demoreel.model import Episodes, Feature, Info
from demoreel.storage.arrow import as_numpy, is_number
from demoreel.storage.cache import RangeCache
from demoreel.storage.folder import DatasetFolder
from demoreel.storage.place import RemotePlace

Place = Path | RemotePlace
"""A table, or the folder of some."""

_Told = TypeVar("_Told", bound=DemoreelError)

VIDEOS_VERSION = "demoreel.videos"
"""Where a table of rows notes, in its metadata, which version of the videos belongs to it."""

_ROWS_AT_ONCE = 1 << 16
_NAMED_BY = ("episode_index", "frame_index")


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
        tables: The folder of the tables, if not ``root``; it may be in an object store.
        meta: The folder of the metadata, if not ``meta`` in ``root``.
        cache: Keeps ranges of videos that are in a store.
        before_episodes: Called before ``meta/episodes`` is read.
    """

    folder: DatasetFolder | None = None  # what fetches metadata that are not here yet

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
        video_cameras = info.video_keys if schema.videos is not None else ()
        super().__init__(root, info, video_cameras, meta=meta, before_episodes=before_episodes)
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

    def data_file(self, position: int) -> str:
        """Return the table of the episode at ``position``: the same for all."""
        return self._frames.name

    def video_file(self, position: int, camera: str) -> str:
        """Return the row of the episode's video: the table, then the path that v3.0 gives it."""
        assert self._videos_table is not None
        chunk, file = self._video_numbers(position, camera)
        return f"{self._videos_table.name}#{camera}/chunk-{chunk:03d}/file-{file:03d}"

    def clip(self, position: int, camera: str) -> VideoClip:
        """Return where the episode is in its video, checked against its neighbours there."""
        assert self._videos_table is not None
        name = self._videos_table.beside(self.video_file(position, camera))
        chunk, file = self._video_numbers(position, camera)
        try:
            video = self._videos.video(camera, chunk, file, name=name)
        except (VideoError, UnsafePathError) as error:
            raise self._with_episode(error, position, camera) from error
        return self._locate(position, camera, video)

    def expect(self, images: Mapping[str, np.ndarray]) -> None:
        """Fetch what tells where a batch's images are in their videos, all at the same time.

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
        """Return a video's bytes as Lance itself reads them, wherever they are."""
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


class LanceRows(StoredRows):
    """Rows of one dataset's table, by their position in the dataset.

    A row belongs to an episode because its ``episode_index`` and ``frame_index`` say so. Writers
    put row N where frame N belongs, so that is where it is looked for first, and these two are
    compared; only if it is another one, the two columns are read whole, and every row is looked up.

    Random rows cost Lance as much as the pages they are in: 32 of them took as long as 32 whole
    episodes (15 ms, of 5 million rows). So numbers are taken an episode at a time, once, into a
    ``ColumnStore``. Text and language are taken as they are asked for; images are read from the
    data files, without Lance, where ``LocalValues`` can do that.
    """

    def __init__(
        self,
        root: Path,
        table: LanceTable,
        info: Info,
        episodes: Episodes,
        fingerprint: Sequence[object],
    ) -> None:
        super().__init__(info, episodes, (*table.identity, *fingerprint))
        self._root = root
        self._table = table
        self._names = column_names(info)
        self._places = _Places(root, table, episodes)
        self._values: dict[str, LocalValues | None] = {}

    def _fill(
        self, positions: np.ndarray, store: ColumnStore | PassingColumns | None = None
    ) -> None:
        store = store or self._store
        for part in _portions(positions, self._episodes):
            rows = _rows_of(part, self._episodes)
            self._write(rows, store)
            for position in part.tolist():
                store.mark_filled(position)

    def _write(self, rows: np.ndarray, store: ColumnStore | PassingColumns) -> None:
        names = [self._names[feature.key] for feature in self._numeric]
        table = self._table.take(self._places.of(rows), names)
        spans = list(runs(rows))
        for feature, name in zip(self._numeric, names, strict=True):
            array = table.column(name).combine_chunks()
            values = read_numbers(array, feature, where=self._table.path)
            for at, stop in spans:
                store.write(feature.key, int(rows[at]), values[at:stop])

    def objects(self, rows: np.ndarray, feature: Feature) -> list[Any]:
        """Return a text, language or image column of these rows as Python values."""
        name = self._names[feature.key]
        places = self._places.of(rows)
        if feature.is_camera:
            return self._images(places, name, feature)
        values: list[Any] = self._table.take(places, [name]).column(name).to_pylist()
        if feature.is_language:
            where = self._table.path
            return [parsed_rows(value, key=feature.key, where=where) for value in values]
        return values

    def _images(self, places: np.ndarray, name: str, feature: Feature) -> list[bytes]:
        """Read encoded images; from the data files themselves where that is possible."""
        if name not in self._values:
            self._values[name] = self._table.values(name)
        values = self._values[name]
        read = values.read(places) if values is not None else None
        if read is not None:
            return read
        found: list[bytes] = []
        for chunk in self._table.take(places, [name]).column(name).chunks:
            array = read_images(chunk, key=feature.key, where=self._table.path)
            found += array.to_pylist()
        return found


class _Places:
    """Where the dataset's rows stand in its table."""

    def __init__(self, root: Path, table: LanceTable, episodes: Episodes) -> None:
        self._root = root
        self._table = table
        self._episodes = episodes
        self._in_order = table.count_rows() == episodes.total_frames
        self._compared = np.zeros(len(episodes), dtype=bool)
        self._looked_up: np.ndarray | None = None
        self._problem: dict[int, str] = {}

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Return the place of each row."""
        positions = np.unique(self._episodes.positions_of_rows(rows))
        if self._looked_up is None and not (self._in_order and self._stand_in_order(positions)):
            self._look_up()
        if self._looked_up is None:
            return rows
        for position in positions.tolist():
            self._refuse_problem(position)
        return np.asarray(self._looked_up[rows])

    def _stand_in_order(self, positions: np.ndarray) -> bool:
        """Whether the rows of these episodes stand where they belong; each is compared once."""
        for part in _portions(positions[~self._compared[positions]], self._episodes):
            rows = _rows_of(part, self._episodes)
            episode, frame = self._numbers(self._table.take(rows, _NAMED_BY))
            lengths = self._episodes.length[part]
            expected = np.repeat(self._episodes.episode_index[part], lengths)
            start = np.repeat(self._episodes.start[part], lengths)
            if not (np.array_equal(episode, expected) and np.array_equal(frame, rows - start)):
                return False
            self._compared[part] = True
        return True

    def _look_up(self) -> None:
        """Read the two columns of the whole table, and find every row."""
        episode, frame = self._numbers(self._table.scan(_NAMED_BY))
        every = np.arange(len(self._episodes))
        found, self._problem = find_rows(self._episodes, every, episode, frame)
        places = np.full(self._episodes.total_frames, -1, dtype=np.int64)
        for position, rows in found.items():
            start = int(self._episodes.start[position])
            places[start : start + len(rows)] = rows
        self._looked_up = places

    def _numbers(self, table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
        for name in _NAMED_BY:
            column = table.column(name)
            if not is_number(column.type) or column.null_count:
                raise TableError(
                    f"Column {name!r} holds {column.type}, or has missing values.",
                    hint="restore the table",
                    dataset=self._root,
                    file=self._table.name,
                )
        return as_numpy(table.column(_NAMED_BY[0])), as_numpy(table.column(_NAMED_BY[1]))

    def _refuse_problem(self, position: int) -> None:
        if position in self._problem:
            raise TableError(
                self._problem[position],
                hint="restore the table, or leave the episode out with episodes=",
                dataset=self._root,
                file=self._table.name,
                version=self._table.version,
                episode=int(self._episodes.episode_index[position]),
            )


def _rows_of(positions: np.ndarray, episodes: Episodes) -> np.ndarray:
    """Return the rows of these episodes, one after the other."""
    lengths = episodes.length[positions]
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    shift = np.repeat(episodes.start[positions] - (ends - lengths), lengths)
    return np.asarray(np.arange(total) + shift)


def _portions(positions: np.ndarray, episodes: Episodes) -> Iterator[np.ndarray]:
    """Cut positions so that the episodes of each part have about so many rows together."""
    if len(positions) == 0:
        return
    number = np.cumsum(episodes.length[positions]) // _ROWS_AT_ONCE
    yield from np.split(positions, np.flatnonzero(np.diff(number)) + 1)
