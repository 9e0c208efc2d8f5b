"""Recorded quantiles against those of the rows, of which a sample is kept."""

from __future__ import annotations

import math

import numpy as np

from demoreel.check.look import WHOLE, Look
from demoreel.check.rows import Portion
from demoreel.model import DEFAULT_FEATURES
from demoreel.model.stats import QUANTILES

_NUMBERS = 1 << 21  # of a feature's sample
_ROWS = 20_000
_FEWEST = 100  # rows; of fewer, the outer quantiles are hardly more than the extremes
_RANK = 0.05  # of the rows: a quantile that so few rows lie off from is right, however far it is


class Quantiles:
    """Compares recorded quantiles with the data."""

    def __init__(self, look: Look) -> None:
        self._look = look
        features = look.info.features if look.info is not None else {}
        self._recorded: dict[str, dict[str, np.ndarray]] = {}
        for key, kinds in (look.stats or {}).items():
            feature = features.get(key)
            if feature is None or not feature.is_numeric or key in DEFAULT_FEATURES:
                continue
            width = math.prod(feature.item_shape)
            said = {n: kinds[n].astype(np.float64).reshape(-1) for n in QUANTILES if n in kinds}
            said = {n: v for n, v in said.items() if len(v) == width and np.isfinite(v).all()}
            if said and feature.numpy_dtype.kind == "f":  # others are hardly ever normalised
                self._recorded[key] = said
        rows = int(look.episodes.start[-1]) if look.episodes is not None else 0
        self._every = {
            key: max(1, rows // _ROWS, rows * len(next(iter(said.values()))) // _NUMBERS)
            for key, said in self._recorded.items()
        }

    def sampled(self, portion: Portion) -> dict[str, np.ndarray]:
        """Return some rows of the features that have quantiles, evenly spread."""
        found = {}
        for key, every in self._every.items():
            if key in portion.columns:
                values = portion.columns[key][-portion.first_row % every :: every]
                found[key] = values.reshape(len(values), -1).astype(np.float32)
        return found

    def check(self, parts: list[dict[str, np.ndarray]]) -> None:
        """Report the features whose quantiles are far off."""
        for key, said in self._recorded.items():
            rows = [part[key] for part in parts if key in part]
            if rows and sum(map(len, rows)) >= _FEWEST:
                self._compare(key, said, np.concatenate(rows))

    def _compare(self, key: str, said: dict[str, np.ndarray], rows: np.ndarray) -> None:
        rows = rows[np.isfinite(rows).all(axis=1)]
        if len(rows) < _FEWEST:
            return
        rows.sort(axis=0)
        low, high = rows[0].astype(np.float64), rows[-1].astype(np.float64)
        reach = high - low
        slack = self._look.thresholds["quantile_slack"] * reach
        worst, place = 0.0, ("", 0, 0.0, 0.0)
        bad = np.zeros(len(reach), dtype=bool)
        for name, recorded in said.items():
            share = QUANTILES[name]
            there = rows[round(share * (len(rows) - 1))].astype(np.float64)
            below, up_to = (rows < recorded).mean(axis=0), (rows <= recorded).mean(axis=0)
            is_near = (below - _RANK <= share) & (share <= up_to + _RANK)
            is_near &= (recorded >= low - slack) & (recorded <= high + slack)
            off = ~(np.abs(recorded - there) <= slack) & ~is_near & (reach > 0)
            bad |= off
            away = np.where(off, np.abs(recorded - there) / np.where(reach > 0, reach, 1), 0.0)
            at = int(np.argmax(away))
            if away[at] > worst:
                worst, place = float(away[at]), (name, at, recorded[at], there[at])
        if bad.any():
            name, at, recorded_one, real = place
            self._look.found(
                "stats-quantiles",
                f"{name} of dimension {at} of {key} is {real:.4g}; recorded is {recorded_one:.4g}, "
                f"{worst:.0%} of its range away. {int(bad.sum())} of {len(bad)} dimensions have "
                "such.",
                feature=key,
                file=WHOLE,
            )
