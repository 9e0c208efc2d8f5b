"""Numbers of every episode to sort, filter and plot by: how still, how rough, where it is.

They are measured in the background, a portion of whole episodes at a time, from the tables alone. A
table of measures is filled while it is asked: what is not known yet is NaN. It is kept in the
user's cache, never in the dataset, with what tells the episodes that it was measured of; those that
are recorded later are measured alone.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from demoreel.errors import ArgumentError, DemoreelError, first_line
from demoreel.layouts.base import Reader
from demoreel.read.dataset import Dataset
from demoreel.storage.commit.files import write_whole
from demoreel.view.datasets import names_of
from demoreel.view.jobs import Job, Jobs, Report

MOST_DIMENSIONS = 64
BINS = 40
_ROWS = 100_000  # of a portion
_STILL = 0.03  # of a dimension's range in a second: slower is idle
_FAR = 6.0  # robust standard deviations from the median: an outlier
_VERSION = 1
_MOST_PROBLEMS = 20  # that are told one by one
_MOST_FAULTS = 1000  # reads that fail before those after them are not halved any more
_TAIL = 0.005  # of the episodes beyond either end of a plot's axis
_FEW = 8  # of fewer episodes, none is far from the others
_BESIDES = 255  # the bin of what is not known


class Measure(NamedTuple):
    """One number of an episode.

    Attributes:
        key: What it is asked for by.
        title: What a page calls it.
        marks: Whether an episode far from the others in it is an outlier.
    """

    key: str
    title: str
    marks: bool


class MeasureTable:
    """What was measured of the episodes of a dataset, as far as it goes.

    Args:
        measures: Its columns.
        values: (columns, episodes), float32.
        done: How many of the first episodes are measured.

    Attributes:
        problems: Why episodes could not be read; the first of them.
        faults: How many reads have failed.
        unread: How many episodes could not be read.
    """

    def __init__(self, measures: tuple[Measure, ...], values: np.ndarray, done: int) -> None:
        self.measures = measures
        self.values = values
        self.done = done
        self.problems: list[str] = []
        self.faults = 0
        self.unread = 0
        self._places = {measure.key: place for place, measure in enumerate(measures)}
        self._lock = threading.Lock()
        self._plotted: tuple[int, list[_Plot]] | None = None
        self._far: tuple[int, list[tuple[float, float, int]], np.ndarray] | None = None

    @property
    def is_done(self) -> bool:
        """Whether all episodes are measured."""
        return self.done >= int(self.values.shape[1])

    def told_problems(self) -> list[str]:
        """Return what a page says of episodes that could not be read."""
        if self.unread <= len(self.problems):
            return self.problems
        return [f"{self.unread:,} episodes could not be measured, among them:", *self.problems]

    def column(self, key: str) -> np.ndarray:
        """Return a number of each episode; NaN where it is not known."""
        if key not in self._places:
            raise ArgumentError(f"There is no measure {key[:80]!r}.", hint="reload the page")
        return np.asarray(self.values[self._places[key]])

    def of(self, position: int, keys: Iterable[str]) -> dict[str, float | None]:
        """Return some numbers of an episode."""
        found = {}
        for key in keys:
            if key in self._places:
                value = float(self.values[self._places[key], position])
                found[key] = value if np.isfinite(value) else None
        return found

    def outliers(self) -> np.ndarray:
        """Return in how many measures each episode is far from the others.

        Far is farther from the median than six robust standard deviations (1.4826 times the median
        distance from it).
        """
        return self._judged()[1]

    def far_in(self, position: int) -> list[str]:
        """Return the titles of the measures in which an episode is an outlier."""
        bounds, counts = self._judged()
        if not counts[position]:
            return []
        return [
            self.measures[place].title
            for low, high, place in bounds
            if self.values[place, position] < low or self.values[place, position] > high
        ]

    def _judged(self) -> tuple[list[tuple[float, float, int]], np.ndarray]:
        """Return what is not far, for each measure that marks outliers, and who is."""
        with self._lock:
            if self._far is None or self._is_old(self._far[0]):
                bounds = self._bounds()
                counts = np.zeros(self.values.shape[1], np.uint8)
                for low, high, place in bounds:
                    row = self.values[place]
                    counts += (row < low) | (row > high)
                self._far = self.done, bounds, counts
            return self._far[1:]

    def _is_old(self, done: int) -> bool:
        """Whether what was made of so many episodes is to be made again: not at each portion."""
        return done != self.done and (self.is_done or self.done > 1.2 * done + 1000)

    def _bounds(self) -> list[tuple[float, float, int]]:
        found = []
        for place, measure in enumerate(self.measures):
            row = self.values[place, : self.done]
            row = row[np.isfinite(row)]
            if not measure.marks or len(row) < _FEW:
                continue
            middle = float(np.median(row))
            spread = 1.4826 * float(np.median(np.abs(row - middle)))
            if spread > 0:
                found.append((middle - _FAR * spread, middle + _FAR * spread, place))
        return found

    def plots(self, chosen: np.ndarray | None) -> list[dict[str, Any]]:
        """Return how each measure is distributed, for all episodes and for those chosen.

        Args:
            chosen: Positions of the episodes that a filter leaves; None is all.
        """
        with self._lock:
            if self._plotted is None or self._is_old(self._plotted[0]):
                self._plotted = self.done, [self._plot(n) for n in range(len(self.measures))]
            plots = self._plotted[1]
        return [plot.told(chosen) for plot in plots]

    def _plot(self, place: int) -> _Plot:
        row = self.values[place]
        finite = np.isfinite(row)
        known = row[finite].astype(np.float64)
        measure = self.measures[place]
        if not len(known):
            return _Plot(measure, 0.0, 0.0, np.full(len(row), _BESIDES, np.uint8), 0, 0)
        low, high = np.quantile(known, [_TAIL, 1 - _TAIL]) if len(known) > 200 else (0.0, 0.0)
        least, most = float(known.min()), float(known.max())
        if not high > low:
            low, high = least, most
        width = (high - low) / BINS or 1.0
        bins = np.full(len(row), _BESIDES, np.uint8)
        bins[finite] = np.clip((known - low) / width, 0, BINS - 1).astype(np.uint8)
        return _Plot(measure, float(low), float(high), bins, least, most)


@dataclass(frozen=True, slots=True)
class _Plot:
    """How a measure is distributed; the first and the last bin hold all that is beyond."""

    measure: Measure
    low: float
    high: float
    bins: np.ndarray
    least: float
    most: float

    def told(self, chosen: np.ndarray | None) -> dict[str, Any]:
        bins = self.bins if chosen is None else self.bins[chosen]
        counts = np.bincount(bins, minlength=_BESIDES + 1)[:BINS]
        return {
            "key": self.measure.key,
            "title": self.measure.title,
            "low": self.low,
            "high": self.high,
            "least": self.least,
            "most": self.most,
            "counts": counts.tolist(),
        }


class EpisodeMeasures:
    """The measures of the datasets of a viewer, made when they are first asked for.

    Args:
        jobs: Where the work runs.
        folder: Where tables are kept; None is the user's cache.
    """

    def __init__(self, jobs: Jobs, folder: Path | None = None) -> None:
        self._jobs = jobs
        self._folder = folder or _cache_folder()
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Dataset, MeasureTable, Job | None]] = {}

    def known(self, id: str) -> MeasureTable | None:
        """Return what is known of a dataset, if it was asked for; nothing is begun."""
        known = self._known.get(id)
        return None if known is None else known[1]

    def of(self, id: str, dataset: Dataset) -> tuple[MeasureTable, Job | None]:
        """Return the measures of a dataset as far as they are known, and the work that goes on.

        Cost: returns at once; the first call begins to read the dataset's numbers.
        """
        with self._lock:
            known = self._known.get(id)
            if known is not None and known[0] is dataset:
                return known[1], known[2]
            if known is not None and known[2] is not None and known[2].is_running:
                known[2].cancel()
            table = self._begun(id, dataset.reader)
            job = None
            if not table.is_done:
                try:
                    job = self._jobs.start(
                        "measuring",
                        lambda report: self._work(id, dataset, table, report),
                        cancels=True,
                    )
                except ArgumentError:  # enough are running: the next look may begin it
                    return table, None
            self._known[id] = dataset, table, job
            return table, job

    def _begun(self, id: str, reader: Reader) -> MeasureTable:
        """Return a table with what was measured before of the same episodes."""
        measures = _measures_of(reader)
        values = np.full((len(measures), len(reader.episodes)), np.nan, np.float32)
        values[0] = reader.episodes.length
        table = MeasureTable(measures, values, 0)
        try:
            with np.load(self._path(id), allow_pickle=False) as kept:
                before, told = kept["values"], [str(part) for part in kept["told"]]
        except (OSError, ValueError, KeyError, EOFError):
            return table
        count = before.shape[1] if before.ndim == 2 and before.dtype == np.float32 else 0
        fits = 0 < count <= len(reader.episodes) and len(before) == len(measures)
        if fits and told == _told(reader, measures, count, grown_from=told):
            values[1:, :count] = before[1:]
            table.done = count
        return table

    def _path(self, id: str) -> Path:
        return self._folder / f"{id}.npz"

    def _work(self, id: str, dataset: Dataset, table: MeasureTable, report: Report) -> None:
        reader, fps = dataset.reader, dataset.fps
        start, count = reader.episodes.start, len(reader.episodes)
        spans = _spans(reader)
        while table.done < count:
            first = table.done
            stop = int(np.searchsorted(start, start[first] + _ROWS, side="right")) - 1
            stop = min(count, max(first + 1, stop))
            self._portion(dataset, table, spans, first, stop, fps)
            table.done = stop
            report(float(start[stop]) / max(1, int(start[-1])))
        self._keep(id, reader, table)

    def _portion(
        self,
        dataset: Dataset,
        table: MeasureTable,
        spans: dict[str, np.ndarray],
        first: int,
        stop: int,
        fps: float,
    ) -> None:
        try:
            rows = dataset.following(lambda: dataset.reader.rows_once(first, stop))
        except DemoreelError as error:
            table.faults += 1
            # One damaged table is not the end of the others. Where much is missing, the rest is not
            # looked for one by one.
            if stop - first > 1 and table.faults <= _MOST_FAULTS:
                middle = (first + stop) // 2
                for begin, end in ((first, middle), (middle, stop)):
                    self._portion(dataset, table, spans, begin, end, fps)
            else:
                table.unread += stop - first
                if len(table.problems) < _MOST_PROBLEMS:
                    numbers = dataset.reader.episodes.episode_index[[first, stop - 1]].tolist()
                    which = " to ".join(map(str, dict.fromkeys(numbers)))
                    table.problems.append(f"episode {which}: {first_line(error)}")
            return
        edges = (
            dataset.reader.episodes.start[first : stop + 1] - dataset.reader.episodes.start[first]
        )
        columns = {key: np.asarray(value) for key, value in rows.items() if key in spans}
        found = _measured(columns, rows, edges, spans, fps, [m.key for m in table.measures])
        for place, measure in enumerate(table.measures):
            if measure.key in found:
                table.values[place, first:stop] = found[measure.key]

    def _keep(self, id: str, reader: Reader, table: MeasureTable) -> None:
        if table.problems:
            return  # tables may be fetched or restored, and the metadata tell nothing of that
        told = np.array(_told(reader, table.measures, table.done))

        def write(path: Path) -> None:
            with path.open("wb") as file:
                np.savez(file, values=table.values, told=told)

        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(self._path(id), write)
        except OSError:
            return  # a cache that cannot be written is measured anew the next time


def _cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "demoreel" / "measures"


def _told(
    reader: Reader, measures: tuple[Measure, ...], count: int, grown_from: list[str] | None = None
) -> list[str]:
    """Return what tells the episodes of which a table is.

    Args:
        reader: The dataset.
        measures: The table's columns.
        count: The first episodes.
        grown_from: What was told of an earlier state: if the folder only grew since, that counts.
    """
    digest = hashlib.blake2b(repr((_VERSION, reader.info.fps, measures)).encode(), digest_size=16)
    for column in (reader.episodes.episode_index, reader.episodes.length):
        digest.update(np.ascontiguousarray(column[:count], np.int64).tobytes())
    state = reader.state.told if reader.state is not None else None
    if state is None:  # objects are pinned: the copy of their metadata is named by their state
        return [digest.hexdigest(), str(reader.root), "", ""]
    now = [digest.hexdigest(), *map(str, state)]
    if grown_from is not None and len(grown_from) == len(now) and now[:3] == grown_from[:3]:
        return grown_from  # the same folder, and no edit of it
    return now


def _signals(reader: Reader) -> dict[str, int]:
    """Return the dimensions of the features in which a robot's movements show."""
    found = {}
    for key in ("observation.state", "action"):
        feature = reader.info.features.get(key)
        if feature is not None and feature.is_numeric:
            size = int(np.prod(feature.shape, dtype=np.int64)) if feature.shape else 1
            if 0 < size <= 1 << 16:
                found[key] = min(size, MOST_DIMENSIONS)
    return found


