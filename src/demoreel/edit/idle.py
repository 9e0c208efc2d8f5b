"""Where in an episode something moves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from demoreel.edit.clips import Clip
from demoreel.errors import ArgumentError, UnknownKeyError, nearest
from demoreel.layouts.base import Reader


def moving_part(clip: Clip, reader: Reader, key: str, *, threshold: float, margin: float) -> Clip:
    """Return a clip without the stretches at its ends in which a feature stands still.

    A clip in which nothing moves at all stays as it is: that is not for a threshold to decide.

    Raises:
        UnknownKeyError: There is no such feature.
        ArgumentError: It is not a column of numbers, or a bound makes no sense.
    """
    features = reader.info.features
    if key not in features:
        raise UnknownKeyError(f"There is no feature {key!r}.", hint=nearest(key, features))
    if not features[key].is_numeric:
        raise ArgumentError(f"{key!r} is not a column of numbers.")
    if not threshold > 0 or margin < 0:
        raise ArgumentError("threshold must be positive, and margin not negative.")
    position = reader.episodes.position_of(clip.episode)
    first = int(reader.episodes.start[position])
    rows = np.arange(first + clip.start, first + clip.stop)
    values = np.asarray(reader.rows(rows, [key])[key], np.float64).reshape(len(rows), -1)
    spread = values.max(axis=0) - values.min(axis=0)
    steps = np.abs(np.diff(values, axis=0))
    moves = np.flatnonzero((steps > threshold * np.where(spread > 0, spread, np.inf)).any(axis=1))
    if len(moves) == 0:
        return clip
    extra = round(margin * reader.info.fps)
    begin = max(clip.start, clip.start + int(moves[0]) - extra)
    end = min(clip.stop, clip.start + int(moves[-1]) + 2 + extra)
    return replace(clip, start=begin, stop=end)
