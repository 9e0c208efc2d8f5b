"""Reads and writes stored statistics, for each layout."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.errors import MetadataError
from demoreel.layouts.base import Reader
from demoreel.layouts.beside import Approximate, noted
from demoreel.layouts.meta import listing_files
from demoreel.layouts.writing import write_json
from demoreel.model import Stats, stats_from_json, stats_to_json
from demoreel.stats.inherited import inherited_from
from demoreel.stats.levels import validated_histograms
from demoreel.storage.arrow import as_numpy, from_numpy
from demoreel.storage.json_files import read_json, read_json_lines
from demoreel.storage.parquet import open_parquet, read_schema

New = Callable[[str], Path]
"""Announces a file of the dataset and returns where to write it."""

_LINES = "meta/episodes_stats.jsonl"
_WHOLE = "meta/stats.json"
_TYPES = b"huggingface"  # what some writers say of the columns; wrong once they are others


def keeps_episodes(reader: Reader) -> bool:
    """Whether the dataset has a place for statistics of single episodes; v2.0 has none."""
    return reader.info.version != "v2.0" or (reader.meta / Path(_LINES).name).exists()


def stats_file(reader: Reader) -> str:
    """Return the file, relative to the dataset, that the dataset's statistics are read from."""
    return _LINES if reader.info.version.startswith("v2") and keeps_episodes(reader) else _WHOLE


def stats_file_names(reader: Reader) -> list[str]:
    """Return all files that hold statistics, relative to the dataset; they need not be there."""
    if reader.info.version.startswith("v2"):
        return [stats_file(reader)]
    return [
        *(f"meta/{path.relative_to(reader.meta).as_posix()}" for path in _tables(reader)),
        _WHOLE,
    ]


def write_stats(reader: Reader, new: New, *, whole: Stats, columns: Mapping[str, pa.Array]) -> Path:
    """Write the files that hold statistics, with these in the place of older ones.

    Statistics of features that are not given stay as they are, and so does everything else.

    Args:
        reader: The dataset.
        new: Announces a file.
        whole: Statistics of all frames.
        columns: ``stats/KEY/KIND``: a value for each episode, by position.

    Returns:
        The new file that the dataset's statistics are read from.
    """
    if stats_file(reader) == _LINES:
        return _write_lines(reader, new(_LINES), columns)
    if not reader.info.version.startswith("v2"):
        write_episode_columns(reader, new, columns)
    path = reader.meta / "stats.json"
    before: Any = read_json(path) if path.exists() else {}
    if not isinstance(before, dict):
        raise MetadataError("The statistics are not an object.", file=path)
    every = {**before, **stats_to_json(whole)}
    known = [key for key in reader.info.features if key in every]
    fresh = new(_WHOLE)
    write_json(fresh, {key: every[key] for key in [*known, *(k for k in every if k not in known)]})
    return fresh


def quiet_stats(reader: Reader) -> Stats | None:
    """Return a dataset's statistics; None, without a word, where it has none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return reader.stats


def _tables(reader: Reader) -> list[Path]:
    return listing_files(reader.meta / "episodes")


def write_episode_columns(reader: Reader, new: New, columns: Mapping[str, pa.Array]) -> None:
    """Write the files of v3.0's ``meta/episodes`` with these columns in the place of older ones."""
    paths = _tables(reader)
    columns = _of_types(columns, read_schema(paths[0]))
    order = {number: at for at, number in enumerate(reader.episodes.episode_index.tolist())}
    for path in paths:
        with open_parquet(path, kind=MetadataError) as parquet:
            table = parquet.read()
        rows = pa.array(
            [order[number] for number in as_numpy(table.column("episode_index")).tolist()]
        )
        before = table.schema
        for name, values in columns.items():
            at = table.schema.get_field_index(name)
            if at < 0:
                table = table.add_column(_place(table), name, values.take(rows))
            else:
                table = table.set_column(at, name, values.take(rows))
        if [(f.name, f.type) for f in table.schema] != [(f.name, f.type) for f in before]:
            said = {k: v for k, v in (before.metadata or {}).items() if k != _TYPES}
            table = table.replace_schema_metadata(said)
        fresh = new(f"meta/{path.relative_to(reader.meta).as_posix()}")
        pq.write_table(table, fresh, compression="snappy")


