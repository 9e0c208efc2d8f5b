"""Writes LeRobot v2.0 and v2.1: a table and a video per camera for each episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from demoreel.layouts.writing import (
    EpisodeDraft,
    PathLike,
    ProbedVideo,
    TableWriter,
    Writer,
    write_json,
    write_json_lines,
)
from demoreel.media.remux import join
from demoreel.model import Info, Stats, stats_to_json


class V2Writer(Writer):
    """Writes a v2 dataset; the version in ``info`` decides which.

    The two versions differ in their statistics: v2.0 keeps those of the whole dataset, v2.1 those
    of each episode; what a version has no place for is not written.
    """

    versions = ("v2.0", "v2.1")

    def __init__(self, root: PathLike, info: Info) -> None:
        super().__init__(root, info)
        self._episodes: list[dict[str, Any]] = []
        self._stats: list[dict[str, Any]] = []

    def _write(
        self, draft: EpisodeDraft, table: pa.Table, videos: Mapping[str, ProbedVideo]
    ) -> None:
        number = self._intake.episodes
        names = {"episode_chunk": number // self.info.chunks_size, "episode_index": number}
        with TableWriter(self.root / self.info.data_path.format(**names), table.schema) as writer:
            writer.write(table)
        for key, video in videos.items():
            assert self.info.video_path is not None
            path = self.root / self.info.video_path.format(**names, video_key=key)
            path.parent.mkdir(parents=True, exist_ok=True)
            join([video.path], path, fps=self.info.fps)
        about = {"episode_index": number, "tasks": draft.task_names, "length": draft.length}
        self._episodes.append(about)
        if draft.stats:
            self._stats.append({"episode_index": number, "stats": stats_to_json(draft.stats)})

    def _finish(self, info: Info, stats: Stats | None) -> None:
        is_old = info.version == "v2.0"
        write_metadata(
            self.root / "meta",
            info,
            self._episodes,
            self._intake.tasks,
            stats=stats if is_old else None,
            episode_stats=() if is_old else self._stats,
        )


def write_metadata(
    meta: Path,
    info: Info,
    episodes: Sequence[Mapping[str, Any]],
    tasks: Mapping[str, int],
    *,
    details: Mapping[str, Mapping[str, Any]] | None = None,
    stats: Stats | None = None,
    episode_stats: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write all of ``meta/``; nothing is synced to disk.

    Args:
        meta: The folder; it is made.
        info: What the dataset is; the totals that only v2 has are added.
        episodes: What is known of each episode.
        tasks: The number of each text.
        details: What else is said of a task, by its text.
        stats: Statistics of the whole dataset.
        episode_stats: Statistics of each episode, beside its number.
    """
    about = details or {}
    numbers = [
        {**about.get(text, {}), "task_index": number, "task": text}
        for text, number in tasks.items()
    ]
    write_json_lines(meta / "tasks.jsonl", numbers)
    write_json_lines(meta / "episodes.jsonl", episodes)
    if episode_stats:
        write_json_lines(meta / "episodes_stats.jsonl", episode_stats)
    if stats:
        write_json(meta / "stats.json", stats_to_json(stats))
    totals = {
        "total_videos": info.total_episodes * len(info.video_keys),
        "total_chunks": -(-info.total_episodes // info.chunks_size),
    }
    write_json(meta / "info.json", replace(info, extra={**info.extra, **totals}).to_json())
