"""Statistics of a mixture: of each part, of parts that are normalised together, and of all.

Those of numbers are exact, quantiles too: every value counts as often as it is sampled. Values that
only fill a feature up (a part that lacks it, padded dimensions) do not count. Those of frames are
exact where the levels of all chosen frames were counted; others follow from the episodes'. Frames
count in the size that they are stored in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from demoreel.model import Feature, Stats
from demoreel.model.depth import DepthUnit
from demoreel.model.stats import MERGED, QUANTILES, combined
from demoreel.read.mixture import MixtureKey, MixtureReader
from demoreel.read.part import OpenPart
from demoreel.stats.inherited import inherited_from
from demoreel.stats.levels import camera_stats, counted_levels
from demoreel.stats.running import LevelCounts, stats_of_levels

_MOST = 1 << 50  # of counts: sums are exact below 2 ** 53
_KINDS = (*MERGED, *QUANTILES)


@dataclass(frozen=True, slots=True)
class MixtureStats:
    """Statistics of a mixture, in LeRobot's form.

    Attributes:
        merged: Of all samples, as often as they are drawn.
        parts: Of each part.
        by_key: Of the parts of each normalisation key, as often as they are drawn.
        approximate: Cameras whose levels were not all counted, so that their quantiles are
            averages, or whose images are scaled (``image_size``).
    """

    merged: Stats
    parts: list[Stats]
    by_key: dict[str, Stats]
    approximate: list[str]


@dataclass(frozen=True, slots=True)
class _Frames:
    """What is known of a camera's frames in a part.

    Attributes:
        stats: Their statistics.
        levels: Their counts; None where not all were counted.
        count: How many there are.
    """

    stats: dict[str, np.ndarray]
    levels: np.ndarray | None
    count: int


def mixture_stats(mixture: MixtureReader) -> MixtureStats:
    """Compute the statistics of a mixture.

    Cost: reads the columns of numbers of all chosen frames, and sorts them several times; memory
    for one feature of all parts. No image is decoded.
    """
    parts = mixture.parts
    together: dict[str, list[int]] = {}
    for part in parts:
        together.setdefault(part.normalization_key, []).append(part.number)
    groups = [list(range(len(parts))), *([n] for n in range(len(parts))), *together.values()]
    found: list[Stats] = [{} for _ in groups]
    frames = {
        part.number: _frames_of(
            part, [key for key in mixture.cameras if key in part.features], mixture.depth_unit
        )
        for part in parts
    }
    approximate = []
    for key, known in mixture.keys.items():
        if known.feature.is_camera:
            every = {n: seen[key] for n, seen in frames.items() if key in seen}
            for stats, group in zip(found, groups, strict=True):
                own = [n for n in group if n in every]
                if own:
                    stats[key] = _merged_frames(
                        [every[n] for n in own], [mixture.weights[n] for n in own], known.feature
                    )
            stored = {parts[n].features[key].image_shape[:2] for n in every}
            size = mixture.image_size
            is_scaled = size is not None and bool(stored - {tuple(size)})
            if is_scaled or any(one.levels is None for one in every.values()):
                approximate.append(key)
        elif known.dtype is not None:
            columns = {p.number: _numbers(mixture, p, key) for p in parts if key in p.features}
            for stats, group in zip(found, groups, strict=True):
                own = [n for n in group if n in columns]
                if own:
                    often = _multiplicities(
                        [Fraction(mixture.weights[n], parts[n].size) for n in own],
                        [len(columns[n]) for n in own],
                    )
                    stats[key] = _merged_numbers([columns[n] for n in own], often, known)
                    stats[key]["count"] = np.array([sum(parts[n].size for n in own)])
    first, last = 1 + len(parts), len(groups)
    return MixtureStats(
        found[0],
        found[1:first],
        dict(zip(together, found[first:last], strict=True)),
        approximate,
    )


def _numbers(mixture: MixtureReader, part: OpenPart, key: str) -> np.ndarray:
    """Return the values of all samples of a part: rows x dimensions."""
    rows = part.dataset.rows_of(part.frames(np.arange(part.size)))
    source = part.source_of[key]
    column = np.asarray(part.dataset.reader.rows(rows, [source])[source])
    if key in part.dims:
        column = column[..., part.dims[key]]
    values = mixture.numbers(part, key, column)
    width = values.shape[-1] if values.ndim > 1 else 1
    return np.asarray(values.reshape(-1, width))


def _multiplicities(shares: Sequence[Fraction], lengths: Sequence[int]) -> list[int]:
    """Return how often a value of each part counts, in whole numbers."""
    if not any(shares):  # parts that are never drawn have statistics of their own all the same
        return [1] * len(shares)
    scale = math.lcm(*(share.denominator for share in shares))
    often = [int(share * scale) for share in shares]
    shared = math.gcd(*often)
    often = [one // shared for one in often]
    total = sum(one * length for one, length in zip(often, lengths, strict=True))
    if total <= _MOST:
        return often
    return [max(1, round(Fraction(one * _MOST, total))) if one else 0 for one in often]


def _merged_numbers(
    columns: Sequence[np.ndarray], often: Sequence[int], known: MixtureKey
) -> dict[str, np.ndarray]:
    width = known.shape[-1] if known.shape else 1
    merged = {kind: np.zeros(width) for kind in _KINDS}
    for dimension in range(width):
        own = [
            (column[:, dimension], times)
            for column, times in zip(columns, often, strict=True)
            if column.shape[1] > dimension and times
        ]
        if not own:
            continue
        values, place = np.unique(np.concatenate([v for v, _ in own]), return_inverse=True)
        weight = np.concatenate([np.full(len(v), times, np.float64) for v, times in own])
        counts = np.bincount(place.reshape(-1), weights=weight).astype(np.int64)
        stats = stats_of_levels(counts[None], values.astype(np.float64))
        for kind in _KINDS:
            merged[kind][dimension] = stats[kind][0]
    return merged


def _in_unit(
    stats: dict[str, np.ndarray], feature: Feature, unit: DepthUnit
) -> dict[str, np.ndarray]:
    """Return statistics of depth in the unit of samples; those of colours as they are."""
    stored = feature.info.get("depth_unit") if feature.is_depth else None
    if stored is None or stored == unit:
        return stats
    factor = 1000.0 if stored == "m" else 0.001
    return {kind: v if kind == "count" else v * factor for kind, v in stats.items()}


def _frames_of(part: OpenPart, cameras: Sequence[str], unit: DepthUnit) -> dict[str, _Frames]:
    """Return what is known of the frames of each camera, by its name in the mixture."""
    reader = part.dataset.reader
    sources = {part.source_of[key]: key for key in cameras}
    if not sources:
        return {}
    chosen = np.array(
        [reader.episodes.position_of(n) for n in part.dataset.episodes.episode_index.tolist()]
    )
    stated = inherited_from(reader, list(sources)).cameras
    counted = counted_levels(reader, stated, chosen) if part.rows is None else {}
    found = {}
    for source, key in sources.items():
        feature = reader.info.features[source]
        levels = counted.get(source)
        if levels is not None:
            stats = camera_stats(levels, feature)
            found[key] = _Frames(_in_unit(stats, feature, unit), levels.histogram(), part.size)
            continue
        kinds = stated.get(source) or {}
        rows = {kind: value[chosen] for kind, value in kinds.items()}
        if {*MERGED, "count"} <= rows.keys():
            known = {k: v for k, v in rows.items() if k in _KINDS or k == "count"}
            stats = {k: v.reshape(-1, 1, 1) for k, v in combined(known).items() if k != "count"}
        elif source in (reader.stats or {}):
            whole = (reader.stats or {})[source]
            stats = {k: v for k, v in whole.items() if k in _KINDS}
        else:
            continue
        found[key] = _Frames(_in_unit(stats, feature, unit), None, part.size)
    return found


def _merged_frames(
    parts: Sequence[_Frames], weights: Sequence[int], feature: Feature
) -> dict[str, np.ndarray]:
    shares = [weight if any(weights) else 1 for weight in weights]
    parts = [part for part, share in zip(parts, shares, strict=True) if share]
    shares = [share for share in shares if share]
    count = np.array([sum(part.count for part in parts)])
    if len(parts) == 1:
        return {**parts[0].stats, "count": count}
    levels = [part.levels for part in parts if part.levels is not None]
    alike = len({one.shape for one in levels}) == 1 and not feature.is_depth
    if len(levels) == len(parts) and alike:  # levels of depth stand for other depths elsewhere
        total = sum(shares)
        scaled = [
            np.rint(one * (share / total * _MOST / one[:1].sum()))
            for one, share in zip(levels, shares, strict=True)
        ]
        merged = LevelCounts.counted(np.sum(scaled, axis=0).astype(np.int64), int(count[0]))
        return camera_stats(merged, feature)
    kinds = [kind for kind in _KINDS if all(kind in part.stats for part in parts)]
    values = {kind: np.stack([part.stats[kind] for part in parts]) for kind in kinds}
    values["count"] = np.array(shares, np.float64)
    return {**combined(values), "count": count}
