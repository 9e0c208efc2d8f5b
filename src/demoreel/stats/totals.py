"""Statistics of the whole dataset while it grows, at a cost that does not grow with it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from demoreel.layouts.base import Reader
from demoreel.layouts.beside import histogram_files
from demoreel.model import Feature, Stats
from demoreel.model.stats import extend_stats
from demoreel.stats.inherited import inherited_from
from demoreel.stats.levels import cameras_stats, is_in_metres, validated_histograms
from demoreel.stats.rows import all_numbers
from demoreel.stats.running import LevelCounts


class Totals:
    """The statistics of all episodes so far.

    Counts, extremes, means and standard deviations are exact. Frames that were all recorded here
    are exact in their quantiles too: their levels are counted. Quantiles of numbers are the average
    of the episodes', weighted by their frames, as LeRobot keeps them, until ``finalize`` reads the
    columns once and makes them exact.

    Args:
        before: The statistics of the episodes that were there already; None where there were none.
        counted: The levels of all of their frames; None where not all were counted.
    """

    def __init__(
        self, before: Stats | None, counted: Mapping[str, LevelCounts] | None = None
    ) -> None:
        self._total = before
        self._counted: dict[str, LevelCounts] | None = {} if before is None else None
        if counted is not None:
            self._counted = dict(counted)

    def with_numbers(self, numbers: Stats, cameras: Collection[str]) -> Stats:
        """Return the statistics of all that is no camera, with one more episode."""
        before = {key: kinds for key, kinds in (self._total or {}).items() if key not in cameras}
        return extend_stats(before, numbers) if before else numbers

    def with_frames(
        self, counted: Mapping[str, LevelCounts], features: Mapping[str, Feature]
    ) -> tuple[Stats, Stats]:
        """Return the statistics of the cameras: of one more episode, and of all with it.

        Args:
            counted: The episode's counts.
            features: The dataset's features.
        """
        if self._counted is None:
            found = cameras_stats({key: [counts] for key, counts in counted.items()}, features)
            stats = {key: kinds for key, (kinds,) in found.items()}
            before = {key: kinds for key, kinds in (self._total or {}).items() if key in stats}
            return stats, extend_stats(before, stats)
        both = {key: [counts, self._merged(key, counts)] for key, counts in counted.items()}
        found = cameras_stats(both, features)
        return {key: one for key, (one, _) in found.items()}, {k: a for k, (_, a) in found.items()}

    def _merged(self, camera: str, counts: LevelCounts) -> LevelCounts:
        merged = LevelCounts()
        for part in ((self._counted or {}).get(camera), counts):
            if part is not None:
                merged.merge(part)
        return merged

    def keep(self, total: Stats, counted: Mapping[str, LevelCounts]) -> None:
        """Remember that the episode is saved, and what the statistics are now."""
        self._total = total
        if self._counted is not None:
            for key, counts in counted.items():
                self._counted.setdefault(key, LevelCounts()).merge(counts)

    @property
    def stats(self) -> Stats | None:
        """The statistics of all that was kept."""
        return self._total

    def approximate(self, features: Mapping[str, Feature]) -> dict[str, list[str]]:
        """Return which statistics of cameras are approximate.

        All, where not all frames were counted; of depths in metres, those that are not counts.
        """
        found = {}
        for key, kinds in (self._total or {}).items():
            if key in features and features[key].is_camera:
                rough = list(kinds) if self._counted is None else []
                if is_in_metres(features[key]):
                    rough = [kind for kind in kinds if kind != "count"]
                if rough:
                    found[key] = rough
        return found


def counted_before(reader: Reader) -> dict[str, LevelCounts] | None:
    """Return the levels of all frames that a dataset has; None where not all were counted.

    Cost: reads the histograms once; nothing but a look where there are none.
    """
    cameras = reader.info.cameras
    if not histogram_files(reader.meta):
        return None if cameras else {}
    found = {key: LevelCounts() for key in cameras}
    stated = inherited_from(reader, list(cameras)).cameras
    for counted in validated_histograms(reader, stated):
        histogram = counted.histogram
        found[histogram.camera].merge(LevelCounts.counted(histogram.counts, histogram.frames))
    frames = reader.episodes.total_frames
    return found if all(counts.count == frames for counts in found.values()) else None


def with_exact_numbers(stats: Stats, reader: Reader) -> Stats:
    """Return statistics whose numbers are those of all rows, quantiles too.

    Cost: reads the columns of numbers a few times; memory for some 100,000 rows.
    """
    exact = all_numbers(reader, each_episode=False).whole
    return {key: exact.get(key, kinds) for key, kinds in stats.items()}
