"""What v3.0 and the Lance layouts share: ``meta/``, and where episodes lie in their videos."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from demoreel.errors import DemoreelWarning, FrameMismatchError, MetadataError
from demoreel.layouts.base import Clip
from demoreel.layouts.spans import Spans, resolve_spans
from demoreel.layouts.v3.episode_table import EpisodeTable, read_tasks
from demoreel.media.video import Video
from demoreel.model import Episodes, Info, Stats, stats_from_json
from demoreel.storage.json_files import read_json
from demoreel.storage.lru import ByteCache

_SPAN_BYTES = 16 << 20


class V3Metadata(ABC):
    """The part of a reader that ``meta/`` answers.

    Making one reads the tasks. The number columns of ``meta/episodes`` are read when someone asks
    about episodes, which ``open_reader`` does at once unless they would have to be fetched.

    Args:
        root: The dataset's folder.
        info: Its info.
        filmed: The cameras whose pictures lie in videos.
        meta: The folder of the metadata, if not ``meta`` in ``root``.
        before_episodes: Called before ``meta/episodes`` is read.

    Raises:
        MetadataError: Metadata are missing, unreadable or contradictory.
    """

    def __init__(
        self,
        root: Path,
        info: Info,
        filmed: Sequence[str],
        *,
        meta: Path | None = None,
        before_episodes: Callable[[], None] | None = None,
    ) -> None:
        self.root = root
        self.info = info
        self.meta = meta or root / "meta"
        self.tasks = read_tasks(self.meta / "tasks.parquet")
        self._filmed = tuple(filmed)
        self._spans: ByteCache[object, tuple[np.ndarray, Spans]] = ByteCache(_SPAN_BYTES)
        self._before_episodes = before_episodes

    @cached_property
    def _meta(self) -> EpisodeTable:
        if self._before_episodes is not None:
            self._before_episodes()
        return EpisodeTable(self.root, self._filmed, meta=self.meta)

    @cached_property
    def episodes(self) -> Episodes:
        """All episodes, in the dataset's order.

        Raises:
            MetadataError: ``meta/episodes`` is missing, unreadable or contradictory.
        """
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
            return stats_from_json(read_json(path), where=str(path))
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

    def in_tables(self, camera: str) -> bool:
        """Whether a camera's pictures lie encoded in the tables, and not in videos."""
        return camera not in self._filmed

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

    def _locate(self, position: int, camera: str, video: Video) -> Clip:
        """Return where the episode lies in its video, checked against its neighbours there."""
        positions, spans = self._spans.get(
            (camera, video.name, video.file.identity),
            lambda: self._resolve(position, camera, video),
        )
        place = int(np.searchsorted(positions, position))
        if place in spans.problem:
            raise FrameMismatchError(
                f"Metadata and video disagree: {spans.problem[place]}.",
                hint="leave the episode out with episodes=, or restore the file",
                dataset=self.root,
                episode=int(self.episodes.episode_index[position]),
                camera=camera,
                file=self.video_file(position, camera),
                metadata=self._said(position, camera),
                video=f"{video.index.frames} frames",
            )
        return Clip(video, int(spans.first[place]), spans.step)

    def _resolve(
        self, position: int, camera: str, video: Video
    ) -> tuple[tuple[np.ndarray, Spans], int]:
        positions = self._meta.sharing(position, camera)
        spans = resolve_spans(
            length=self.episodes.length[positions],
            from_timestamp=self._meta.column(f"videos/{camera}/from_timestamp")[positions],
            to_timestamp=self._meta.column(f"videos/{camera}/to_timestamp")[positions],
            seconds=video.index.seconds,
            fps=self.info.fps,
        )
        return (positions, spans), 2 * positions.nbytes + 1024

    def _said(self, position: int, camera: str) -> str:
        begin = self._meta.column(f"videos/{camera}/from_timestamp")[position]
        end = self._meta.column(f"videos/{camera}/to_timestamp")[position]
        return f"{self.episodes.length[position]} frames from {begin:g} s to {end:g} s"

    def _details(self, position: int) -> dict[str, Any]:
        return {
            "tasks": self._meta.tasks(position),
            "data_file": self.data_file(position),
            "video_files": {key: self.video_file(position, key) for key in self._filmed},
        }
