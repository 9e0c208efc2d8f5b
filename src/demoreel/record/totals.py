"""Statistics of the whole dataset while it grows, at a cost that does not grow with it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from demoreel.layouts.base import Reader
from demoreel.media.depth import depth_table
from demoreel.model import Feature, Stats
from demoreel.stats.running import QUANTILES, Numbers, Pictures, combine


class Totals:
    """The statistics of all episodes so far.

    Counts, extremes, means and standard deviations are exact. Pictures that were all recorded here
    are exact in their quantiles too: their levels are counted. Quantiles of numbers are the average
    of the episodes', weighted by their frames, as LeRobot keeps them, until ``finalize`` reads the
    columns once and makes them exact.

    Args:
        before: The statistics of the episodes that were there already; None where there were none.
    """

    def __init__(self, before: Stats | None) -> None:
        self._total = before
        self._counted: dict[str, Pictures] | None = {} if before is None else None

    def with_episode(
        self, stats: Stats, pictures: Mapping[str, Pictures], features: Mapping[str, Feature]
    ) -> Stats:
        """Return the statistics with one more episode; nothing is kept before ``keep``."""
        whole = stats if self._total is None else combine([self._total, stats])
        if self._counted is not None:
            for key, counts in pictures.items():
                merged = Pictures()
                if key in self._counted:
                    merged.merge(self._counted[key])
                merged.merge(counts)
                whole = {**whole, key: picture_stats(merged, features[key])}
        return whole

    def keep(self, total: Stats, pictures: Mapping[str, Pictures]) -> None:
        """Remember that the episode is saved, and what the statistics are now."""
        self._total = total
        if self._counted is not None:
            for key, counts in pictures.items():
                self._counted.setdefault(key, Pictures()).merge(counts)

    @property
    def stats(self) -> Stats | None:
        """The statistics of all that was kept."""
        return self._total


def with_exact_numbers(stats: Stats, reader: Reader) -> Stats:
    """Return statistics whose numbers are those of all rows, quantiles too.

    Cost: reads every column of numbers once, one at a time.
    """
    rows = np.arange(reader.episodes.total_frames)
    exact = dict(stats)
    for key, feature in reader.info.features.items():
        if feature.is_numeric and key in stats:
            numbers = Numbers()
            numbers.add(np.asarray(reader.rows(rows, [key])[key]))
            exact[key] = numbers.finish()
    return exact


def picture_stats(counted: Pictures, feature: Feature) -> dict[str, np.ndarray]:
    """Return a camera's statistics; those of a depth video in the unit that it was recorded in."""
    if not (feature.is_depth and feature.is_video):
        return counted.finish()
    code = feature.depth_code
    assert code is not None
    return _of_codes(counted, depth_table(code, unit=code.unit))


def _of_codes(counted: Pictures, depths: np.ndarray) -> dict[str, np.ndarray]:
    """Return the statistics of depths whose codes were counted; depths rise with their codes."""
    histogram = counted.histogram()[0][: len(depths)]
    present = np.flatnonzero(histogram)
    values, weights = depths[present].astype(np.float64), histogram[present]
    total = int(weights.sum())
    mean = float((values * weights).sum() / total)
    found = {
        "min": values[0],
        "max": values[-1],
        "mean": mean,
        "std": float(np.sqrt(((values - mean) ** 2 * weights).sum() / total)),
    }
    up_to = np.cumsum(weights)
    for name, share in QUANTILES.items():
        found[name] = values[int(np.searchsorted(up_to, share * (total - 1), side="right"))]
    shaped = {name: np.array(value, np.float64).reshape(1, 1, 1) for name, value in found.items()}
    return {**shaped, "count": np.array([counted.count])}
