"""Statistics of pictures from counts of their levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from demoreel.media.depth import depth_table
from demoreel.model import Feature
from demoreel.stats.running import Pictures, finish_alike, stats_of_levels


def cameras_stats(
    counts: Mapping[str, Sequence[Pictures]], features: Mapping[str, Feature]
) -> dict[str, list[dict[str, np.ndarray]]]:
    """Return what ``camera_stats`` says of each of several counts of several cameras.

    Cost: little more than one of them, where the cameras are alike.

    Raises:
        ArgumentError: There were no pictures.
    """
    alike: dict[tuple[int, ...], list[str]] = {}
    found = {}
    for key, parts in counts.items():
        if parts and not (features[key].is_depth and features[key].is_video):
            alike.setdefault(parts[0].shape, []).append(key)
        else:
            found[key] = [camera_stats(part, features[key]) for part in parts]
    for keys in alike.values():
        finished = iter(finish_alike([part for key in keys for part in counts[key]]))
        found |= {key: [next(finished) for _ in counts[key]] for key in keys}
    return found


def camera_stats(counted: Pictures, feature: Feature) -> dict[str, np.ndarray]:
    """Return a camera's statistics; those of a depth video in the unit that it was recorded in.

    Raises:
        ArgumentError: There were no pictures.
    """
    if not (feature.is_depth and feature.is_video):
        return counted.finish()
    code = feature.depth_code
    assert code is not None
    depths = depth_table(code, unit=code.unit)
    found = stats_of_levels(counted.histogram()[:1, : len(depths)], depths.astype(np.float64))
    shaped = {name: value.reshape(1, 1, 1) for name, value in found.items()}
    return {**shaped, "count": np.array([counted.count])}
