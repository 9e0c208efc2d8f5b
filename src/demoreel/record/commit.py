"""From the parts of an episode to a commit: rows, pictures, videos and their statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from demoreel.errors import FrameMismatchError
from demoreel.layouts.appending import Appender, EpisodeDraft
from demoreel.layouts.detect import open_reader
from demoreel.model import Info, Stats
from demoreel.record.encoding import FinishedVideo
from demoreel.record.totals import Totals, counted_before, with_exact_numbers
from demoreel.stats.levels import camera_stats
from demoreel.stats.running import Pictures, episode_stats, finish


@dataclass(frozen=True, slots=True)
class Taken:
    """What is known of an episode when its last frame was added; its videos may still be encoded.

    Attributes:
        tasks: The task of every row.
        columns: Every column that is no camera.
        images: The encoded pictures of image cameras.
        counts: Their statistics.
    """

    tasks: list[str]
    columns: dict[str, Any]
    images: dict[str, list[bytes]] = field(default_factory=dict)
    counts: Mapping[str, Pictures] = field(default_factory=dict)


class NumberStats(NamedTuple):
    """Statistics of all that is no camera: of an episode, and of the dataset with it."""

    episode: Stats
    total: Stats


class Committer:
    """Commits episodes, and keeps the statistics of them all.

    For one thread at a time.

    Args:
        appender: The dataset.
        root: Its folder, for errors.
    """

    def __init__(self, appender: Appender, *, root: Path) -> None:
        self._appender = appender
        self._root = root
        self._totals = Totals(None)
        if appender.episodes:
            self._totals = Totals(appender.stats, counted_before(open_reader(root)))
        self.saved = 0

    @property
    def info(self) -> Info:
        """What the dataset is."""
        return self._appender.info

    @property
    def episodes(self) -> int:
        """Episodes that are committed."""
        return self._appender.episodes

    def count_numbers(self, taken: Taken) -> NumberStats:
        """Return the statistics of an episode's numbers; its videos may still be encoded.

        They are good for the next ``commit`` only.
        """
        made = self._appender.default_columns(taken.tasks)
        episode = finish(episode_stats(self.info.features, {**taken.columns, **made}))
        return NumberStats(episode, self._totals.with_numbers(episode, self.info.cameras))

    def commit(
        self,
        taken: Taken,
        videos: Mapping[str, FinishedVideo],
        *,
        numbers: NumberStats | None = None,
    ) -> int:
        """Commit an episode and return its number.

        Args:
            taken: The episode.
            videos: Its videos.
            numbers: What ``count_numbers`` said of it; without, it is asked here.

        Raises:
            FrameMismatchError: A camera does not hold as many frames as there are rows.
            DiskFullError: There is no room; nothing was committed, and this may be tried again.
        """
        self._refuse_other_lengths(taken, videos)
        numbers = numbers or self.count_numbers(taken)
        features = self.info.features
        counts = {**taken.counts, **{key: video.stats for key, video in videos.items()}}
        seen = {key: camera_stats(counted, features[key]) for key, counted in counts.items()}
        paths = {key: video.path for key, video in videos.items()}
        histograms = {key: counted.histogram() for key, counted in counts.items()}
        stats = {**numbers.episode, **seen}
        draft = EpisodeDraft(taken.columns, taken.tasks, paths, taken.images, stats, histograms)
        total = {**numbers.total, **self._totals.with_pictures(seen, counts, features)}
        index = self._appender.append(draft, total_stats=total)
        self._totals.keep(total, counts)
        self.saved += 1
        return index

    def _refuse_other_lengths(self, taken: Taken, videos: Mapping[str, FinishedVideo]) -> None:
        frames = {key: video.frames for key, video in videos.items()}
        frames |= {key: len(each) for key, each in taken.images.items()}
        for key, count in frames.items():
            if count != len(taken.tasks):
                raise FrameMismatchError(
                    f"The camera has {count} frames; the episode has {len(taken.tasks)} rows.",
                    hint="the episode is not saved; discard it and record it again",
                    dataset=self._root,
                    episode=self._appender.episodes,
                    camera=key,
                )

    def make_exact(self) -> None:
        """Replace quantiles that were merged by those of all rows; reads the numbers once."""
        stats = self._totals.stats
        if self.saved and stats is not None:
            self._appender.replace_stats(
                with_exact_numbers(stats, open_reader(self._root)),
                approximate=self._totals.approximate(self.info.cameras),
            )
