"""Checks of the recorded statistics: by themselves, and those of episodes against their rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from demoreel.check.look import EACH, FOLDER, WHOLE, Look
from demoreel.check.rows import Portion
from demoreel.layouts.meta import read_episode_columns
from demoreel.model import DEFAULT_FEATURES, Feature
from demoreel.model.problems import ignore
from demoreel.model.stats import MERGED, QUANTILES
from demoreel.storage.arrow import as_numpy, is_number

NOT_FINITE = "is not finite"
"""What is said of statistics that are NaN or infinite."""
_COMPARED = ("min", "max", "mean")
_MOST_ROWS = 100_000  # whose rounding errors add up; tools sum up an episode at a time
_PIXELS = 16  # times the frames: a count of more is one of pixels
_OF_FLOAT16, _OF_FLOAT32 = 2.0**-10, 2.0**-23
_MOST_NUMBERS = 1 << 25  # of one kind of one feature, over all episodes; more are not compared


def check_recorded_stats(look: Look) -> None:
    """Check that statistics are there for every feature, of its size, possible, and of all rows."""
    stats, info = look.stats, look.info
    if stats is None or info is None:
        return
    file = EACH if look.is_v2 and EACH in look.files else WHOLE
    if look.layout == "v2.1" and EACH not in look.files:
        look.found("episode-stats-absent", f"There is no {EACH}.", file=EACH)
    for key, feature in info.features.items():
        if feature.is_string or feature.is_language or key in DEFAULT_FEATURES:
            continue  # never used to normalise
        kinds = stats.get(key)
        missing = [name for name in MERGED if name not in kinds] if kinds else list(MERGED)
        if missing:
            # lerobot 0.6.1 needs an entry for each camera; tools of v2.x often write none.
            is_usual = look.is_v2 and feature.is_camera
            look.found(
                "stats-camera-missing" if is_usual else "stats-feature-missing",
                f"There is no {', '.join(missing)} of {key}.",
                feature=key,
                file=file,
            )
        if kinds:
            _check_kinds(look, feature, kinds, file)


def _check_kinds(look: Look, feature: Feature, kinds: dict[str, np.ndarray], file: str) -> None:
    sizes = _sizes(feature)
    for name in (*MERGED, *QUANTILES):
        if name in kinds and kinds[name].size not in sizes:
            look.found(
                "stats-shape",
                f"{name} of {feature.key} has {kinds[name].size} numbers; the feature has shape "
                f"{list(feature.shape)}.",
                feature=feature.key,
                file=file,
            )
            return
    problem = _impossible(feature, kinds, rows_summed(look, feature))
    if problem:
        look.found("stats-impossible", f"{feature.key}: {problem}.", feature=feature.key, file=file)
    elif feature.is_camera and not feature.is_depth and _are_of_pixels(kinds):
        what = f"The max of {feature.key} is {kinds['max'].max():.6g}, the mean up to "
        what += f"{kinds['mean'].max():.6g}."
        look.found("stats-pixels", what, feature=feature.key, file=file)
    _check_count(look, feature, kinds, file)


def _are_of_pixels(kinds: dict[str, np.ndarray]) -> bool:
    """Whether statistics of images are those of whole numbers: one bright pixel is enough."""
    return all(kind in kinds and kinds[kind].max() > 1.5 for kind in ("max", "mean"))


def _sizes(feature: Feature) -> set[int]:
    """Return the sizes that writers give to statistics: of all, or of the last dimension."""
    if feature.is_camera:
        # Old writers took a grey image for a colour one; depth has one channel, declared as 3.
        return {feature.image_shape[2], 1, 3}
    return {math.prod(feature.shape), feature.shape[-1] if feature.shape else 1}


@dataclass(frozen=True, slots=True)
class Rounding:
    """How far statistics may be off because tools add up numbers of 32 bits, one by one.

    lerobot 0.6.1 is off by up to rows / 10 roundings in the mean of numbers that hardly change, and
    by three times that in their variance.

    Attributes:
        extreme: In minimum and maximum.
        mean: In the mean.
        variance: In the square of the standard deviation.
    """

    extreme: np.ndarray
    mean: np.ndarray
    variance: np.ndarray

    @classmethod
    def of(cls, feature: Feature, low: np.ndarray, high: np.ndarray, rows: Any) -> Rounding:
        """Return it for dimensions that run from ``low`` to ``high``, over so many rows."""
        unit = _OF_FLOAT16 if feature.dtype == "float16" else _OF_FLOAT32
        low, high = low.astype(np.float64), high.astype(np.float64)  # the least integer has no abs
        size = np.maximum(np.abs(low), np.abs(high))
        rows = np.minimum(rows, _MOST_ROWS)
        extreme = 128 * unit * size + np.where(high > low, 1e-9, 1e-6)
        mean = extreme + (8 + rows / 4) * unit * size
        return cls(extreme, mean, (16 + rows / 2) * unit * size**2 + extreme**2)


def rows_summed(look: Look, feature: Feature) -> int:
    """Return how many rows are added up for statistics at most: an episode's, or all."""
    if feature.is_camera or look.episodes is None or len(look.episodes) == 0:
        return _MOST_ROWS
    whole = look.is_v2 and EACH not in look.files
    return int(look.episodes.start[-1] if whole else look.episodes.length.max())


