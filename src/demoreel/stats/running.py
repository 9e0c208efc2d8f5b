"""Statistics of frames from histograms of levels, which merge exactly.

Whatever the order and the pieces, merged counts are those of all frames at once. Averages of
averages and quantiles of quantiles appear only in ``combine_stats``, for statistics whose values
are gone. ``stats/columns.py`` has the statistics of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from demoreel.errors import ArgumentError
from demoreel.model.stats import QUANTILES

_BYTE_LEVELS = 256
_DEPTH_LEVELS = 65536


class LevelCounts:
    """Statistics of a camera's frames, by channel, from exact counts of every level.

    Adding a 480x640 frame costs 0.6 ms. Results have the shape (channels, 1, 1); frames of
    bytes are scaled to 0..1 and depth stays in its unit, as LeRobot keeps them.
    """

    def __init__(self) -> None:
        self.count = 0
        self._scale = 1.0
        self._histogram: np.ndarray | None = None

    def add(self, frame: np.ndarray) -> None:
        """Take one frame: height x width x channels of uint8, or height x width of uint16 depth."""
        if frame.dtype not in (np.uint8, np.uint16):
            raise ArgumentError(f"Frames are uint8 or uint16, not {frame.dtype}.")
        levels = _BYTE_LEVELS if frame.dtype == np.uint8 else _DEPTH_LEVELS
        self._take(_counted(frame, levels), 1, _scale(levels))

    @classmethod
    def counted(cls, histogram: np.ndarray, count: int) -> LevelCounts:
        """Return the statistics of ``count`` frames whose ``histogram()`` this is."""
        frames = cls()
        if count:
            frames._take(np.asarray(histogram, np.int64), count, _scale(histogram.shape[1]))
        return frames

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels and levels; nothing before the first frame."""
        return () if self._histogram is None else self._histogram.shape

    def histogram(self) -> np.ndarray:
        """Return how many pixels have each level: channels x levels, a copy."""
        if self._histogram is None:
            raise ArgumentError("There are no statistics of no frames.")
        return self._histogram.copy()

    def merge(self, other: LevelCounts) -> None:
        """Take all that ``other`` has taken."""
        if other._histogram is not None:
            self._take(other._histogram, other.count, other._scale)

    def finish(self) -> dict[str, np.ndarray]:
        """Return the statistics, in float64."""
        return finish_alike([self])[0]

    def _take(self, histogram: np.ndarray, count: int, scale: float) -> None:
        if self._histogram is None:
            self._histogram, self._scale = np.zeros_like(histogram), scale
        if self._histogram.shape != histogram.shape:
            raise ArgumentError(
                f"Frames of {len(histogram)} channels and {histogram.shape[1]} levels do not add "
                f"to those of {len(self._histogram)} and {self._histogram.shape[1]}."
            )
        self._histogram += histogram
        self.count += count


def finish_alike(every: Sequence[LevelCounts]) -> list[dict[str, np.ndarray]]:
    """Return what ``finish`` says of each, at little more than the cost of one of them."""
    histograms = [part._histogram for part in every if part._histogram is not None]
    if not histograms or len(histograms) < len(every):
        raise ArgumentError("There are no statistics of no frames.")
    if len({histogram.shape for histogram in histograms}) > 1:
        raise ArgumentError("These frames differ in channels or levels.")
    channels, levels = histograms[0].shape
    by_channel = stats_of_levels(np.concatenate(histograms), np.arange(levels) / every[0]._scale)
    shaped = {name: v.reshape(-1, channels, 1, 1) for name, v in by_channel.items()}
    return [
        {name: values[place].copy() for name, values in shaped.items()}
        | {"count": np.array([part.count])}
        for place, part in enumerate(every)
    ]


def _scale(levels: int) -> float:
    return 255.0 if levels == _BYTE_LEVELS else 1.0


def _counted(frame: np.ndarray, levels: int) -> np.ndarray:
    """Return how many pixels of each channel have each level."""
    if frame.ndim == 3 and frame.shape[2] == 3 and levels == _BYTE_LEVELS and frame.size:
        # Pillow counts without widening every byte to eight: half the time of bincount.
        from PIL import Image

        return np.array(Image.fromarray(frame).histogram(), np.int64).reshape(3, levels)
    planes = frame[..., None] if frame.ndim == 2 else frame
    return np.array(
        [np.bincount(plane.reshape(-1), minlength=levels) for plane in np.moveaxis(planes, -1, 0)]
    )


def stats_of_levels(counts: np.ndarray, values: np.ndarray) -> dict[str, np.ndarray]:
    """Return the statistics of values that were counted, for each row of counts, in float64.

    They are those that numpy gives of all the values at once, to rounding; quantiles exactly.

    Args:
        counts: How often each value occurs: rows x values, no row empty.
        values: The values, ascending.
    """
    total = counts.sum(axis=1)
    up_to = np.cumsum(counts, axis=1)
    mean = (counts * values).sum(axis=1) / total
    spread = (counts * (values - mean[:, None]) ** 2).sum(axis=1)
    first = (counts > 0).argmax(axis=1)
    last = counts.shape[1] - 1 - (counts[:, ::-1] > 0).argmax(axis=1)
    found = {
        "min": values[first],
        "max": values[last],
        "mean": mean,
        "std": np.sqrt(spread / total),
    }
    for name, share in QUANTILES.items():
        place = share * (total - 1)
        below, above = (
            values[(up_to <= ranks[:, None]).sum(axis=1)]
            for ranks in (np.floor(place), np.ceil(place))
        )
        found[name] = below + (above - below) * (place - np.floor(place))
    return found
