"""Statistics by feature and kind: ``stats["action"]["mean"]``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from demoreel.errors import MetadataError
from demoreel.model.feature import quoted
from demoreel.model.limits import refuse_above
from demoreel.model.problems import Note, Problem, refuse

Stats = dict[str, dict[str, np.ndarray]]
"""Feature key -> statistic name (min, max, mean, std, count, q01, ...) -> array."""

MERGED = ("min", "max", "mean", "std")
"""Kinds of statistics that are merged exactly, by their counts."""

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
"""Kinds that are not, and their shares."""


def stats_from_json(
    raw: object, *, where: str, note: Note = refuse, episode: int | None = None
) -> Stats:
    """Read parsed JSON statistics; scalars become arrays of one.

    Args:
        raw: The parsed JSON. Features that have no named lists of numbers are left out.
        where: The file's path, for errors.
        note: Takes the problems.
        episode: The episode whose statistics they are, for errors.
    """

    def wrong(what: str, key: object = None) -> None:
        error = MetadataError(what, file=where, episode=episode)
        place = {} if key is None else {"feature": key}
        note(Problem("stats-unreadable", error, where=place))

    if not isinstance(raw, Mapping):
        wrong("The statistics are not an object.")
        return {}
    try:
        refuse_above("FEATURES", len(raw), "The statistics have features:", file=where)
    except MetadataError as error:
        note(Problem("limit-exceeded", error))
        return {}
    stats: Stats = {}
    for key, kinds in raw.items():
        if not isinstance(kinds, Mapping):
            wrong(f"The statistics of {quoted(key)} are not an object.", key)
            continue
        try:
            stats[key] = {name: _numbers(value) for name, value in kinds.items()}
        except (ValueError, OverflowError, RecursionError) as error:
            wrong(f"The statistics of {quoted(key)} are not numbers: {error}.", key)
    return stats


def _numbers(value: object) -> np.ndarray:
    array = np.atleast_1d(np.array(value))
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{array.dtype} values")
    return array


def stats_to_json(stats: Stats) -> dict[str, Any]:
    """Return statistics as nested lists."""
    return {
        key: {name: np.asarray(value).tolist() for name, value in kinds.items()}
        for key, kinds in stats.items()
    }


def combine_stats(parts: Sequence[Stats], *, quantiles: bool = False) -> Stats | None:
    """Combine statistics of parts into those of the whole: min, max, mean, std and count.

    Means and variances combine exactly by their counts. Features that a part lacks are left out.
    None where there is nothing to combine.

    Args:
        parts: Statistics of episodes or datasets.
        quantiles: Whether to average all other statistics, weighted by count: LeRobot's rule, and
            not exact. Otherwise they are left out.
    """
    if not parts:
        return None
    shared = [key for key in parts[0] if all(_is_complete(part.get(key)) for part in parts)]
    return {key: _combined(key, [part[key] for part in parts], quantiles) for key in shared}


def extend_stats(total: Stats, more: Stats) -> Stats:
    """Return the statistics of a dataset with one more episode, quantiles averaged.

    Features that only ``total`` has keep what they have; features that only ``more`` has are left
    out, for of the episodes before nothing is known.
    """
    return {**total, **(combine_stats([total, more], quantiles=True) or {})}


def _is_complete(kinds: dict[str, np.ndarray] | None) -> bool:
    return kinds is not None and {*MERGED, "count"} <= kinds.keys()


def _combined(
    key: str, parts: list[dict[str, np.ndarray]], quantiles: bool
) -> dict[str, np.ndarray]:
    counts = np.array([part["count"].reshape(-1)[0] for part in parts], dtype=np.float64)
    if not counts.sum() > 0:
        raise MetadataError(f"The statistics of {key!r} count no frames.")
    values = {"count": counts.reshape(-1, 1)}
    for name in parts[0] if quantiles else MERGED:
        if name == "count" or not all(name in part for part in parts):
            continue
        arrays = [np.asarray(part[name]) for part in parts]
        shapes = sorted({array.shape for array in arrays})
        if len(shapes) == 1:
            values[name] = np.stack(arrays)
        elif name in MERGED:
            raise MetadataError(
                f"The statistics of {key!r} have shapes {shapes[0]} and {shapes[1]} in different "
                "episodes."
            )
    return combined(values)


def combined(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Combine statistics of parts, a row each, into those of the whole, by LeRobot's rules.

    Counts, extremes, means and standard deviations are exact (to rounding). Others, which are
    quantiles, cannot be: their average, weighted by count, is the best there is without the data.
    """
    count = values["count"].astype(np.float64).reshape(len(values["count"]), -1)[:, 0]
    weight = (count / count.sum()).reshape(-1, *[1] * (values["mean"].ndim - 1))
    found = {name: (part * weight).sum(axis=0) for name, part in values.items() if name != "count"}
    # Spread within the parts, plus the spread of their means.
    variance = values["std"].astype(np.float64) ** 2 + (values["mean"] - found["mean"]) ** 2
    return {
        **found,
        "min": values["min"].min(axis=0),
        "max": values["max"].max(axis=0),
        "std": np.sqrt((variance * weight).sum(axis=0)),
        "count": np.array([int(count.sum())]),
    }
