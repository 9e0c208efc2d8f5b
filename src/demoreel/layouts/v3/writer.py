"""Writing LeRobot v3.0: many episodes in each table and each video."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.errors import ArgumentError, FrameMismatchError
from demoreel.layouts.v3.meta_files import EpisodeFile, write_tasks
from demoreel.layouts.writing import (
    Intake,
    NewEpisode,
    NewVideo,
    PathLike,
    Values,
    staged_writer,
    write_json,
)
from demoreel.media.remux import join
from demoreel.model import Info, Stats, stats_to_json

VERSION = "v3.0"

_MB = 1024 * 1024


@dataclass(slots=True)
class _Place:
    """The chunk and file that something goes to; ``next_file`` moves on."""

    chunk: int = 0
    file: int = 0

    def next_file(self, chunks_size: int) -> None:
        self.file += 1
        if self.file == chunks_size:
            self.chunk, self.file = self.chunk + 1, 0


class Writer:
    """Writes a v3.0 dataset into an empty folder, episode by episode.

    The folder is of use only after ``commit()``; write into a staging folder and rename it, or use
    ``create``, which does. Memory stays bounded: tables are written as they come (one row group
    an episode), videos are joined when a file is full.

    Args:
        root: The folder to fill.
        info: What the dataset is to be. Its totals are ignored; its file sizes are kept to.

    Raises:
        ArgumentError: ``info`` is not of version v3.0, or a feature cannot be stored.
    """

    def __init__(self, root: PathLike, info: Info) -> None:
        self.root = Path(root)
        self.info = info
        self.committed = False
        self._intake = Intake(info, version=VERSION)
        self._tables = _TableFiles(self.root, info, self._intake.schema)
        self._videos = {key: _VideoFiles(self.root, info, key) for key in info.video_keys}
        self._episodes = EpisodeFile(self.root)

    def default_columns(
        self, tasks: Sequence[str], *, timestamps: Values | None = None
    ) -> dict[str, np.ndarray]:
        """Return the columns (timestamp, index, ...) that the next ``add_episode`` will add."""
        return self._intake.default_columns(tasks, timestamps=timestamps)

    def add_episode(
        self,
        columns: Mapping[str, Values],
        *,
        tasks: Sequence[str],
        videos: Mapping[str, PathLike] | None = None,
        images: Mapping[str, Sequence[bytes]] | None = None,
        stats: Stats | None = None,
    ) -> int:
        """Write one episode and return its index.

        If the episode is refused, nothing has changed and the next one may be added.

        Args:
            columns: Every declared feature that is no camera, one row a frame. ``timestamp`` may be
                among them; the other default columns are made here.
            tasks: The task of every frame.
            videos: For each video camera an mp4 of exactly this episode's frames. It is only read,
                and must stay where it is until ``commit()``.
            images: For each image camera the encoded pictures.
            stats: The episode's statistics; all episodes have the same kinds, or none.

        Raises:
            ArgumentError: Something is missing, or of another shape or type than declared.
            UnknownKeyError: Something is given that is not declared.
            VideoError: A video does not open.
            FrameMismatchError: A video has not as many frames as there are tasks.
        """
        self._refuse_committed()
        episode = self._intake.check(
            columns, tasks=tasks, videos=videos or {}, images=images or {}, stats=stats
        )
        row: dict[str, Any] = {
            "episode_index": episode.index,
            "tasks": episode.tasks,
            "length": episode.length,
        }
        row |= self._tables.add(episode)
        row |= {"dataset_from_index": episode.start}
        row |= {"dataset_to_index": episode.start + episode.length}
        for key, files in self._videos.items():
            row |= files.add(episode.videos[key], episode.length)
        for key, kinds in (stats or {}).items():
            row |= {f"stats/{key}/{name}": np.asarray(value) for name, value in kinds.items()}
        self._episodes.add(row)
        self._intake.accept(episode)
        return episode.index

    def commit(self, *, stats: Stats | None = None) -> None:
        """Finish all files and write the metadata.

        Args:
            stats: Statistics of the whole dataset; without them there is no ``stats.json``.

        Raises:
            ArgumentError: There are no episodes, or this was called before.
            VideoError: Videos could not be joined.
        """
        self._refuse_committed()
        info = self._intake.final_info()
        self._tables.close()
        for files in self._videos.values():
            files.flush()
        self._episodes.close()
        write_tasks(self.root / "meta" / "tasks.parquet", self._intake.tasks)
        if stats is not None:
            write_json(self.root / "meta" / "stats.json", stats_to_json(stats))
        write_json(self.root / "meta" / "info.json", info.to_json())
        self.committed = True

    def close(self) -> None:
        """Let go of open files without finishing the dataset. Safe to call at any time."""
        self._tables.close()
        self._episodes.close()

    def _refuse_committed(self) -> None:
        if self.committed:
            raise ArgumentError("This dataset is already committed.", dataset=self.root)


@contextmanager
def create(target: PathLike, info: Info) -> Iterator[Writer]:
    """Yield a writer whose dataset appears at ``target``, whole, when the block ends.

    The block must call ``commit()``; without it, or if it raises, ``target`` stays as it was.

    Raises:
        TargetExistsError: There is something at ``target``.
        ArgumentError: The block ended without ``commit()``.
    """
    with staged_writer(target, lambda folder: Writer(folder, info)) as writer:
        yield writer


class _TableFiles:
    """The files under ``data/``: a row group an episode, a new file when one is full."""

    def __init__(self, root: Path, info: Info, schema: pa.Schema) -> None:
        self._root = root
        self._info = info
        self._schema = schema
        self._limit = info.data_files_size_in_mb * _MB
        self._place = _Place()
        self._writer: pq.ParquetWriter | None = None
        self._sink: pa.NativeFile | None = None
        self._rows = 0

    def add(self, episode: NewEpisode) -> dict[str, int]:
        if self._is_full_with(episode.length):
            self.close()
            self._place.next_file(self._info.chunks_size)
        if self._writer is None:
            self._open()
        assert self._writer is not None
        self._writer.write_table(episode.table, row_group_size=episode.length)
        self._rows += episode.length
        return {"data/chunk_index": self._place.chunk, "data/file_index": self._place.file}

    def _is_full_with(self, rows: int) -> bool:
        if self._sink is None:
            return False
        written = self._sink.tell()
        return bool(written + rows * written / self._rows > self._limit)

    def _open(self) -> None:
        name = self._info.data_path.format(
            chunk_index=self._place.chunk, file_index=self._place.file
        )
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self._sink = pa.OSFile(os.fspath(path), "wb")
        self._writer = pq.ParquetWriter(self._sink, self._schema, compression="snappy")
        self._rows = 0

    def close(self) -> None:
        if self._writer is not None and self._sink is not None:
            self._writer.close()
            self._sink.close()
        self._writer = self._sink = None


@dataclass(slots=True)
class _VideoFiles:
    """One camera's files under ``videos/``: episodes wait until a file is full, then are joined."""

    root: Path
    info: Info
    camera: str
    place: _Place = field(default_factory=_Place)
    waiting: list[NewVideo] = field(default_factory=list)
    frames: int = 0
    bytes: int = 0

    def add(self, video: NewVideo, length: int) -> dict[str, int | float]:
        limit = self.info.video_files_size_in_mb * _MB
        full = self.bytes + video.size > limit
        # Videos that cannot share a file (another encoder version, say) need not.
        differs = bool(self.waiting) and self.waiting[0].signature != video.signature
        if self.waiting and (full or differs):
            self.flush()
            self.place.next_file(self.info.chunks_size)
        start, self.frames = self.frames, self.frames + length
        self.bytes += video.size
        self.waiting.append(video)
        return {
            f"videos/{self.camera}/chunk_index": self.place.chunk,
            f"videos/{self.camera}/file_index": self.place.file,
            f"videos/{self.camera}/from_timestamp": start / self.info.fps,
            f"videos/{self.camera}/to_timestamp": self.frames / self.info.fps,
        }

    def flush(self) -> None:
        """Join the waiting videos into their file."""
        assert self.info.video_path is not None
        name = self.info.video_path.format(
            video_key=self.camera, chunk_index=self.place.chunk, file_index=self.place.file
        )
        target = self.root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        joined = join([video.path for video in self.waiting], target, fps=self.info.fps)
        if joined != self.frames:
            raise FrameMismatchError(
                f"The joined video has {joined} frames; its episodes have {self.frames} rows.",
                hint="a video was changed after its episode was added",
                camera=self.camera,
                file=target,
            )
        self.waiting, self.frames, self.bytes = [], 0, 0
