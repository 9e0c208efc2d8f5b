"""Comparing the rows of two datasets, column by column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from demoreel.edit.diff.difference import ColumnDifference, DifferencePlace
from demoreel.edit.diff.pairs import Pair, Side
from demoreel.layouts.base import Column, Reader


@dataclass(slots=True)
class _FoundRows:
    """What was found in one column so far."""

    first: DifferencePlace
    frames: int = 0
    episodes: int = 0
    largest: float | None = None


class ComparedRows:
    """Compares rows and remembers where they differ.

    Args:
        a: The first dataset.
        b: The second.
        tolerance: How far numbers may be apart.
    """

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
