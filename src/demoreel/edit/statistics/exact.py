"""Exact statistics of a column of any length, in little memory.

Quantiles need the values in order. Instead of sorting them, they are counted by their leading 16
bits, then, where a quantile lies, by the next 16, until all bits are known: two passes for 32-bit
numbers, four for 64-bit ones. Numbers are mapped to integers of the same order first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from demoreel.stats.running import QUANTILES

Portions = Callable[[], Iterator[np.ndarray]]
"""Yields a column in portions of rows x width, the same ones each time it is called."""

_DIGIT = 16
_LEVELS = 1 << _DIGIT
_AT_ONCE = 1 << 20


def exact_stats(portions: Portions) -> dict[str, np.ndarray]:
    """Return minimum, maximum, mean, standard deviation and quantiles, in float64, by dimension.

    Cost: two to four passes over the column; memory as of ``Exact``.

    Args:
        portions: The column; at least one row.
    """
    exact = Exact()
    while not exact.known:
        for values in portions():
            exact.add(np.ascontiguousarray(values.T))
        exact.end_pass()
    return exact.finish()


class Exact:
    """Statistics of columns that pass by in portions, the same ones a few times.

    Two passes suffice for 32-bit numbers, and for larger integers that would fit into 32 bits.
    Memory: 0.5 MB for each dimension and, from the second pass on, each of its quantiles. Means
    and deviations are exact to rounding.
    """

    def __init__(self) -> None:
        self._passes = 0
        self._totals = _Totals()
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

    def end_pass(self) -> None:
        """Take note that all portions have passed by."""
        self._passes += 1
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
    def __init__(self) -> None:
        self.count = 0
        self.dtype = np.dtype(np.float64)
        self._sum = self._low = self._high = self._squares = np.zeros(0)

    def add(self, values: np.ndarray) -> None:
        low, high = values.min(axis=1), values.max(axis=1)
        if not self.count:
            self.dtype = values.dtype
            self._sum, self._squares = np.zeros(len(values)), np.zeros(len(values))
            self._low, self._high = low, high
        self.count += values.shape[1]
        self._sum = self._sum + values.sum(axis=1, dtype=np.float64)
        self._low = np.minimum(self._low, low)
        self._high = np.maximum(self._high, high)

    def add_spread(self, values: np.ndarray) -> None:
        mean = (self._sum / self.count)[:, None]
        for some in np.array_split(values, -(-values.size // _AT_ONCE), axis=1):
            self._squares = self._squares + ((some - mean) ** 2).sum(axis=1)

    def finish(self) -> dict[str, np.ndarray]:
        return {
            "min": self._low.astype(np.float64),
            "max": self._high.astype(np.float64),
            "mean": self._sum / self.count,
            "std": np.sqrt(self._squares / self.count),
        }


class _Digits:
    """Finds the keys of given ranks, 16 bits at a time, for each dimension."""

    def __init__(self) -> None:
        self._bits = 0
        self._left = -1  # bits that are not known yet; nothing was counted
        # For each dimension: the bits that are known of the wanted keys -> how often each next
        # digit follows them.
        self._counts: list[dict[int, np.ndarray]] = []
        self._prefix = np.zeros((0, 0), np.uint64)  # dimension x rank
        self._rank = np.zeros((0, 0), np.int64)

    @property
    def known(self) -> bool:
        return self._left == 0

    def count(self, keys: np.ndarray) -> None:
        if not self._counts:
            self._bits = self._left = keys.dtype.itemsize * 8
            self._counts = [{0: np.zeros(_LEVELS, np.int64)} for _ in keys]
        shift, mask = keys.dtype.type(self._left - _DIGIT), keys.dtype.type(_LEVELS - 1)
        for column, counts in zip(keys, self._counts, strict=True):
            known = self._left < self._bits
            leading = column >> keys.dtype.type(self._left) if known else None
            for prefix, found in counts.items():
                own = column if leading is None else column[leading == prefix]
                digits = ((own >> shift) & mask).astype(np.int64)
                found += np.bincount(digits, minlength=_LEVELS)

    def settle(self, count: int) -> None:
        """Learn the next digit of every wanted key from the counts; ``count`` is of all values."""
        if not len(self._rank):
            self._rank = np.tile(_ranks(count), (len(self._counts), 1))
            self._prefix = np.zeros(self._rank.shape, np.uint64)
        for dimension, counts in enumerate(self._counts):
            for place in range(self._rank.shape[1]):
                up_to = np.cumsum(counts[int(self._prefix[dimension, place])])
                rank = int(self._rank[dimension, place])
                digit = int(np.searchsorted(up_to, rank, side="right"))
                self._rank[dimension, place] -= int(up_to[digit - 1]) if digit else 0
                before = int(self._prefix[dimension, place])
                self._prefix[dimension, place] = before << _DIGIT | digit
        self._left -= _DIGIT
        self._counts = [
            {int(prefix): np.zeros(_LEVELS, np.int64) for prefix in np.unique(row)}
            for row in self._prefix
        ]

    def values(self, dtype: np.dtype[np.generic]) -> np.ndarray:
        """Return the wanted values: rank x dimension."""
        kind = np.dtype(f"u{self._bits // 8}")
        return _numbers(self._prefix.astype(kind), dtype).astype(np.float64).T


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
