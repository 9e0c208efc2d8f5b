"""Datasets that the benchmarks make for themselves."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

CAMERAS = ("observation.images.front", "observation.images.wrist")


def write_metadata_only(root: Path, episodes: int, *, per_file: int = 100_000) -> Path:
    """Write the metadata of a v3.0 dataset of any size: no table, no video, statistics included."""
    rng = np.random.default_rng(0)
    length = rng.integers(50, 400, episodes)
    stop = np.cumsum(length)
    state = {"dtype": "float32", "shape": [7], "names": None}
    camera = {"dtype": "video", "shape": [480, 640, 3], "names": ["height", "width", "channels"]}
    scalars = {name: {"dtype": "int64", "shape": [1]} for name in INDICES}
    info = {
        "codebase_version": "v3.0",
        "fps": 30,
        "total_episodes": episodes,
        "total_frames": int(stop[-1]),
        "total_tasks": 1,
        "chunks_size": 1000,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": {
            "observation.state": state,
            "action": state,
            **dict.fromkeys(CAMERAS, camera),
            "timestamp": {"dtype": "float32", "shape": [1]},
            **scalars,
        },
    }
    (root / "meta").mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(info))
    pq.write_table(pa.table({"task_index": [0], "task": ["do it"]}), root / "meta/tasks.parquet")
    for number, at in enumerate(range(0, episodes, per_file)):
        part = slice(at, min(at + per_file, episodes))
        path = root / f"meta/episodes/chunk-000/file-{number:03d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(_episodes(part, length, stop), path, row_group_size=10_000)
    return root


INDICES = ("frame_index", "episode_index", "index", "task_index")


def _episodes(part: slice, length: np.ndarray, stop: np.ndarray) -> pa.Table:
    numbers = np.arange(part.start, part.stop)
    count = len(numbers)
    file = numbers // 500
    columns = {
        "episode_index": numbers,
        "tasks": pa.array([["do it"]] * count),
        "length": length[part],
        "data/chunk_index": file // 1000,
        "data/file_index": file % 1000,
        "dataset_from_index": (stop - length)[part],
        "dataset_to_index": stop[part],
    }
    video = numbers // 50
    begin = np.zeros(count)
    for first in range(0, count, 50):
        seconds = np.cumsum(length[part][first : first + 50]) / 30
        begin[first : first + 50] = np.concatenate([[0], seconds[:-1]])
    for camera in CAMERAS:
        columns[f"videos/{camera}/chunk_index"] = video // 1000
        columns[f"videos/{camera}/file_index"] = video % 1000
        columns[f"videos/{camera}/from_timestamp"] = begin
        columns[f"videos/{camera}/to_timestamp"] = begin + length[part] / 30
    for key in ("observation.state", "action"):
        for kind in ("min", "max", "mean", "std"):
            values = pa.array(np.zeros(count * 7))
            columns[f"stats/{key}/{kind}"] = pa.FixedSizeListArray.from_arrays(values, 7)
    return pa.table(columns)


def write_long(root: Path, source: Path, *, times: int) -> Path:
    """Write a v3.0 dataset that repeats the episodes of a v2.1 one, in videos of 100 MB.

    Images, codec and GOPs stay as they were filmed; only the dataset is longer, so
    that no reader can keep all of it in its caches.
    """
    import demoreel
    from demoreel.layouts.writing import EpisodeDraft, create_writer
    from demoreel.model import Info

    ds = demoreel.open(source)
    episodes = [ds.episode(int(number)) for number in ds.episodes.episode_index]
    own = [
        key
        for key, feature in ds.features.items()
        if not feature.is_camera and key not in (*INDICES, "timestamp")
    ]
    info = Info.new(version="v3.0", fps=ds.fps, features=ds.features, video_files_size_in_mb=100)
    with create_writer(root, info) as writer:
        for episode, entry in list(zip(episodes, ds.episodes, strict=True)) * times:
            columns = {key: episode.column(key) for key in own}
            videos = {key: source / file for key, file in entry.video_files.items()}
            writer.append(EpisodeDraft(columns, [entry.tasks[0]] * entry.length, videos))
        writer.commit(stats=ds.stats)
    return root


def copy_synced(source: Path, target: Path) -> None:
    """Copy every file and force it to disk."""
    for path in sorted(source.rglob("*")):
        to = target / path.relative_to(source)
        if path.is_dir():
            to.mkdir(parents=True)
        else:
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to)
            with open(to, "rb") as file:
                os.fsync(file.fileno())
