"""Reads statistics of frames and other columns from episodes' metadata."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from demoreel.errors import refuse_shortage
from demoreel.layouts.base import Reader
from demoreel.layouts.meta import listing_files, read_episode_columns
from demoreel.model import stats_from_json
from demoreel.model.problems import Note, ignore, refuse
from demoreel.model.stats import MERGED, QUANTILES
from demoreel.storage.arrow import as_numpy, from_numpy, is_number
from demoreel.storage.json_files import json_lines, read_json_lines

_OWN = (
    "episode_index",
    "tasks",
    "length",
    "dataset_from_index",
    "dataset_to_index",
    "data/chunk_index",
    "data/file_index",
    "meta/episodes/chunk_index",
    "meta/episodes/file_index",
)
_OWN_OF_VIDEOS = ("/chunk_index", "/file_index", "/from_timestamp", "/to_timestamp")
RECOMPUTED = {*MERGED, "count", *QUANTILES}
"""Kinds of statistics that are computed from rows."""


@dataclass(frozen=True)
class Inherited:
    """What is inherited from one source, a value for each of its episodes, by position.

    Attributes:
        cameras: For each camera and kind of statistic, an array: a row an episode.
        extra: Columns of other programs.
        stats: Statistics that are not computed from rows: by feature and kind.
        partial: Cameras of which only some episodes have statistics.
    """

    cameras: Mapping[str, Mapping[str, np.ndarray]]
    extra: Mapping[str, pa.ChunkedArray]
    stats: Mapping[tuple[str, str], pa.ChunkedArray] = field(default_factory=dict)
    partial: Sequence[str] = ()


def inherited_from(reader: Reader, cameras: Sequence[str]) -> Inherited:
    """Read what is inherited from a source.

    Cost: reads the columns of ``meta/episodes`` that are wanted; of v2, its JSON lines.
    """
    if reader.info.version.startswith("v2"):
        return _from_lines(reader, cameras)
    wanted = tuple(f"stats/{camera}/" for camera in cameras)
    camera_columns = tuple(f"stats/{camera}/" for camera in reader.info.cameras)
    numeric = {key for key, feature in reader.info.features.items() if feature.is_numeric}

    def is_wanted(name: str) -> bool:
        if name.startswith("stats/"):
            is_other = not name.startswith(camera_columns) and _is_other(name, numeric)
            return is_other or name.startswith(wanted)
        return is_extra(name)

    parts = _episode_tables(reader.meta, is_wanted, refuse)
    table = pa.concat_tables(parts, promote_options="permissive")
    order = np.argsort(as_numpy(table.column("episode_index")), kind="stable")
    table = table.take(from_numpy(order))
    names = table.column_names
    frames = {camera: _kinds(table, f"stats/{camera}/") for camera in cameras}
    return Inherited(
        frames,
        {n: table.column(n) for n in names if is_extra(n)},
        {
            _key_and_kind(n): table.column(n)
            for n in names
            if n.startswith("stats/") and not n.startswith(camera_columns)
        },
        [c for c in cameras if not frames[c] and any(n.startswith(f"stats/{c}/") for n in names)],
    )


def _episode_tables(meta: Path, is_wanted: Callable[[str], bool], note: Note) -> list[pa.Table]:
    """Return ``episode_index`` and the wanted columns of each file of ``meta/episodes``."""
    found = (
        read_episode_columns(path, lambda n: n == "episode_index" or is_wanted(n), note)
        for path in listing_files(meta / "episodes")
    )
    return [part for part in found if part is not None and "episode_index" in part.column_names]


def readable_frame_stats(meta: Path, cameras: Sequence[str], *, is_v2: bool) -> pa.Table | None:
    """Return what can be read of episodes' statistics of frames; a row an episode."""
    if not is_v2:
        wanted = tuple(f"stats/{key}/" for key in cameras)
        parts = _episode_tables(meta, lambda n: n.startswith(wanted), ignore) if wanted else []
        return _concatenated(parts)
    rows: list[dict[str, Any]] = []
    for _, line in json_lines(meta / "episodes_stats.jsonl", refuse_shortage):
        try:
            row = {"episode_index": int(line["episode_index"])}
            for key in cameras:
                kinds = line["stats"].get(key) or {}
                row |= {f"stats/{key}/{kind}": value for kind, value in kinds.items()}
            rows.append(row)
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return _table(rows)


def readable_extra(meta: Path, *, is_v2: bool) -> pa.Table | None:
    """Return what can be read of other programs' columns; a row an episode."""
    if not is_v2:
        return _concatenated(_episode_tables(meta, is_extra, ignore))
    rows = [
        {"episode_index": line["episode_index"], **{n: v for n, v in line.items() if is_extra(n)}}
        for _, line in json_lines(meta / "episodes.jsonl", refuse_shortage)
        if isinstance(line.get("episode_index"), int)
    ]
    return _table(rows)


