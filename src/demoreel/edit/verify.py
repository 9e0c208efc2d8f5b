"""Reading the result back: is every clip where the plan says, and is it what the source has?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from demoreel.edit.encode.check import is_encoded, shows_the_same
from demoreel.edit.pace import Frames
from demoreel.edit.plan import Plan
from demoreel.edit.written import Written, shared_out
from demoreel.errors import ConversionError
from demoreel.layouts.base import Clip as Place
from demoreel.layouts.base import Column, Reader
from demoreel.model import Feature
from demoreel.run.task import Engine, Task

Verify = Literal["ends", "full", "none"]
"""How much is compared: the first and last frame of every clip, every frame, or nothing."""

_MANY = 1 << 20  # rows, whose numbers take longer to read than a process to start
_NUMBERED = ("episode_index", "frame_index", "index", "task_index")


def verify_rows(
    plan: Plan, result: Reader, rows: Written, *, full: bool, engine: Engine | None = None
) -> None:
    """Check that the result's rows are numbered as planned; in full, compare all values.

    Cost: reads four columns; in full, all rows twice.

    Args:
        plan: The plan.
        result: The result, open.
        rows: Its rows.
        full: Whether to compare all values.
        engine: What shares the reading of numbers out; None is this process.

    Raises:
        ConversionError: Something is not what it should be.
    """
    _same("episodes", len(result.episodes), len(plan.clips))
    _same("frames", result.episodes.total_frames, int(plan.start[-1]))
    _check_numbers(plan, rows, set(result.tasks), engine)
    for number in range(len(plan.clips) if full else 0):
        _check_values(plan, result, number)


def verify_pictures(plan: Plan, result: Reader, *, full: bool) -> None:
    """Compare the packets of the result's clips with the sources': the first and last, or all.

    Pictures that were encoded anew are decoded and compared by PSNR.

    Cost: two small reads for each clip and camera; in full, all videos are read twice.

    Raises:
        ConversionError: A picture is not the source's, or not where the metadata say.
    """
    for camera in plan.footage:
        for clip in range(len(plan.clips)):
            _check_pictures(plan, result, camera, clip, full=full)


def _same(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise ConversionError(f"The result has {found} {what}; {wanted} were planned.")


def _check_pictures(plan: Plan, result: Reader, camera: str, number: int, *, full: bool) -> None:
    footage, their_frames = plan.footage[camera], plan.frames[number]
    here = result.clip(number, camera)
    if number in footage.blank:
        return
    clip, position = plan.clips[number], int(plan.positions[number])
    reader = plan.readers[clip.source]
    key = str(plan.views[clip.source].origin[camera])
    there = None if reader.in_tables(key) else reader.clip(position, key)
    last = len(their_frames) - 1
    for frame in range(last + 1) if full else sorted({0, last}):
        if there is None or is_encoded(footage, number, here, frame):
            same = shows_the_same(here, frame, reader, position, key, their_frames[frame])
        else:
            same = _packet(here, frame) == _packet(there, their_frames[frame])
        if not same:
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
    packet = int(index.packet_of[place.frames(np.array(frame))])
    return place.video.file.read(int(index.offset[packet]), int(index.size[packet]))


def _check_numbers(plan: Plan, rows: Written, tasks: set[int], engine: Engine | None) -> None:
    """Check what was renumbered."""
    _same("rows", rows.frames, int(plan.start[-1]))
    features = [plan.info.features[key] for key in _NUMBERED]
    parts = shared_out(rows, engine) if rows.frames >= _MANY else [rows]
    if engine is None or len(parts) == 1:
        check_numbers(rows, features, 0, plan.start, tasks)
        return
    first = np.cumsum([0, *(part.frames for part in parts)]).tolist()
    work = [
        Task(
            f"numbers-{number:05d}",
            check_numbers,
            (part, features, first[number], plan.start, tasks),
            weight=part.frames,
        )
        for number, part in enumerate(parts)
    ]
    for _ in engine.run(work):
        pass


def check_numbers(
    rows: Written, features: Sequence[Feature], first: int, start: np.ndarray, tasks: set[int]
) -> dict[str, Any]:
    """Check some consecutive rows: a task's work.

    Args:
        rows: The rows.
        features: The columns that were renumbered.
        first: Where the first of these rows stands in the result.
        start: Where each episode of the result is to begin, and the last to end.
        tasks: The numbers that tasks have.

    Raises:
        ConversionError: A number is not as planned.
    """
    for part in rows.portions(features):
        index = np.arange(first, first + len(part["index"]))
        episode = np.searchsorted(start, index, side="right") - 1
        wanted = {"episode_index": episode, "frame_index": index - start[episode], "index": index}
        for key, values in wanted.items():
            if not np.array_equal(part[key].reshape(-1), values):
                raise ConversionError(f"The column {key!r} of the result is not as planned.")
        unknown = set(np.unique(part["task_index"]).tolist()) - tasks
        if unknown:
            raise ConversionError(f"Rows name task {unknown.pop()}, which there is none of.")
        first += len(index)
    return {}


def _check_values(plan: Plan, result: Reader, number: int) -> None:
    """Compare one clip's columns, and its pictures in tables, with the source's."""
    clip, position = plan.clips[number], int(plan.positions[number])
    reader, view = plan.readers[clip.source], plan.views[clip.source]
    mine, theirs = result.rows_once(number, number + 1), reader.rows_once(position, position + 1)
    first = int(reader.episodes.start[position])
    frames = plan.frames[number]
    rows = first + np.array(frames)
    for key, origin in view.origin.items():
        feature = plan.info.features.get(key)
        if feature is None or feature.is_video or feature.is_language or origin is None:
            continue  # language is moved in time; what was added is not the source's
        if feature.is_image:
            own = np.arange(int(plan.start[number]), int(plan.start[number + 1]))
            same = result.encoded(own, key) == reader.encoded(rows, origin)
        else:
            same = _equal(mine[key], _chosen(theirs[origin], frames))
        if not same:
            raise ConversionError(
                f"The column {key!r} of the result is not the source's.",
                hint="nothing was kept; the disk or the source may be damaged",
                episode=number,
                source=reader.root,
            )


def _chosen(column: Column, frames: Frames) -> Column:
    return column[list(frames)] if isinstance(column, np.ndarray) else [column[f] for f in frames]


def _equal(mine: Column, theirs: Column) -> bool:
    if isinstance(mine, np.ndarray) and isinstance(theirs, np.ndarray):
        return mine.tobytes() == theirs.tobytes()  # not a number equals itself here
    return list(mine) == list(theirs)
