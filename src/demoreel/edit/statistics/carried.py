"""What an episode's metadata say that rows cannot: statistics of its pictures, other columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.errors import MetadataError
from demoreel.layouts.base import Reader
from demoreel.model import stats_from_json
from demoreel.storage.arrow import UNREADABLE, as_numpy, from_numpy, is_number
from demoreel.storage.json_files import read_json_lines

_OWN = ("episode_index", "tasks", "length", "dataset_from_index", "dataset_to_index")
_OWN_FAMILIES = ("data/", "videos/", "stats/", "meta/")


@dataclass(frozen=True)
class Carried:
    """What is carried over from one source, a value for each of its episodes, by position.

    Attributes:
        pictures: For each camera and kind of statistic, an array: a row an episode.
        extra: Columns of other programs.
    """

    pictures: Mapping[str, Mapping[str, np.ndarray]]
    extra: Mapping[str, pa.ChunkedArray]


def carried_from(reader: Reader, cameras: Sequence[str]) -> Carried:
    """Read what is carried over from a source.

    Cost: reads the columns of ``meta/episodes`` that are wanted; of v2, its JSON lines.

    Raises:
        MetadataError: They cannot be read.
    """
    if reader.info.version.startswith("v2"):
        return _from_lines(reader, cameras)
    wanted = tuple(f"stats/{camera}/" for camera in cameras)
    parts = []
    for path in sorted((reader.meta / "episodes").glob("*/*.parquet")):
        try:
            with pq.ParquetFile(path) as parquet:
                names = [n for n in parquet.schema_arrow.names if _is_wanted(n, wanted)]
                parts.append(parquet.read(columns=names))
        except UNREADABLE as error:
            raise MetadataError(
                f"The episodes' metadata cannot be read ({error}).", file=path
            ) from error
    table = pa.concat_tables(parts, promote_options="permissive")
    order = np.argsort(as_numpy(table.column("episode_index")), kind="stable")
    table = table.take(from_numpy(order))
    return Carried(
        {camera: _kinds(table, f"stats/{camera}/") for camera in cameras},
        {n: table.column(n) for n in table.column_names if _is_extra(n)},
    )


def _is_wanted(name: str, statistics: tuple[str, ...]) -> bool:
    return name == "episode_index" or name.startswith(statistics) or _is_extra(name)


def _is_extra(name: str) -> bool:
    return name not in _OWN and not name.startswith(_OWN_FAMILIES)


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


def _from_lines(reader: Reader, cameras: Sequence[str]) -> Carried:
    path = reader.meta / "episodes_stats.jsonl"
    lines = read_json_lines(path) if cameras and path.exists() else []
    by_episode = {line.get("episode_index"): line.get("stats") or {} for line in lines}
    stated = [by_episode.get(number, {}) for number in reader.episodes.episode_index.tolist()]
    pictures = {camera: _kinds_of(stated, camera, where=str(path)) for camera in cameras}
    episodes = list(reader.episodes)
    names = dict.fromkeys(name for episode in episodes for name in episode.extra)
    extra = {name: _column([episode.extra.get(name) for episode in episodes]) for name in names}
    return Carried(pictures, extra)


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
