"""Score files: what programs say of frames or episodes in parquet files beside a dataset's own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from demoreel.edit.foreign import OWN_FOLDERS
from demoreel.layouts.base import Reader
from demoreel.storage.arrow import as_numpy
from demoreel.storage.parquet import open_parquet

INDEX, EPISODE, FRAME = "index", "episode_index", "frame_index"


@dataclass(frozen=True, slots=True)
class ScoreFile:
    """A file of another program whose rows speak of frames, or of episodes.

    Attributes:
        table: Its rows.
        keys: What each row speaks of: the frame's row in the dataset, or the episode's position.
        of_frames: Which of the two.
    """

    table: pa.Table
    keys: np.ndarray
    of_frames: bool


def score_files(root: Path) -> list[str]:
    """Return the parquet files beside a dataset's own, relative to its folder."""
    found = []
    for folder, folders, names in os.walk(root):
        place = Path(folder).relative_to(root)
        if not place.parts:
            folders[:] = [name for name in folders if name not in OWN_FOLDERS]
        folders[:] = [name for name in folders if is_beside(f"{name}/x.parquet")]
        found += [(place / name).as_posix() for name in names if is_beside(name)]
    return sorted(found)


def is_beside(name: str) -> bool:
    """Whether a name, relative to a dataset's folder, is one that a score file may have."""
    parts = name.split("/")
    hidden = any(part.startswith(".") or part.endswith(".lance") for part in parts)
    return parts[0] not in OWN_FOLDERS and name.endswith(".parquet") and not hidden


def read_scores(reader: Reader, name: str) -> ScoreFile | None:
    """Return a score file whose rows speak of a dataset's frames or episodes; None if they do not.

    Raises:
        DemoreelError: It is damaged, or too large.
    """
    with open_parquet(reader.root / name) as parquet:
        columns = set(parquet.schema_arrow.names)
        if not columns & {INDEX, EPISODE}:
            return None
        table = parquet.read()
    whole = [n for n in (INDEX, EPISODE, FRAME) if n in columns]
    if any(not pa.types.is_integer(table.field(n).type) or table[n].null_count for n in whole):
        return None
    numbers = {n: as_numpy(table.column(n)).astype(np.int64) for n in whole}
    episodes = reader.episodes
    if EPISODE not in numbers:
        keys = numbers[INDEX]
        inside = (keys >= 0) & (keys < episodes.total_frames)
        return ScoreFile(table, keys, True) if bool(inside.all()) else None
    order = np.argsort(episodes.episode_index, kind="stable")
    place = np.searchsorted(episodes.episode_index[order], numbers[EPISODE])
    place = order[np.minimum(place, len(order) - 1)]
    if not np.array_equal(episodes.episode_index[place], numbers[EPISODE]):
        return None
    if INDEX not in numbers and FRAME not in numbers:
        return ScoreFile(table, place, False)
    begin = episodes.start[:-1][place]
    frame = numbers.get(FRAME, numbers.get(INDEX, begin) - begin)
    inside = (frame >= 0) & (frame < episodes.length[place])
    if not inside.all() or not np.array_equal(numbers.get(INDEX, begin + frame), begin + frame):
        return None
    return ScoreFile(table, begin + frame, True)
