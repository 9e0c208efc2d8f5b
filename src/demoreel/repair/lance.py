"""Getting at what lies in Lance tables: rows as parquet, videos as files, as far as they go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.check.lance import videos_table
from demoreel.check.look import Look
from demoreel.errors import (
    DemoreelError,
    RepairError,
    TableError,
    UnsafePathError,
    refuse_shortage,
)
from demoreel.layouts.columns import read_numbers, table_schema, to_arrow
from demoreel.layouts.lance.schemas import column_names
from demoreel.layouts.lance.tables import LanceTable
from demoreel.layouts.lance.videos import LanceVideos
from demoreel.model import Feature
from demoreel.model.info import DATA_PATHS, VIDEO_PATHS
from demoreel.storage.arrow import as_numpy

_ROWS = 1 << 16
_ROWS_WITH_IMAGES = 1 << 10
_AT_ONCE = 8 << 20


@dataclass
class Extracted:
    """What was got out.

    Attributes:
        root: The folder that holds it, as v3.0 would.
        features: The features, as they lie there: images in rows are images.
        files: The files, by name, with their sizes.
        lost: What could not be read, and why.
    """

    root: Path
    features: Mapping[str, Feature]
    files: dict[str, int]
    lost: list[tuple[str, str]]


def extract(look: Look, folder: Path) -> Extracted:
    """Write the rows and videos of a Lance dataset to files.

    Cost: a copy of the dataset.
    """
    if look.info is None:
        raise RepairError(
            "Without meta/info.json, nothing says what the columns of a Lance table are.",
            hint="lance-native keeps a copy in meta.lance",
            dataset=look.root,
        )
    features = {key: _as_it_lies(feature, look) for key, feature in look.info.features.items()}
    found = Extracted(folder, features, {}, [])
    _extract_rows(look, found)
    videos = videos_table(look)
    if videos is not None:
        _extract_videos(LanceTable(str(look.root / videos)), found)
    return found


def _as_it_lies(feature: Feature, look: Look) -> Feature:
    if not feature.is_video or feature.key in look.video_cameras:
        return feature
    extra = {name: value for name, value in feature.extra.items() if name != "video_info"}
    return replace(feature, dtype="image", info={}, extra=extra)


def _extract_rows(look: Look, found: Extracted) -> None:
    assert look.info is not None
    table = LanceTable(str(look.root / f"{look.table}.lance"))
    try:
        there = set(table.columns)
        who = table.scan(["episode_index", "frame_index"])
    except DemoreelError as error:
        refuse_shortage(error)
        found.lost.append((f"{look.table}.lance", error.what))
        return
    episode, frame = (as_numpy(who.column(name)) for name in who.column_names)
    order = np.lexsort((frame, episode))
    columns = {k: name for k, name in column_names(look.info).items() if name in there}
    kept = {k: f for k, f in found.features.items() if k in columns and not f.is_video}
    step = _ROWS_WITH_IMAGES if any(f.is_image for f in kept.values()) else _ROWS
    for number, places in enumerate(_by_episodes(episode[order], order, step)):
        name = DATA_PATHS["v3"].format(chunk_index=number // 1000, file_index=number % 1000)
        try:
            rows = table.take(places, [columns[key] for key in kept])
            made = _as_features(rows, kept, columns, table.path)
        except DemoreelError as error:
            refuse_shortage(error)
            found.lost.append((f"{look.table}.lance: {len(places)} rows", error.what))
            continue
        path = found.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(made, path, row_group_size=max(1, len(made)))
        found.files[name] = path.stat().st_size


def _by_episodes(episode: np.ndarray, order: np.ndarray, step: int) -> Iterator[np.ndarray]:
    """Yield places of rows, whole episodes at a time, about so many."""
    starts = np.concatenate([[0], np.flatnonzero(np.diff(episode)) + 1, [len(episode)]])
    first = 0
    for stop in starts[1:].tolist():
        if stop - first >= step or stop == len(episode):
            if stop > first:
                yield order[first:stop]
            first = stop


def _as_features(
    rows: pa.Table, features: Mapping[str, Feature], columns: Mapping[str, str], where: str
) -> pa.Table:
    """Return rows in v3.0's types, whatever types the tool that wrote them has used."""
    schema = table_schema(features.values())
    arrays = []
    for key, feature in features.items():
        array = rows.column(columns[key]).combine_chunks()
        if feature.is_numeric:
            values = read_numbers(array, feature, where=where)
            arrays.append(to_arrow(values, feature, length=len(rows)))
        elif feature.is_image:
            images = [value or b"" for value in array.to_pylist()]
            arrays.append(to_arrow(images, feature, length=len(rows)))
        else:
            arrays.append(_cast(array, schema.field(key).type, key, where))
    return pa.Table.from_arrays(arrays, schema=schema)


def _cast(array: pa.Array, kind: pa.DataType, key: str, where: str) -> pa.Array:
    try:
        return array.cast(kind)
    except pa.ArrowException as error:
        raise TableError(f"The column {key!r} holds something else.", file=where) from error


def _extract_videos(table: LanceTable, found: Extracted) -> None:
    videos = LanceVideos(table)
    try:
        rows = table.scan(["video_key", "chunk_index", "file_index"]).to_pylist()
    except DemoreelError as error:
        refuse_shortage(error)
        found.lost.append((table.name, error.what))
        return
    for row in rows:
        camera, chunk, file = row["video_key"], row["chunk_index"], row["file_index"]
        if camera not in found.features or not 0 <= chunk < 1 << 31 or not 0 <= file < 1 << 31:
            continue
        name = VIDEO_PATHS["v3"].format(video_key=camera, chunk_index=chunk, file_index=file)
        path = found.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            blob = videos.blob(camera, chunk, file)
            with path.open("wb") as out:
                for at in range(0, blob.size, _AT_ONCE):
                    out.write(blob.read(at, min(_AT_ONCE, blob.size - at)))
            found.files[name] = path.stat().st_size
        except UnsafePathError:
            raise  # it is there; without it the result would lack what the user may allow
        except DemoreelError as error:
            refuse_shortage(error)
            path.unlink(missing_ok=True)
            found.lost.append((name, error.what))
