"""Statistics as plain numpy calls give them of all values at once: what the others must equal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from demoreel.model import Feature, Stats

SHARES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}


def stats_of_values(given: Any) -> dict[str, np.ndarray]:
    """Return the statistics of a column, one row a frame; a matrix's rows are samples."""
    array = np.asarray(given)
    width = array.shape[-1] if array.ndim > 1 else 1
    values = array.reshape(-1, width).astype(np.float64)
    return {
        "min": values.min(axis=0),
        "max": values.max(axis=0),
        "mean": values.mean(axis=0),
        "std": values.std(axis=0),
        "count": np.array([len(array)]),
        **{name: np.quantile(values, share, axis=0) for name, share in SHARES.items()},
    }


def stats_of_rows(features: Mapping[str, Feature], rows: Mapping[str, Any]) -> Stats:
    """Return the statistics of all columns of numbers."""
    return {key: stats_of_values(rows[key]) for key in rows if features[key].is_numeric}
