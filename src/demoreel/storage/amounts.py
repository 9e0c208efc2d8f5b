"""Formats amounts: bytes, durations, and progress."""

from __future__ import annotations

from typing import Self

from demoreel.errors import count

_UNITS = ("B", "kB", "MB", "GB", "TB")


def size(number: float) -> str:
    """Return a number of bytes in the unit that suits it."""
    power = _power(number)
    return f"{number / 1000**power:.3g} {_UNITS[power]}"


def _power(number: float) -> int:
    power = 0
    while number >= 999.5 and power < len(_UNITS) - 1:
        number /= 1000
        power += 1
    return power


def duration(seconds: float) -> str:
    """Return seconds in words: ``34.2 s``, ``12 min 5 s``, ``3 h 20 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60:,} h {minutes % 60} min"


class ShareDone(float):
    """The share of some work that is done, from 0 to 1, which also says of what.

    What reports progress calls a function with a number; those that show it find ``counts`` here.

    Attributes:
        counts: ``120 of 400 frames``, ``1.2 of 3.4 GB``.
    """

    counts: str

    def __new__(cls, done: float, total: float, unit: str) -> Self:
        """Make one.

        Args:
            done: How much is done.
            total: How much there is.
            unit: ``"bytes"``, or what is counted, in the singular: ``"frame"``.
        """
        share = super().__new__(cls, min(1.0, done / total) if total > 0 else 1.0)
        if unit == "bytes":
            power = _power(total)
            share.counts = f"{done / 1000**power:.3g} of {size(total)}"
        else:
            share.counts = f"{round(done):,} of {count(round(total), unit)}"
        return share

    def within(self, first: float, last: float) -> ShareDone:
        """Return the same, as a part of more work, which begins and ends at these shares."""
        inside = super().__new__(type(self), first + self * (last - first))
        inside.counts = self.counts
        return inside


def time_left(share: float, seconds: float) -> str:
    """Return ``12 s left``, after so many seconds; empty where there is nothing to tell it by."""
    if seconds < 1 or not 0 < share < 1:
        return ""
    left = seconds * (1 / share - 1)
    return f"{duration(left) if left >= 60 else f'{left:.0f} s'} left"
