"""Which episodes of one dataset are in another, whatever layout, order, codec or task number.

Statistics decide first: they are in the metadata. Programs calculate means in their own ways and
precision, so numbers are compared within a tolerance, and smallest and largest values more strictly
than means. Where statistics do not tell, rows do: the numbers of each frame, and its task's text.
Only features that both datasets have are compared, so one that was removed or added does not
matter.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from demoreel.errors import DemoreelError, MetadataError
from demoreel.layouts.base import Reader
from demoreel.model import DEFAULT_FEATURES
from demoreel.storage.json_files import read_json_lines
from demoreel.storage.parquet import open_parquet

_KINDS = ("min", "max", "mean")
_EXTREMES = 1e-5  # of the largest value: float32, perhaps written as text
_MEANS = 1e-4  # of the largest value: sums in float32
_DIGITS = 5

Values = Mapping[str, np.ndarray]
"""The statistics of an episode, by feature: smallest, largest and mean, one row each."""


@dataclass(frozen=True, slots=True)
class DescribedEpisodes:
    """A dataset's episodes, by position.

    Attributes:
        reader: The dataset.
        marks: Their lengths and tasks.
        stats: Their statistics, as far as the metadata have them.
    """

    reader: Reader
    marks: list[tuple[int, tuple[str, ...]]]
    stats: list[Values]


def described(reader: Reader) -> DescribedEpisodes:
    """Return a dataset's episodes as its metadata describe them.

    Raises:
        MetadataError: They cannot be read.
    """
    said = _statistics(reader, _numeric(reader))
    return DescribedEpisodes(
        reader,
        [(episode.length, tuple(sorted(episode.tasks))) for episode in reader.episodes],
        [said.get(int(number), {}) for number in reader.episodes.episode_index],
    )


def missing_episodes(
    there: DescribedEpisodes, here: DescribedEpisodes, fetch_rows: Callable[[Sequence[int]], bool]
) -> list[int]:
    """Return the positions of their episodes that are not among ours.

    Args:
        there: Theirs.
        here: Ours.
        fetch_rows: Fetches the tables of their episodes at some positions; says whether it could.
    """
    keys = _common(there.reader, here.reader)
    if keys is None:
        return list(range(len(there.marks)))
    told = [key for key in keys if all(key in stats for stats in (*there.stats, *here.stats))]
    lost, unused = list(range(len(there.marks))), list(range(len(here.marks)))
    if told:
        lost, unused = _without_pairs(
            _rounded(there, lost, told), _rounded(here, unused, told), lost, unused
        )
        lost, unused = _without_close(there, here, lost, unused, told)
    if not lost:
        return []
    if unused and fetch_rows(lost):
        theirs = None
        with suppress(DemoreelError):  # tables that cannot be read tell nothing
            theirs = _rows(there, lost, keys)
        if theirs is not None:
            return _without_pairs(theirs, _rows(here, unused, keys), lost, unused)[0]
    if told:
        return lost
    # Then only lengths and tasks tell.
    marks = [there.marks[n] for n in lost], [here.marks[n] for n in unused]
    return _without_pairs(*marks, lost, unused)[0]


def _numeric(reader: Reader) -> list[str]:
    return [
        key
        for key, feature in reader.info.features.items()
        if key not in DEFAULT_FEATURES and feature.is_numeric and not feature.is_camera
    ]


def _common(a: Reader, b: Reader) -> list[str] | None:
    """Return the features of numbers that both have; None where they are not of one dataset.

    One that has another shape is no feature that was added or removed. Without one in common,
    lengths and tasks would have to tell: those of other recordings of a task are often the same.
    """
    mine, theirs = a.info.features, b.info.features
    numbers = _numeric(a), _numeric(b)
    keys = [key for key in numbers[0] if key in numbers[1]]
    if all(numbers) and not keys:
        return None
    if any(theirs[key].item_shape != mine[key].item_shape for key in keys):
        return None
    return keys


def _statistics(reader: Reader, keys: Sequence[str]) -> dict[int, Values]:
    """Return what the metadata say of each episode's numbers."""
    found: dict[int, Values] = {}
    if reader.info.version.startswith("v2"):
        path = reader.meta / "episodes_stats.jsonl"
        for line in read_json_lines(path) if path.exists() else []:
            stats = line.get("stats")
            given = {
                (key, kind): (stats.get(key) or {}).get(kind)
                for key in keys
                for kind in _KINDS
                if isinstance(stats, dict) and isinstance(stats.get(key) or {}, dict)
            }
            found[_number(line.get("episode_index"))] = _values(keys, given)
        return found
    for path in sorted((reader.meta / "episodes").glob("*/*.parquet")):
        with open_parquet(path, kind=MetadataError) as parquet:
            names = {f"stats/{key}/{kind}": (key, kind) for key in keys for kind in _KINDS}
            names = {n: pair for n, pair in names.items() if n in parquet.schema_arrow.names}
            for row in parquet.read(["episode_index", *names]).to_pylist():
                given = {pair: row[name] for name, pair in names.items()}
                found[_number(row["episode_index"])] = _values(keys, given)
    return found


