"""Statistics of pictures from counts of their levels."""

from __future__ import annotations

import numpy as np

from demoreel.media.depth import depth_table
from demoreel.model import Feature
from demoreel.stats.running import Pictures, stats_of_levels


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
