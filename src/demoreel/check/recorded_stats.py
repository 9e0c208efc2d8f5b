"""Checks of the recorded statistics by themselves; ``row_values.py`` compares them with data."""

from __future__ import annotations

import math

import numpy as np

from demoreel.check.look import EACH, WHOLE, Look
from demoreel.model import DEFAULT_FEATURES, Feature

_KINDS = ("min", "max", "mean", "std")
_QUANTILES = ("q01", "q10", "q50", "q90", "q99")


def check_recorded_stats(look: Look) -> None:
    """Check that statistics are there for every feature, of its size, possible, and of all rows."""
    stats, info = look.stats, look.info
    if stats is None or info is None:
        return
    file = EACH if look.is_v2 and EACH in look.files else WHOLE
    if look.layout == "v2.1" and EACH not in look.files:
        look.found(
            "episode-stats-missing",
            "v2.1 keeps statistics by episode, and there is no meta/episodes_stats.jsonl.",
            file=EACH,
        )
    for key, feature in info.features.items():
        if feature.is_string or feature.is_language or key in DEFAULT_FEATURES:
            continue  # never used to normalise
        kinds = stats.get(key)
        missing = [name for name in _KINDS if name not in kinds] if kinds else list(_KINDS)
        if missing:
            look.found(
                "stats-feature-missing",
                f"There is no {', '.join(missing)} of {key}.",
                feature=key,
                file=file,
            )
        if kinds:
            _check_kinds(look, feature, kinds, file)


def _check_kinds(look: Look, feature: Feature, kinds: dict[str, np.ndarray], file: str) -> None:
    sizes = _sizes(feature)
    for name in (*_KINDS, *_QUANTILES):
        if name in kinds and kinds[name].size not in sizes:
            look.found(
                "stats-shape",
                f"{name} of {feature.key} has {kinds[name].size} numbers; the feature has shape "
                f"{list(feature.shape)}.",
                feature=feature.key,
                file=file,
            )
            return
    problem = _impossible(kinds)
    if problem:
        look.found("stats-impossible", f"{feature.key}: {problem}.", feature=feature.key, file=file)
    _check_count(look, feature, kinds, file)


def _sizes(feature: Feature) -> set[int]:
    """Return the sizes that writers give to statistics: of all, or of the last dimension."""
    if feature.is_camera:
        # Old writers took a grey image for a colour one; depth has one channel, declared as 3.
        return {feature.image_shape[2], 1, 3}
    return {math.prod(feature.shape), feature.shape[-1] if feature.shape else 1}


def _impossible(kinds: dict[str, np.ndarray]) -> str | None:
    for name in (*_KINDS, *_QUANTILES):
        if name in kinds and not np.isfinite(kinds[name].astype(np.float64)).all():
            return f"{name} is not finite"
    low, high = kinds.get("min"), kinds.get("max")
    if low is not None and high is not None and low.shape == high.shape:
        low, high = low.astype(np.float64), high.astype(np.float64)
        if (low > high).any():
            return "a minimum lies above the maximum"
        mean = kinds.get("mean")
        slack = 1e-3 * (high - low) + 1e-6 * np.maximum(np.abs(low), np.abs(high)) + 1e-9
        fits = mean is None or mean.shape != low.shape
        if not fits and ((mean < low - slack) | (mean > high + slack)).any():
            return "a mean lies outside minimum and maximum"
    std = kinds.get("std")
    if std is not None and (std.astype(np.float64) < 0).any():
        return "a standard deviation is negative"
    return None


def _check_count(look: Look, feature: Feature, kinds: dict[str, np.ndarray], file: str) -> None:
    """Compare the count with the frames. Images are sampled, so theirs may be smaller."""
    episodes, count = look.episodes, kinds.get("count")
    if count is None or count.size == 0 or episodes is None or not episodes.is_whole:
        return
    frames, said = int(episodes.start[-1]), float(count.reshape(-1)[0])
    wrong = said > frames if feature.is_camera else said != frames
    # Some writers count every row of a frame's matrix as a sample of its own.
    if wrong and said != frames * math.prod(feature.shape[:-1]):
        look.found(
            "stats-count",
            f"The statistics of {feature.key} count {said:g} frames; there are {frames}.",
            feature=feature.key,
            file=file,
        )
