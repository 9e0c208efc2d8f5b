"""Exact statistics of columns of numbers: of each episode, and of all rows.

Columns that are too long to be held together are taken some dimensions at a time: a dimension is
read whole, sorted, and left. The result is the same to the last bit, whatever is held together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from demoreel.layouts.base import Column
from demoreel.layouts.capture_times import checks_of
from demoreel.model import Feature, Stats
from demoreel.model.stats import QUANTILES
from demoreel.storage.arrow import from_numpy, from_texts

_CHECK = "check/"
_SHARES = np.array(list(QUANTILES.values()))
_THREADS = 2
_HELD = 96 << 20  # bytes of columns, if a dimension is not larger
_AT_ONCE = 1 << 16  # differences from the mean: as many as caches hold
_LONG = 10_000  # samples from which on partitioning takes less time than sorting


class RowFile(Protocol):
    """Columns that can be read several times.

    Attributes:
        frames: How many rows there are.
    """

    frames: int

    def portions(self, features: Sequence[Feature]) -> Iterator[Mapping[str, np.ndarray]]:
        """Yield columns of numbers in the order of the rows, by key, some rows at a time."""
        ...


@dataclass(frozen=True, slots=True)
class _Some:
    """Dimensions ``first`` to ``stop`` - 1 of a feature."""

    feature: Feature
    first: int
    stop: int


def whole_stats(rows: RowFile, features: Iterable[Feature]) -> Stats:
    """Return the statistics of all columns of numbers, over all rows.

    Cost: reads a column once for every 96 MB of it, or for each dimension where that is larger;
    memory for that. Two threads sort.

    Args:
        rows: The rows.
        features: The features; those that are not numbers are passed over.
    """
    numeric = [feature for feature in features if feature.is_numeric]
    found: dict[str, list[dict[str, np.ndarray]]] = {feature.key: [] for feature in numeric}
    with ThreadPoolExecutor(_THREADS) as pool:
        for group in _groups(rows.frames, numeric):
            # Nothing is left of one group when the next is read.
            for key, stats in pool.map(_stats_of_dimension, _dimensions(rows, group)):
                found[key].append(stats)
    count = np.array([rows.frames])
    return {
        key: {kind: np.concatenate([part[kind] for part in parts]) for kind in parts[0]}
        | {"count": count}
        for key, parts in found.items()
    }


def _groups(frames: int, features: Iterable[Feature]) -> Iterator[list[_Some]]:
    """Yield dimensions that are held together, in order."""
    group: list[_Some] = []
    held = 0
    for feature in features:
        samples, width = _shape(feature)
        size = frames * samples * np.dtype(feature.dtype).itemsize
        for dimension in range(width):
            if group and held + size > _HELD:
                yield group
                group, held = [], 0
            held += size
            first = group.pop().first if group and group[-1].feature is feature else dimension
            group.append(_Some(feature, first, dimension + 1))
    if group:
        yield group


def _shape(feature: Feature) -> tuple[int, int]:
    """Return how many samples a frame has (the rows of a matrix, as in LeRobot), and their size."""
    *samples, width = feature.item_shape or (1,)
    return math.prod(samples), width


def _dimensions(rows: RowFile, group: Sequence[_Some]) -> list[tuple[str, np.ndarray]]:
    """Return the samples of each dimension, with the feature's key."""
    features = list({some.feature.key: some.feature for some in group}.values())
    matrices: list[np.ndarray] = []
    filled = 0
    for part in rows.portions(features):
        for number, some in enumerate(group):
            samples, width = _shape(some.feature)
            values = part[some.feature.key].reshape(-1, width)[:, some.first : some.stop]
            if len(matrices) == number:
                shape = some.stop - some.first, rows.frames * samples
                matrices.append(np.empty(shape, values.dtype))
            at = filled * samples
            matrices[number][:, at : at + len(values)] = values.T
        filled += len(part[features[0].key])
    return [
        (some.feature.key, row[None])
        for some, matrix in zip(group, matrices, strict=True)
        for row in matrix
    ]


def _stats_of_dimension(named: tuple[str, np.ndarray]) -> tuple[str, dict[str, np.ndarray]]:
    return named[0], stats_of_rows(named[1])


