"""Capture times of frames, stored in files beside the episodes' metadata.

One row for each episode and clock (``layouts/beside.py``): the clock of the rows has no name, that
of a camera has the camera's key. Times are nanoseconds since 1970, one for each frame; where a
camera gave none, -1.

A row goes with the episode whose numbers it was written with: it notes a check sum of each of the
episode's columns of numbers, and counts only where those that are still there agree.

Recordings may have the times as columns instead (``capture_time_ns``): where that was asked for,
and from earlier versions. Both are read here.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from demoreel.errors import ArgumentError
from demoreel.layouts.base import Reader
from demoreel.layouts.beside import Beside, BesideWriter
from demoreel.model import DEFAULT_FEATURES, Feature
from demoreel.model.clocks import ROWS, clock_columns, clock_of

CAPTURE_TIMES = Beside(
    "capture_times",
    pa.schema(
        [
            ("episode_index", pa.int64()),
            ("clock", pa.string()),
            ("features", pa.list_(pa.string())),
            ("checks", pa.list_(pa.int64())),
            ("times", pa.list_(pa.int64())),
        ]
    ),
    dictionary=["clock", "features.list.element"],
    # A loop that is on time has times of one distance: differences take few bits.
    encodings={"times.list.element": "DELTA_BINARY_PACKED"},
)

Clocks = Mapping[str, np.ndarray]
"""The times of an episode's frames, by clock."""


@dataclass(frozen=True, slots=True)
class CaptureTimes:
    """When one clock says that an episode's frames were captured.

    Attributes:
        episode: The episode's ``episode_index``.
        clock: The camera's key; ``ROWS`` for the rows.
        times: Nanoseconds since 1970, one for each frame.
        checks: Check sums of the episode's columns of numbers.
    """

    episode: int
    clock: str
    times: np.ndarray
    checks: Mapping[str, int]

    def row(self) -> dict[str, Any]:
        """Return it as a row of a file."""
        return {
            "episode_index": self.episode,
            "clock": self.clock,
            "features": list(self.checks),
            "checks": list(self.checks.values()),
            "times": self.times,
        }


def checks_of(features: Mapping[str, Feature], columns: Mapping[str, Any]) -> dict[str, int]:
    """Return check sums of an episode's own columns of numbers."""
    found = {}
    for key in columns:
        feature = features.get(key)
        if feature is None or not is_checked(feature):
            continue
        values = np.ascontiguousarray(columns[key], feature.numpy_dtype.newbyteorder("<"))
        found[key] = zlib.crc32(values.tobytes())
    return found


def is_checked(feature: Feature) -> bool:
    """Whether a feature tells one episode from another."""
    numbered = feature.key in DEFAULT_FEATURES or clock_of(feature.key) is not None
    return feature.is_numeric and not numbered


def check_clocks(clocks: Clocks, cameras: Sequence[str], frames: int) -> None:
    """Refuse times that an episode of so many frames cannot have."""
    for clock, times in clocks.items():
        if clock != ROWS and clock not in cameras:
            raise ArgumentError(f"There is no camera {clock!r} whose capture times could be kept.")
        if times.shape != (frames,) or times.dtype.kind not in "iu":
            raise ArgumentError(
                f"Capture times are one whole number a frame, not {times.dtype} "
                f"{list(times.shape)} for {frames} frames."
            )


def write_capture_times(path: Path, every: Iterable[CaptureTimes]) -> None:
    """Write a file of capture times; none where there are none."""
    with BesideWriter(path, CAPTURE_TIMES) as writer:
        for one in every:
            writer.add_row(one.row())


def stated_times(meta: Path) -> Iterator[CaptureTimes]:
    """Yield all that files below a folder of metadata state, unchecked."""
    for table in CAPTURE_TIMES.tables(meta):
        if any(column.null_count for column in table.columns):
            continue
        for number, row in enumerate(table.drop_columns("times").to_pylist()):
            names, sums = row["features"], row["checks"]
            if len(names) != len(sums) or None in names or None in sums:
                continue
            times = table.column("times")[number].values
            if times is not None and not times.null_count:
                checks = dict(zip(names, sums, strict=True))
                yield CaptureTimes(row["episode_index"], row["clock"], times.to_numpy(), checks)


def each_time(reader: Reader, positions: Collection[int]) -> Iterator[tuple[int, CaptureTimes]]:
    """Yield the capture times of episodes, in any order, each clock of an episode once.

    Cost: reads the files beside the metadata once, and the numbers of those episodes; memory for
    some episodes.
    """
    seen = set()
    for position, stated in in_columns(reader, positions):
        seen.add((position, stated.clock))
        yield position, stated
    for position, stated in beside(reader, positions):
        if (position, stated.clock) not in seen and fits(reader, position, stated):
            seen.add((position, stated.clock))
            yield position, stated


def capture_times(reader: Reader, position: int, clock: str = ROWS) -> np.ndarray | None:
    """Return when an episode's frames were captured; None where that is not known."""
    for _, stated in each_time(reader, [position]):
        if stated.clock == clock:
            return np.array(stated.times, np.int64)
    return None


def in_columns(reader: Reader, positions: Collection[int]) -> Iterator[tuple[int, CaptureTimes]]:
    """Yield the times that columns hold."""
    columns = clock_columns(reader.info.features)
    for position in positions if columns else ():
        read = reader.rows(rows_of_episode(reader, position), list(columns.values()))
        for clock, key in columns.items():
            yield position, CaptureTimes(position, clock, np.asarray(read[key]), {})


def beside(reader: Reader, positions: Collection[int]) -> Iterator[tuple[int, CaptureTimes]]:
    """Yield the times that are beside the metadata, of as many frames as the episodes have.

    Whether they ``fit`` the episodes is not looked at.
    """
    from demoreel.layouts.pending import PendingReader

    wanted = set(positions)
    if isinstance(reader, PendingReader):
        for position in sorted(wanted):
            for clock, times in reader.waiting_times(position).items():
                yield position, CaptureTimes(position, clock, times, {})
    folder = getattr(reader, "folder", None)
    if folder is not None:
        folder.fetch(f"{reader.meta.relative_to(reader.root).as_posix()}/{CAPTURE_TIMES.folder}/")
    numbers = reader.episodes.episode_index.tolist()
    place = {int(number): at for at, number in enumerate(numbers) if at in wanted}
    for stated in stated_times(reader.meta):
        at = place.get(stated.episode)
        if at is not None and len(stated.times) == int(reader.episodes.length[at]):
            yield at, stated


def fits(reader: Reader, position: int, stated: CaptureTimes) -> bool:
    """Whether times were written with the very numbers that an episode has; reads them."""
    features = reader.info.features
    keys = [key for key in stated.checks if key in features and is_checked(features[key])]
    columns = reader.rows(rows_of_episode(reader, position), keys) if keys else {}
    return agrees(stated, checks_of(features, columns))


def agrees(stated: CaptureTimes, sums: Mapping[str, int]) -> bool:
    """Whether the check sums that times were written with are those of an episode.

    Where none of the columns is left, nothing says that it is the same episode.
    """
    shared = stated.checks.keys() & sums.keys()
    if stated.checks and not shared:
        return False
    return all(stated.checks[key] == sums[key] for key in shared)


def rows_of_episode(reader: Reader, position: int) -> np.ndarray:
    """Return the rows of an episode."""
    start = reader.episodes.start
    return np.arange(int(start[position]), int(start[position + 1]))