def _concatenated(parts: list[pa.Table]) -> pa.Table | None:
    try:
        return pa.concat_tables(parts) if parts else None
    except pa.ArrowException:
        return None


def _table(rows: list[dict[str, Any]]) -> pa.Table | None:
    names = dict.fromkeys(name for row in rows for name in row)
    try:
        return pa.table({name: [row.get(name) for row in rows] for name in names}) if rows else None
    except (pa.ArrowException, TypeError, OverflowError):
        return None


def _key_and_kind(name: str) -> tuple[str, str]:
    key, _, kind = name.removeprefix("stats/").rpartition("/")
    return key, kind


def _is_other(name: str, numeric: Collection[str]) -> bool:
    """Whether a column holds a statistic that rows do not give."""
    key, kind = _key_and_kind(name)
    return key not in numeric or kind not in RECOMPUTED


def is_extra(name: str) -> bool:
    """Whether a column of ``meta/episodes`` is another program's."""
    if name.startswith("videos/"):
        return not name.endswith(_OWN_OF_VIDEOS)
    return name not in _OWN and not name.startswith("stats/")


def _kinds(table: pa.Table, prefix: str) -> dict[str, np.ndarray]:
    found = {}
    for name in table.column_names:
        if name.startswith(prefix):
            values = _rows_of_numbers(table.column(name))
            if values is None:
                return {}
            found[name.removeprefix(prefix)] = values
    return found


def _rows_of_numbers(column: pa.ChunkedArray) -> np.ndarray | None:
    """Return nested lists as rows of numbers; None where some are missing or of another length."""
    array = column.combine_chunks()
    rows = len(array)
    while pa.types.is_nested(array.type):
        if array.null_count or pa.types.is_struct(array.type):
            return None
        array = array.flatten()
    if array.null_count or not rows or len(array) % rows or not is_number(array.type):
        return None
    return as_numpy(array).reshape(rows, -1)


def _from_lines(reader: Reader, cameras: Sequence[str]) -> Inherited:
    path = reader.meta / "episodes_stats.jsonl"
    lines = read_json_lines(path) if path.exists() else []
    by_episode = {line.get("episode_index"): line.get("stats") or {} for line in lines}
    stated = [by_episode.get(number, {}) for number in reader.episodes.episode_index.tolist()]
    frames = {camera: _kinds_of(stated, camera, where=str(path)) for camera in cameras}
    episodes = list(reader.episodes)
    names = dict.fromkeys(name for episode in episodes for name in episode.extra)
    extra = {name: _column([episode.extra.get(name) for episode in episodes]) for name in names}
    said = [camera for camera in cameras if any(camera in stats for stats in stated)]
    partial = [camera for camera in said if not frames[camera]]
    return Inherited(frames, extra, _other_stats(reader, stated), partial)


def _other_stats(
    reader: Reader, stated: Sequence[Mapping[str, Any]]
) -> dict[tuple[str, str], pa.ChunkedArray]:
    """Return what episodes of v2 say of features that rows, and frames, do not give."""
    numeric = {key for key, feature in reader.info.features.items() if feature.is_numeric}
    names = dict.fromkeys(
        (key, kind)
        for stats in stated
        for key, kinds in stats.items()
        if isinstance(kinds, dict) and key not in reader.info.cameras
        for kind in kinds
        if key not in numeric or kind not in RECOMPUTED
    )
    return {
        (key, kind): _column([_kind_of(stats.get(key), kind) for stats in stated])
        for key, kind in names
    }


def _kind_of(kinds: object, kind: str) -> Any:
    return kinds.get(kind) if isinstance(kinds, dict) else None


def _kinds_of(
    stated: Sequence[Mapping[str, Any]], camera: str, *, where: str
) -> dict[str, np.ndarray]:
    """Return what episodes say of a camera: nothing, where not all of them say something."""
    found = [stats.get(camera) for stats in stated]
    if any(not isinstance(kinds, dict) for kinds in found):
        return {}
    parts = [stats_from_json({camera: kinds}, where=where)[camera] for kinds in found]
    names = [name for name in parts[0] if all(name in part for part in parts)]
    widths = {name: {part[name].size for part in parts} for name in names}
    return {
        name: np.stack([part[name].reshape(-1) for part in parts])
        for name in names
        if len(widths[name]) == 1
    }


def _column(values: Sequence[Any]) -> pa.ChunkedArray:
    """Return other people's values as a column; as JSON where they have no common type."""
    try:
        return pa.chunked_array([pa.array(values)])
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        texts = [None if v is None else json.dumps(v, ensure_ascii=False) for v in values]
        return pa.chunked_array([pa.array(texts, pa.string())])