def _of_types(columns: Mapping[str, pa.Array], schema: pa.Schema) -> dict[str, pa.Array]:
    """Return columns of the types that they had before, where that loses nothing."""
    found = {}
    for name, values in columns.items():
        at = schema.get_field_index(name)
        try:
            found[name] = values if at < 0 else values.cast(schema.field(at).type)
        except pa.ArrowException:
            found[name] = values
    return found


def _place(table: pa.Table) -> int:
    """Return where further statistics go: before the columns that say where a row stands."""
    at = int(table.schema.get_field_index("meta/episodes/chunk_index"))
    return at if at >= 0 else int(table.num_columns)


def _write_lines(reader: Reader, fresh: Path, columns: Mapping[str, pa.Array]) -> Path:
    path = reader.meta / Path(_LINES).name
    old = {
        line.get("episode_index"): line for line in (read_json_lines(path) if path.exists() else ())
    }
    split = [name.removeprefix("stats/").rsplit("/", 1) for name in columns]
    with open(fresh, "w", encoding="utf-8") as file:
        for position, number in enumerate(reader.episodes.episode_index.tolist()):
            line = old.get(number, {"episode_index": number})
            stats = {key: dict(kinds) for key, kinds in (line.get("stats") or {}).items()}
            for (key, kind), values in zip(split, columns.values(), strict=True):
                stats.setdefault(key, {})[kind] = values[position].as_py()
            file.write(json.dumps({**line, "stats": stats}, ensure_ascii=False) + "\n")
    return fresh


def episode_stats(reader: Reader, position: int) -> Stats | None:
    """Return what the metadata say of one episode; None where they say nothing."""
    number = int(reader.episodes.episode_index[position])
    if reader.info.version.startswith("v2"):
        return _stats_of_line(reader.meta / Path(_LINES).name, number)
    for path in _tables(reader):
        with open_parquet(path, kind=MetadataError) as parquet:
            names = [n for n in parquet.schema_arrow.names if n.startswith("stats/")]
            rows = as_numpy(parquet.read(["episode_index"]).column(0)) == number
            if rows.any() and names:
                found = parquet.read(names).slice(int(np.argmax(rows)), 1).to_pylist()[0]
                return _nested(found)
    return None


def episode_approximate(reader: Reader, position: int, stats: Stats) -> Approximate:
    """Return which statistics of one episode are, or may be, approximate.

    Cost: reads the histograms, and the episodes' statistics of frames.
    """
    cameras = [key for key in reader.info.cameras if key in stats]
    stated = inherited_from(reader, cameras).cameras
    counted = {
        found.histogram.camera
        for found in validated_histograms(reader, stated)
        if found.position == position
    }
    unknown = noted(reader.meta) is None
    found: Approximate = {}
    for key, kinds in stats.items():
        if key in cameras and key not in counted:
            found[key] = list(kinds)
        elif key not in cameras and unknown:
            found[key] = [kind for kind in kinds if kind.startswith("q")]
    return {key: kinds for key, kinds in found.items() if kinds}


def _nested(found: Mapping[str, Any]) -> Stats:
    stats: Stats = {}
    for name, value in found.items():
        key, kind = name.removeprefix("stats/").rsplit("/", 1)
        if value is not None:
            stats.setdefault(key, {})[kind] = np.atleast_1d(np.array(value))
    return stats


def _stats_of_line(path: Path, number: int) -> Stats | None:
    for line in read_json_lines(path) if path.exists() else ():
        if line.get("episode_index") == number:
            return stats_from_json(line.get("stats"), where=str(path))
    return None


def nested_columns(camera: str, values: Mapping[str, np.ndarray]) -> dict[str, pa.Array]:
    """Return a camera's statistics as columns, from one row an episode."""
    return {f"stats/{camera}/{kind}": _nested_lists(rows, kind) for kind, rows in values.items()}


def _nested_lists(values: np.ndarray, kind: str) -> pa.Array:
    """Return statistics as LeRobot stores them: channels x 1 x 1; counts are [n]."""
    rows, width = values.shape
    if kind == "count":
        array = from_numpy(values.reshape(-1).astype(np.int64))
        return pa.ListArray.from_arrays(from_numpy(np.arange(rows + 1, dtype=np.int32)), array)
    array = from_numpy(np.ascontiguousarray(values, np.float64).reshape(-1))
    for size in (1, 1, width):
        offsets = from_numpy(np.arange(0, len(array) + 1, size, dtype=np.int32))
        array = pa.ListArray.from_arrays(offsets, array)
    return array
