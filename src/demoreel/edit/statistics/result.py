"""Statistics of the result: numbers from its columns, pictures from what sources say of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from demoreel.edit.plan import Plan
from demoreel.edit.statistics.carried import Carried
from demoreel.edit.statistics.facts import stats_of_rows
from demoreel.edit.statistics.files import nested_columns, quiet_stats
from demoreel.edit.statistics.levels import Levels
from demoreel.edit.statistics.long_columns import as_samples, long_stats
from demoreel.edit.written import Written
from demoreel.model import Feature, Stats
from demoreel.run.task import Engine
from demoreel.stats.levels import camera_stats
from demoreel.stats.running import combine

_AT_ONCE = 64 << 20
_THREADS = 2
_COMPLETE = {"min", "max", "mean", "std", "count"}


def number_stats(
    rows: Written, features: Mapping[str, Feature], *, engine: Engine | None = None
) -> Stats:
    """Return exact statistics of all number columns, by reading them back from the tables.

    Cost: one read of all columns where they take less than 64 MB together, else two to four of
    each; memory stays bounded. 2 million rows of 26 floats take some 2.5 s of one core.

    Args:
        rows: The rows.
        features: The features; those that are not numbers are passed over.
        engine: What shares long columns out; None is this process.
    """
    numeric = [feature for feature in features.values() if feature.is_numeric]
    if rows.frames * sum(math.prod(f.shape) for f in numeric) * 8 <= _AT_ONCE:
        found = _at_once(rows, numeric)
    else:
        found = long_stats(rows, numeric, engine=engine)
    count = np.array([rows.frames])
    return {feature.key: {**found[feature.key], "count": count} for feature in numeric}


def _at_once(rows: Written, features: Sequence[Feature]) -> Stats:
    parts = list(rows.portions(features, at_once=max(1, rows.frames)))

    def stats_of(feature: Feature) -> dict[str, np.ndarray]:
        values = np.concatenate([part[feature.key] for part in parts])
        return stats_of_rows(np.ascontiguousarray(as_samples(values, feature).T))

    # Most of it happens without the GIL; it is over in some hundredths of a second.
    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip([f.key for f in features], pool.map(stats_of, features), strict=True))


@dataclass(frozen=True)
class PictureStats:
    """What is known of one camera's pictures.

    Attributes:
        columns: ``stats/CAMERA/KIND`` of each episode; empty where a source does not say.
        whole: Statistics of all; None where no source says anything.
        approximate: Kinds that are not exactly what the pictures would give.
    """

    columns: Mapping[str, pa.Array]
    whole: Mapping[str, np.ndarray] | None
    approximate: Sequence[str]


def picture_stats(
    plan: Plan, camera: str, carried: Sequence[Carried], levels: Levels
) -> PictureStats:
    """Return the statistics of a camera.

    Where the levels of all clips were counted, they are exact. Otherwise they are combined from
    what the sources say of each episode, and all of them are approximate: other programs look at
    some frames only, and what is left of an episode that was cut shorter has the statistics of all
    of it.
    """
    if levels.known.all():
        whole = camera_stats(levels.total, plan.info.features[camera])
        return PictureStats(nested_columns(camera, levels.values), whole, ())
    values = _stated(plan, camera, carried, levels)
    if not values.keys() >= _COMPLETE:
        return _from_wholes(plan, [view.origin.get(camera) for view in plan.views])
    lengths = np.diff(plan.start).reshape(-1, 1)
    values["count"] = np.minimum(values["count"], lengths)
    data = {kind: rows[~levels.filled] for kind, rows in values.items()}
    if not data["count"].any():
        return PictureStats({}, None, ())  # all of them are black, and nobody has looked at them
    return PictureStats(nested_columns(camera, values), _combined(data), list(values))


def _stated(
    plan: Plan, camera: str, carried: Sequence[Carried], levels: Levels
) -> dict[str, np.ndarray]:
    """Return one row for each clip: counted, or what its source says of the whole episode."""
    source = np.array([clip.source for clip in plan.clips])
    keys = [view.origin.get(camera) for view in plan.views]
    parts = {
        number: carried[number].pictures.get(str(keys[number]), {})
        for number in np.unique(source[~levels.known]).tolist()
        if keys[number] is not None
    }
    found: dict[str, np.ndarray] = {}
    for kind in next(iter(parts.values()), {}):
        widths = {part[kind].shape[1] if kind in part else 0 for part in parts.values()}
        if levels.known.any():
            widths.add(levels.values[kind].shape[1] if kind in levels.values else 0)
        if len(widths) > 1:
            continue
        counted = levels.values.get(kind)
        rows = np.zeros((len(source), widths.pop())) if counted is None else counted.copy()
        for number, part in parts.items():
            own = (source == number) & ~levels.known
            rows[own] = part[kind][plan.positions[own]]
        found[kind] = rows
    return found


def _combined(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Combine one row an episode into the whole, by ``stats.running.combine``'s rules."""
    count = values["count"].astype(np.float64).reshape(-1, 1)
    weight = count / count.sum()
    mean = (values["mean"] * weight).sum(axis=0)
    spread = ((values["std"] ** 2 + (values["mean"] - mean) ** 2) * weight).sum(axis=0)
    whole = {kind: (rows * weight).sum(axis=0) for kind, rows in values.items()}
    whole |= {"min": values["min"].min(axis=0), "max": values["max"].max(axis=0)}
    whole |= {"mean": mean, "std": np.sqrt(spread)}
    shaped = {kind: value.reshape(-1, 1, 1) for kind, value in whole.items()}
    return {**shaped, "count": np.array([int(values["count"].sum())])}


def _from_wholes(plan: Plan, keys: Sequence[str | None]) -> PictureStats:
    """Return what sources say of all their pictures, where they say nothing of each episode."""
    parts: list[Stats] = []
    for reader, key in zip(plan.readers, keys, strict=True):
        if key is None:
            continue
        stats = quiet_stats(reader)
        if stats is None or not set(stats.get(key, ())) >= _COMPLETE:
            return PictureStats({}, None, ())
        parts.append({"": stats[key]})
    whole = combine(parts)[""]
    return PictureStats({}, whole, list(whole))
