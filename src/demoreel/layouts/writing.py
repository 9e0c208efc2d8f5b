"""What the writers of the parquet layouts share: checking an episode, and making its table."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from demoreel.errors import ArgumentError, FrameMismatchError, UnknownKeyError, nearest
from demoreel.layouts.columns import table_schema, to_arrow
from demoreel.media.remux import Signature, probe
from demoreel.model import DEFAULT_FEATURES, Info, Stats
from demoreel.storage.atomic import staged

_OWN = set(DEFAULT_FEATURES) - {"timestamp"}
"""Columns that writers make themselves."""

PathLike = str | os.PathLike[str]
Values = np.ndarray | Sequence[Any]


@dataclass(frozen=True, slots=True)
class ProbedVideo:
    """A video that was looked into already.

    Attributes:
        path: The file.
        signature: What decides with which others it can be joined.
        frames: How many it shows.
    """

    path: Path
    signature: Signature
    frames: int


@dataclass(frozen=True, slots=True)
class NewVideo:
    """An episode's video of one camera, as the caller handed it over."""

    path: Path
    signature: Signature
    size: int


@dataclass(frozen=True, slots=True)
class NewEpisode:
    """An episode that was checked and is ready to be written."""

    index: int
    start: int
    length: int
    tasks: list[str]
    table: pa.Table
    videos: dict[str, NewVideo]
    stats: Stats | None
    histograms: Mapping[str, np.ndarray] = field(default_factory=dict)


class _Writer(Protocol):
    committed: bool

    def close(self) -> None:
        """Let go of open files."""
        ...


W = TypeVar("W", bound=_Writer)


@contextmanager
def staged_writer(target: PathLike, make: Callable[[Path], W]) -> Iterator[W]:
    """Yield a writer of a staging folder, which becomes ``target`` when the block has committed.

    Raises:
        TargetExistsError: There is something at ``target``.
        ArgumentError: The block ended without ``commit()``.
    """
    with staged(target) as folder:
        writer = make(folder)
        try:
            yield writer
        finally:
            writer.close()
        if not writer.committed:
            raise ArgumentError("commit() was not called, so nothing was written.", dataset=target)


