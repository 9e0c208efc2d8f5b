"""Statistics by feature and kind: ``stats["action"]["mean"]``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from demoreel.errors import MetadataError

Stats = dict[str, dict[str, np.ndarray]]
"""Feature key -> statistic name (min, max, mean, std, count, q01, ...) -> array."""


def stats_from_json(raw: object, *, where: str) -> Stats:
    """Read parsed JSON statistics; scalars become arrays of one.

    Raises:
        MetadataError: The object is not features of named number lists.
    """
    if not isinstance(raw, Mapping):
        raise MetadataError("The statistics are not an object.", file=where)
    stats: Stats = {}
    for key, kinds in raw.items():
        if not isinstance(kinds, Mapping):
            raise MetadataError(f"The statistics of {key!r} are not an object.", file=where)
        try:
            stats[key] = {name: _numbers(value) for name, value in kinds.items()}
        except (ValueError, OverflowError) as error:
            raise MetadataError(
                f"The statistics of {key!r} are not numbers: {error}.", file=where
            ) from error
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


def combine_stats(parts: Sequence[Stats]) -> Stats | None:
    """Combine statistics of parts into those of the whole: min, max, mean, std and count.

    Means and variances combine exactly by their counts. Quantiles do not combine, so they are
    left out. None where there is nothing to combine.

    Raises:
        MetadataError: The parts' arrays differ in shape, or count no frames.
    """
    if not parts:
        return None
    shared = [key for key in parts[0] if all(_is_complete(part.get(key)) for part in parts)]
    return {key: _combined(key, [part[key] for part in parts]) for key in shared}


def _is_complete(kinds: dict[str, np.ndarray] | None) -> bool:
    return kinds is not None and {"min", "max", "mean", "std", "count"} <= kinds.keys()


def _combined(key: str, parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    for name in ("min", "max", "mean", "std"):
        shapes = sorted({part[name].shape for part in parts})
        if len(shapes) > 1:
            raise MetadataError(
                f"The statistics of {key!r} have shapes {shapes[0]} and {shapes[1]} in different "
                "episodes."
            )
    counts = np.array([part["count"].reshape(-1)[0] for part in parts], dtype=np.float64)
    if not counts.sum() > 0:
        raise MetadataError(f"The statistics of {key!r} count no frames.")
    means = np.stack([part["mean"].astype(np.float64) for part in parts])
    stds = np.stack([part["std"].astype(np.float64) for part in parts])
    weights = (counts / counts.sum()).reshape(-1, *[1] * (means.ndim - 1))
    mean = (means * weights).sum(axis=0)
    variance = ((stds**2 + (means - mean) ** 2) * weights).sum(axis=0)
    return {
        "min": np.stack([part["min"] for part in parts]).min(axis=0),
        "max": np.stack([part["max"] for part in parts]).max(axis=0),
        "mean": mean,
        "std": np.sqrt(variance),
        "count": np.array([int(counts.sum())]),
    }
