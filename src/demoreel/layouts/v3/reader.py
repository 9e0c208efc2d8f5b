"""Reads LeRobot v3.0 in place; the Lance layouts have the same ``meta/``."""

from __future__ import annotations

import os
import re
import string
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from demoreel.errors import (
    DemoreelError,
    DemoreelWarning,
    FrameMismatchError,
    MetadataError,
    refuse_shortage,
)
from demoreel.layouts.columns import as_counts
from demoreel.layouts.file_reader import FileReader
from demoreel.layouts.meta import (
    EpisodeList,
    listing_files,
    no_episodes,
    read_episode_tables,
    read_stats,
    read_tasks,
)
from demoreel.layouts.rows import StoredReader
from demoreel.layouts.spans import Spans, resolve_spans, unused_frames
from demoreel.media.video import Video, VideoClip
from demoreel.model import Episodes, Info, PathTemplate, Stats
from demoreel.model.problems import refuse
from demoreel.storage.arrow import from_numpy
from demoreel.storage.cache import ByteCache
from demoreel.storage.commit.consistent import consistent_read
from demoreel.storage.folder import DatasetFolder
from demoreel.storage.json_files import read_json
from demoreel.storage.parquet import open_parquet

PLACES = ("data/chunk_index", "data/file_index")
"""The columns of ``meta/episodes`` that say in which table an episode is."""

_FIELDS = ("chunk_index", "file_index")