def _measures_of(reader: Reader) -> tuple[Measure, ...]:
    signals, features = _signals(reader), reader.info.features
    found = [Measure("length", "frames", True)]
    if signals:
        moves = next(iter(signals))
        told = "action" if "action" in signals else moves
        found.append(Measure("idle", f"idle share ({moves})", True))
        found.append(Measure("jerk", f"jerk ({told})", True))
    for key, title in (("next.success", "success"), ("next.reward", "sum of rewards")):
        if key in features and features[key].is_numeric:
            found.append(Measure(key.removeprefix("next."), title, key == "next.reward"))
    for key, size in reversed(signals.items()):
        names = names_of(features[key])
        for dimension in range(size):
            name = names[dimension] if names else f"{key}[{dimension}]"
            title = f"mean of {key}: {name}" if names else f"mean of {name}"
            found.append(Measure(f"{key}[{dimension}]", title, True))
    return tuple(found)


def _spans(reader: Reader) -> dict[str, np.ndarray]:
    """Return the range of each dimension of the signals as the statistics have it; NaN if none."""
    stats: Mapping[str, Any] = reader.stats or {}
    found = {}
    for key, size in _signals(reader).items():
        known = stats.get(key) or {}
        try:
            low, high = (np.asarray(known[name], np.float64).reshape(-1) for name in ("min", "max"))
            span = high[:size] - low[:size]
        except (KeyError, TypeError, ValueError):
            span = np.empty(0)
        found[key] = (
            span if len(span) == size and np.isfinite(span).all() else np.full(size, np.nan)
        )
    return found


