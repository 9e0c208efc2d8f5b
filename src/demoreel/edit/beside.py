"""Capture times and score files of the sources: written for the frames that a result keeps.

Capture times are demoreel's own (``layouts/capture_times.py``). Score files are those of any
program: parquet files with a row for a frame (``index``, or ``episode_index`` and ``frame_index``)
or for an episode (``episode_index``), such as LeRobot's ``scores/NAME.parquet`` and
``NAME_progress.parquet``. A row goes where its frame goes, with the frame's new numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.edit.labels import labelled_keys
from demoreel.edit.plan import Plan
from demoreel.edit.scores import (
    EPISODE,
    FRAME,
    INDEX,
    ScoreFile,
    read_scores,
    write_labels,
)
from demoreel.errors import DemoreelError
from demoreel.layouts.beside import BesideWriter
from demoreel.layouts.capture_times import (
    CAPTURE_TIMES,
    CaptureTimes,
    agrees,
    beside,
    fits,
    in_columns,
)
from demoreel.model.clocks import ROWS, capture_key, clock_columns
from demoreel.storage.arrow import UNREADABLE, from_numpy
from demoreel.storage.commit.files import write_whole
from demoreel.storage.folder import score_files

Checks = Sequence[Mapping[str, int]]
"""For each episode of a result, the check sums of its columns of numbers."""


def inherit_times(plan: Plan, path: Path, checks: Checks) -> None:
    """Write the capture times of a result's clips, but for those that are columns of it.

    Cost: reads the sources' capture times once; of clips that are parts of episodes, the episodes'
    numbers. Where there are none, no file is made.
    """
    columns = clock_columns(plan.info.features)
    with BesideWriter(path, CAPTURE_TIMES) as writer:
        for source in range(len(plan.readers)):
            for number, clock, times in _times_of_clips(plan, source, checks):
                if clock not in columns:
                    one = CaptureTimes(number, clock, times, checks[number])
                    writer.add_row(one.row())


def _times_of_clips(
    plan: Plan, source: int, checks: Checks
) -> Iterator[tuple[int, str, np.ndarray]]:
    """Yield the times of a source's clips, by the clock's name in the result."""
    reader, view = plan.readers[source], plan.views[source]
    clips = _clips_of(plan, source)
    names = {origin: key for key, origin in view.origin.items() if origin is not None}
    gone = set(plan.cutlist.sources[source].remove)
    seen: set[tuple[int, str]] = set()

    def shown(position: int, stated: CaptureTimes) -> Iterator[tuple[int, str, np.ndarray]]:
        seen.add((position, stated.clock))
        clock = stated.clock if stated.clock == ROWS else names.get(stated.clock)
        if clock is None or capture_key(stated.clock) in gone:
            return  # the camera, or the column, was removed
        for number in clips[position]:
            yield number, clock, stated.times[np.asarray(plan.frames[number])]

    for position, stated in in_columns(reader, clips):
        yield from shown(position, stated)
    for position, stated in beside(reader, clips):
        if (position, stated.clock) not in seen and _belong(
            plan, source, position, clips[position], stated, checks
        ):
            yield from shown(position, stated)


def _clips_of(plan: Plan, source: int) -> dict[int, list[int]]:
    """Return the clips of each of a source's episodes, by the episode's position."""
    found: dict[int, list[int]] = {}
    for number, clip in enumerate(plan.clips):
        if clip.source == source:
            found.setdefault(int(plan.positions[number]), []).append(number)
    return found


def _belong(
    plan: Plan,
    source: int,
    position: int,
    clips: Sequence[int],
    stated: CaptureTimes,
    checks: Checks,
) -> bool:
    """Whether times are an episode's: by a clip that is all of it, else by its own numbers."""
    reader, view = plan.readers[source], plan.views[source]
    length = int(reader.episodes.length[position])
    whole = next((n for n in clips if plan.frames[n] == range(length)), None)
    if whole is None:
        return fits(reader, position, stated)
    sums = {
        origin: checks[whole][key]
        for key, origin in view.origin.items()
        if origin is not None
        and key in checks[whole]
        and key not in labelled_keys(plan.clips[whole].labels)
    }
    # Of a feature that was removed nothing is known; without one that is left, rows are read.
    if not sums.keys() & stated.checks.keys():
        return fits(reader, position, stated)
    return agrees(stated, sums)


# Score files


_STALE = "its rows are not those of the dataset's episodes"


def follow_cut(plan: Plan, dataset: Path, dropped: list[str]) -> list[str]:
    """Write the sources' score files into a result, with a row for each frame that is kept.

    Cost: reads and writes these files; memory for one of them.

    Args:
        plan: The plan.
        dataset: The result.
        dropped: Takes a sentence for each score file that is not in the result.

    Returns:
        The files that sources have, relative to their folders.
    """
    found: dict[str, list[int]] = {}
    for source, reader in enumerate(plan.readers):
        for name in score_files(reader.meta.parent):  # of an older version: those that are kept
            found.setdefault(name, []).append(source)
    for name, sources in found.items():
        _follow(plan, name, sources, dataset, dropped)
    labels = {n: clip.labels for n, clip in enumerate(plan.clips) if clip.labels is not None}
    write_labels(dataset, plan.start, labels)
    return list(found)


def _follow(plan: Plan, name: str, sources: Sequence[int], dataset: Path, said: list[str]) -> None:
    parts, places = [], []
    try:
        for source in sources:
            scores = read_scores(plan.readers[source], name)
            if scores is None:
                said.append(f"{name}: {_STALE}")
                continue
            taken, at = _taken(plan, source, scores)
            parts.append(taken)
            places.append(at)
        if not parts:
            return
        table = pa.concat_tables(parts, promote_options="permissive")
    except (DemoreelError, *UNREADABLE) as error:
        what = error.what if isinstance(error, DemoreelError) else str(error)
        said.append(f"{name}: it cannot be read ({what})")
        return
    table = table.take(from_numpy(np.argsort(np.concatenate(places), kind="stable")))
    path = dataset / name
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, partial(pq.write_table, table, compression="zstd"))


def _taken(plan: Plan, source: int, scores: ScoreFile) -> tuple[pa.Table, np.ndarray]:
    """Return the rows of a source's score file that clips hold, renumbered, and their order."""
    start = plan.readers[source].episodes.start
    clips = [
        (number, position)
        for position, numbers in _clips_of(plan, source).items()
        for number in numbers
    ]
    if scores.of_frames:
        wanted = [start[position] + np.asarray(plan.frames[number]) for number, position in clips]
        lengths = np.array([len(rows) for rows in wanted])
        keys = np.concatenate([*wanted, np.zeros(0, np.int64)])
    else:
        lengths = np.ones(len(clips), np.int64)
        keys = np.array([position for _, position in clips], np.int64)
    clip = np.repeat([number for number, _ in clips], lengths).astype(np.int64)
    frame = np.arange(len(keys)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    order = np.argsort(scores.keys, kind="stable")
    ordered = scores.keys[order]
    first = np.searchsorted(ordered, keys, side="left")
    counts = np.searchsorted(ordered, keys, side="right") - first
    which = np.repeat(np.arange(len(keys)), counts)
    within = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    table = scores.table.take(from_numpy(order[np.repeat(first, counts) + within]))
    index = plan.start[clip[which]] + frame[which]
    fresh = {INDEX: index, EPISODE: clip[which], FRAME: frame[which]}
    for name, values in fresh.items():
        at = table.schema.get_field_index(name)
        if at >= 0:
            field = table.schema.field(at)
            table = table.set_column(at, field, from_numpy(values).cast(field.type))
    return table, index