def _impossible(feature: Feature, kinds: dict[str, np.ndarray], rows: int) -> str | None:
    for name in (*MERGED, *QUANTILES):
        if name in kinds and not np.isfinite(kinds[name].astype(np.float64)).all():
            return f"{name} {NOT_FINITE}"
    low, high = kinds.get("min"), kinds.get("max")
    if low is not None and high is not None and low.shape == high.shape:
        low, high = low.astype(np.float64), high.astype(np.float64)
        rounding = Rounding.of(feature, low, high, rows)
        if (low > high + rounding.extreme).any():
            return "a minimum lies above the maximum"
        mean = kinds.get("mean")
        slack = 1e-3 * (high - low) + rounding.mean
        if feature.is_camera:
            slack = slack + 0.05 * np.maximum(np.abs(low), np.abs(high))  # of millions of pixels
        fits = mean is None or mean.shape != low.shape
        if not fits and ((mean < low - slack) | (mean > high + slack)).any():
            return "a mean lies outside minimum and maximum"
    std = kinds.get("std")
    if std is not None and (std.astype(np.float64) < -1e-6).any():
        return "a standard deviation is negative"
    return None


def _check_count(look: Look, feature: Feature, kinds: dict[str, np.ndarray], file: str) -> None:
    """Compare the count with the frames.

    Images are sampled, so theirs may be smaller; some versions of lerobot count their pixels.
    """
    episodes, count = look.episodes, kinds.get("count")
    if count is None or count.size == 0 or episodes is None or not episodes.is_whole:
        return
    frames, said = int(episodes.start[-1]), float(count.reshape(-1)[0])
    wrong = counts_too_many(count, frames) if feature.is_camera else said != frames
    # Some writers count every row of a frame's matrix as a sample of its own.
    if wrong and said != frames * math.prod(feature.shape[:-1]):
        look.found(
            "stats-count",
            f"The statistics of {feature.key} count {said:g} frames; there are {frames}.",
            feature=feature.key,
            file=file,
        )


def counts_too_many(count: np.ndarray, frames: int) -> bool:
    """Whether statistics of images count more frames than there are; not their pixels."""
    return bool(count.size and frames < float(count.reshape(-1)[0]) < _PIXELS * frames)


@dataclass(frozen=True)
class EpisodeStats:
    """One feature's statistics, by episode.

    Attributes:
        feature: The feature.
        file: Where they are recorded.
        known: For each usable episode, whether it has them.
        kinds: ``min``, ``max`` and ``mean``: a row per usable episode.
    """

    feature: Feature
    file: str
    known: np.ndarray
    kinds: dict[str, np.ndarray]

    def compare(
        self, look: Look, portion: Portion, low: np.ndarray, high: np.ndarray, mean: np.ndarray
    ) -> None:
        """Compare the rows of a portion's episodes with what is recorded of them."""
        assert look.episodes is not None
        position = look.episodes.positions_of(portion.run_episodes)
        whole = (position >= 0) & (portion.run_lengths == look.episodes.length[position])
        whole &= self.known[position]
        runs = np.flatnonzero(whole)
        width = self.kinds["min"].shape[1]
        if len(runs) == 0 or low.shape[1] != width:
            return
        span = high[runs].astype(np.float64) - low[runs]
        rows = portion.run_lengths[runs][:, None]
        rounding = Rounding.of(self.feature, low[runs], high[runs], rows)
        slack = look.thresholds["range_slack"] * span + rounding.extreme
        for kind, values in (("min", low), ("max", high), ("mean", mean)):
            said = self.kinds[kind][position[runs]]
            limit = slack
            if kind == "mean":
                limit = rounding.mean + look.thresholds["mean_slack"] * span
            wrong = (~(np.abs(values[runs] - said) <= limit)).any(axis=1)
            for place in np.flatnonzero(wrong).tolist():
                off = ~(np.abs(values[runs[place]] - said[place]) <= limit[place])
                at = int(np.flatnonzero(off)[0])
                look.found(
                    "episode-stats-differ",
                    f"The {kind} of dimension {at} is {values[runs[place]][at]:.6g}; recorded is "
                    f"{said[place][at]:.6g}.",
                    episode=portion.run_episodes[runs[place]],
                    file=self.file,
                )
            if wrong.any():
                return