class Intake:
    """Takes episodes one after the other: numbers them, checks them, makes their tables.

    Args:
        info: What the dataset will be; its totals are ignored.
        version: The ``codebase_version`` that the caller writes.

    Raises:
        ArgumentError: ``info`` is of another version, or a feature cannot be stored.
    """

    def __init__(self, info: Info, *, version: str) -> None:
        if info.version != version:
            raise ArgumentError(f"This writer writes {version}, not {info.version}.")
        self.info = info
        self.schema = table_schema(info.features.values())
        self.episodes = 0
        self.frames = 0
        self.tasks: dict[str, int] = {}
        self._stat_keys: set[tuple[str, str]] | None = None

    def default_columns(
        self, tasks: Sequence[str], *, timestamps: Values | None = None
    ) -> dict[str, np.ndarray]:
        """Return the columns that the writer itself adds to the next episode."""
        length = len(tasks)
        numbers = dict(self.tasks)
        for task in tasks:
            numbers.setdefault(task, len(numbers))
        frames = np.arange(length)
        seconds = frames / self.info.fps if timestamps is None else np.asarray(timestamps)
        return {
            "timestamp": seconds.astype(np.float32),
            "frame_index": frames,
            "episode_index": np.full(length, self.episodes),
            "index": np.arange(self.frames, self.frames + length),
            "task_index": np.array([numbers[task] for task in tasks], dtype=np.int64),
        }

    def check(
        self,
        columns: Mapping[str, Values],
        *,
        tasks: Sequence[str],
        videos: Mapping[str, PathLike | ProbedVideo] | None,
        images: Mapping[str, Sequence[bytes]],
        stats: Stats | None,
    ) -> NewEpisode:
        """Check an episode against ``info`` and return it, ready to be written. Changes nothing.

        Videos that are None are yet to come: ``check_videos`` looks at them.

        Raises:
            ArgumentError: Something is missing, too many, or of the wrong shape or type.
            UnknownKeyError: Something is given that ``info`` does not declare.
            VideoError: A video does not open.
            FrameMismatchError: A video has another number of frames than the episode.
        """
        length = len(tasks)
        if length == 0 or isinstance(tasks, str):
            raise ArgumentError("tasks must name the task of every frame, and an episode has some.")
        self._check_keys(columns, images)
        given: dict[str, Values] = {**columns, **images}
        given |= self.default_columns(tasks, timestamps=columns.get("timestamp"))
        arrays = [
            to_arrow(given[k], self.info.features[k], length=length) for k in self.schema.names
        ]
        self._check_stats(stats)
        return NewEpisode(
            index=self.episodes,
            start=self.frames,
            length=length,
            tasks=list(dict.fromkeys(tasks)),
            table=pa.Table.from_arrays(arrays, schema=self.schema),
            videos=self.check_videos(videos, length) if videos is not None else {},
            stats=stats,
        )

    def check_videos(
        self, videos: Mapping[str, PathLike | ProbedVideo], length: int
    ) -> dict[str, NewVideo]:
        """Return the videos of an episode of so many frames, checked. Changes nothing.

        Raises:
            ArgumentError: One is missing.
            UnknownKeyError: There is no such camera.
            VideoError: One does not open.
            FrameMismatchError: One has another number of frames.
        """
        self._refuse_other("video camera", set(videos), set(self.info.video_keys))
        return {key: self._checked_video(key, videos[key], length) for key in videos}

    def accept(self, episode: NewEpisode) -> None:
        """Count the episode in; called when it has been written."""
        self.episodes += 1
        self.frames += episode.length
        self._stat_keys = _stat_keys(episode.stats)
        for task in episode.tasks:
            self.tasks.setdefault(task, len(self.tasks))

    def final_info(self, **extra: Any) -> Info:
        """Return ``info`` with the totals of what was written.

        Raises:
            ArgumentError: Nothing was written.
        """
        if not self.episodes:
            raise ArgumentError("A dataset needs at least one episode, and none was added.")
        return replace(
            self.info,
            total_episodes=self.episodes,
            total_frames=self.frames,
            total_tasks=len(self.tasks),
            splits={"train": f"0:{self.episodes}"},
            extra={**self.info.extra, **extra},
        )

    def _check_keys(self, columns: Mapping[str, Any], images: Mapping[str, Any]) -> None:
        declared = set(self.info.features) - set(self.info.cameras) - _OWN
        self._refuse_other("column", set(columns), declared)
        self._refuse_other("image camera", set(images), set(self.info.image_keys))

    def _refuse_other(self, what: str, given: set[str], wanted: set[str]) -> None:
        for key in sorted(given - wanted):
            made = "the writer makes it itself" if key in _OWN else nearest(key, wanted)
            raise UnknownKeyError(f"The dataset declares no {what} {key!r}.", hint=made)
        for key in sorted(wanted - given - {"timestamp"}):
            raise ArgumentError(f"The episode lacks the {what} {key!r}.")

    def _check_stats(self, stats: Stats | None) -> None:
        """Every episode's statistics become one row of one table, so their names must agree."""
        if self._stat_keys is None or self._stat_keys == _stat_keys(stats):
            return
        differs = sorted(_stat_keys(stats) ^ self._stat_keys)[0]
        raise ArgumentError(
            f"The episode's statistics differ in kind from those before: {'/'.join(differs)}.",
            hint="give every episode the same statistics, or none",
            episode=self.episodes,
        )

    def _checked_video(self, camera: str, given: PathLike | ProbedVideo, length: int) -> NewVideo:
        video = given if isinstance(given, ProbedVideo) else ProbedVideo(Path(given), *probe(given))
        if video.frames != length:
            raise FrameMismatchError(
                f"The video has {video.frames} frames; the episode has {length} rows.",
                hint="a video must hold exactly the frames of its episode",
                episode=self.episodes,
                camera=camera,
                file=video.path,
            )
        return NewVideo(video.path, video.signature, os.path.getsize(video.path))


def _stat_keys(stats: Stats | None) -> set[tuple[str, str]]:
    return {(key, name) for key, kinds in (stats or {}).items() for name in kinds}


def write_json(path: Path, value: object) -> None:
    """Write a JSON file the way LeRobot does, indented and with its text readable."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_encoded(json.dumps(value, indent=4, ensure_ascii=False)))


def write_json_lines(path: Path, values: Sequence[object]) -> None:
    """Write one JSON object per line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(value, ensure_ascii=False) + "\n" for value in values)
    path.write_bytes(_encoded("".join(lines)))


def _encoded(text: str) -> bytes:
    """Return JSON as bytes; half a character, which UTF-8 cannot say, as the escape it came as."""
    return text.encode("utf-8", "backslashreplace")
