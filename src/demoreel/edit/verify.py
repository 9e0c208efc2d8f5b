"""Reading the result back: is every clip where the plan says, and is it what the source has?"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow.parquet as pq

from demoreel.edit.plan import Plan, TableOut
from demoreel.errors import ConversionError
from demoreel.layouts.base import Clip as Place
from demoreel.layouts.base import Column, Reader
from demoreel.layouts.detect import open_reader
from demoreel.storage.arrow import as_numpy

Verify = Literal["ends", "full", "none"]
"""How much is compared: the first and last frame of every clip, every frame, or nothing."""


def verify_rows(plan: Plan, dataset: Path, *, full: bool) -> None:
    """Check that the result's rows are numbered as planned; in full, compare all values.

    Needs the result's tables and ``meta/``. Cost: reads four columns; in full, all rows twice.

    Raises:
        ConversionError: Something is not what it should be.
    """
    result = open_reader(dataset)
    _same("episodes", len(result.episodes), len(plan.clips))
    _same("frames", result.episodes.total_frames, int(plan.start[-1]))
    for table in plan.tables:
        _check_numbers(plan, dataset, result, table)
    for number in range(len(plan.clips) if full else 0):
        _check_values(plan, result, number)


def verify_pictures(plan: Plan, dataset: Path, *, full: bool) -> None:
    """Compare the packets of the result's clips with the sources': the first and last, or all.

    Cost: two small reads for each clip and camera; in full, all videos are read twice.

    Raises:
        ConversionError: A picture is not the source's, or not where the metadata say.
    """
    result = open_reader(dataset)
    for camera in plan.footage:
        for clip in range(len(plan.clips)):
            _check_pictures(plan, result, camera, clip, full=full)


def _same(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise ConversionError(f"The result has {found} {what}; {wanted} were planned.")


def _check_pictures(plan: Plan, result: Reader, camera: str, number: int, *, full: bool) -> None:
    clip = plan.clips[number]
    reader = plan.readers[clip.source]
    key = str(plan.views[clip.source].origin[camera])
    there = reader.clip(int(plan.positions[number]), key)
    here = result.clip(number, camera)
    frames = np.arange(clip.length) if full else np.unique([0, clip.length - 1])
    for frame in frames.tolist():
        if _packet(here, frame) != _packet(there, clip.start + frame):
            raise ConversionError(
                "A picture of the result is not the source's.",
                hint="nothing was kept; the disk or the source may be damaged",
                episode=number,
                frame=frame,
                camera=camera,
                source=reader.root,
            )


def _packet(place: Place, frame: int) -> bytes:
    index = place.video.index
    packet = int(index.packet_of[place.first + frame])
    return place.video.file.read(int(index.offset[packet]), int(index.size[packet]))


def _check_numbers(plan: Plan, dataset: Path, result: Reader, table: TableOut) -> None:
    """Check what was renumbered in one table."""
    keys = ["episode_index", "frame_index", "index", "task_index"]
    with pq.ParquetFile(dataset / table.path(plan.info)) as parquet:
        rows = parquet.read(columns=keys)
    lengths = np.diff(plan.start[table.first : table.stop + 1])
    first = np.repeat(plan.start[table.first : table.stop], lengths)
    index = np.arange(int(plan.start[table.first]), int(plan.start[table.stop]))
    wanted = {
        "episode_index": np.repeat(np.arange(table.first, table.stop), lengths),
        "frame_index": index - first,
        "index": index,
    }
    for key, values in wanted.items():
        if not np.array_equal(as_numpy(rows.column(key)), values):
            raise ConversionError(f"The column {key!r} of the result is not numbered as planned.")
    unknown = set(np.unique(as_numpy(rows.column("task_index"))).tolist()) - set(result.tasks)
    if unknown:
        raise ConversionError(f"Rows name task {unknown.pop()}, which the result does not have.")


def _check_values(plan: Plan, result: Reader, number: int) -> None:
    """Compare one clip's columns, and its pictures in tables, with the source's."""
    clip, position = plan.clips[number], int(plan.positions[number])
    reader, view = plan.readers[clip.source], plan.views[clip.source]
    mine, theirs = result.rows_once(number, number + 1), reader.rows_once(position, position + 1)
    first = int(reader.episodes.start[position])
    rows = np.arange(first + clip.start, first + clip.stop)
    for key, origin in view.origin.items():
        feature = plan.info.features.get(key)
        if feature is None or feature.is_video or feature.is_language or origin is None:
            continue  # language is moved in time; what was added is not the source's
        if feature.is_image:
            own = np.arange(int(plan.start[number]), int(plan.start[number + 1]))
            same = result.encoded(own, key) == reader.encoded(rows, origin)
        else:
            same = _equal(mine[key], theirs[origin][clip.start : clip.stop])
        if not same:
            raise ConversionError(
                f"The column {key!r} of the result is not the source's.",
                hint="nothing was kept; the disk or the source may be damaged",
                episode=number,
                source=reader.root,
            )


def _equal(mine: Column, theirs: Column) -> bool:
    if isinstance(mine, np.ndarray) and isinstance(theirs, np.ndarray):
        return mine.tobytes() == theirs.tobytes()  # not a number equals itself here
    return list(mine) == list(theirs)
