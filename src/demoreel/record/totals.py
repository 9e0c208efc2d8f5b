"""Statistics of the whole dataset while it grows, at a cost that does not grow with it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from demoreel.edit.statistics.believed import believed
from demoreel.edit.statistics.carried import carried_from
from demoreel.edit.statistics.passes import all_numbers
from demoreel.layouts.base import Reader
from demoreel.layouts.histograms import histogram_files
from demoreel.model import Feature, Stats
from demoreel.stats.levels import cameras_stats
from demoreel.stats.running import Pictures, combine


class Totals:
    """The statistics of all episodes so far.

    Counts, extremes, means and standard deviations are exact. Pictures that were all recorded here
    are exact in their quantiles too: their levels are counted. Quantiles of numbers are the average
    of the episodes', weighted by their frames, as LeRobot keeps them, until ``finalize`` reads the
    columns once and makes them exact.

    Args:
        before: The statistics of the episodes that were there already; None where there were none.
        counted: The levels of all of their pictures; None where not all were counted.
    """

    def __init__(self, before: Stats | None, counted: Mapping[str, Pictures] | None = None) -> None:
        self._total = before
        self._counted: dict[str, Pictures] | None = {} if before is None else None
        if counted is not None:
            self._counted = dict(counted)

    def with_numbers(self, numbers: Stats, cameras: Collection[str]) -> Stats:
        """Return the statistics of all that is no camera, with one more episode."""
        before = {key: kinds for key, kinds in (self._total or {}).items() if key not in cameras}
        return combine([before, numbers]) if before else numbers

    def with_pictures(
        self, pictures: Mapping[str, Pictures], features: Mapping[str, Feature]
    ) -> tuple[Stats, Stats]:
        """Return the statistics of the cameras: of one more episode, and of all with it.

        Args:
            pictures: The episode's counts.
            features: The dataset's features.
        """
        if self._counted is None:
            found = cameras_stats({key: [counts] for key, counts in pictures.items()}, features)
            stats = {key: kinds for key, (kinds,) in found.items()}
            before = {key: kinds for key, kinds in (self._total or {}).items() if key in stats}
            return stats, combine([before, stats])
        both = {key: [counts, self._merged(key, counts)] for key, counts in pictures.items()}
        found = cameras_stats(both, features)
        return {key: one for key, (one, _) in found.items()}, {k: a for k, (_, a) in found.items()}

    def _merged(self, camera: str, counts: Pictures) -> Pictures:
        merged = Pictures()
        for part in ((self._counted or {}).get(camera), counts):
            if part is not None:
                merged.merge(part)
        return merged

    def keep(self, total: Stats, pictures: Mapping[str, Pictures]) -> None:
        """Remember that the episode is saved, and what the statistics are now."""
        self._total = total
        if self._counted is not None:
            for key, counts in pictures.items():
                self._counted.setdefault(key, Pictures()).merge(counts)

    @property
    def stats(self) -> Stats | None:
        """The statistics of all that was kept."""
        return self._total

    def approximate(self, cameras: Collection[str]) -> dict[str, list[str]]:
        """Return which statistics of these cameras are approximate: all, or none."""
        if self._counted is not None or self._total is None:
            return {}
        return {key: list(kinds) for key, kinds in self._total.items() if key in cameras}


def counted_before(reader: Reader) -> dict[str, Pictures] | None:
    """Return the levels of all pictures that a dataset has; None where not all were counted.

    Cost: reads the histograms once; nothing but a look where there are none.
    """
    cameras = reader.info.cameras
    if not histogram_files(reader.meta):
        return None if cameras else {}
    found = {key: Pictures() for key in cameras}
    for counted in believed(reader, carried_from(reader, list(cameras)).pictures):
        histogram = counted.histogram
        found[histogram.camera].merge(Pictures.counted(histogram.counts, histogram.frames))
    frames = reader.episodes.total_frames
    return found if all(pictures.count == frames for pictures in found.values()) else None


def with_exact_numbers(stats: Stats, reader: Reader) -> Stats:
    """Return statistics whose numbers are those of all rows, quantiles too.

    Cost: reads the columns of numbers two to four times; memory for some 100,000 rows.
    """
    exact = all_numbers(reader, each_episode=False).whole
    return {key: exact.get(key, kinds) for key, kinds in stats.items()}
