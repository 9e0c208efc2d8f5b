"""What the rows of an episode tell about it: its tasks, and statistics of its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from demoreel.layouts.base import Column
from demoreel.model import Feature
from demoreel.stats.running import QUANTILES, Numbers

_SHARES = np.array(list(QUANTILES.values()))


@dataclass(slots=True)
class Facts:
    """Facts of one episode after the other, to become columns of ``meta/episodes``.

    Args:
        features: The dataset's features.
        tasks: The text of each task, by its number.
    """

    features: Mapping[str, Feature]
    tasks: Sequence[str]
    _texts: list[list[str]] = field(default_factory=list)
    _lengths: list[int] = field(default_factory=list)
    _flat: list[dict[str, np.ndarray]] = field(default_factory=list)
    _deep: dict[str, list[dict[str, np.ndarray]]] = field(default_factory=dict)

    def add(self, columns: Mapping[str, Column]) -> None:
        """Take an episode's columns."""
        used = np.asarray(columns["task_index"])
        changes = np.flatnonzero(np.diff(used, prepend=used[0] - 1))
        self._texts.append([self.tasks[n] for n in dict.fromkeys(used[changes].tolist())])
        self._lengths.append(len(used))
        # One matrix of all numbers and vectors: many small calls would take longer than the rows.
        parts = [np.asarray(columns[f.key], np.float64).reshape(len(used), -1).T for f in self.flat]
        self._flat.append(stats_of_rows(np.concatenate(parts)))
        for feature in self.deep:
            values = np.asarray(columns[feature.key], np.float64)
            by_place = np.ascontiguousarray(values.reshape(-1, feature.shape[-1]).T)
            self._deep.setdefault(feature.key, []).append(stats_of_rows(by_place))

    @property
    def flat(self) -> list[Feature]:
        """Features that are numbers or vectors."""
        return [f for f in self.features.values() if f.is_numeric and len(f.item_shape) < 2]

    @property
    def deep(self) -> list[Feature]:
        """Features that are matrices, or more; as in LeRobot, their rows count as samples."""
        return [f for f in self.features.values() if f.is_numeric and len(f.item_shape) > 1]

    def table(self) -> pa.Table:
        """Return a row for each episode: ``tasks``, and ``stats/KEY/KIND`` of each feature."""
        columns: dict[str, pa.Array] = {"tasks": pa.array(self._texts, pa.list_(pa.string()))}
        stacked = {kind: np.stack([row[kind] for row in self._flat]) for kind in self._flat[0]}
        counts = np.array(self._lengths).reshape(-1, 1)
        at = 0
        for feature in self.flat:
            width = feature.shape[0] if feature.item_shape else 1
            own = {kind: values[:, at : at + width] for kind, values in stacked.items()}
            columns |= _named(feature.key, own | {"count": counts})
            at += width
        for key, rows in self._deep.items():
            own = {kind: np.stack([row[kind] for row in rows]) for kind in rows[0]}
            columns |= _named(key, own | {"count": counts})
        return pa.table(columns)


def _named(key: str, kinds: Mapping[str, np.ndarray]) -> dict[str, pa.Array]:
    return {f"stats/{key}/{kind}": _lists(values) for kind, values in kinds.items()}


def _lists(values: np.ndarray) -> pa.Array:
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    offsets = pa.array(np.arange(0, len(flat) + 1, values.shape[1]), pa.int32())
    return pa.ListArray.from_arrays(offsets, flat)


def stats_of_rows(values: np.ndarray) -> dict[str, np.ndarray]:
    """Return the statistics of each row of a matrix, as ``stats.running.Numbers`` would."""
    ordered = np.sort(values, axis=1)
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
