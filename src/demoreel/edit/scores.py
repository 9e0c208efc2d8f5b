"""Score files: parquet files beside a dataset with values for its frames or episodes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.edit.clips import Labels
from demoreel.errors import DemoreelError
from demoreel.layouts.base import Reader
from demoreel.storage.arrow import UNREADABLE, as_numpy, from_numpy
from demoreel.storage.commit.files import write_whole
from demoreel.storage.parquet import open_parquet

LABELS = "scores/labels.parquet"
"""Where scores and flags that a person gave are kept: one value for all frames of an episode."""

_SIGNALS = {
    "score": {"description": "From 1 to 5, by a person.", "bounds": [1.0, 5.0]},
    "flag": {"description": "1 is good, 0 is bad, by a person.", "bounds": [0.0, 1.0]},
}
_FORMAT = {
    "lerobot.scores.format": "lerobot.frame_signals",
    "lerobot.scores.schema_version": "1",
    "lerobot.scores.provenance": json.dumps({"scoring": {"by": "a person, with demoreel"}}),
    "lerobot.scores.descriptors": json.dumps(
        {
            name: {**said, "direction": "higher", "allow_nan": True}
            for name, said in _SIGNALS.items()
        }
    ),
}

INDEX, EPISODE, FRAME = "index", "episode_index", "frame_index"


@dataclass(frozen=True, slots=True)
class ScoreFile:
    """A file of another program whose rows refer to frames or episodes.

    Attributes:
        table: Its rows.
        keys: What each row refers to: the frame's row in the dataset, or the episode's position.
        of_frames: Which of the two.
    """

    table: pa.Table
    keys: np.ndarray
    of_frames: bool


def read_scores(reader: Reader, name: str) -> ScoreFile | None:
    """Return a score file whose rows name frames or episodes of a dataset; None if they do not."""
    with open_parquet(reader.meta.parent / name) as parquet:  # of an older version: what is kept
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


def write_labels(root: Path, start: np.ndarray, labels: Mapping[int, Labels]) -> None:
    """Write the scores and flags of episodes; those of others in the file stay.

    Args:
        root: The dataset's folder.
        start: The first row of each episode, and their number at the end.
        labels: What is said, by the episode's position.
    """
    said = {at: one for at, one in labels.items() if (one.score, one.flag) != (None, None)}
    if not said:
        return
    values = {name: np.full(int(start[-1]), np.nan, np.float32) for name in _SIGNALS}
    path = root / LABELS
    if path.is_file():
        with open_parquet(path) as parquet:
            table = parquet.read()
        index = as_numpy(table.column(INDEX))
        for name in values.keys() & set(table.column_names):
            values[name][index] = as_numpy(table.column(name))
    for at, one in said.items():
        rows = slice(int(start[at]), int(start[at + 1]))
        if one.score is not None:
            values["score"][rows] = one.score
        if one.flag is not None:
            values["flag"][rows] = float(one.flag == "good")
    index = np.flatnonzero(~np.isnan(np.stack(list(values.values()))).all(axis=0))
    episode = np.searchsorted(start, index, side="right") - 1
    who = {INDEX: index, EPISODE: episode, FRAME: index - start[episode]}
    columns = {**who, **{name: column[index] for name, column in values.items()}}
    table = pa.table({name: from_numpy(np.asarray(c)) for name, c in columns.items()})
    table = table.replace_schema_metadata(_FORMAT)
    write_whole(path, lambda fresh: pq.write_table(table, fresh, compression="zstd"))


def read_labels(reader: Reader, positions: Sequence[int]) -> dict[int, Labels]:
    """Return the scores and flags that a dataset's score file gives episodes, by position.

    What is damaged, or of other episodes, is as good as none.
    """
    path = reader.meta.parent / LABELS
    try:
        scores = read_scores(reader, LABELS) if path.is_file() else None
    except (DemoreelError, *UNREADABLE):
        scores = None
    if (
        scores is None
        or not scores.of_frames
        or not set(_SIGNALS) <= set(scores.table.column_names)
    ):
        return {}
    score, flag = (as_numpy(scores.table.column(name)).astype(np.float64) for name in _SIGNALS)
    order = np.argsort(scores.keys, kind="stable")
    keys = scores.keys[order]
    found = {}
    for position in positions:
        start = int(reader.episodes.start[position])
        at = int(np.searchsorted(keys, start))
        if at < len(keys) and keys[at] == start:
            one, mark = score[order[at]], flag[order[at]]
            stars = int(one) if one in (1, 2, 3, 4, 5) else None
            found[position] = Labels(
                score=stars, flag=None if np.isnan(mark) else "good" if mark else "bad"
            )
    return found
