"""``demoreel.diff``: compares two datasets in any layouts: metadata, rows, statistics, pixels.

Episodes are compared in pairs, one portion of rows after the other; nothing is held but what was
found.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from demoreel.edit.diff.difference import Difference, Said, StatisticDifference
from demoreel.edit.diff.images import Images, Pixels
from demoreel.edit.diff.pairs import Pair, Side, matched, runs_of
from demoreel.edit.sources import remote_dataset_in
from demoreel.errors import ArgumentError
from demoreel.layouts.base import Reader
from demoreel.layouts.detect import open_reader
from demoreel.model import Feature
from demoreel.model.feature import flat_names
from demoreel.read.dataset import Dataset
from demoreel.run.anywhere import is_here
from demoreel.storage.amounts import ShareDone
from demoreel.storage.external import AllowExternal
from demoreel.storage.external import allow_external as allow
from demoreel.storage.remote.fetch import local_copies, part_of

if TYPE_CHECKING:
    from demoreel.edit.cut import PathLike, Rooted
from demoreel.edit.diff.difference import ColumnDifference, DifferencePlace
from demoreel.layouts.base import Column

Match = Literal["position", "content"]
"""Which episodes are compared: those at the same place, or those with the same rows."""

_FETCHING = 0.5  # of the work, where a dataset has to be fetched
_ROUNDING = 1e-6  # sums in another order give other last digits


def diff(
    a: PathLike | Dataset | Rooted,
    b: PathLike | Dataset | Rooted,
    *,
    match: Match = "position",
    pixels: Pixels = "sample",
    tolerance: float = 0.0,
    pixel_tolerance: float = 0.0,
    storage_options: Mapping[str, Any] | None = None,
    allow_external: AllowExternal | None = None,
    report: Callable[[float], None] | None = None,
) -> Difference:
    """Say where two datasets differ; see ``demoreel.diff``."""
    _check(match, pixels, tolerance, pixel_tolerance)
    for side in (a, b):
        allow(side if isinstance(side, (str, os.PathLike)) else side.root, allow_external)
    fetching = part_of(report, 0.0, _FETCHING)
    with local_copies((a, b), storage_options=storage_options, report=fetching) as copies:
        found = _compared(
            _side(copies.get(str(a), a)),
            _side(copies.get(str(b), b)),
            match=match,
            pixels=pixels,
            tolerance=tolerance,
            pixel_tolerance=pixel_tolerance,
            report=part_of(report, _FETCHING, 1.0) if copies else report,
        )
    return replace(found, a=_name(a, found.a), b=_name(b, found.b))


def _name(dataset: PathLike | Dataset | Rooted, folder: str) -> str:
    if isinstance(dataset, Dataset):
        return dataset.uri or folder
    return folder if is_here(dataset) else str(dataset)


def _compared(
    left: Side,
    right: Side,
    *,
    match: Match,
    pixels: Pixels,
    tolerance: float,
    pixel_tolerance: float,
    report: Callable[[float], None] | None,
) -> Difference:
    pairs, only_a, only_b = matched(left, right, by_content=match == "content")
    rows = ComparedRows(left, right, tolerance)
    pictures = Images(left, right, pixels, pixel_tolerance)
    total = max(1, sum(left.length(pair.a) for pair in pairs))
    done = 0
    for run in runs_of(pairs, left, right):
        rows.compare(run)
        for pair in run:
            pictures.compare(pair)
            done += left.length(pair.a)
            if report is not None:
                report(ShareDone(done, total, "frame"))
    by_place = match == "position"
    return Difference(
        a=os.fspath(left.reader.root),
        b=os.fspath(right.reader.root),
        said=tuple(_said(left, right, pairs, by_place=by_place)),
        only_in_a=tuple(left.number(place) for place in only_a),
        only_in_b=tuple(right.number(place) for place in only_b),
        moved=tuple((left.number(p.a), right.number(p.b)) for p in pairs if p.a != p.b),
        columns=tuple(rows.found()),
        statistics=tuple(_statistics(left, right, tolerance)),
        pictures=tuple(pictures.found()),
        episodes=len(pairs),
        frames=rows.frames,
        decoded=pictures.decoded,
        pixels=pixels,
    )


def _check(match: str, pixels: str, tolerance: float, pixel_tolerance: float) -> None:
    if match not in ("position", "content"):
        raise ArgumentError(f"match must be 'position' or 'content', not {match!r}.")
    if pixels not in ("none", "sample", "all"):
        raise ArgumentError(f"pixels must be 'none', 'sample' or 'all', not {pixels!r}.")
    if not (tolerance >= 0 and pixel_tolerance >= 0):
        raise ArgumentError("A tolerance must not be negative.")


def _side(dataset: PathLike | Dataset | Rooted) -> Side:
    dataset = remote_dataset_in(dataset) or dataset
    if isinstance(dataset, Dataset):
        every = dataset.reader.episodes
        chosen = [every.position_of(n) for n in dataset.episodes.episode_index.tolist()]
        return Side(dataset.reader, np.array(chosen, np.int64))
    folder = dataset if isinstance(dataset, (str, os.PathLike)) else dataset.root
    reader = open_reader(Path(folder))
    return Side(reader, np.arange(len(reader.episodes)))


# ── What the metadata say ─────────────────────────────────────────────────────────────────────────


def _said(a: Side, b: Side, pairs: Sequence[Pair], *, by_place: bool) -> Iterator[Said]:
    one, other = a.reader.info, b.reader.info
    for name in ("fps", "robot_type"):
        mine, theirs = getattr(one, name), getattr(other, name)
        if mine != theirs:
            yield Said("info", name, mine, theirs)
    yield from _features(one.features, other.features)
    yield from _tasks(a.reader, b.reader, by_place=by_place)
    if len(a) != len(b):
        yield Said("episodes", "episodes", len(a), len(b))
    yield from _episodes(a, b, pairs, by_place=by_place)


def _features(a: Mapping[str, Feature], b: Mapping[str, Feature]) -> Iterator[Said]:
    for key in dict.fromkeys((*a, *b)):
        if key not in a or key not in b:
            one, other = (_entry(f[key]) if key in f else None for f in (a, b))
            yield Said("features", key, one, other)
            continue
        mine, theirs = _meaning(a[key]), _meaning(b[key])
        for name in mine:
            if mine[name] != theirs[name]:
                yield Said("features", f"{key} {name}", mine[name], theirs[name])


def _entry(feature: Feature) -> str:
    return f"{feature.dtype} {list(feature.shape)}"


def _meaning(feature: Feature) -> dict[str, Any]:
    """Return what a feature means; how a camera's images are encoded is no part of it."""
    if feature.is_camera:
        code = feature.depth_code
        depth = None if code is None else str(code)
        return {"dtype": feature.dtype, "shape": list(feature.image_shape), "depth": depth}
    names = None if feature.names is None else flat_names(feature.names)
    return {"dtype": feature.dtype, "shape": list(feature.shape), "names": names}


