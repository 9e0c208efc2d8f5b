"""Pairs the episodes of two datasets for a comparison."""

from __future__ import annotations

import hashlib
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from demoreel.layouts.base import Column, Reader
from demoreel.layouts.columns import rows_at_once
from demoreel.model import DEFAULT_FEATURES, Episode

_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class Pair:
    """An episode of each dataset, by its place among those that are compared."""

    a: int
    b: int


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two datasets, and which of its episodes are compared.

    Attributes:
        reader: The dataset.
        positions: Where these episodes stand in it.
    """

    reader: Reader
    positions: np.ndarray

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def is_whole(self) -> bool:
        """Whether all of the dataset's episodes are compared."""
        return len(self) == len(self.reader.episodes)

    def position(self, place: int) -> int:
        """Return where an episode stands in the dataset."""
        return int(self.positions[place])

    def number(self, place: int) -> int:
        """Return an episode's ``episode_index``."""
        return int(self.reader.episodes.episode_index[self.position(place)])

    def length(self, place: int) -> int:
        """Return how many frames an episode has."""
        return int(self.reader.episodes.length[self.position(place)])

    def start(self, place: int) -> int:
        """Return an episode's first row in the dataset."""
        return int(self.reader.episodes.start[self.position(place)])

    def episode(self, place: int) -> Episode:
        """Return an episode's metadata."""
        return self.reader.episodes[self.position(place)]


def matched(a: Side, b: Side, *, by_content: bool) -> tuple[list[Pair], list[int], list[int]]:
    """Return the pairs, in the first dataset's order, and the places that are left on each side.

    By content, episodes with the same rows are a pair, wherever they stand; of those that are left,
    the ones at the same place are. Cost: then, all rows of both are read once more.
    """
    pairs: list[Pair] = []
    left, right = list(range(len(a))), list(range(len(b)))
    if by_content:
        keys = _compared_columns(a.reader, b.reader)
        pairs = alike(_fingerprints(a, keys), _fingerprints(b, keys))
        taken_a, taken_b = {pair.a for pair in pairs}, {pair.b for pair in pairs}
        left = [place for place in left if place not in taken_a]
        right = [place for place in right if place not in taken_b]
    both = set(left) & set(right)
    pairs += [Pair(place, place) for place in both]
    pairs.sort(key=lambda pair: pair.a)
    return pairs, [p for p in left if p not in both], [p for p in right if p not in both]


def alike(a: Iterable[Hashable], b: Iterable[Hashable]) -> list[Pair]:
    """Return the places of equal marks, each taken once, in the first one's order."""
    waiting: dict[Hashable, deque[int]] = defaultdict(deque)
    for place, mark in enumerate(b):
        waiting[mark].append(place)
    return [Pair(place, waiting[mark].popleft()) for place, mark in enumerate(a) if waiting[mark]]


def _compared_columns(a: Reader, b: Reader) -> list[str]:
    mine, theirs = a.info.features, b.info.features
    return [
        key
        for key, feature in mine.items()
        if not feature.is_camera and key in theirs and key not in DEFAULT_FEATURES
    ]


def _fingerprints(side: Side, keys: Sequence[str]) -> Iterator[bytes]:
    """Yield what stands for each episode's rows: equal for equal ones."""
    every = [Pair(place, place) for place in range(len(side))]
    for run in runs_of(every, side, side):
        columns = side.reader.rows_once(side.position(run[0].a), side.position(run[-1].a) + 1)
        first = side.start(run[0].a)
        for pair in run:
            begin = side.start(pair.a) - first
            part = slice(begin, begin + side.length(pair.a))
            digest = hashlib.sha256(b"%d" % side.length(pair.a))
            for key in keys:
                digest.update(_bytes_of(columns[key][part]))
            yield digest.digest()[:16]


def _bytes_of(column: Column) -> bytes:
    if isinstance(column, np.ndarray):
        return column.tobytes()
    return repr(column).encode()


def runs_of(pairs: Sequence[Pair], a: Side, b: Side) -> Iterator[list[Pair]]:
    """Group pairs whose episodes stand side by side in both datasets: they are read at once."""
    run: list[Pair] = []
    rows = 0
    sides = (a.reader.info.features, b.reader.info.features)
    most = min(rows_at_once(features.values(), _ROWS_AT_ONCE) for features in sides)
    for pair in pairs:
        more = max(a.length(pair.a), b.length(pair.b))
        if run:
            goes_on = (
                a.position(pair.a) == a.position(run[-1].a) + 1
                and b.position(pair.b) == b.position(run[-1].b) + 1
            )
            if not goes_on or rows + more > most:
                yield run
                run, rows = [], 0
        run.append(pair)
        rows += more
    if run:
        yield run
