"""What the rows of an episode tell about it: its tasks, and statistics of its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from demoreel.layouts.base import Column
from demoreel.model import Feature
from demoreel.stats.running import QUANTILES, Numbers
from demoreel.storage.arrow import from_numpy, from_texts

_SHARES = np.array(list(QUANTILES.values()))


@dataclass(slots=True)
class EpisodeNumbers:
    """Statistics of numbers of one episode after the other, to become columns of ``meta/episodes``.

    Args:
        features: The dataset's features; those that are not numbers are passed over.
    """

    features: Mapping[str, Feature]
    _by_type: dict[str, list[Feature]] = field(init=False)
    _matrices: list[Feature] = field(init=False)
    _lengths: list[int] = field(default_factory=list)
    _flat: dict[str, list[dict[str, np.ndarray]]] = field(default_factory=dict)
    _deep: dict[str, list[dict[str, np.ndarray]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Sort the features: numbers and vectors by type, matrices for themselves."""
        numeric = [feature for feature in self.features.values() if feature.is_numeric]
        # As in LeRobot, the rows of a matrix count as samples.
        self._matrices = [feature for feature in numeric if len(feature.item_shape) > 1]
        self._by_type = {}
        for feature in numeric:
            if len(feature.item_shape) < 2:
                kind = "float32" if feature.dtype == "float32" else "float64"
                self._by_type.setdefault(kind, []).append(feature)

    def add(self, columns: Mapping[str, Column], length: int) -> None:
        """Take an episode's columns."""
        self._lengths.append(length)
        # One matrix of all numbers and vectors of a type: many small calls would take longer than
        # the rows.
        for kind, features in self._by_type.items():
            parts = [np.asarray(columns[f.key], kind).reshape(length, -1).T for f in features]
            self._flat.setdefault(kind, []).append(stats_of_rows(np.concatenate(parts)))
        for feature in self._matrices:
            values = np.asarray(columns[feature.key], np.float64)
            by_place = np.ascontiguousarray(values.reshape(-1, feature.shape[-1]).T)
            self._deep.setdefault(feature.key, []).append(stats_of_rows(by_place))

    def columns(self) -> dict[str, pa.Array]:
        """Return ``stats/KEY/KIND`` of each feature, a value for each episode."""
        columns: dict[str, pa.Array] = {}
        counts = np.array(self._lengths).reshape(-1, 1)
        for kind, features in self._by_type.items():
            rows = self._flat[kind]
            stacked = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
            at = 0
            for feature in features:
                width = feature.shape[0] if feature.item_shape else 1
                own = {name: values[:, at : at + width] for name, values in stacked.items()}
                columns |= _named(feature.key, own | {"count": counts})
                at += width
        for key, rows in self._deep.items():
            own = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
            columns |= _named(key, own | {"count": counts})
        return columns


class Facts:
    """Facts of one episode after the other, to become columns of ``meta/episodes``.

    Args:
        features: The dataset's features.
        tasks: The text of each task, by its number.
    """

    def __init__(self, features: Mapping[str, Feature], tasks: Sequence[str]) -> None:
        self.tasks = tasks
        self._numbers = EpisodeNumbers(features)
        self._texts: list[list[str]] = []

    def add(self, columns: Mapping[str, Column]) -> None:
        """Take an episode's columns."""
        used = np.asarray(columns["task_index"])
        changes = np.flatnonzero(np.diff(used, prepend=used[0] - 1))
        self._texts.append([self.tasks[n] for n in dict.fromkeys(used[changes].tolist())])
        self._numbers.add(columns, len(used))

    def table(self) -> pa.Table:
        """Return a row for each episode: ``tasks``, and ``stats/KEY/KIND`` of each feature."""
        ends = np.cumsum([0, *map(len, self._texts)], dtype=np.int32)
        texts = from_texts([text for texts in self._texts for text in texts])
        tasks = pa.ListArray.from_arrays(from_numpy(ends), texts)
        return pa.table({"tasks": tasks, **self._numbers.columns()})


def _named(key: str, kinds: Mapping[str, np.ndarray]) -> dict[str, pa.Array]:
    return {f"stats/{key}/{kind}": _lists(values) for kind, values in kinds.items()}


def _lists(values: np.ndarray) -> pa.Array:
    flat = np.ascontiguousarray(values).reshape(-1)
    offsets = np.arange(0, len(flat) + 1, values.shape[1], dtype=np.int32)
    return pa.ListArray.from_arrays(from_numpy(offsets), from_numpy(flat))


def stats_of_rows(values: np.ndarray) -> dict[str, np.ndarray]:
    """Return the statistics of each row of a matrix, as ``stats.running.Numbers`` would."""
    # Numbers that count, and time, are in order as they come.
    ascend = bool((values[:, 1:] >= values[:, :-1]).all())
    ordered = values if ascend else np.sort(values, axis=1)
    if values.dtype.kind == "f" and np.isnan(ordered[:, -1]).any():
        running = Numbers()
        running.add(values.T)
        return {kind: value for kind, value in running.finish().items() if kind != "count"}
    place = (values.shape[1] - 1) * _SHARES
    below = np.floor(place).astype(np.int64)
    low = ordered[:, below].astype(np.float64)
    high = ordered[:, np.minimum(below + 1, values.shape[1] - 1)].astype(np.float64)
    share = place - below
    step = high - low
    with np.errstate(invalid="ignore"):  # between infinities
        quantiles = np.where(share < 0.5, low + step * share, high - step * (1 - share))
    found = {
        "min": ordered[:, 0].astype(np.float64),
        "max": ordered[:, -1].astype(np.float64),
        "mean": values.mean(axis=1, dtype=np.float64),
        "std": values.std(axis=1, dtype=np.float64),
    }
    return found | dict(zip(QUANTILES, quantiles.T, strict=True))