def _measured(
    columns: Mapping[str, np.ndarray],
    rows: Mapping[str, Any],
    edges: np.ndarray,
    spans: dict[str, np.ndarray],
    fps: float,
    wanted: list[str],
) -> dict[str, np.ndarray]:
    """Measure a portion of whole episodes.

    Args:
        columns: The signals.
        rows: All columns.
        edges: Where each episode begins, and the number of rows.
        spans: The range of each dimension; made of this portion where it is not known.
        fps: Rows of a second.
        wanted: The measures.
    """
    begins, lengths = edges[:-1], np.diff(edges)
    found: dict[str, np.ndarray] = {}
    flat = {
        key: values.reshape(len(values), -1)[:, : len(spans[key])].astype(np.float64)
        for key, values in columns.items()
    }
    for key, values in flat.items():
        if np.isnan(spans[key]).any():
            spans[key] = np.nan_to_num(np.ptp(values, axis=0))
        means = np.add.reduceat(values, begins, axis=0) / lengths[:, None]
        for dimension in range(values.shape[1]):
            found[f"{key}[{dimension}]"] = means[:, dimension]
    with np.errstate(all="ignore"):
        if flat:
            moves = "observation.state" if "observation.state" in flat else "action"
            found["idle"] = _idle(flat[moves], spans[moves], edges, fps)
            told = "action" if "action" in flat else moves
            found["jerk"] = _jerk(flat[told], spans[told], edges, fps)
        for key, reduce in (("next.success", np.maximum), ("next.reward", np.add)):
            name = key.removeprefix("next.")
            if name in wanted:
                values = np.asarray(rows[key], np.float64).reshape(edges[-1], -1)[:, 0]
                found[name] = reduce.reduceat(values, begins)
    return found


