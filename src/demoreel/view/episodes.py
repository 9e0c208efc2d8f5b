"""The table of a dataset's episodes, in pages: filtered, sorted, with a line of motion."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from demoreel.edit.clips import Labels
from demoreel.edit.scores import read_labels
from demoreel.errors import ArgumentError, DemoreelError, OutOfRangeError
from demoreel.read.dataset import Dataset
from demoreel.read.sql import tasks_by_episode
from demoreel.view.findings import EpisodeFindings
from demoreel.view.measures import MeasureTable

MOST_ROWS = 500
_SHOWN = ("idle", "jerk", "success")  # measures that are columns of the table
_BINS = 32
_KEPT = 8  # orders that are kept: one for each filter and column that was used last
_TASKS = 24  # that a plot shows
_TASKS_AT_ONCE = 1 << 16

Range = tuple[str, float, float]
"""A measure, and its least and largest value."""


@dataclass(frozen=True, slots=True)
class EpisodeFilter:
    """Which episodes a page shows.

    Attributes:
        text: Those whose task contains this, or whose number it is.
        where: Those that meet this SQL condition, as of ``demoreel cut select``.
        task: Those whose task is this.
        ranges: Those whose measures lie in these; ``length`` is one, too.
        only: ``outliers`` or ``findings``: those that have some; empty is all.
        numbers: Those of these numbers; None is all.
    """

    text: str = ""
    where: str = ""
    task: str | None = None
    ranges: tuple[Range, ...] = ()
    only: str = ""
    numbers: tuple[int, ...] | None = None

    @property
    def is_all(self) -> bool:
        """Whether it leaves out nothing."""
        return self == EVERY


EVERY = EpisodeFilter()
KNOWN_AT_ONCE = ("index", "length", "task")
"""What episodes are sorted by before anything is measured."""


@dataclass(slots=True)
class _Tasks:
    """The task of each episode, as a number of a name."""

    names: list[str] = field(default_factory=list)
    codes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))


class EpisodePages:
    """The episodes of one dataset, in an order that a page asks for.

    Args:
        dataset: The dataset.
        measures: Returns what was measured so far; None before it was asked for.
        findings: Returns what ``check`` has found.
        drafted: Returns what was changed of episodes and not rendered yet, by their numbers.
    """

    def __init__(
        self,
        dataset: Dataset,
        measures: Callable[[], MeasureTable | None] | None = None,
        findings: Callable[[], EpisodeFindings] | None = None,
        drafted: Callable[[], Mapping[str, Mapping[str, Any]]] | None = None,
    ) -> None:
        self._dataset = dataset
        self._measures = measures
        self._findings = findings or EpisodeFindings
        self._drafted = drafted or dict
        self._labels: Mapping[int, Labels] | None = None
        self._orders: OrderedDict[tuple[object, ...], np.ndarray] = OrderedDict()
        self._lock = threading.Lock()  # each request has a thread of its own
        self._tasks: _Tasks | None = None

    def page(
        self,
        first: int,
        count: int,
        *,
        sort: str = "index",
        descending: bool = False,
        chosen: EpisodeFilter = EVERY,
    ) -> dict[str, Any]:
        """Return some rows of the table, and how many it has.

        Args:
            first: Its first row.
            count: How many, ``MOST_ROWS`` at the most.
            sort: ``index``, ``length``, ``task``, ``findings``, ``outliers``, ``flags`` or a
                measure.
            descending: Whether to begin with the largest; what is not known is last either way.
            chosen: Which episodes.
        """
        order = self.order(sort, descending, chosen)
        part = order[max(0, first) : max(0, first) + min(count, MOST_ROWS)]
        fps, every = self._dataset.fps, self._dataset.reader.episodes
        table, found = self._table(), self._findings().by_episode
        rows, said = [], self._said()
        for position in part.tolist():
            episode = every[position]
            number, _, worst = found.get(episode.index, (0, -1, None))
            row = {
                "index": episode.index,
                "length": episode.length,
                "seconds": episode.length / fps,
                "tasks": [str(task) for task in episode.tasks],
                "findings": number,
                "worst": worst,
            }
            if position in said:
                row |= {"score": said[position].score, "flag": said[position].flag}
            if table is not None:
                row |= {**table.of(position, _SHOWN), "far": table.far_in(position)}
            rows.append(row)
        return {"total": len(order), "of": len(every), "first": first, "rows": rows}

    def order(self, sort: str, descending: bool, chosen: EpisodeFilter) -> np.ndarray:
        """Return the positions of the episodes that a filter leaves, in an order."""
        table = self._table()
        state = (table.done if table is not None else 0, self._findings().version)
        uses = sort not in KNOWN_AT_ONCE or chosen.ranges or chosen.only
        key = (sort, descending, chosen, state if uses else None)
        if sort == "flags":  # they change as a person works
            return self._made_order(sort, descending, chosen)
        with self._lock:
            known = self._orders.pop(key, None)
        order = self._made_order(sort, descending, chosen) if known is None else known
        with self._lock:
            self._orders[key] = order  # the last: it was used last
            while len(self._orders) > _KEPT:
                self._orders.popitem(last=False)
        return order

    def plots(self, chosen: EpisodeFilter) -> list[dict[str, Any]]:
        """Return how all measures are distributed, of all episodes and of those that are chosen."""
        table = self._table()
        if table is None:
            return []
        found = table.plots(None)
        if not chosen.is_all:
            some = table.plots(self.order("index", False, chosen))
            for whole, part in zip(found, some, strict=True):
                whole["chosen"] = part["counts"]
        return found

    def tasks(self, chosen: EpisodeFilter) -> list[dict[str, Any]]:
        """Return the tasks of most episodes, and of how many of those that are chosen."""
        tasks = self._task_codes()
        counts = np.bincount(tasks.codes, minlength=len(tasks.names))
        some = counts
        if not chosen.is_all:
            places = self.order("index", False, chosen)
            some = np.bincount(tasks.codes[places], minlength=len(tasks.names))
        most = np.argsort(-counts, kind="stable")[:_TASKS]
        return [
            {"task": tasks.names[n], "count": int(counts[n]), "chosen": int(some[n])}
            for n in most.tolist()
        ]

    def _table(self) -> MeasureTable | None:
        table = self._measures() if self._measures is not None else None
        fits = table is not None and table.values.shape[1] == len(self._dataset.reader.episodes)
        return table if fits else None

    def _column(self, key: str) -> np.ndarray:
        """Return what episodes are sorted by, or chosen by a range of."""
        every, table = self._dataset.reader.episodes, self._table()
        if key == "length":
            return every.length
        if key == "outliers":
            return np.zeros(len(every)) if table is None else table.outliers()
        if key == "findings":
            values = np.zeros(len(every))
            for number, (count, worst, _) in self._findings().by_episode.items():
                with contextlib.suppress(OutOfRangeError):  # of a dataset that is shorter now
                    values[every.position_of(number)] = (worst + 1) * 1e6 + count
            return values
        if key == "flags":
            values = np.full(len(every), np.nan)
            for position, labels in self._said().items():
                values[position] = _flag_value(labels.score, labels.flag)
            for name, change in self._drafted().items():
                with contextlib.suppress(OutOfRangeError):
                    position = every.position_of(int(name))
                    labels = self._said().get(position, Labels())
                    values[position] = _flag_value(
                        change.get("score", labels.score), change.get("flag", labels.flag)
                    )
            return values
        if table is None:
            raise ArgumentError(f"There is no column {key[:80]!r}.", hint="reload the page")
        return table.column(key)

    def _said(self) -> Mapping[int, Labels]:
        """Return the scores and flags that the dataset holds, by position."""
        if self._labels is None:
            self._labels = read_labels(self._dataset.reader, range(len(self._dataset.episodes)))
        return self._labels

    def _made_order(self, sort: str, descending: bool, chosen: EpisodeFilter) -> np.ndarray:
        every = self._dataset.reader.episodes
        positions = self._chosen(chosen)
        if sort == "index":
            values = every.episode_index[positions]
        elif sort == "task":
            tasks = self._task_codes()
            rank = np.empty(len(tasks.names), np.int64)
            rank[np.argsort(np.array(tasks.names, object), kind="stable")] = np.arange(len(rank))
            values = rank[tasks.codes[positions]]
        else:
            values = np.asarray(self._column(sort))[positions]
        known = ~np.isnan(values) if values.dtype.kind == "f" else np.ones(len(values), bool)
        order = np.argsort(values[known], kind="stable")
        if descending:
            order = order[::-1]
        found = np.concatenate([positions[known][order], positions[~known]])
        return found.astype(np.int32)  # some orders of a million episodes are kept

    def _chosen(self, chosen: EpisodeFilter) -> np.ndarray:
        every = self._dataset.reader.episodes
        keep = np.ones(len(every), bool)
        if chosen.where:
            from demoreel.edit.choose import episode_keys  # heavy, and for conditions only

            found = episode_keys(self._dataset.reader, chosen.where, "0")
            keep[:] = False
            keep[[every.position_of(number) for number, _ in found]] = True
        if chosen.numbers is not None:
            keep &= np.isin(every.episode_index, np.array(chosen.numbers, np.int64))
        if chosen.text or chosen.task is not None:
            tasks = self._task_codes()
            text = chosen.text.lower()
            has = np.array([text in name.lower() for name in tasks.names], bool)
            fits = has[tasks.codes] if len(has) else np.zeros(len(every), bool)
            if chosen.text.isascii() and chosen.text.isdigit() and len(chosen.text) < 19:
                fits |= every.episode_index == int(chosen.text)
            keep &= fits
            if chosen.task is not None:
                keep &= np.array([name == chosen.task for name in tasks.names], bool)[tasks.codes]
        for key, low, high in chosen.ranges:
            values = np.asarray(self._column(key))
            keep &= (values >= low) & (values <= high)
        if chosen.only:
            if chosen.only not in ("outliers", "findings"):
                raise ArgumentError(f"Episodes are not chosen by {chosen.only[:40]!r}.")
            keep &= np.asarray(self._column(chosen.only)) > 0
        return np.flatnonzero(keep)

    def _task_codes(self) -> _Tasks:
        if self._tasks is None:
            reader = self._dataset.reader
            names: dict[str, int] = {}
            codes = np.zeros(len(reader.episodes), np.int32)
            for first in range(0, len(codes), _TASKS_AT_ONCE):  # texts of a million need memory
                places = np.arange(first, min(first + _TASKS_AT_ONCE, len(codes)))
                joined = pc.fill_null(pc.binary_join(tasks_by_episode(reader, places), "; "), "")
                coded = pc.dictionary_encode(joined)
                for part in coded.chunks if isinstance(coded, pa.ChunkedArray) else [coded]:
                    found = [names.setdefault(n, len(names)) for n in part.dictionary.to_pylist()]
                    which = part.indices.to_numpy(zero_copy_only=False)
                    codes[first : first + len(which)] = np.array(found, np.int32)[which]
                    first += len(which)
            self._tasks = _Tasks(list(names), codes)
        return self._tasks

    def motion(self, episodes: list[int]) -> dict[str, list[float]]:
        """Return how much each episode moves over its time, in ``_BINS`` steps from 0 to 1.

        Episodes whose table cannot be read have no line. Cost: reads a column of each of these
        episodes.
        """
        keys = [key for key in ("observation.state", "action") if key in self._dataset.features]
        if not keys or not self._dataset.features[keys[0]].is_numeric:
            return {}
        found = {}
        for episode in episodes[:MOST_ROWS]:
            try:
                values = np.asarray(self._dataset.episode(episode).column(keys[0]), np.float64)
            except DemoreelError:  # its page says what is wrong
                continue
            values = values.reshape(len(values), -1)
            spread = np.ptp(values, axis=0) if len(values) else np.zeros(1)
            steps = np.abs(np.diff(values, axis=0)) / np.where(spread > 0, spread, np.inf)
            moved = np.nan_to_num(steps.sum(axis=1))
            bins = np.array_split(moved, min(_BINS, max(1, len(moved))))
            line = np.array([part.mean() if len(part) else 0.0 for part in bins])
            top = line.max(initial=0.0)
            found[str(episode)] = np.round(line / top if top > 0 else line, 3).tolist()
        return found


def _flag_value(score: int | None, flag: str | None) -> float:
    """Return a number to sort by: the score, then good before bad; NaN if neither is said."""
    if score is None and flag is None:
        return float("nan")
    return (score or 0) + {"good": 0.5, "bad": -0.5}.get(flag or "", 0.0)


def columns_message(
    dataset: Dataset, episode: int, keys: list[str], points: int | None = None
) -> tuple[dict[str, Any], bytes]:
    """Return number columns of an episode: what they are, and their values one after the other.

    Args:
        dataset: The dataset.
        episode: The episode's number.
        keys: The columns.
        points: How many of its frames at the most, evenly spread; None is all.
    """
    view = dataset.episode(episode)
    length = len(view)
    chosen = None
    if points is not None and points < length:
        chosen = np.unique(np.linspace(0, length - 1, max(2, points)).astype(np.int64))
    columns = {}
    for key in keys:
        values = np.asarray(view.column(key))
        columns[key] = values if chosen is None else values[chosen]
    facts, data = packed_columns(columns, length if chosen is None else len(chosen))
    facts["frames"] = None if chosen is None else chosen.tolist()
    return {**facts, "of": length}, data


def packed_columns(columns: Mapping[str, np.ndarray], length: int) -> tuple[dict[str, Any], bytes]:
    """Return what columns are, and their values: little-endian, float32 or else float64."""
    described, parts = [], []
    for key, column in columns.items():
        kind = "<f4" if column.dtype == np.float32 else "<f8"
        values = column.reshape(len(column), -1).astype(kind)
        described.append({"key": key, "type": kind, "dims": values.shape[1]})
        data = values.tobytes()
        parts += [data, b"\0" * (-len(data) % 8)]
    return {"length": length, "columns": described}, b"".join(parts)
