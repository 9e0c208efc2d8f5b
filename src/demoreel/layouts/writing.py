"""The contract of a writer, and the parts that writers share: an episode, its check, its table."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.errors import ArgumentError, UnknownKeyError, nearest
from demoreel.layouts.columns import table_schema, to_arrow
from demoreel.layouts.spans import require_frames
from demoreel.media.remux import Signature, probe
from demoreel.model import DEFAULT_FEATURES, Info, Stats
from demoreel.storage.commit.staging import staged
from demoreel.storage.parquet_pages import batch_rows

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

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return os.path.getsize(self.path)


GivenVideos = Mapping[str, PathLike | ProbedVideo]
"""A finished video of each camera."""


@dataclass(frozen=True, slots=True)
class EpisodeDraft:
    """An episode that is to be written.

    Attributes:
        columns: Every declared feature that is no camera, one row a frame. ``timestamp`` may be
            among them; the other default columns are made by the writer.
        tasks: The task of every frame.
        videos: For each video camera a finished mp4 of exactly this episode's frames; or a function
            that waits for them, which appenders call when all else is written. What was probed is
            not probed again. An appender takes the files over when the episode is committed; a
            writer only reads them, until it commits.
        images: For each image camera the encoded images.
        stats: The episode's statistics; empty where there are none.
        histograms: For cameras whose levels were counted, channels x levels: the very counts that
            their statistics follow from.
        capture_times: When its frames were captured, by clock; see ``layouts/capture_times.py``.
        replaces: Files, relative to the dataset's folder, that the same commit deletes: the
            manifest of a persisted episode, which is committed or waits, and never both.
    """

    columns: Mapping[str, Values]
    tasks: Sequence[str]
    videos: GivenVideos | Callable[[], GivenVideos] = field(default_factory=dict)
    images: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    stats: Stats = field(default_factory=dict)
    histograms: Mapping[str, np.ndarray] = field(default_factory=dict)
    capture_times: Mapping[str, np.ndarray] = field(default_factory=dict)
    replaces: Sequence[str] = ()

    @property
    def length(self) -> int:
        """Frames of it."""
        return len(self.tasks)

    @property
    def task_names(self) -> list[str]:
        """Its tasks, each once."""
        return list(dict.fromkeys(self.tasks))


class TableWriter:
    """Writes one table of frames: a row group for each piece.

    Args:
        path: The file to make; its folder is made if need be.
        schema: The columns.
    """

    def __init__(self, path: PathLike, schema: pa.Schema) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self.rows = 0
        self._sink = pa.OSFile(os.fspath(path), "wb")
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            # A dictionary of floats, or of numbers that never repeat, costs time and room.
            use_dictionary=[field.name for field in schema if _repeats(field)],
            write_batch_size=batch_rows(schema),
        )

    @property
    def size(self) -> int:
        """Bytes that were written so far."""
        return int(self._sink.tell())

    def write(self, table: pa.Table) -> None:
        """Write rows: an episode, or a part of one where it holds images."""
        self._writer.write_table(table, row_group_size=max(1, len(table)))
        self.rows += len(table)

    def close(self) -> None:
        """Finish the file."""
        self._writer.close()
        self._sink.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _repeats(field: pa.Field) -> bool:
    kind = field.type
    if field.name in ("index", "frame_index"):
        return False
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
    )


class Writer(ABC):
    """Writes a dataset into an empty folder, episode by episode; layouts derive from it.

    The folder is of use only after ``commit()``. ``create_writer`` writes into a staging folder and
    renames it.

    Args:
        root: The folder to fill.
        info: What the dataset is to be. Its totals are ignored; its file sizes are kept to.

    Raises:
        ArgumentError: ``info`` is of a version that the layout does not write, or a feature cannot
            be stored.
    """

    versions: ClassVar[Sequence[str]]

    def __init__(self, root: PathLike, info: Info) -> None:
        self.root = Path(root)
        self.info = info
        self.committed = False
        self._intake = Intake(info, versions=self.versions)

    def default_columns(
        self, tasks: Sequence[str], *, timestamps: Values | None = None
    ) -> dict[str, np.ndarray]:
        """Return the columns (timestamp, index, ...) that the next ``append`` will add."""
        return self._intake.default_columns(tasks, timestamps=timestamps)

    def append(self, draft: EpisodeDraft) -> int:
        """Write one episode and return its index.

        If the episode is refused, nothing has changed and the next one may be appended. All
        episodes have the same kinds of statistics, or none.

        Raises:
            ArgumentError: Something is missing, or of another shape or type than declared.
            UnknownKeyError: Something is given that is not declared.
            VideoError: A video does not open.
            FrameMismatchError: A video has not as many frames as there are tasks.
        """
        self._refuse_committed()
        table = self._intake.check(draft)
        given = draft.videos() if callable(draft.videos) else draft.videos
        self._write(draft, table, self._intake.check_videos(given, draft.length))
        self._intake.accept(draft)
        return self._intake.episodes - 1

    def commit(self, *, stats: Stats | None = None) -> None:
        """Finish all files and write the metadata.

        Args:
            stats: Statistics of the whole dataset, where the layout has a place for them.

        Raises:
            ArgumentError: There are no episodes, or this was called before.
            VideoError: Videos could not be joined.
        """
        self._refuse_committed()
        if not self._intake.episodes:
            raise ArgumentError("A dataset needs at least one episode, and none was added.")
        self._finish(self._intake.info, stats)
        self.committed = True

    @abstractmethod
    def _write(
        self, draft: EpisodeDraft, table: pa.Table, videos: Mapping[str, ProbedVideo]
    ) -> None:
        """Write the next episode, which was checked."""

    @abstractmethod
    def _finish(self, info: Info, stats: Stats | None) -> None:
        """Finish all files and write the metadata."""

    def close(self) -> None:  # noqa: B027
        """Let go of open files without finishing the dataset. Safe to call at any time."""

    def _refuse_committed(self) -> None:
        if self.committed:
            raise ArgumentError("This dataset is already committed.", dataset=self.root)


@contextmanager
def create_writer(target: PathLike, info: Info) -> Iterator[Writer]:
    """Yield a writer whose dataset appears at ``target``, whole, when the block ends.

    The version in ``info`` decides which. The block must call ``commit()``; without it, or if it
    raises, ``target`` stays as it was.

    Raises:
        TargetExistsError: There is something at ``target``.
        ArgumentError: The block ended without ``commit()``.
    """
    from demoreel.layouts.v2.writer import V2Writer
    from demoreel.layouts.v3.writer import V3Writer

    kind: type[Writer] = V2Writer if info.version in V2Writer.versions else V3Writer
    with staged(target) as folder:
        writer = kind(folder, info)
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
        versions: The ``codebase_version`` that the caller writes, or several.

    Raises:
        ArgumentError: ``info`` is of another version, or a feature cannot be stored.
    """

    def __init__(self, info: Info, *, versions: Sequence[str]) -> None:
        if info.version not in versions:
            known = " and ".join(versions)
            raise ArgumentError(f"This writer writes {known}, not {info.version}.")
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

    def check(self, draft: EpisodeDraft) -> pa.Table:
        """Check all of an episode but its videos, and return its rows. Changes nothing.

        Raises:
            ArgumentError: Something is missing, too many, or of the wrong shape or type.
            UnknownKeyError: Something is given that ``info`` does not declare.
        """
        if draft.length == 0 or isinstance(draft.tasks, str):
            raise ArgumentError("tasks must name the task of every frame, and an episode has some.")
        self._check_keys(draft.columns, draft.images)
        given: dict[str, Values] = {**draft.columns, **draft.images}
        given |= self.default_columns(draft.tasks, timestamps=draft.columns.get("timestamp"))
        arrays = [
            to_arrow(given[k], self.info.features[k], length=draft.length)
            for k in self.schema.names
        ]
        self._check_stats(draft.stats)
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def check_videos(self, videos: GivenVideos, length: int) -> dict[str, ProbedVideo]:
        """Return the videos of an episode of so many frames, checked. Changes nothing.

        Raises:
            ArgumentError: One is missing.
            UnknownKeyError: There is no such camera.
            VideoError: One does not open.
            FrameMismatchError: One has another number of frames.
        """
        self._refuse_other("video camera", set(videos), set(self.info.video_keys))
        return {key: self._checked_video(key, videos[key], length) for key in videos}

    def accept(self, draft: EpisodeDraft) -> None:
        """Count the episode in; called when it has been written."""
        self.info = self.info_with(draft)
        self.episodes += 1
        self.frames += draft.length
        self._stat_keys = _stat_keys(draft.stats)
        for task in draft.task_names:
            self.tasks.setdefault(task, len(self.tasks))

    def info_with(self, draft: EpisodeDraft) -> Info:
        """Return ``info`` with the totals of what was written and of this episode."""
        splits, total = dict(self.info.splits), self.episodes + 1
        if splits in ({}, {"train": f"0:{self.episodes}"}):
            splits = {"train": f"0:{total}"}
        return replace(
            self.info,
            total_episodes=total,
            total_frames=self.frames + draft.length,
            total_tasks=len({*self.tasks, *draft.tasks}),
            splits=splits,
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

    def _check_stats(self, stats: Stats) -> None:
        """Every episode's statistics become one row of one table, so their names must agree."""
        if self._stat_keys is None or self._stat_keys == _stat_keys(stats):
            return
        differs = sorted(_stat_keys(stats) ^ self._stat_keys)[0]
        raise ArgumentError(
            f"The episode's statistics differ in kind from those before: {'/'.join(differs)}.",
            hint="give every episode the same statistics, or none",
            episode=self.episodes,
        )

    def _checked_video(
        self, camera: str, given: PathLike | ProbedVideo, length: int
    ) -> ProbedVideo:
        video = given if isinstance(given, ProbedVideo) else ProbedVideo(Path(given), *probe(given))
        require_frames(
            video.frames,
            length,
            hint="a video must hold exactly the frames of its episode",
            episode=self.episodes,
            camera=camera,
            file=video.path,
        )
        return video


def _stat_keys(stats: Stats) -> set[tuple[str, str]]:
    return {(key, name) for key, kinds in stats.items() for name in kinds}


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
