"""Exact statistics of columns that do not fit into memory, shared out among an engine's processes.

Every pass over the columns is cut into shares of consecutive rows. What the shares have counted is
put together before the next pass: the result is the same to the last bit, whoever did what.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from demoreel.edit.statistics.exact import Exact
from demoreel.edit.written import Written, shared_out
from demoreel.model import Feature, Stats
from demoreel.run.task import Engine, Task

_DIMENSIONS = 32  # that are looked at together: each takes up to 8 MB in the second pass


@dataclass(frozen=True, slots=True)
class Some:
    """Some dimensions of a feature: ``first`` to ``stop`` - 1."""

    feature: Feature
    first: int
    stop: int


def long_stats(rows: Written, features: Sequence[Feature], *, engine: Engine | None) -> Stats:
    """Return the statistics of number columns, but for their counts.

    Cost: reads each column two to four times; one that is wider than 32 dimensions more often.
    Memory: some 300 MB, and in each of the engine's processes.

    Args:
        rows: The rows.
        features: Their columns of numbers.
        engine: What shares the work out, where it has several jobs; None is this process.
    """
    parts: dict[str, list[dict[str, np.ndarray]]] = {feature.key: [] for feature in features}
    for group in _groups(features):
        for some, found in zip(group, _stats_of(rows, group, engine), strict=True):
            parts[some.feature.key].append(found)
    return {
        key: {kind: np.concatenate([part[kind] for part in found]) for kind in found[0]}
        for key, found in parts.items()
    }


def as_samples(values: np.ndarray, feature: Feature) -> np.ndarray:
    """Return values as rows of numbers; as in LeRobot, a matrix counts as several rows."""
    return values.reshape(-1, _width(feature))


def _width(feature: Feature) -> int:
    return feature.shape[-1] if feature.item_shape else 1


def _groups(features: Sequence[Feature]) -> Iterator[list[Some]]:
    """Yield dimensions that are looked at together, in order."""
    group: list[Some] = []
    room = _DIMENSIONS
    for feature in features:
        first = 0
        while first < _width(feature):
            stop = min(_width(feature), first + room)
            group.append(Some(feature, first, stop))
            room -= stop - first
            first = stop
            if not room:
                yield group
                group, room = [], _DIMENSIONS
    if group:
        yield group


def _stats_of(
    rows: Written, group: Sequence[Some], engine: Engine | None
) -> list[dict[str, np.ndarray]]:
    exact = [Exact(_width(some.feature)) for some in group]
    shares = shared_out(rows, engine)
    while undone := [at for at, each in enumerate(exact) if not each.known]:
        wanted, open_ones = [group[at] for at in undone], [exact[at] for at in undone]
        if engine is None or len(shares) == 1:
            take_pass(rows, wanted, open_ones)
        else:
            for found in _taken(shares, wanted, open_ones, engine):
                for whole, part in zip(open_ones, found, strict=True):
                    whole.merge(part)
        for each in open_ones:
            each.end_pass()
    return [each.finish() for each in exact]


def _taken(
    shares: Sequence[Written], wanted: Sequence[Some], exact: Sequence[Exact], engine: Engine
) -> Iterator[list[Exact]]:
    tasks = [
        Task(
            f"statistics-{number:05d}",
            take_pass,
            (share, wanted, [each.share(number) for each in exact]),
            weight=share.frames,
        )
        for number, share in enumerate(shares)
    ]
    for _, result in engine.run(tasks):
        yield result["taken"]


def take_pass(rows: Written, wanted: Sequence[Some], exact: Sequence[Exact]) -> dict[str, Any]:
    """Let all rows pass by, and return those that have taken them: a task's work."""
    features = list({some.feature.key: some.feature for some in wanted}.values())
    for part in rows.portions(features):
        for some, each in zip(wanted, exact, strict=True):
            samples = as_samples(part[some.feature.key], some.feature)
            each.add(np.ascontiguousarray(samples[:, some.first : some.stop].T))
    return {"taken": list(exact)}