def _number(value: Any) -> int:
    return value if isinstance(value, int) else -1


def _values(keys: Iterable[str], given: Mapping[tuple[str, str], Any]) -> Values:
    values = {}
    for key in keys:
        try:
            rows = [np.ravel(np.array(given[key, kind], np.float64)) for kind in _KINDS]
            values[key] = np.nan_to_num(np.stack(rows))
        except (KeyError, TypeError, ValueError, OverflowError):  # not said, or not numbers
            continue
    return values


def _without_pairs(
    theirs: Sequence[Any], ours: Sequence[Any], lost: Sequence[int], unused: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return what is left on both sides without those that are alike, each taken once."""
    waiting: dict[Any, deque[int]] = defaultdict(deque)
    for what, position in zip(ours, unused, strict=True):
        waiting[what].append(position)
    left = []
    for what, position in zip(theirs, lost, strict=True):
        if waiting[what]:
            waiting[what].popleft()
        else:
            left.append(position)
    return left, sorted(position for queue in waiting.values() for position in queue)


def _rounded(side: DescribedEpisodes, positions: Sequence[int], keys: Sequence[str]) -> list[Any]:
    """Return what most pairs have in common to the digit: found without comparing each with all."""
    return [
        (
            *side.marks[position],
            *(f"{x:.{_DIGITS}g}" for key in keys for x in side.stats[position][key].ravel()),
        )
        for position in positions
    ]


def _without_close(
    there: DescribedEpisodes,
    here: DescribedEpisodes,
    lost: Sequence[int],
    unused: Sequence[int],
    keys: Sequence[str],
) -> tuple[list[int], list[int]]:
    """Leave out those that are alike within the tolerance."""
    groups: dict[Any, list[int]] = defaultdict(list)
    for position in unused:
        shapes = tuple(here.stats[position][key].shape for key in keys)
        groups[here.marks[position], shapes].append(position)
    tables = {
        group: np.stack([_joined(here, position, keys) for position in positions])
        for group, positions in groups.items()
    }
    left = []
    for position in lost:
        group = there.marks[position], tuple(there.stats[position][key].shape for key in keys)
        values = _joined(there, position, keys)
        scale: np.ndarray = np.abs(values[:2]).max(axis=0)
        allowed = np.stack([_EXTREMES * scale, _EXTREMES * scale, _MEANS * scale]) + 1e-12
        table = tables.get(group, np.empty((0, *values.shape)))
        close = np.flatnonzero((np.abs(table - values) <= allowed).all(axis=(1, 2)))
        if len(close):
            table[close[0]] = np.inf  # taken
            groups[group][close[0]] = -1
        else:
            left.append(position)
    return left, sorted(p for positions in groups.values() for p in positions if p >= 0)


def _joined(side: DescribedEpisodes, position: int, keys: Sequence[str]) -> np.ndarray:
    return np.concatenate([side.stats[position][key] for key in keys], axis=1)


def _rows(side: DescribedEpisodes, positions: Sequence[int], keys: Sequence[str]) -> list[bytes]:
    """Return what stands for the rows of each episode: equal for equal ones."""
    texts = dict(side.reader.tasks)
    found = []
    for position in positions:
        columns = side.reader.rows_once(position, position + 1)
        tasks = [texts.get(int(number)) for number in np.asarray(columns["task_index"])]
        digest = hashlib.sha256(repr(tasks).encode())
        for key in keys:
            values = np.asarray(columns[key])
            # float32, which most layouts store; 0.0 is added to make one of two zeros.
            digest.update((values.astype(np.float32) + 0.0).tobytes())
        found.append(digest.digest())
    return found