def locate_tables(
    root: Path, template: PathTemplate, episodes: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the columns ``PLACES`` for these episodes.

    lerobot does without them: it loads every table, and rows say what they belong to.

    Cost: reads one column of every table.

    """
    pattern = _pattern(template)
    found: dict[int, tuple[int, int]] = {}
    for path in sorted(root.glob("data/*/*.parquet")):
        match = pattern.fullmatch(path.relative_to(root).as_posix())
        if match is None:
            continue
        numbers = match.groupdict(default="0")
        place = (int(numbers.get("chunk_index", 0)), int(numbers.get("file_index", 0)))
        for episode in _episodes_in(path):
            if found.setdefault(episode, place) != place:
                raise _unknown(root, f"episode {episode} has rows in several tables", episode)
    absent = [int(episode) for episode in episodes.tolist() if episode not in found]
    if absent:
        raise _unknown(root, f"episode {absent[0]} has rows in none", absent[0])
    places = np.array([found[episode] for episode in episodes.tolist()], np.int64).reshape(-1, 2)
    return {name: places[:, at] for at, name in enumerate(PLACES)}


def _pattern(template: PathTemplate) -> re.Pattern[str]:
    parts, seen = [], set()
    for literal, field, _, _ in string.Formatter().parse(template.text):
        parts.append(re.escape(literal))
        if field in _FIELDS:
            parts.append(f"(?P={field})" if field in seen else rf"(?P<{field}>\d{{1,9}})")
            seen.add(field)
    return re.compile("".join(parts))


def _episodes_in(path: Path) -> list[int]:
    with open_parquet(path, kind=MetadataError) as parquet:
        if "episode_index" not in parquet.schema_arrow.names:
            return []
        numbers = as_counts(parquet.read(["episode_index"]).column("episode_index"))
    return [] if numbers is None else np.unique(numbers).tolist()


def _unknown(root: Path, why: str, episode: int) -> MetadataError:
    return MetadataError(
        f"The episodes' metadata lacks the columns {' and '.join(PLACES)}, and {why}.",
        hint="fetch or restore the tables, or repair the dataset: demoreel repair",
        dataset=root,
        episode=episode,
    )


_SPAN_BYTES = 16 << 20

UNUSED_FRAMES = "unused_frames.json"
"""In ``meta/``: how many frames after the last episode of a video are there on purpose, by file.

An edit of a Lance dataset in place leaves its videos as they are, and so does converting it.
"""


class EpisodeTable:
    """The number columns of ``meta/episodes``, in order of episode index; the rest on demand.

    Args:
        root: The dataset's folder.
        cameras: The cameras whose videos the columns must locate.
        meta: The folder of the metadata, if not ``meta`` in ``root``.
        tables: Where tables are that are looked into if no column locates them.
    """

    def __init__(
        self,
        root: Path,
        cameras: Iterable[str],
        *,
        meta: Path | None = None,
        tables: PathTemplate | None = None,
    ) -> None:
        self._root = root
        self._folder = (meta or root / "meta") / "episodes"
        self._paths = listing_files(self._folder)
        if not self._paths:
            refuse(no_episodes(self._folder))
        names = [path.relative_to(self._folder).as_posix() for path in self._paths]
        columns = read_episode_tables(self._folder, names, cameras).columns
        order = np.argsort(columns["episode_index"], kind="stable")
        self._order = order
        self.columns: dict[str, np.ndarray] = {n: values[order] for n, values in columns.items()}
        if tables is not None and not set(PLACES) <= columns.keys():
            self.columns |= locate_tables(root, tables, self.columns["episode_index"])
        self.identity = self._identity()
        self._sorted: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def _identity(self) -> list[tuple[str, int, int]]:
        status = [(path.name, path.stat()) for path in self._paths]
        return [(name, found.st_mtime_ns, found.st_size) for name, found in status]

    def column(self, name: str) -> np.ndarray:
        """Return a column, one value an episode."""
        return self.columns[name]

    @cached_property
    def _tasks(self) -> pa.ChunkedArray | None:
        """The tasks of every episode; None where they cannot be had.

        Files may have been merged, and episodes added, since they were read: rows are found by what
        they say of themselves.
        """
        names = ("episode_index", "length")

        def read() -> EpisodeList:
            paths = listing_files(self._folder)
            files = [path.relative_to(self._folder).as_posix() for path in paths]
            return read_episode_tables(self._folder, files, (), more=("tasks",))

        try:
            found = consistent_read(
                self._root, read
            )  # a commit may be merging these files just now
        except DemoreelError as error:
            refuse_shortage(error)
            return None  # a courtesy column: rows name their tasks by task_index
        order = np.argsort(found.columns["episode_index"], kind="stable")[: len(self._order)]
        same = (np.array_equal(found.columns[n][order], self.columns[n]) for n in names)
        if found.tasks is None or not all(same):
            return None
        if np.array_equal(order, np.arange(len(found.tasks))):
            return found.tasks
        return found.tasks.take(from_numpy(order))

    def tasks(self, position: int) -> tuple[str, ...]:
        """Return the tasks of the episode at ``position``; none where the column is missing."""
        if self._tasks is None:
            return ()
        return tuple(self._tasks[position].as_py() or ())

    def tasks_of(self, positions: np.ndarray) -> pa.ChunkedArray:
        """Return the tasks of many episodes, as lists of texts."""
        if self._tasks is None:
            return pa.chunked_array([pa.nulls(len(positions), pa.list_(pa.string()))])
        return self._tasks.take(from_numpy(positions))

    def sharing(self, position: int, camera: str) -> np.ndarray:
        """Return the positions of the episodes in the same video, ascending."""
        if camera not in self._sorted:
            chunk = self.column(f"videos/{camera}/chunk_index")
            ids = chunk << 32 | self.column(f"videos/{camera}/file_index")
            self._sorted[camera] = (ids, np.argsort(ids, kind="stable"))
        ids, order = self._sorted[camera]
        begin, end = np.searchsorted(ids, [ids[position], ids[position] + 1], sorter=order)
        return np.asarray(np.sort(order[begin:end]))


class V3Metadata(StoredReader):
    """The part of a reader that ``meta/`` answers.

    Making one reads the tasks. The number columns of ``meta/episodes`` are read when
    episodes are asked for, which ``open_reader`` does at once unless they would have to be fetched.

    Args:
        root: The dataset's folder.
        info: Its info.
        video_cameras: The cameras whose images are in videos.
        meta: The folder of the metadata, if not ``meta`` in ``root``.
        before_episodes: Called before ``meta/episodes`` is read.
    """

    is_remote = False
    layout: str

    def __init__(
        self,
        root: Path,
        info: Info,
        video_cameras: Sequence[str],
        *,
        meta: Path | None = None,
        before_episodes: Callable[[], None] | None = None,
    ) -> None:
        self.root = root
        self.info = info
        self.meta = meta or root / "meta"
        self.tasks = read_tasks(self.meta / "tasks.parquet")
        self._video_cameras = tuple(video_cameras)
        self._spans: ByteCache[object, tuple[np.ndarray, Spans]] = ByteCache(_SPAN_BYTES)
        self._before_episodes = before_episodes

    @cached_property
    def _meta(self) -> EpisodeTable:
        if self._before_episodes is not None:
            self._before_episodes()
        tables = None if self.layout.startswith("lance") else self.info.data_path
        return EpisodeTable(self.root, self._video_cameras, meta=self.meta, tables=tables)

    @cached_property
    def episodes(self) -> Episodes:
        """All episodes, in the dataset's order."""
        found = Episodes(
            self._meta.column("episode_index"),
            self._meta.column("length"),
            details=self._details,
            where=str(self.meta / "episodes"),
        )
        if self._before_episodes is not None and not len(found):
            raise MetadataError(
                "There are no episodes in meta/episodes.",
                hint="an unfinished recording has none; finish or restore it",
                dataset=self.root,
            )
        return found

    @cached_property
    def stats(self) -> Stats | None:
        """Statistics of the whole dataset; None where there is no ``stats.json``."""
        path = self.meta / "stats.json"
        if path.exists():
            return read_stats(path)
        warnings.warn(
            f"{self.root} has no statistics (no stats.json); stats is None.",
            DemoreelWarning,
            stacklevel=2,
        )
        return None

    def episode_columns(self) -> Mapping[str, np.ndarray]:
        """Return the number columns of ``meta/episodes``, by LeRobot's names."""
        return self._meta.columns

    def episode_tasks(self, positions: np.ndarray) -> pa.ChunkedArray:
        """Return the tasks of the episodes at these positions, as lists of texts."""
        return self._meta.tasks_of(positions)

    @abstractmethod
    def data_file(self, position: int) -> str:
        """Return the table of the episode at ``position``."""

    @abstractmethod
    def video_file(self, position: int, camera: str) -> str:
        """Return the video of the episode at ``position``."""

    def _video_numbers(self, position: int, camera: str) -> tuple[int, int]:
        """Return chunk and file index of an episode's video."""
        chunk = self._meta.column(f"videos/{camera}/chunk_index")[position]
        return int(chunk), int(self._meta.column(f"videos/{camera}/file_index")[position])

    def _locate(self, position: int, camera: str, video: Video) -> VideoClip:
        """Return where the episode is in its video, checked against its neighbours there."""
        positions, spans = self._spans.get(
            (camera, video.name, video.file.identity),
            lambda: self._resolve(position, camera, video),
        )
        place = int(np.searchsorted(positions, position))
        if place in spans.problem:
            raise FrameMismatchError(
                f"Metadata and video disagree: {spans.problem[place]}.",
                hint="restore the file, leave the episode out with episodes=, or see what "
                "demoreel repair makes of it",
                dataset=self.root,
                episode=int(self.episodes.episode_index[position]),
                camera=camera,
                file=self.video_file(position, camera),
                metadata=self._said(position, camera),
                video=f"{video.index.frames} frames",
            )
        return VideoClip(video, int(spans.first[place]), spans.step)

    def _resolve(
        self, position: int, camera: str, video: Video
    ) -> tuple[tuple[np.ndarray, Spans], int]:
        positions, spans = self._resolved(position, camera, video)
        if self._fills_videos and not spans.problem:
            name = self.video_file(position, camera)
            self._refuse_unused(spans, self.episodes.length[positions], video, name)
        return (positions, spans), 2 * positions.nbytes + 1024

    def _resolved(self, position: int, camera: str, video: Video) -> tuple[np.ndarray, Spans]:
        positions = self._meta.sharing(position, camera)
        return positions, resolve_spans(
            length=self.episodes.length[positions],
            from_timestamp=self._meta.column(f"videos/{camera}/from_timestamp")[positions],
            to_timestamp=self._meta.column(f"videos/{camera}/to_timestamp")[positions],
            seconds=video.index.seconds,
            fps=self.info.fps,
        )

    @property
    def _fills_videos(self) -> bool:
        """Whether every video must end with the last of its episodes."""
        return True

    @cached_property
    def _stated_unused(self) -> Mapping[str, int]:
        return stated_unused(self.meta)

    def unused_frames(self, position: int, camera: str, video: Video) -> int:
        """Return how many frames the video of an episode has after the last of its episodes."""
        positions, spans = self._resolved(position, camera, video)
        if spans.problem:
            return 0
        return unused_frames(spans, self.episodes.length[positions], video.index.packet_of)

    def _refuse_unused(self, spans: Spans, length: np.ndarray, video: Video, name: str) -> None:
        """Give all episodes of a video a problem that goes on after the last of them.

        Another video may have taken its place: where episodes begin and how long they are would fit
        any that is long enough.
        """
        unused = unused_frames(spans, length, video.index.packet_of)
        if unused and self._stated_unused.get(name) != unused:
            said = f"the video goes on for {unused} frames after the last of its episodes"
            spans.problem = dict.fromkeys(range(len(length)), said)

    def _said(self, position: int, camera: str) -> str:
        begin = self._meta.column(f"videos/{camera}/from_timestamp")[position]
        end = self._meta.column(f"videos/{camera}/to_timestamp")[position]
        return f"{self.episodes.length[position]} frames from {begin:g} s to {end:g} s"

    def _details(self, position: int) -> dict[str, Any]:
        return {
            "tasks": self._meta.tasks(position),
            "data_file": self.data_file(position),
            "video_files": {key: self.video_file(position, key) for key in self._video_cameras},
        }


def stated_unused(meta: Path) -> Mapping[str, int]:
    """Return how many frames of which videos are known to belong to no episode."""
    path = meta / UNUSED_FRAMES
    found = read_json(path) if path.is_file() else {}
    return found if isinstance(found, dict) else {}


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
        """Return where the episode is in its video, checked against its neighbours there."""
        return self._locate(position, camera, self._videos.open(self.video_file(position, camera)))