def read_episode_stats(look: Look) -> dict[str, EpisodeStats]:
    """Return what is recorded of each episode, by feature; nothing where there is too much."""
    if look.info is None or look.episodes is None or len(look.episodes) == 0:
        return {}
    return _from_lines(look) if look.is_v2 else _from_tables(look)


def _from_tables(look: Look) -> dict[str, EpisodeStats]:
    assert look.info is not None
    assert look.episodes is not None
    assert look.listing is not None
    widths = {
        key: math.prod(feature.item_shape)
        for key, feature in look.info.features.items()
        if _is_compared(feature, len(look.listing))
    }
    files = [look.listing.files[number] for number in np.unique(look.listing.file).tolist()]
    parts = [_read(look, name, widths) for name in files]
    found: dict[str, EpisodeStats] = {}
    for key in widths:
        if not parts or not all(key in part for part in parts):
            continue
        kinds = {
            kind: np.concatenate([part[key][kind] for part in parts])[look.episodes.listed]
            for kind in _COMPARED
        }
        known = np.all([np.isfinite(part).all(axis=1) for part in kinds.values()], axis=0)
        found[key] = EpisodeStats(look.info.features[key], FOLDER, known, kinds)
    return found


def _is_compared(feature: Feature, episodes: int) -> bool:
    """Whether a feature's statistics matter: the default columns are never normalised."""
    matters = feature.is_numeric and feature.key not in DEFAULT_FEATURES
    return matters and episodes * math.prod(feature.item_shape) < _MOST_NUMBERS


def _read(look: Look, name: str, widths: dict[str, int]) -> dict[str, dict[str, np.ndarray]]:
    """Return the statistics in one file, of the features that have all of them."""
    columns = [f"stats/{key}/{kind}" for key in widths for kind in _COMPARED]
    table = read_episode_columns(look.root / name, set(columns).__contains__, ignore)
    if table is None:
        return {}
    present = set(table.column_names)
    found = {}
    for key, width in widths.items():
        names = {kind: f"stats/{key}/{kind}" for kind in _COMPARED}
        if present.issuperset(names.values()):
            rows = {k: _rows(table.column(n).combine_chunks(), width) for k, n in names.items()}
            kinds = {kind: part for kind, part in rows.items() if part is not None}
            if len(kinds) == len(_COMPARED):
                found[key] = kinds
    return found


def _rows(lists: pa.Array, width: int) -> np.ndarray | None:
    if not pa.types.is_list(lists.type) or not is_number(lists.type.value_type):
        return None
    values = lists.flatten()
    if lists.null_count or values.null_count or len(values) != len(lists) * width:
        return None
    sizes = np.diff(as_numpy(lists.offsets))
    if not (sizes == width).all():
        return None
    return as_numpy(values).astype(np.float64).reshape(len(lists), width)


def _from_lines(look: Look) -> dict[str, EpisodeStats]:
    _ = look.stats  # reads the lines
    assert look.info is not None
    assert look.episodes is not None
    found: dict[str, EpisodeStats] = {}
    position = look.episodes.positions_of(np.array([n for n, _ in look.episode_parts], np.int64))
    for key, feature in look.info.features.items():
        width = math.prod(feature.item_shape)
        if not _is_compared(feature, len(look.episodes)):
            continue
        kinds = {kind: np.full((len(look.episodes), width), np.nan) for kind in _COMPARED}
        for place, (_, stats) in zip(position.tolist(), look.episode_parts, strict=True):
            for kind, rows in kinds.items():
                value = stats.get(key, {}).get(kind)
                if place >= 0 and value is not None and value.size == width:
                    rows[place] = value.reshape(-1)
        known = np.all([np.isfinite(part).all(axis=1) for part in kinds.values()], axis=0)
        found[key] = EpisodeStats(feature, EACH, known, kinds)
    return found