def stats_of_rows(values: np.ndarray) -> dict[str, np.ndarray]:
    """Return the statistics of each row of a matrix, as numpy gives them, in float64.

    The matrix is reordered in place.
    """
    size = values.shape[1]
    place = (size - 1) * _SHARES
    below = np.floor(place).astype(np.int64)
    above = np.minimum(below + 1, size - 1)
    mean = values.mean(axis=1, dtype=np.float64)
    squares = np.zeros(len(values))
    step = max(1, _AT_ONCE // len(values))
    with np.errstate(invalid="ignore"):  # between infinities
        for at in range(0, size, step):
            squares += ((values[:, at : at + step] - mean[:, None]) ** 2).sum(axis=1)
        # Numbers that count, and time, are in order as they come.
        if not (values[:, 1:] >= values[:, :-1]).all():
            if size < _LONG:
                values.sort(axis=1)
            else:
                values.partition(np.unique([0, *below, *above, size - 1]), axis=1)
        low, high = values[:, below].astype(np.float64), values[:, above].astype(np.float64)
        share, apart = place - below, high - low
        quantiles = np.where(share < 0.5, low + apart * share, high - apart * (1 - share))
    found = {
        "min": values[:, 0].astype(np.float64),
        "max": values[:, -1].astype(np.float64),
        "mean": mean,
        "std": np.sqrt(squares / size),
        **dict(zip(QUANTILES, quantiles.T, strict=True)),
    }
    unknown = np.isnan(found["max"])  # what is no number stands behind all numbers
    if unknown.any():
        found = {kind: np.where(unknown, np.nan, value) for kind, value in found.items()}
    return found


@dataclass(slots=True)
class EpisodeNumbers:
    """Statistics of numbers of one episode after the other, to become columns of ``meta/episodes``.

    Args:
        features: The dataset's features; those that are not numbers are passed over.
    """

    features: Mapping[str, Feature]
    _alike: dict[tuple[str, int], list[Feature]] = field(init=False)
    _lengths: list[int] = field(default_factory=list)
    _found: dict[tuple[str, int], list[dict[str, np.ndarray]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Sort the features by type, and by how many samples a frame has."""
        self._alike = {}
        for feature in self.features.values():
            if feature.is_numeric:
                kind = "float32" if feature.dtype == "float32" else "float64"
                self._alike.setdefault((kind, _shape(feature)[0]), []).append(feature)

    def add(self, columns: Mapping[str, Column], length: int) -> None:
        """Take an episode's columns."""
        self._lengths.append(length)
        # One matrix of all features that are alike: many small calls would take longer than the
        # rows.
        for (kind, samples), features in self._alike.items():
            parts = [np.asarray(columns[f.key], kind) for f in features]
            matrix = np.concatenate([part.reshape(length * samples, -1).T for part in parts])
            self._found.setdefault((kind, samples), []).append(stats_of_rows(matrix))

    def each(self) -> Iterator[tuple[str, str, np.ndarray]]:
        """Yield each feature's key and kinds of statistics, a row an episode."""
        counts = np.array(self._lengths).reshape(-1, 1)
        for alike, features in self._alike.items():
            rows = self._found[alike]
            stacked = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
            at = 0
            for feature in features:
                stop = at + _shape(feature)[1]
                for kind, values in stacked.items():
                    yield feature.key, kind, values[:, at:stop]
                yield feature.key, "count", counts
                at = stop

    def columns(self) -> dict[str, pa.Array]:
        """Return ``stats/KEY/KIND`` of each feature, a value for each episode."""
        return {f"stats/{key}/{kind}": _lists(values) for key, kind, values in self.each()}


def number_stats(features: Mapping[str, Feature], columns: Mapping[str, Column]) -> Stats:
    """Return the statistics of an episode's columns, or of any rows; others than numbers have none.

    The order is that of the columns.
    """
    numeric = {key: features[key] for key in columns if features[key].is_numeric}
    found: Stats = {key: {} for key in numeric}
    if not numeric:
        return found
    numbers = EpisodeNumbers(numeric)
    numbers.add(columns, len(columns[next(iter(numeric))]))
    for key, kind, values in numbers.each():
        found[key][kind] = values[0].copy()
    return found


def _lists(values: np.ndarray) -> pa.Array:
    flat = np.ascontiguousarray(values).reshape(-1)
    offsets = np.arange(0, len(flat) + 1, values.shape[1], dtype=np.int32)
    return pa.ListArray.from_arrays(from_numpy(offsets), from_numpy(flat))


class Facts:
    """What the rows of one episode after the other tell, to become columns of ``meta/episodes``.

    Args:
        features: The dataset's features.
        tasks: The text of each task, by its number.
    """

    def __init__(self, features: Mapping[str, Feature], tasks: Sequence[str]) -> None:
        self.tasks = tasks
        self._features = features
        self._checks: dict[str, list[int]] = {}
        self._numbers = EpisodeNumbers(features)
        self._texts: list[list[str]] = []

    def add(self, columns: Mapping[str, Column]) -> None:
        """Take an episode's columns."""
        used = np.asarray(columns["task_index"])
        changes = np.flatnonzero(np.diff(used, prepend=used[0] - 1))
        self._texts.append([self.tasks[n] for n in dict.fromkeys(used[changes].tolist())])
        self._numbers.add(columns, len(used))
        for key, value in checks_of(self._features, columns).items():
            self._checks.setdefault(key, []).append(value)

    def table(self) -> pa.Table:
        """Return a row for each episode: ``tasks``, and ``stats/KEY/KIND`` of each feature.

        And ``check/KEY``, a check sum of its column, which ``split_checks`` takes out again.
        """
        ends = np.cumsum([0, *map(len, self._texts)], dtype=np.int32)
        texts = from_texts([text for texts in self._texts for text in texts])
        tasks = pa.ListArray.from_arrays(from_numpy(ends), texts)
        checks = {f"{_CHECK}{k}": pa.array(sums, pa.int64()) for k, sums in self._checks.items()}
        return pa.table({"tasks": tasks, **self._numbers.columns(), **checks})


def split_checks(facts: pa.Table) -> tuple[pa.Table, list[dict[str, int]]]:
    """Return what ``Facts`` tell, and for each episode the check sums of its columns."""
    names = [name for name in facts.column_names if name.startswith(_CHECK)]
    sums = [facts.column(name).to_pylist() for name in names]
    keys = [name.removeprefix(_CHECK) for name in names]
    checks: list[dict[str, int]] = [{} for _ in range(len(facts))]
    for key, values in zip(keys, sums, strict=True):
        for found, value in zip(checks, values, strict=True):
            found[key] = value
    return facts.drop_columns(names), checks
