"""Measuring frames: a few numbers per frame, from some rows of its brightness.

A frame costs 10 to 20 us beside its decoding: rows are copied as they come, and everything else is
done for many frames at once. No frame is converted to RGB.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_ROWS = 48  # of a frame that are measured, over its whole width
_COLUMNS = 64  # of those that changes are measured in
_AT_ONCE = 32  # frames
_BLOCKS = 8  # of an appearance, in each direction
_MAYBE_DARK = 64.0  # mean level up to which it is worth to look closer
_SAME_ON_AVERAGE = 0.3  # levels
_NEARLY_ALL = 99.5  # percent of the pixels


@dataclass(frozen=True, slots=True)
class Levels:
    """The differences from which pixels count, in levels of 255.

    Attributes:
        same: Up to this much, a pixel is the same as in the frame before: encoders do not keep a
            still image exactly.
        spread: From this much on, it is something else.
    """

    same: float = 6.0
    spread: float = 10.0


MOMENTS = (0.2, 0.4, 0.6, 0.8)
"""Where in an episode its appearance is noted."""


@dataclass
class Watched:
    """Measures of consecutive frames.

    Attributes:
        number: The frames that decoded.
        bright: Level (of 255) that 99.5 % of the pixels do not exceed; or the mean, where that
            alone shows that the frame is not dark.
        same: Whether a frame is the same as the one before.
        change: By how many levels it differs from the one before, on average.
        spread: Which share of its pixels differ by more than ``Levels.spread``.
        flat: Whether all of its pixels are the same.
        appearance: 8 x 8 mean levels of the wanted frames.
        sizes: Heights and widths, with the first frame of each.
        edges: The first and last frame's rows, to continue from.
        scale: How many bits these have over 8.
    """

    number: np.ndarray
    bright: np.ndarray
    same: np.ndarray
    change: np.ndarray
    spread: np.ndarray
    flat: np.ndarray
    appearance: dict[int, np.ndarray] = field(default_factory=dict)
    sizes: dict[tuple[int, int], int] = field(default_factory=dict)
    edges: tuple[np.ndarray, np.ndarray] | None = None
    scale: int = 0


class Watch:
    """Measures frames; for one thread."""

    def __init__(self, wanted: Iterable[int] = (), levels: Levels = Levels()) -> None:  # noqa: B008
        self._wanted = frozenset(wanted)
        self._levels = levels
        self._parts: list[tuple[np.ndarray, ...]] = []
        self._numbers: list[int] = []
        self._waiting: np.ndarray | None = None
        self._count = 0  # of frames in ``_waiting``, after the one that was last before them
        self._has_before = False
        self._scale = 0
        self._first: np.ndarray | None = None
        self._appearance: dict[int, np.ndarray] = {}
        self._sizes: dict[tuple[int, int], int] = {}

    def add(self, number: int, luma: np.ndarray, scale: int = 0) -> None:
        """Look at a frame.

        Args:
            number: Its number.
            luma: Its brightness (height, width), or its colours (height, width, 3); memory that may
                be used again afterwards.
            scale: How many bits to drop, to have levels of 255.
        """
        height, width = luma.shape[:2]
        luma = luma.reshape(height, -1)  # colours side by side are as good as brightness
        rows = luma[_first_row(height) :: _row_step(height)]
        self._sizes.setdefault((height, width), number)
        waiting = self._waiting
        if waiting is None or waiting.shape[1:] != rows.shape or waiting.dtype != rows.dtype:
            self._flush()
            self._waiting = waiting = np.empty((_AT_ONCE + 1, *rows.shape), rows.dtype)
            self._has_before = False
            self._scale = scale
        self._count += 1
        waiting[self._count] = rows
        self._numbers.append(number)
        if self._first is None:
            self._first = waiting[self._count].copy()
        if number in self._wanted:
            self._appearance[number] = _appearance(waiting[self._count], self._scale)
        if self._count == _AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        if self._waiting is None or self._count == 0:
            return
        begin = 0 if self._has_before else 1
        self._parts.append(
            _measured(
                self._waiting[begin : self._count + 1],
                self._scale,
                self._levels,
                has_before=self._has_before,
            )
        )
        self._waiting[0] = self._waiting[self._count]
        self._has_before, self._count = True, 0

    def seen(self) -> Watched:
        """Return what was seen."""
        self._flush()
        if not self._parts or self._waiting is None:
            empty = np.zeros(0)
            none = np.zeros(0, bool)
            return Watched(np.zeros(0, np.int64), empty, none, empty, empty, none)
        bright, same, change, spread, flat = map(np.concatenate, zip(*self._parts, strict=True))
        assert self._first is not None
        return Watched(
            np.array(self._numbers), bright, same, change, spread, flat,
            self._appearance, self._sizes, (self._first, self._waiting[0].copy()),
            self._scale,
        )  # fmt: skip


def joined(parts: list[Watched], levels: Levels) -> Watched:
    """Join the measures of consecutive runs of frames."""
    parts = [part for part in parts if len(part.number)]
    if not parts:
        return Watch().seen()
    for before, after in itertools.pairwise(parts):
        assert before.edges is not None
        assert after.edges is not None
        pair = (before.edges[1], after.edges[0])
        if before.number[-1] + 1 == after.number[0] and pair[0].shape == pair[1].shape:
            measured = _measured(np.stack(pair), after.scale, levels, has_before=True)
            after.same[0], after.change[0], after.spread[0] = (m[0] for m in measured[1:4])
    arrays = (
        np.concatenate(several)
        for several in zip(
            *((p.number, p.bright, p.same, p.change, p.spread, p.flat) for p in parts), strict=True
        )
    )
    number, bright, same, change, spread, flat = arrays
    appearance = {n: a for part in parts for n, a in part.appearance.items()}
    sizes: dict[tuple[int, int], int] = {}
    for part in parts:
        for size, begin in part.sizes.items():
            sizes.setdefault(size, begin)
    return Watched(number, bright, same, change, spread, flat, appearance, sizes)


def luma_of(frame: Any) -> tuple[np.ndarray, int]:
    """Return a decoded frame's brightness, and how many bits it has over 8.

    No copy: the array is the frame's own memory. Of formats without brightness it is the first of
    their planes.
    """
    plane = frame.planes[0]
    rows = np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)
    bits = _bits(frame.format)
    if bits > 8:
        return rows.view("<u2")[: frame.height, : frame.width], bits - 8
    return rows[: frame.height, : frame.width], 0


_known_bits: dict[str, int] = {}


def _bits(form: Any) -> int:
    name = form.name
    if name not in _known_bits:
        _known_bits[name] = int(form.components[0].bits)
    return _known_bits[name]


def _row_step(height: int) -> int:
    return max(1, height // _ROWS)


def _first_row(height: int) -> int:
    return _row_step(height) // 2


def _measured(
    rows: np.ndarray, scale: int, levels: Levels, *, has_before: bool
) -> tuple[np.ndarray, ...]:
    """Measure frames (count, rows, width); the first one may only be there to compare with."""
    count = len(rows)
    step = max(1, rows.shape[2] // _COLUMNS)
    grid = rows[:, :, :: step + 1 if step % 3 == 0 else step]  # or it might be one colour's
    level = _levels(grid, scale).reshape(count, -1)
    bright = level.mean(axis=1, dtype=np.float32)
    dim = bright <= _MAYBE_DARK
    if dim.any():
        bright[dim] = np.percentile(level[dim], _NEARLY_ALL, axis=1)
    flat = level.min(axis=1) == level.max(axis=1)
    same = np.zeros(count, bool)
    change, spread = np.full(count, np.nan, np.float32), np.zeros(count, np.float32)
    if count > 1:
        apart = np.abs(np.diff(level, axis=0))
        change[1:] = apart.mean(axis=1, dtype=np.float32)
        spread[1:] = (apart > levels.spread).mean(axis=1, dtype=np.float32)
        still = (change[1:] <= _SAME_ON_AVERAGE) & (apart.max(axis=1) <= levels.same)
        for place in (np.flatnonzero(still) + 1).tolist():  # so may be what is between
            pair = _levels(rows[place - 1 : place + 1], scale)
            same[place] = np.abs(pair[1] - pair[0]).max() <= levels.same
    skip = 1 if has_before else 0
    return bright[skip:], same[skip:], change[skip:], spread[skip:], flat[skip:]


def _levels(values: np.ndarray, scale: int) -> np.ndarray:
    return (values >> scale if scale else values).astype(np.int16)


def _appearance(rows: np.ndarray, scale: int) -> np.ndarray:
    """Return mean levels of 8 x 8 blocks (fewer of tiny frames), as one row of 64."""
    parts = np.array_split(rows >> scale if scale else rows, _BLOCKS, axis=0)
    blocks = [
        block.mean() if block.size else 0.0
        for part in parts
        for block in np.array_split(part, _BLOCKS, axis=1)
    ]
    return np.array(blocks, np.float32).round().astype(np.uint8)