def _tasks(a: Reader, b: Reader, *, by_place: bool) -> Iterator[Said]:
    mine, theirs = dict(a.tasks), dict(b.tasks)
    for text in mine.values():
        if text not in theirs.values():
            yield Said("tasks", "only in a", text, None)
    for text in theirs.values():
        if text not in mine.values():
            yield Said("tasks", "only in b", None, text)
    if by_place and set(mine.values()) == set(theirs.values()) and mine != theirs:
        yield Said("tasks", "numbers", mine, theirs)


@dataclass(slots=True)
class _Counted:
    a: Any
    b: Any
    count: int = 0


def _episodes(a: Side, b: Side, pairs: Sequence[Pair], *, by_place: bool) -> Iterator[Said]:
    found: dict[str, _Counted] = {}
    for pair in pairs:
        one, other = a.episode(pair.a), b.episode(pair.b)
        facts: dict[str, tuple[Any, Any]] = {
            "length": (one.length, other.length),
            "tasks": (list(one.tasks), list(other.tasks)),
        }
        if by_place:
            facts["episode_index"] = (one.index, other.index)
        for name, (mine, theirs) in facts.items():
            if mine != theirs:
                found.setdefault(name, _Counted(mine, theirs)).count += 1
    for name, first in found.items():
        yield Said("episodes", name, first.a, first.b, first.count)


# ── Statistics ────────────────────────────────────────────────────────────────────────────────────


def _statistics(a: Side, b: Side, tolerance: float) -> Iterator[StatisticDifference]:
    if not (a.is_whole and b.is_whole):
        return  # they are of all episodes
    mine, theirs = a.reader.stats or {}, b.reader.stats or {}
    # v2.x keeps them by episode, and quantiles of those say nothing of the whole.
    lacking = any(side.reader.info.version.startswith("v2") for side in (a, b))
    for key in dict.fromkeys((*mine, *theirs)):
        if key not in mine or key not in theirs:
            yield StatisticDifference(key, "*", "b" if key not in mine else "a", None)
            continue
        spread = _spread(mine[key])
        for kind in dict.fromkeys((*mine[key], *theirs[key])):
            one, other = mine[key].get(kind), theirs[key].get(kind)
            if one is not None and other is not None:
                largest = _apart(one, other, tolerance + _ROUNDING * spread)
                if largest != 0:
                    yield StatisticDifference(key, kind, None, largest)
            elif not lacking:
                yield StatisticDifference(key, kind, "b" if one is None else "a", None)


def _spread(kinds: Mapping[str, np.ndarray]) -> float:
    ends = [
        float(np.max(np.abs(kinds[name]), initial=0)) for name in ("min", "max") if name in kinds
    ]
    return max(ends, default=0.0)


def _apart(a: np.ndarray, b: np.ndarray, allowed: float) -> float | None:
    """Return the largest difference; 0 where that is rounding, None where shapes differ."""
    one, other = (np.squeeze(np.asarray(x, np.float64)) for x in (a, b))
    if one.shape != other.shape:
        return None
    with np.errstate(invalid="ignore"):
        apart = np.where((one == other) | (np.isnan(one) & np.isnan(other)), 0, np.abs(one - other))
    largest = float(np.nan_to_num(apart, nan=np.inf).max(initial=0))
    return 0.0 if largest <= allowed else largest


