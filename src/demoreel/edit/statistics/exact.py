"""Exact statistics of a column of any length, in little memory.

Quantiles need the values in order. Instead of sorting them, they are counted by their leading 16
bits, then, where a quantile lies, by the next 16, until all bits are known: two passes for 32-bit
numbers, four for 64-bit ones. Numbers are mapped to integers of the same order first.
"""

from __future__ import annotations

import functools

import numpy as np

from demoreel.stats.running import QUANTILES

_DIGIT = 16
_LEVELS = 1 << _DIGIT
_AT_ONCE = 1 << 20


class Exact:
    """Statistics of columns that pass by in portions, the same ones a few times.

    Two passes suffice for 32-bit numbers, and for larger integers that would fit into 32 bits.
    Memory: 0.5 MB for each dimension; from the second pass on up to ten times that. Means
    and deviations are exact to rounding, and the same to the last bit however the dimensions and
    the portions were shared out.

    Args:
        width: Of how many dimensions these are some; None where they are all.
    """

    def __init__(self, width: int | None = None) -> None:
        self._passes = 0
        self._totals = _Totals(width)
        self._digits = _Digits()
        self._narrow = True  # as long as whole numbers fit into 32 bits
        self._again = False

    @property
    def known(self) -> bool:
        """Whether no further pass is needed."""
        return self._passes > 1 and self._digits.known

    def add(self, values: np.ndarray) -> None:
        """Take a portion: dimensions x values, of one type."""
        if self._passes == 0:
            self._totals.add(values)
        elif self._passes == 1:
            self._totals.add_spread(values)
        if self._again or self._digits.known:
            return
        if values.dtype.kind == "i" and values.dtype.itemsize == 8 and self._narrow:
            if _fits(values):
                values = values.astype(np.int32)
            else:
                self._again = True  # what was counted so far is of no use
                return
        self._digits.count(_keys(values))

    def share(self, number: int) -> Exact:
        """Return one that takes some portions of this pass elsewhere, to be given to ``merge``.

        Args:
            number: Where those portions stand among the shares of this pass.
        """
        part = Exact()
        part._passes, part._narrow = self._passes, self._narrow
        part._totals, part._digits = self._totals.share(number), self._digits.share()
        return part

    def merge(self, part: Exact) -> None:
        """Take what a share has taken; shares may come in any order."""
        self._totals.merge(part._totals)
        self._again = self._again or part._again
        if not self._again:
            self._digits.merge(part._digits)

    def end_pass(self) -> None:
        """Take note that all portions have passed by."""
        self._passes += 1
        self._totals.end_pass()
        if self._again:
            self._again, self._narrow, self._digits = False, False, _Digits()
        elif not self._digits.known:
            self._digits.settle(self._totals.count)

    def finish(self) -> dict[str, np.ndarray]:
        """Return the statistics, in float64."""
        found = self._totals.finish()
        ranked = self._digits.values(self._totals.dtype)
        for name, value in _interpolated(ranked, self._totals.count).items():
            found[name] = np.where(np.isnan(found["mean"]), np.nan, value)
        return found


