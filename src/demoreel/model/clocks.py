"""Names of capture clocks, and of the columns that hold their times."""

from __future__ import annotations

from collections.abc import Mapping

from demoreel.model.feature import Feature

CAPTURE_TIME = "capture_time_ns"
"""When a row was captured, in nanoseconds since 1970; a camera's own is ``capture_time_ns.KEY``."""

ROWS = ""
"""The clock of the rows, among those of the cameras, which are called by the cameras' keys."""

UNKNOWN = -1
"""The time of a frame whose camera gave none."""


def capture_key(clock: str) -> str:
    """Return the name of a clock's column."""
    return f"{CAPTURE_TIME}.{clock}" if clock else CAPTURE_TIME


def clock_of(key: str) -> str | None:
    """Return the clock whose column has this name; None if it is no such column."""
    if key == CAPTURE_TIME:
        return ROWS
    return key[len(CAPTURE_TIME) + 1 :] if key.startswith(f"{CAPTURE_TIME}.") else None


def clock_columns(features: Mapping[str, Feature]) -> dict[str, str]:
    """Return the columns that hold capture times, by clock."""
    found = {}
    for key, feature in features.items():
        clock = clock_of(key)
        if clock is not None and feature.dtype == "int64" and not feature.item_shape:
            found[clock] = key
    return found
