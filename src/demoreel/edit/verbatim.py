"""Copies a dataset into another layout: videos byte for byte, rows and metadata unchanged.

Episodes keep their numbers, tasks theirs, and every file of ``meta/`` its bytes. Of v2.x, whose
metadata are JSON lines, v3.0's are made, with everything that is known of an episode.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.edit.foreign import details_in, files_beside
from demoreel.edit.form import Form
from demoreel.edit.scores import read_scores
from demoreel.edit.target_info import said_of_audio
from demoreel.edit.video_plan import VideoOut, VideoPlan
from demoreel.errors import ArgumentError, ConversionError, MetadataError
from demoreel.layouts.base import Reader
from demoreel.layouts.columns import rows_at_once
from demoreel.layouts.lance.reader import LanceReader
from demoreel.layouts.meta import listing_files
from demoreel.layouts.v3.reader import UNUSED_FRAMES
from demoreel.layouts.v3.writer import write_tasks
from demoreel.layouts.writing import write_json
from demoreel.media.audio import tracks_of
from demoreel.model import Info, Stats, stats_from_json, stats_to_json
from demoreel.run.anywhere import folder_state
from demoreel.stats.files import quiet_stats
from demoreel.storage.folder import copy_inside, score_files
from demoreel.storage.json_files import read_json, read_json_lines
from demoreel.storage.parquet import open_parquet

_MB = 1024 * 1024
_ROWS = 1 << 18  # of a Lance fragment
_ROWS_WITH_IMAGES = 1 << 12
_IMAGE_SHARE = 4  # bytes of pixels that a lossless image takes one byte for; a guess
_ITS_AUDIO = "its audio"
_V2_FILES = {
    "info.json",
    "episodes.jsonl",
    "tasks.jsonl",
    "stats.json",
    "episodes_stats.jsonl",
}
_V2_ONLY = {"total_videos", "total_chunks"}
_STORAGE = "storage_format"


@dataclass(frozen=True, slots=True)
class Verbatim:
    """What a verbatim result takes from its source.

    Attributes:
        raw_info: Its ``info.json``.
        info: The same, checked.
        numbers: Which file each episode is in, by v3.0's names of the columns.
        tables: Chunk and file index of each table or part of one, with its episodes: positions of
            the first and one past the last of each span.
        video_plans: Its videos, by camera.
        identity: Changes when a file of the source does.
        dropped: What the source holds and the result will not, a sentence each.
        scores: Its score files.
    """

    raw_info: Mapping[str, Any]
    info: Info
    numbers: Mapping[str, np.ndarray]
    tables: Sequence[tuple[int, int, tuple[tuple[int, int], ...]]]
    video_plans: Mapping[str, VideoPlan]
    identity: str
    dropped: tuple[str, ...]
    scores: tuple[str, ...] = ()


def plan_verbatim(reader: Reader, form: Form) -> Verbatim:
    """Plan a whole dataset in another layout.

    Cost: reads metadata, and a ``stat`` of every file; for lance-frames, the table of packets of
    every video.
    """
    raw = _info(reader, form.layout)
    scores = [n for n in score_files(reader.root) if read_scores(reader, n) is not None]
    dropped = [*_lost_audio(reader, raw, form), *files_beside(reader.root, scores)]
    info = Info.from_json(raw, where="info.json")
    numbers = _episode_numbers(reader, info)
    video_plans = {}
    if form.layout != "lance-frames":
        video_plans = {
            camera: _whole_videos(reader, camera, numbers, link=form.link)
            for camera in reader.info.video_keys
            if not reader.in_tables(camera)
        }
    if form.layout == "v3.0":
        tables = list(_tables(numbers))
    else:
        heavy = form.layout == "lance-frames" or bool(info.image_keys)
        parts = portions(reader, 0, len(reader.episodes), _ROWS_WITH_IMAGES if heavy else _ROWS)
        tables = [(0, number, (part,)) for number, part in enumerate(parts)]
    return Verbatim(
        raw,
        info,
        numbers,
        tables,
        video_plans,
        folder_state(reader.root),
        dropped=tuple(dropped),
        scores=tuple(scores),
    )


def portions(reader: Reader, first: int, stop: int, at_once: int) -> Iterator[tuple[int, int]]:
    """Yield spans of episodes of about so many rows; at least one episode each."""
    start = reader.episodes.start
    at_once = rows_at_once(reader.info.features.values(), at_once)
    while first < stop:
        end = int(np.searchsorted(start, start[first] + at_once, side="right")) - 1
        end = min(max(end, first + 1), stop)
        yield first, end
        first = end


def refuse_changed(root: Path, before: str) -> None:
    """Refuse a source that is not what it was when its copy was planned."""
    if folder_state(root) != before:
        raise ConversionError(
            "The source has changed while it was converted.",
            hint="convert it again when no other process writes to it",
            dataset=root,
        )


# Numbers and videos


def _tables(
    numbers: Mapping[str, np.ndarray],
) -> Iterator[tuple[int, int, tuple[tuple[int, int], ...]]]:
    """Yield every parquet file: its episodes, as spans of those side by side."""
    chunk = numbers["data/chunk_index"].astype(np.int64)
    which = chunk << 32 | numbers["data/file_index"].astype(np.int64)
    order = np.argsort(which, kind="stable")
    for group in np.split(order, np.flatnonzero(np.diff(which[order])) + 1):
        number = int(which[group[0]])
        runs = np.split(group, np.flatnonzero(np.diff(group) != 1) + 1)
        spans = tuple((int(run[0]), int(run[-1]) + 1) for run in runs)
        yield number >> 32, number & 0xFFFFFFFF, spans


def _episode_numbers(reader: Reader, info: Info) -> Mapping[str, np.ndarray]:
    """Return which file every episode is in, by v3.0's names of the columns.

    v3.0 and the Lance layouts say so themselves. For v2.x, where every episode has files of its
    own, videos are numbered by episode, and rows are gathered in tables of the usual size.
    """
    found = reader.episode_columns()
    if "data/chunk_index" in found:
        return found
    episodes, size = reader.episodes, info.chunks_size
    rows_in_file = max(1, int(info.data_files_size_in_mb * _MB / _bytes_of_row(info)))
    table = np.unique(episodes.start[:-1] // rows_in_file, return_inverse=True)[1]
    position = np.arange(len(episodes))
    columns = dict(found)
    columns |= {"data/chunk_index": table // size, "data/file_index": table % size}
    columns |= {"dataset_from_index": episodes.start[:-1], "dataset_to_index": episodes.start[1:]}
    for camera in info.video_keys:
        columns |= {
            f"videos/{camera}/chunk_index": position // size,
            f"videos/{camera}/file_index": position % size,
            f"videos/{camera}/from_timestamp": np.zeros(len(episodes)),
            f"videos/{camera}/to_timestamp": episodes.length / info.fps,
        }
    return columns


def _bytes_of_row(info: Info) -> int:
    total = 0
    for feature in info.features.values():
        if feature.is_numeric:
            total += feature.numpy_dtype.itemsize * int(np.prod(feature.shape, dtype=np.int64))
        elif feature.is_image:
            total += int(np.prod(feature.shape, dtype=np.int64)) // _IMAGE_SHARE
    return max(total, 1)


def _whole_videos(
    reader: Reader, camera: str, numbers: Mapping[str, np.ndarray], *, link: bool
) -> VideoPlan:
    """Return every video of a camera that an episode names, by chunk and file."""
    chunk = numbers[f"videos/{camera}/chunk_index"].astype(np.int64)
    file = numbers[f"videos/{camera}/file_index"].astype(np.int64)
    videos = []
    for which, position in zip(*np.unique(chunk << 32 | file, return_index=True), strict=True):
        videos.append(
            VideoOut(
                camera=camera,
                chunk=int(which) >> 32,
                file=int(which) & 0xFFFFFFFF,
                runs=(),
                description=None,
                frames=0,
                size=_size(reader, int(position), camera),
                seen=(),
                episode=int(position),
                fps=reader.info.fps,
                whole="linked" if link else "copied",
            )
        )
    nothing = np.zeros(0)
    return VideoPlan(videos, chunk=chunk, file=file, first=nothing, rate=nothing)


def _size(reader: Reader, position: int, camera: str) -> int:
    try:
        return os.stat(reader.root / reader.video_file(position, camera)).st_size
    except OSError:  # it is in Lance, or is not there: then this says so
        return reader.clip(position, camera).video.file.size


def _lost_audio(reader: Reader, raw: dict[str, Any], form: Form) -> list[str]:
    """Return what videos hold besides frames and no row can, and say so in ``info.json``."""
    if form.layout != "lance-frames":
        if form.drop_audio:
            raise ArgumentError(
                f"A conversion to {form.layout} keeps videos as they are, audio included.",
                hint=f"cut it instead: demoreel cut select --layout {form.layout} --drop-audio",
                dataset=reader.root,
            )
        return []
    lost = []
    for camera, counts in _other_tracks(reader).items():
        if _ITS_AUDIO in counts and not form.drop_audio:
            raise ArgumentError(
                f"The videos of {camera!r} have audio, and lance-frames has no place for it.",
                hint="leave it out: drop_audio=True (--drop-audio); or choose lance-video",
                dataset=reader.root,
                camera=camera,
            )
        for what, count in sorted(counts.items(), key=lambda item: item[0] != _ITS_AUDIO):
            lost.append(f"{camera}: {what}, of {count} video{'' if count == 1 else 's'}")
        feature = said_of_audio(reader.info.features[camera], has_audio=False)
        raw["features"] = {**raw["features"], camera: feature.to_json()}
    return lost


def _other_tracks(reader: Reader) -> dict[str, Counter[str]]:
    """Return what the videos of each camera hold besides frames; cameras without are left out."""
    found: dict[str, Counter[str]] = {}
    for position, camera in _one_of_each(reader):
        tracks = tracks_of(reader.clip(position, camera).video)
        what = [*tracks.others, *([_ITS_AUDIO] if tracks.has_audio else [])]
        if what:
            found.setdefault(camera, Counter()).update(what)
    return found


def _one_of_each(reader: Reader) -> Iterator[tuple[int, str]]:
    """Yield an episode and the camera of every video."""
    columns = reader.episode_columns()
    for camera in reader.info.video_keys:
        if reader.in_tables(camera):
            continue
        chunk = columns.get(f"videos/{camera}/chunk_index")
        file = columns.get(f"videos/{camera}/file_index")
        places = np.arange(len(reader.episodes))  # of v2, every episode has one
        if chunk is not None and file is not None:
            number = chunk.astype(np.int64) << 32 | file.astype(np.int64)
            places = np.unique(number, return_index=True)[1]
        for position in places.tolist():
            yield position, camera


# Metadata


def _info(reader: Reader, layout: str) -> dict[str, Any]:
    """Return what the target's ``info.json`` will hold."""
    if reader.info.version.startswith("v2"):
        raw = _upgraded(reader.info).to_json()
    else:
        raw = dict(read_json(reader.meta / "info.json"))
    raw.pop(_STORAGE, None)
    if layout == "lance-native":
        raw[_STORAGE] = "lance"
    raw["total_episodes"] = len(reader.episodes)
    raw["total_frames"] = reader.episodes.total_frames
    raw["total_tasks"] = len(reader.tasks)  # the source may not say
    if layout != "lance-frames":
        raw["features"] = {
            key: _as_images(reader, key, entry) for key, entry in raw["features"].items()
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


def _as_images(reader: Reader, key: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a camera's entry; a video that is stored as images in a table is declared as that."""
    if entry.get("dtype") != "video" or not reader.in_tables(key):
        return dict(entry)
    if reader.info.features[key].is_depth:
        raise ArgumentError(
            f"The images of the depth camera {key!r} are codes of the video that it was before.",
            hint="convert the dataset that this one was made from",
            dataset=reader.root,
        )
    kept = {name: value for name, value in entry.items() if name not in ("info", "video_info")}
    return {**kept, "dtype": "image"}


def write_verbatim(reader: Reader, plan: Verbatim, layout: str, dataset: Path) -> None:
    """Write ``meta/`` of a verbatim result. It is not synced to disk."""
    source, meta = reader.meta, dataset / "meta"
    shutil.rmtree(meta, ignore_errors=True)  # of an attempt that was killed here
    v2 = reader.info.version.startswith("v2")
    for path in sorted(source.rglob("*")):
        place = path.relative_to(source)
        if path.is_file() and not (v2 and str(place) in _V2_FILES):
            (meta / place).parent.mkdir(parents=True, exist_ok=True)
            copy_inside(reader.root, path, meta / place)
    meta.mkdir(parents=True, exist_ok=True)
    if v2:
        tasks = {text: number for number, text in reader.tasks.items()}
        write_tasks(meta / "tasks.parquet", tasks, details_in(reader.meta))
        path = meta / "episodes" / "chunk-000" / "file-000.parquet"
        _write_episodes(reader, plan.numbers, path)
        stats = quiet_stats(reader)
        if stats is not None:
            write_json(meta / "stats.json", stats_to_json(stats))
    else:
        _drop_video_columns(meta, plan.raw_info)
    if layout == "v3.0":
        _state_unused_frames(reader, plan, meta)
    write_json(meta / "info.json", plan.raw_info)
    for name in plan.scores:
        (dataset / name).parent.mkdir(parents=True, exist_ok=True)
        copy_inside(reader.root, reader.root / name, dataset / name)


def _state_unused_frames(reader: Reader, plan: Verbatim, meta: Path) -> None:
    """Say which frames no episode has: an edit in place leaves some in a Lance dataset."""
    if not isinstance(reader, LanceReader):
        return
    unused = {
        video.path(plan.info): reader.unused_frames(
            video.episode, video.camera, reader.clip(video.episode, video.camera).video
        )
        for of_camera in plan.video_plans.values()
        for video in of_camera.videos
    }
    if any(unused.values()):
        write_json(meta / UNUSED_FRAMES, unused)


def _drop_video_columns(meta: Path, raw: Mapping[str, Any]) -> None:
    """Forget where cameras that are no videos any more were in their videos."""
    gone = tuple(
        f"videos/{key}/" for key, entry in raw["features"].items() if entry["dtype"] == "image"
    )
    if not gone:
        return
    for path in listing_files(meta / "episodes"):
        with open_parquet(path, kind=MetadataError) as parquet:
            table = parquet.read()
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
    """Return v2.1's statistics of each episode, as columns; missing where an episode has none."""
    path = reader.meta / "episodes_stats.jsonl"
    if not path.exists():
        return {}
    by_episode = {
        int(line["episode_index"]): stats_from_json(line.get("stats"), where=str(path))
        for line in read_json_lines(path)
        if isinstance(line.get("episode_index"), int)
    }
    every = [by_episode.get(number, {}) for number in reader.episodes.episode_index.tolist()]
    names = dict.fromkeys((key, kind) for stats in every for key in stats for kind in stats[key])
    return {f"stats/{key}/{kind}": _of_each(every, key, kind) for key, kind in names}


def _of_each(every: Sequence[Stats], key: str, kind: str) -> pa.Array:
    values = [stats.get(key, {}).get(kind) for stats in every]
    return _as_column([None if value is None else value.tolist() for value in values])


def _as_column(values: Sequence[Any]) -> pa.Array:
    """Return other people's values as a column; as JSON where they have no common type."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        texts = [None if v is None else json.dumps(v, ensure_ascii=False) for v in values]
        return pa.array(texts, pa.string())