class _Totals:
    """Extremes, means and deviations; those of portions wait to be put together in order."""

    def __init__(self, width: int | None) -> None:
        self.count = 0
        self.dtype = np.dtype(np.float64)
        self._width = width
        self._low = self._high = self._mean = self._squares = np.zeros(0)
        self._share = 0
        self._waiting: dict[int, list[tuple[np.ndarray, ...]]] = {}  # by share

    def add(self, values: np.ndarray) -> None:
        self.dtype = values.dtype
        self.count += values.shape[1]
        sums = values.sum(axis=1, dtype=np.float64)
        self._wait(sums, values.min(axis=1), values.max(axis=1))

    def add_spread(self, values: np.ndarray) -> None:
        size = values.shape[1] * (self._width or len(values))
        for some in np.array_split(values, -(-size // _AT_ONCE), axis=1):
            self._wait(((some - self._mean[:, None]) ** 2).sum(axis=1))

    def _wait(self, *found: np.ndarray) -> None:
        self._waiting.setdefault(self._share, []).append(found)

    def share(self, number: int) -> _Totals:
        part = _Totals(self._width)
        part._mean, part._share = self._mean, number
        return part

    def merge(self, part: _Totals) -> None:
        if part.count:
            self.dtype = part.dtype
            self.count += part.count
        self._waiting |= part._waiting

    def end_pass(self) -> None:
        ordered = [found for share in sorted(self._waiting) for found in self._waiting[share]]
        self._waiting = {}
        if not ordered:
            return
        sums, *extremes = zip(*ordered, strict=True)
        total = functools.reduce(np.add, sums, np.zeros(len(sums[0])))
        if extremes:
            self._mean = total / self.count
            self._low = functools.reduce(np.minimum, extremes[0])
            self._high = functools.reduce(np.maximum, extremes[1])
        else:
            self._squares = total

    def finish(self) -> dict[str, np.ndarray]:
        return {
            "min": self._low.astype(np.float64),
            "max": self._high.astype(np.float64),
            "mean": self._mean,
            "std": np.sqrt(self._squares / self.count),
        }


class _Digits:
    """Finds the keys of given ranks, 16 bits at a time, for each dimension."""

    def __init__(self) -> None:
        self._bits = 0
        self._left = -1  # bits that are not known yet; nothing was counted
        # For each dimension: the bits that are known of the wanted keys, ascending, and how often
        # each next digit follows each of them.
        self._known: list[np.ndarray] = []
        self._counts: list[_Counts] = []
        self._prefix = np.zeros((0, 0), np.uint64)  # dimension x rank
        self._rank = np.zeros((0, 0), np.int64)

    @property
    def known(self) -> bool:
        return self._left == 0

    def count(self, keys: np.ndarray) -> None:
        if not self._counts:
            if not self._known:
                self._bits = self._left = keys.dtype.itemsize * 8
                self._known = [np.zeros(1, keys.dtype) for _ in keys]
            self._counts = [_Counts(len(known) * _LEVELS) for known in self._known]
        for column, known, counts in zip(keys, self._known, self._counts, strict=True):
            if self._left == self._bits:
                first = (column >> (self._bits - _DIGIT)).astype(np.int64)
                counts.add_all(np.bincount(first, minlength=_LEVELS))
            else:
                counts.add(*_following(column, known, bits=self._bits, left=self._left))

    def share(self) -> _Digits:
        part = _Digits()
        part._bits, part._left, part._known = self._bits, self._left, self._known
        return part

    def merge(self, part: _Digits) -> None:
        if not part._counts:
            return
        if not self._counts:
            self._bits, self._left = part._bits, part._left
            self._known, self._counts = part._known, part._counts
            return
        for counts, more in zip(self._counts, part._counts, strict=True):
            counts.merge(more)

    def settle(self, count: int) -> None:
        """Learn the next digit of every wanted key from the counts; ``count`` is of all values."""
        if not len(self._rank):
            self._rank = np.tile(_ranks(count), (len(self._counts), 1))
            self._prefix = np.zeros(self._rank.shape, np.uint64)
        for dimension, counts in enumerate(self._counts):
            places, often = counts.packed()
            up_to = np.concatenate([[0], np.cumsum(often)])
            first = np.searchsorted(self._known[dimension], self._prefix[dimension]) * _LEVELS
            before = up_to[np.searchsorted(places, first)]
            found = np.searchsorted(up_to, before + self._rank[dimension], side="right") - 1
            self._rank[dimension] -= up_to[found] - before
            digit = (places[found] - first).astype(np.uint64)
            self._prefix[dimension] = self._prefix[dimension] << np.uint64(_DIGIT) | digit
        self._left -= _DIGIT
        kind = np.dtype(f"u{self._bits // 8}")
        self._known = [np.unique(row).astype(kind) for row in self._prefix]
        self._counts = []

    def values(self, dtype: np.dtype[np.generic]) -> np.ndarray:
        """Return the wanted values: rank x dimension."""
        kind = np.dtype(f"u{self._bits // 8}")
        return _numbers(self._prefix.astype(kind), dtype).astype(np.float64).T


class _Counts:
    """How often each of many things was seen: most of them never, so zeros are left out."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._all: np.ndarray | None = None
        self._some: list[tuple[np.ndarray, np.ndarray]] = []
        self._held = 0

    def add(self, places: np.ndarray, often: np.ndarray) -> None:
        """Take counts of some of them, each once."""
        self._some.append((places.astype(np.uint32), often))
        self._held += len(places)
        if self._held > self._size:
            self._all, self._some, self._held = self._unpacked(), [], 0

    def add_all(self, often: np.ndarray) -> None:
        if self._all is None:
            self._all = np.zeros(self._size, np.int64)
        self._all += often

    def merge(self, other: _Counts) -> None:
        for places, often in other._some:
            self.add(places, often)
        if other._all is not None:
            self.add_all(other._all)

    def packed(self) -> tuple[np.ndarray, np.ndarray]:
        """Return which were seen, ascending, and how often."""
        often = self._unpacked()
        places = np.flatnonzero(often)
        return places, often[places]

    def _unpacked(self) -> np.ndarray:
        often = np.zeros(self._size, np.int64) if self._all is None else self._all.copy()
        for places, more in self._some:
            often[places] += more
        return often

    def __getstate__(self) -> tuple[int, np.ndarray, np.ndarray]:
        return self._size, *self.packed()

    def __setstate__(self, state: tuple[int, np.ndarray, np.ndarray]) -> None:
        self._size, places, often = state
        self._all, self._some, self._held = None, [], 0
        self.add(places, often)


def _following(
    column: np.ndarray, known: np.ndarray, *, bits: int, left: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return which digits follow the leading bits that are known of some keys, and how often.

    Few keys begin like one that is wanted, so the others are left out before anything is counted.
    """
    wanted = np.zeros(_LEVELS, np.bool_)
    wanted[known >> (bits - left - _DIGIT)] = True
    near = column[wanted[column >> (bits - _DIGIT)]]
    leading = near >> left
    places = np.searchsorted(known, leading)
    places[places == len(known)] = 0
    own = known[places] == leading
    digits = (near[own] >> (left - _DIGIT)).astype(np.int64) & (_LEVELS - 1)
    found, often = np.unique(places[own] * _LEVELS + digits, return_counts=True)
    return found, often


def _fits(values: np.ndarray) -> bool:
    limits = np.iinfo(np.int32)
    return bool(values.min() >= limits.min and values.max() <= limits.max)


def _keys(values: np.ndarray) -> np.ndarray:
    """Map numbers to unsigned integers of 32 or 64 bits that are ordered as they are."""
    if values.dtype.kind == "f":
        wide = np.ascontiguousarray(values, np.float32 if values.dtype.itemsize <= 4 else None)
        bits = wide.view(f"i{wide.dtype.itemsize}")
        last = bits.dtype.type(8 * bits.dtype.itemsize - 1)
        # Negative numbers are ordered backwards: all of their bits are turned round.
        flipped = bits ^ ((bits >> last) | np.iinfo(bits.dtype).min)
        return np.asarray(flipped.view(f"u{bits.dtype.itemsize}"))
    if values.dtype.kind == "i":
        signed = values.astype(np.int64 if values.dtype.itemsize == 8 else np.int32)
        bits = signed.view(f"u{signed.dtype.itemsize}")
        return np.asarray(bits ^ np.array(1 << (8 * bits.dtype.itemsize - 1), bits.dtype))
    return values.astype(np.uint64 if values.dtype.itemsize == 8 else np.uint32)


def _numbers(keys: np.ndarray, dtype: np.dtype[np.generic]) -> np.ndarray:
    """Map the integers of ``_keys`` back."""
    sign = np.array(1 << (8 * keys.dtype.itemsize - 1), keys.dtype)
    if dtype.kind == "f":
        bits = np.where(keys & sign, keys ^ sign, ~keys)
        return np.ascontiguousarray(bits).view(f"f{keys.dtype.itemsize}")
    if dtype.kind == "i":
        return np.ascontiguousarray(keys ^ sign).view(f"i{keys.dtype.itemsize}")
    return keys


def _places(count: int) -> np.ndarray:
    """Return where quantiles lie among sorted values, computed as numpy does."""
    return np.asarray((count - 1) * np.array(list(QUANTILES.values())))


def _ranks(count: int) -> np.ndarray:
    below = np.floor(_places(count)).astype(np.int64)
    return np.concatenate([below, np.minimum(below + 1, count - 1)])


def _interpolated(values: np.ndarray, count: int) -> dict[str, np.ndarray]:
    below, above = np.split(values, 2)
    place = _places(count)
    share = (place - np.floor(place))[:, None]
    step = above - below
    with np.errstate(invalid="ignore"):  # between infinities
        found = np.where(share < 0.5, below + step * share, above - step * (1 - share))
    return dict(zip(QUANTILES, found, strict=True))
