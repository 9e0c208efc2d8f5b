"""Which histograms belong to the episodes as they are now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from demoreel.layouts.base import Reader
from demoreel.layouts.histograms import Histogram, read_histograms
from demoreel.stats.levels import camera_stats
from demoreel.stats.running import Pictures

_MUST_SAY = ("min", "max", "mean", "std", "count")


@dataclass(frozen=True, slots=True)
class Counted:
    """An episode's histogram that was found to be its own.

    Attributes:
        position: Where the episode stands in its dataset.
        histogram: The histogram.
        stats: The statistics that follow from it.
    """

    position: int
    histogram: Histogram
    stats: Mapping[str, np.ndarray]


def believed(reader: Reader, stated: Mapping[str, Mapping[str, np.ndarray]]) -> Iterator[Counted]:
    """Yield the histograms that agree with the episodes' metadata.

    Another program may have renumbered, replaced or cut episodes, and left the histograms where
    they were. So the statistics that follow from one must be the episode's own, and as many
    pictures must have been counted as it has frames; others are passed over.

    Cost: reads the histograms once, and takes 0.2 ms for each.

    Args:
        reader: The dataset.
        stated: For each camera and kind of statistic, an array: a row an episode, by position.
    """
    place = {int(number): at for at, number in enumerate(reader.episodes.episode_index.tolist())}
    seen: set[tuple[int, str]] = set()
    for histogram in read_histograms(reader.meta):
        position = place.get(histogram.episode)
        if position is None or (position, histogram.camera) in seen:
            continue
        stats = _stats_if_possible(reader, position, histogram)
        said = {k: v[position] for k, v in stated.get(histogram.camera, {}).items()}
        if stats is not None and _agree(stats, said):
            seen.add((position, histogram.camera))
            yield Counted(position, histogram, stats)


def _stats_if_possible(
    reader: Reader, position: int, histogram: Histogram
) -> dict[str, np.ndarray] | None:
    feature = reader.info.features.get(histogram.camera)
    if feature is None or not feature.is_camera:
        return None
    if histogram.frames != int(reader.episodes.length[position]):
        return None
    if (histogram.counts < 0).any() or not histogram.counts.any(axis=1).all():
        return None
    return camera_stats(Pictures.counted(histogram.counts, histogram.frames), feature)


def _agree(stats: Mapping[str, np.ndarray], said: Mapping[str, np.ndarray]) -> bool:
    return said.keys() >= set(_MUST_SAY) and all(
        # Not all writers keep every digit.
        said[kind].size == value.size
        and np.allclose(said[kind], value.reshape(-1), rtol=1e-6, atol=1e-9)
        for kind, value in stats.items()
        if kind in said
    )
