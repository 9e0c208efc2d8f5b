"""When the frames of a result were captured: inherited from its sources, frame by frame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from demoreel.edit.plan import Plan
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

Checks = Sequence[Mapping[str, int]]
"""For each episode of a result, the check sums of its columns of numbers."""


def inherit_times(plan: Plan, path: Path, checks: Checks) -> None:
    """Write the capture times of a result's clips, but for those that are columns of it.

    Cost: reads the sources' capture times once; of clips that are parts of episodes, the episodes'
    numbers. Where there are none, no file is made.

    Args:
        plan: The plan.
        path: The file to make.
        checks: Of the rows that were written.
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
    clips: dict[int, list[int]] = {}
    for number, clip in enumerate(plan.clips):
        if clip.source == source:
            clips.setdefault(int(plan.positions[number]), []).append(number)
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
        if origin is not None and key in checks[whole]
    }
    # Of a feature that was removed nothing is known; without one that is left, rows are read.
    if not sums.keys() & stated.checks.keys():
        return fits(reader, position, stated)
    return agrees(stated, sums)
