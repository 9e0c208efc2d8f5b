"""``meta/`` of the target: as in v3.0, carried over file by file, or made of v2's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.errors import ArgumentError
from demoreel.layouts.base import Reader
from demoreel.layouts.v3.meta_files import write_tasks
from demoreel.layouts.writing import write_json
from demoreel.model import Info, Stats, stats_from_json, stats_to_json
from demoreel.storage.json_files import read_json, read_json_lines

_V2_FILES = {
    "info.json",
    "episodes.jsonl",
    "tasks.jsonl",
    "stats.json",
    "episodes_stats.jsonl",
}
_MADE = {*_V2_FILES, "tasks.parquet", "demoreel.json"}
_MADE_FOLDERS = {"episodes", "demoreel"}
_V2_ONLY = {"total_videos", "total_chunks"}
_STORAGE = "storage_format"


def target_info(reader: Reader, to: str) -> dict[str, Any]:
    """Return what the target's ``info.json`` will hold.

    Raises:
        ArgumentError: A camera cannot be what the target would make of it.
    """
    if reader.info.version.startswith("v2"):
        raw = _upgraded(reader.info).to_json()
    else:
        raw = dict(read_json(reader.meta / "info.json"))
    raw.pop(_STORAGE, None)
    if to == "lance-native":
        raw[_STORAGE] = "lance"
    raw["total_episodes"] = len(reader.episodes)
    raw["total_frames"] = reader.episodes.total_frames
    if to != "lance-frames":
        raw["features"] = {
            key: _as_pictures(reader, key, entry) for key, entry in raw["features"].items()
        }
        if not any(entry["dtype"] == "video" for entry in raw["features"].values()):
            raw["video_path"] = None
    return raw


def _upgraded(info: Info) -> Info:
    """Return a v2 dataset's info as v3.0 has it."""
    return Info.new(
        version="v3.0",
        fps=info.fps,
        features=info.features,
        robot_type=info.robot_type,
        total_episodes=info.total_episodes,
        total_frames=info.total_frames,
        total_tasks=info.total_tasks,
        chunks_size=info.chunks_size,
        splits=info.splits,
        extra={name: value for name, value in info.extra.items() if name not in _V2_ONLY},
    )


def _as_pictures(reader: Reader, key: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a camera's entry; what was a video, and lies as pictures in a table, is one no more.

    Raises:
        ArgumentError: It is a depth camera: the pictures are the video's codes, not depths.
    """
    if entry.get("dtype") != "video" or not reader.in_tables(key):
        return dict(entry)
    if reader.info.features[key].is_depth:
        raise ArgumentError(
            f"The pictures of the depth camera {key!r} are codes of the video that it was before.",
            hint="convert the dataset that this one was made from",
            dataset=reader.root,
        )
    kept = {name: value for name, value in entry.items() if name not in ("info", "video_info")}
    return {**kept, "dtype": "image"}


def write_meta(
    reader: Reader, raw: Mapping[str, Any], numbers: Mapping[str, np.ndarray], folder: Path
) -> None:
    """Write ``meta/`` of the target into a folder.

    Args:
        reader: The source.
        raw: The target's ``info.json``.
        numbers: Where every episode lies in the target; see ``episode_numbers``.
        folder: The target's root.

    Raises:
        MetadataError: The source's metadata are broken.
        OSError: The disk is full or not writable.
    """
    source, meta = reader.meta, folder / "meta"
    shutil.rmtree(meta, ignore_errors=True)  # of a conversion that was killed here
    v2 = reader.info.version.startswith("v2")
    for path in sorted(source.rglob("*")):
        place = path.relative_to(source)
        if path.is_file() and not (v2 and str(place) in _V2_FILES):
            (meta / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, meta / place)
    meta.mkdir(parents=True, exist_ok=True)
    if v2:
        write_tasks(meta / "tasks.parquet", {text: i for i, text in reader.tasks.items()})
        _write_episodes(reader, numbers, meta / "episodes" / "chunk-000" / "file-000.parquet")
        stats = _whole_stats(reader)
        if stats is not None:
            write_json(meta / "stats.json", stats_to_json(stats))
    else:
        _drop_video_columns(meta, raw)
    write_json(meta / "info.json", raw)


def carry_other_files(reader: Reader, folder: Path) -> None:
    """Copy the files of other programs into a result's ``meta/`` (``modality.json`` and such).

    Raises:
        OSError: The disk is full or not writable.
    """
    for path in sorted(reader.meta.rglob("*")):
        place = path.relative_to(reader.meta)
        known = str(place) in _MADE or place.parts[0] in _MADE_FOLDERS
        if path.is_file() and not known and not place.parts[0].startswith("."):
            (folder / "meta" / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / "meta" / place)


def _whole_stats(reader: Reader) -> Stats | None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are none is no news to the converter
        return reader.stats


def _drop_video_columns(meta: Path, raw: Mapping[str, Any]) -> None:
    """Forget where cameras that are no videos any more lay in their videos."""
    gone = tuple(
        f"videos/{key}/" for key, entry in raw["features"].items() if entry["dtype"] == "image"
    )
    if not gone:
        return
    for path in sorted((meta / "episodes").glob("*/*.parquet")):
        table = pq.ParquetFile(path).read()
        kept = [name for name in table.column_names if not name.startswith(gone)]
        if len(kept) < table.num_columns:
            pq.write_table(table.select(kept), path, compression="snappy")


def _write_episodes(reader: Reader, numbers: Mapping[str, np.ndarray], path: Path) -> None:
    episodes = list(reader.episodes)
    columns: dict[str, pa.Array] = {
        "episode_index": pa.array(reader.episodes.episode_index),
        "tasks": pa.array([list(episode.tasks) for episode in episodes], pa.list_(pa.string())),
        "length": pa.array(reader.episodes.length),
    }
    for name, values in numbers.items():
        columns.setdefault(name, pa.array(np.ascontiguousarray(values)))
    columns |= _episode_stats(reader)
    for name in dict.fromkeys(key for episode in episodes for key in episode.extra):
        if name not in columns:
            columns[name] = _as_column([episode.extra.get(name) for episode in episodes])
    nothing = pa.array(np.zeros(len(episodes), np.int64))
    columns |= {"meta/episodes/chunk_index": nothing, "meta/episodes/file_index": nothing}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, compression="snappy")


def _episode_stats(reader: Reader) -> dict[str, pa.Array]:
    """Return v2.1's statistics of each episode, as columns; none if they are not complete."""
    path = reader.meta / "episodes_stats.jsonl"
    if not path.exists():
        return {}
    by_episode = {
        int(line["episode_index"]): stats_from_json(line.get("stats"), where=str(path))
        for line in read_json_lines(path)
        if isinstance(line.get("episode_index"), int)
    }
    every = [by_episode.get(number) for number in reader.episodes.episode_index.tolist()]
    if not every or any(stats is None for stats in every):
        return {}
    whole = [stats for stats in every if stats is not None]
    names = [(key, kind) for key, kinds in whole[0].items() for kind in kinds]
    return {
        f"stats/{key}/{kind}": pa.array([stats[key][kind].tolist() for stats in whole])
        for key, kind in names
        if all(kind in stats.get(key, {}) for stats in whole)
    }


def _as_column(values: Sequence[Any]) -> pa.Array:
    """Return other people's values as a column; as JSON where they have no common type."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        texts = [None if v is None else json.dumps(v, ensure_ascii=False) for v in values]
        return pa.array(texts, pa.string())
