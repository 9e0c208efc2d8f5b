"""Statistics of the result: numbers from its columns, pictures from what sources say of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.edit.carried import Carried
from demoreel.edit.exact import exact_stats
from demoreel.edit.facts import stats_of_rows
from demoreel.edit.plan import Plan
from demoreel.layouts import arrow_in
from demoreel.model import Feature, Stats
from demoreel.stats.running import combine

_AT_ONCE = 64 << 20
_ROWS = 1 << 16
_THREADS = 2
_COMPLETE = {"min", "max", "mean", "std", "count"}


def number_stats(dataset: Path, files: Sequence[str], features: Mapping[str, Feature]) -> Stats:
    """Return exact statistics of all number columns, by reading them back from the tables.

    Cost: one read of all columns where they take less than 64 MB together, else two to four of
    each; memory stays bounded. 10 million rows of 26 floats take some 10 s.
    """
    paths = [dataset / name for name in files]
    frames = sum(pq.read_metadata(path).num_rows for path in paths)

    def stats_of(feature: Feature) -> dict[str, np.ndarray]:
        kinds = exact_stats(partial(_portions, paths, feature))
        return {**kinds, "count": np.array([frames])}

    numeric = [feature for feature in features.values() if feature.is_numeric]
    if frames * sum(math.prod(f.shape) for f in numeric) * 8 <= _AT_ONCE:
        return _at_once(paths, numeric, frames)
    return _by_feature(numeric, stats_of)


def _at_once(paths: Sequence[Path], features: Sequence[Feature], frames: int) -> Stats:
    keys = [feature.key for feature in features]
    parts = []
    for path in paths:
        with pq.ParquetFile(path) as parquet:
            parts.append(parquet.read(columns=keys))
    table = pa.concat_tables(parts)

    def stats_of(feature: Feature) -> dict[str, np.ndarray]:
        array = table.column(feature.key).combine_chunks()
        values = arrow_in.numbers(array, feature, where=str(paths[0]))
        wide = values.reshape(-1, feature.shape[-1] if feature.item_shape else 1)
        kinds = stats_of_rows(np.ascontiguousarray(wide.T))
        return {**kinds, "count": np.array([frames])}

    return _by_feature(features, stats_of)


def _by_feature(
    features: Sequence[Feature], stats_of: Callable[[Feature], dict[str, np.ndarray]]
) -> Stats:
    with ThreadPoolExecutor(_THREADS) as pool:  # most of it happens without the GIL
        return dict(zip([f.key for f in features], pool.map(stats_of, features), strict=True))


def _portions(paths: Sequence[Path], feature: Feature) -> Iterator[np.ndarray]:
    """Yield a column, some rows at a time; as in LeRobot, a matrix counts as several rows."""
    for path in paths:
        with pq.ParquetFile(path) as parquet:
            for batch in parquet.iter_batches(_ROWS, columns=[feature.key]):
                values = arrow_in.numbers(batch.column(0), feature, where=str(path))
                yield values.reshape(-1, feature.shape[-1] if feature.item_shape else 1)


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


def picture_stats(plan: Plan, camera: str, carried: Sequence[Carried]) -> PictureStats:
    """Return the statistics of a camera, from those of its clips' episodes.

    Those of clips that are whole episodes are exact, but for quantiles of several episodes
    together. What is left of an episode that was cut shorter has the statistics of all of it.
    """
    keys = [str(view.origin[camera]) for view in plan.views]
    parts = [part.pictures.get(key, {}) for part, key in zip(carried, keys, strict=True)]
    kinds = [kind for kind in parts[0] if all(_same_width(kind, parts[0], part) for part in parts)]
    if not set(kinds) >= _COMPLETE:
        return _from_wholes(plan, keys)
    values = {kind: _by_clip(plan, [part[kind] for part in parts]) for kind in kinds}
    lengths = np.diff(plan.start).reshape(-1, 1)
    values["count"] = np.minimum(values["count"], lengths)
    whole = _combined(values)
    cut = any(
        clip.length != int(plan.readers[clip.source].episodes.length[position])
        for clip, position in zip(plan.clips, plan.positions.tolist(), strict=True)
    )
    quantiles = [kind for kind in kinds if kind not in _COMPLETE]
    approximate = kinds if cut else quantiles if len(plan.clips) > 1 else []
    columns = {f"stats/{camera}/{kind}": _nested(values[kind], kind) for kind in kinds}
    return PictureStats(columns, whole, approximate)


def _same_width(kind: str, first: Mapping[str, np.ndarray], other: Mapping[str, Any]) -> bool:
    return kind in other and other[kind].shape[1] == first[kind].shape[1]


def _by_clip(plan: Plan, parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return one row for each clip, from one row for each episode of each source."""
    before = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
    source = np.array([clip.source for clip in plan.clips])
    return np.asarray(np.concatenate(parts)[before[source] + plan.positions])


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


def _nested(values: np.ndarray, kind: str) -> pa.Array:
    """Return a camera's statistics as LeRobot stores them: channels x 1 x 1; counts are [n]."""
    rows, width = values.shape
    if kind == "count":
        array = pa.array(values.reshape(-1).astype(np.int64))
        return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1), pa.int32()), array)
    array = pa.array(np.ascontiguousarray(values, np.float64).reshape(-1))
    for size in (1, 1, width):
        offsets = pa.array(np.arange(0, len(array) + 1, size), pa.int32())
        array = pa.ListArray.from_arrays(offsets, array)
    return array


def _from_wholes(plan: Plan, keys: Sequence[str]) -> PictureStats:
    """Return what sources say of all their pictures, where they say nothing of each episode."""
    parts: list[Stats] = []
    for reader, key in zip(plan.readers, keys, strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there are none is no news here
            stats = reader.stats
        if stats is None or not set(stats.get(key, ())) >= _COMPLETE:
            return PictureStats({}, None, ())
        parts.append({"": stats[key]})
    whole = combine(parts)[""]
    return PictureStats({}, whole, list(whole))
