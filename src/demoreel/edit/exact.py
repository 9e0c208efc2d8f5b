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


def exact_stats(portions: Portions) -> dict[str, np.ndarray]:
    """Return minimum, maximum, mean, standard deviation and quantiles, in float64, by dimension.

    Cost: two to four passes over the column; memory for one portion, and 0.5 MB for each dimension
    and, from the second pass on, each of its quantiles. Means and deviations are exact to rounding.

    Args:
        portions: The column; at least one row.
    """
    totals = _Totals()
    digits = _Digits()
    for values in portions():
        totals.add(values)
        digits.count(_keys(values))
    digits.settle(_ranks(totals.count))
    first = True
    while first or not digits.known:
        for values in portions():
            if first:
                totals.add_spread(values)
            if not digits.known:
                digits.count(_keys(values))
        if not digits.known:
            digits.settle()
        first = False
    found = totals.finish()
    for name, value in _interpolated(digits.values(totals.dtype), totals.count).items():
        found[name] = np.where(np.isnan(found["mean"]), np.nan, value)
    return found


class _Totals:
    def __init__(self) -> None:
        self.count = 0
        self.dtype = np.dtype(np.float64)
        self._sum = self._low = self._high = self._squares = np.zeros(0)

    def add(self, values: np.ndarray) -> None:
        wide = values.astype(np.float64)
        if not self.count:
            self.dtype = values.dtype
            self._sum, self._squares = np.zeros(wide.shape[1]), np.zeros(wide.shape[1])
            self._low, self._high = wide[0], wide[0]
        self.count += len(wide)
        self._sum = self._sum + wide.sum(axis=0)
        self._low = np.minimum(self._low, wide.min(axis=0))
        self._high = np.maximum(self._high, wide.max(axis=0))

    def add_spread(self, values: np.ndarray) -> None:
        self._squares = self._squares + ((values - self._sum / self.count) ** 2).sum(axis=0)

    def finish(self) -> dict[str, np.ndarray]:
        return {
            "min": self._low,
            "max": self._high,
            "mean": self._sum / self.count,
            "std": np.sqrt(self._squares / self.count),
        }


class _Digits:
    """Finds the keys of given ranks, 16 bits at a time, for each dimension."""

    def __init__(self) -> None:
        self._bits = 0
        self._left = 0
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
            self._counts = [{0: np.zeros(_LEVELS, np.int64)} for _ in range(keys.shape[1])]
        shift = self._left - _DIGIT
        for dimension, counts in enumerate(self._counts):
            column = np.ascontiguousarray(keys[:, dimension])
            known = self._left < self._bits
            leading = column >> np.array(self._left, column.dtype) if known else None
            for prefix, found in counts.items():
                own = column if leading is None else column[leading == prefix]
                digits = (own >> np.array(shift, own.dtype)) & np.array(_LEVELS - 1, own.dtype)
                found += np.bincount(digits.astype(np.int64), minlength=_LEVELS)

    def settle(self, ranks: np.ndarray | None = None) -> None:
        """Learn the next digit of every wanted key from the counts."""
        if ranks is not None:
            self._rank = np.tile(ranks, (len(self._counts), 1))
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


def _keys(values: np.ndarray) -> np.ndarray:
    """Map numbers to unsigned integers of 32 or 64 bits that are ordered as they are."""
    if values.dtype.kind == "f":
        wide = np.ascontiguousarray(values, np.float32 if values.dtype.itemsize <= 4 else None)
        bits = wide.view(f"u{wide.dtype.itemsize}")
        sign = np.array(1 << (8 * wide.dtype.itemsize - 1), bits.dtype)
        return np.asarray(np.where(bits & sign, ~bits, bits | sign))
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