@dataclass(slots=True)
class _FoundRows:
    """What was found in one column so far."""

    first: DifferencePlace
    frames: int = 0
    episodes: int = 0
    largest: float | None = None


class ComparedRows:
    """Compares rows and remembers where they differ."""

    def __init__(self, a: Side, b: Side, tolerance: float) -> None:
        self._a = a
        self._b = b
        self._tolerance = tolerance
        self._columns = _comparable(a.reader, b.reader)
        self._texts = dict(a.reader.tasks), dict(b.reader.tasks)
        self._found: dict[str, _FoundRows] = {}
        self.frames = 0

    def found(self) -> Iterator[ColumnDifference]:
        """Yield the columns that differ."""
        for key, found in self._found.items():
            yield ColumnDifference(key, found.frames, found.episodes, found.first, found.largest)

    def compare(self, run: Sequence[Pair]) -> None:
        """Compare pairs of episodes that stand side by side; of longer ones, what both have."""
        mine, theirs = _rows(self._a, [p.a for p in run]), _rows(self._b, [p.b for p in run])
        first_a, first_b = self._a.start(run[0].a), self._b.start(run[0].b)
        for pair in run:
            length = min(self._a.length(pair.a), self._b.length(pair.b))
            begin_a, begin_b = self._a.start(pair.a) - first_a, self._b.start(pair.b) - first_b
            part_a, part_b = slice(begin_a, begin_a + length), slice(begin_b, begin_b + length)
            self.frames += length
            for key in self._columns:
                one, other = mine[key][part_a], theirs[key][part_b]
                self._note(key, pair, *self._apart(key, pair, one, other))

    def _apart(self, key: str, pair: Pair, a: Column, b: Column) -> tuple[np.ndarray, float | None]:
        """Return which frames differ, and by how much at most."""
        if key == "task_index":
            return _other_texts(np.asarray(a), np.asarray(b), *self._texts), None
        if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
            pairs = zip(list(a), list(b), strict=True)
            return np.array([one != other for one, other in pairs], bool), None
        if key == "index":  # counted from the episode's own beginning, wherever it stands
            a, b = a - self._a.start(pair.a), b - self._b.start(pair.b)
        if key == "episode_index":
            a, b = a - self._a.number(pair.a), b - self._b.number(pair.b)
        return apart(a, b, self._tolerance)

    def _note(self, key: str, pair: Pair, differs: np.ndarray, largest: float | None) -> None:
        if not differs.any():
            return
        name = "task" if key == "task_index" else key
        if name not in self._found:
            numbers = self._a.number(pair.a), self._b.number(pair.b)
            self._found[name] = _FoundRows(DifferencePlace(*numbers, int(np.argmax(differs))))
        found = self._found[name]
        found.frames += int(differs.sum())
        found.episodes += 1
        if largest is not None:
            found.largest = max(found.largest or 0.0, largest)


def apart(a: np.ndarray, b: np.ndarray, tolerance: float) -> tuple[np.ndarray, float | None]:
    """Return which rows of numbers differ by more than is allowed, and the largest difference.

    Not-a-number equals itself, and is infinitely far from every number.
    """
    if a.dtype == b.dtype and a.tobytes() == b.tobytes():
        return np.zeros(len(a), bool), None
    if a.dtype.kind == "f" or b.dtype.kind == "f":
        one, other = a.astype(np.float64), b.astype(np.float64)
        with np.errstate(invalid="ignore"):
            distance = np.abs(one - other)
        distance[(one == other) | (np.isnan(one) & np.isnan(other))] = 0
        distance[np.isnan(distance)] = np.inf
    else:
        distance = np.abs(a.astype(np.float64) - b.astype(np.float64))
        distance[(a != b) & (distance < 1)] = 1  # neighbours that floats cannot tell apart
    wide = distance.reshape(len(a), -1).max(axis=1, initial=0)
    differs = wide > tolerance
    return differs, float(wide.max()) if differs.any() else None


def _rows(side: Side, places: Sequence[int]) -> dict[str, Column]:
    return side.reader.rows_once(side.position(places[0]), side.position(places[-1]) + 1)


def _comparable(a: Reader, b: Reader) -> list[str]:
    """Return the columns that both have with values of the same shape and sort."""
    mine, theirs = a.info.features, b.info.features
    return [
        key
        for key, feature in mine.items()
        if not feature.is_camera
        and key in theirs
        and theirs[key].is_numeric == feature.is_numeric
        and theirs[key].item_shape == feature.item_shape
    ]


def _other_texts(
    a: np.ndarray, b: np.ndarray, texts_a: Mapping[int, str], texts_b: Mapping[int, str]
) -> np.ndarray:
    """Return where the tasks of frames have other texts, whatever their numbers are."""
    pairs, places = np.unique(np.stack([a, b]), axis=1, return_inverse=True)
    other = [texts_a.get(one) != texts_b.get(two) for one, two in pairs.T.tolist()]
    return np.array(other, bool)[places.reshape(-1)]
