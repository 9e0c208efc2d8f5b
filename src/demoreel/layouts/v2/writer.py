"""Writing LeRobot v2.0 and v2.1: one table and one video per camera for each episode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from demoreel.errors import ArgumentError
from demoreel.layouts.writing import (
    Intake,
    NewEpisode,
    PathLike,
    Values,
    staged_writer,
    write_json,
    write_json_lines,
)
from demoreel.media.remux import join
from demoreel.model import Info, Stats, stats_to_json


class Writer:
    """Writes a v2 dataset into an empty folder, episode by episode.

    The contract is that of ``layouts.v3.writer.Writer``. The two versions differ in their
    statistics: v2.0 keeps those of the whole dataset (``commit(stats=...)``), v2.1 those of each
    episode (``add_episode(stats=...)``); what a version has no place for is not written.

    Args:
        root: The folder to fill.
        info: What the dataset is to be; its version decides. Its totals are ignored.

    Raises:
        ArgumentError: ``info`` is not of version v2.0 or v2.1, or a feature cannot be stored.
    """

    def __init__(self, root: PathLike, info: Info) -> None:
        if info.version not in ("v2.0", "v2.1"):
            raise ArgumentError(f"This writer writes v2.0 and v2.1, not {info.version}.")
        self.root = Path(root)
        self.info = info
        self.committed = False
        self._intake = Intake(info, version=info.version)
        self._episodes: list[dict[str, Any]] = []
        self._stats: list[dict[str, Any]] = []

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
        """Write one episode and return its index; see ``layouts.v3.writer.Writer``.

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
        table = self._path(self.info.data_path.format(**self._names(episode)))
        pq.write_table(episode.table, table, compression="snappy", row_group_size=episode.length)
        for key, video in episode.videos.items():
            assert self.info.video_path is not None
            name = self.info.video_path.format(**self._names(episode), video_key=key)
            join([video.path], self._path(name), fps=self.info.fps)
        self._episodes.append(
            {"episode_index": episode.index, "tasks": episode.tasks, "length": episode.length}
        )
        if stats is not None:
            self._stats.append({"episode_index": episode.index, "stats": stats_to_json(stats)})
        self._intake.accept(episode)
        return episode.index

    def commit(self, *, stats: Stats | None = None) -> None:
        """Write the metadata.

        Args:
            stats: Statistics of the whole dataset, for v2.0; v2.1 has no place for them.

        Raises:
            ArgumentError: There are no episodes, or this was called before.
        """
        self._refuse_committed()
        count = self._intake.episodes
        info = self._intake.final_info(
            total_videos=count * len(self.info.video_keys),
            total_chunks=-(-count // self.info.chunks_size),
        )
        meta = self.root / "meta"
        tasks = [{"task_index": n, "task": task} for task, n in self._intake.tasks.items()]
        write_json_lines(meta / "tasks.jsonl", tasks)
        write_json_lines(meta / "episodes.jsonl", self._episodes)
        if self.info.version == "v2.0" and stats is not None:
            write_json(meta / "stats.json", stats_to_json(stats))
        if self.info.version == "v2.1" and self._stats:
            write_json_lines(meta / "episodes_stats.jsonl", self._stats)
        write_json(meta / "info.json", info.to_json())
        self.committed = True

    def close(self) -> None:
        """Do nothing: between episodes no file is open. Here for the common contract."""

    def _names(self, episode: NewEpisode) -> dict[str, int]:
        chunk = episode.index // self.info.chunks_size
        return {"episode_chunk": chunk, "episode_index": episode.index}

    def _path(self, name: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

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
