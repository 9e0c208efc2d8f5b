"""The table of a dataset's episodes, in pages: filtered, sorted, with a line of motion."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import numpy as np

from demoreel.errors import ArgumentError
from demoreel.read.dataset import Dataset

MOST_ROWS = 500
_SORTS = {"index": "episode_index", "length": "length", "task": "task"}
_BINS = 32
_KEPT = 8  # orders that are kept: one for each filter and column that was used last


class EpisodePages:
    """The episodes of one dataset, in an order that a page asks for.

    Args:
        dataset: The dataset.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._orders: OrderedDict[tuple[str, ...], np.ndarray] = OrderedDict()
        self._lock = threading.Lock()  # each request has a thread of its own

    def page(
        self, first: int, count: int, *, sort: str, descending: bool, text: str, where: str
    ) -> dict[str, Any]:
        """Return some rows of the table, and how many it has.

        Args:
            first: Its first row.
            count: How many, ``MOST_ROWS`` at the most.
            sort: ``index``, ``length`` or ``task``.
            descending: Whether to begin with the largest.
            text: Only episodes whose task contains this, or whose number it is.
            where: Only episodes that meet this SQL condition, as of ``demoreel cut select``.

        Raises:
            ArgumentError: The condition is not understood, or there is no such column.
            MissingExtraError: DuckDB is not installed, and a condition was given.
        """
        if sort not in _SORTS:
            raise ArgumentError(f"There is no column {sort!r}.", hint=f"there are: {list(_SORTS)}")
        order = self._order(sort, text.strip(), where.strip())
        if descending:
            order = order[::-1]
        chosen = order[max(0, first) : max(0, first) + min(count, MOST_ROWS)]
        fps, every = self._dataset.fps, self._dataset.reader.episodes
        rows = []
        for position in chosen.tolist():
            episode = every[position]
            rows.append(
                {
                    "index": episode.index,
                    "length": episode.length,
                    "seconds": episode.length / fps,
                    "tasks": [str(task) for task in episode.tasks],
                }
            )
        return {"total": len(order), "of": len(every), "first": first, "rows": rows}

    def _order(self, sort: str, text: str, where: str) -> np.ndarray:
        key = (sort, text, where)
        with self._lock:
            known = self._orders.pop(key, None)
        order = self._made_order(sort, text, where) if known is None else known
        with self._lock:
            self._orders[key] = order  # the last: it was used last
            while len(self._orders) > _KEPT:
                self._orders.popitem(last=False)
        return order

    def _made_order(self, sort: str, text: str, where: str) -> np.ndarray:
        every = self._dataset.reader.episodes
        positions = np.arange(len(every))
        if text or where or sort == "task":
            positions, keys = self._asked(text, where, _SORTS[sort])
            if sort == "task":
                return positions[np.argsort(np.array([str(key) for key in keys]), kind="stable")]
        values = every.episode_index if sort == "index" else every.length
        positions = np.sort(positions)
        return np.asarray(positions[np.argsort(values[positions], kind="stable")])

    def _asked(self, text: str, where: str, key: str) -> tuple[np.ndarray, list[Any]]:
        """Return the positions of episodes that meet a filter, and the key of each."""
        from demoreel.edit.choose import episode_keys  # heavy, and for filters only
        from demoreel.read.sql import check_expression

        conditions = []
        if where:
            check_expression(where, what="where")  # before it stands beside others
            conditions.append(f"({where}\n)")
        if text:
            quoted = "'" + text.replace("'", "''") + "'"
            conditions.append(
                f"(contains(lower(task), lower({quoted})) or "
                f"cast(episode_index as varchar) = {quoted})"
            )
        found = episode_keys(self._dataset.reader, " and ".join(conditions) or None, key)
        every = self._dataset.reader.episodes
        places = [every.position_of(number) for number, _ in found]
        return np.array(places, np.int64), [value for _, value in found]

    def motion(self, episodes: list[int]) -> dict[str, list[float]]:
        """Return how much each episode moves over its time, in ``_BINS`` steps from 0 to 1.

        Cost: reads a column of each of these episodes.
        """
        keys = [key for key in ("observation.state", "action") if key in self._dataset.features]
        if not keys or not self._dataset.features[keys[0]].is_numeric:
            return {}
        found = {}
        for episode in episodes[:MOST_ROWS]:
            values = np.asarray(self._dataset.episode(episode).column(keys[0]), np.float64)
            values = values.reshape(len(values), -1)
            spread = np.ptp(values, axis=0) if len(values) else np.zeros(1)
            steps = np.abs(np.diff(values, axis=0)) / np.where(spread > 0, spread, np.inf)
            moved = np.nan_to_num(steps.sum(axis=1))
            bins = np.array_split(moved, min(_BINS, max(1, len(moved))))
            line = np.array([part.mean() if len(part) else 0.0 for part in bins])
            top = line.max(initial=0.0)
            found[str(episode)] = np.round(line / top if top > 0 else line, 3).tolist()
        return found


def columns_message(
    dataset: Dataset, episode: int, keys: list[str]
) -> tuple[dict[str, Any], bytes]:
    """Return number columns of an episode: what they are, and their values one after the other.

    Values are little-endian, float32 as stored and all else as float64.
    """
    view = dataset.episode(episode)
    described, parts = [], []
    for key in keys:
        values = np.asarray(view.column(key))
        kind = "<f4" if values.dtype == np.float32 else "<f8"
        values = values.reshape(len(values), -1).astype(kind)
        described.append({"key": key, "type": kind, "dims": values.shape[1]})
        data = values.tobytes()
        parts += [data, b"\0" * (-len(data) % 8)]
    return {"length": len(view), "columns": described}, b"".join(parts)