def _idle(values: np.ndarray, span: np.ndarray, edges: np.ndarray, fps: float) -> np.ndarray:
    """Return the share of each episode's steps in which no dimension moves."""
    lengths = np.diff(edges)
    moves = np.zeros(len(values))
    steps = np.abs(np.diff(values, axis=0)) > _STILL / fps * span
    moves[1:] = steps.any(axis=1)
    moves[edges[:-1]] = 0  # a step from one episode to the next is none
    return np.asarray(1 - np.add.reduceat(moves, edges[:-1]) / np.maximum(1, lengths - 1))


def _jerk(values: np.ndarray, span: np.ndarray, edges: np.ndarray, fps: float) -> np.ndarray:
    """Return the root mean square of the third derivative, in ranges a second cubed."""
    scaled = values[:, span > 0] / span[span > 0] * fps**3
    if len(values) < 4 or not scaled.shape[1]:
        return np.full(len(edges) - 1, np.nan)
    third = np.zeros(len(values))
    third[3:] = (np.diff(scaled, 3, axis=0) ** 2).mean(axis=1)
    lengths = np.diff(edges)
    for place in range(3):  # differences that reach into the episode before are none
        inside = edges[:-1] + place
        third[inside[lengths > place]] = 0
    total = np.add.reduceat(third, edges[:-1])
    return np.where(lengths > 3, np.sqrt(total / np.maximum(1, lengths - 3)), np.nan)
