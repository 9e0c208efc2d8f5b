"""From the parts of an episode to a commit: rows, pictures, videos and their statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from demoreel.errors import FrameMismatchError
from demoreel.layouts.appending import Appender, EpisodeDraft
from demoreel.layouts.detect import open_reader
from demoreel.layouts.writing import ProbedVideo
from demoreel.media.picture_encode import PictureCodec, encode_picture
from demoreel.model import DEFAULT_FEATURES, Feature, Info, Stats
from demoreel.record.encoding import FinishedVideo
from demoreel.record.totals import Totals, counted_before, with_exact_numbers
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

    def rehearse(self, task: str) -> None:
        """Have the appender rehearse an episode of this task; nothing is committed.

        Raises:
            DiskFullError: There is no room even for that.
        """
        tasks, info = [task] * 2, self.info
        taken = Taken(tasks, *_nothing(info, len(tasks)))
        numbers = self.count_numbers(taken)
        filmed = {key: _black(info.features[key], len(tasks)) for key in info.video_keys}
        counts = {**taken.counts, **filmed}
        seen, whole = self._totals.with_pictures(counts, info.features)
        stats = {**numbers.episode, **seen}
        histograms = {key: counted.histogram() for key, counted in counts.items()}
        draft = EpisodeDraft(taken.columns, tasks, dict, taken.images, stats, histograms)
        self._appender.rehearse(draft, total_stats={**numbers.total, **whole})

    def commit(
        self,
        taken: Taken,
        filmed: Mapping[str, Pictures],
        videos: Callable[[], Mapping[str, FinishedVideo]],
        *,
        numbers: NumberStats | None = None,
    ) -> int:
        """Commit an episode and return its number.

        Args:
            taken: The episode.
            filmed: The counts of its videos' pictures.
            videos: Gives the videos; called late, so that it may wait for them.
            numbers: What ``count_numbers`` said of it; without, it is asked here.

        Raises:
            FrameMismatchError: A camera does not hold as many frames as there are rows.
            DiskFullError: There is no room; nothing was committed, and this may be tried again.
        """
        counts = {**taken.counts, **filmed}
        images = {key: len(pictures) for key, pictures in taken.images.items()}
        self._refuse_other_lengths(taken, images)

        def finished() -> dict[str, ProbedVideo]:
            found = videos()
            self._refuse_other_lengths(taken, {key: v.frames for key, v in found.items()})
            self._refuse_other_counts(filmed, found)
            return {k: ProbedVideo(v.path, v.signature, v.frames) for k, v in found.items()}

        numbers = numbers or self.count_numbers(taken)
        seen, whole = self._totals.with_pictures(counts, self.info.features)
        histograms = {key: counted.histogram() for key, counted in counts.items()}
        stats = {**numbers.episode, **seen}
        draft = EpisodeDraft(taken.columns, taken.tasks, finished, taken.images, stats, histograms)
        total = {**numbers.total, **whole}
        index = self._appender.append(draft, total_stats=total)
        self._totals.keep(total, counts)
        self.saved += 1
        return index

    def _refuse_other_lengths(self, taken: Taken, frames: Mapping[str, int]) -> None:
        for key, count in frames.items():
            if count != len(taken.tasks):
                raise FrameMismatchError(
                    f"The camera has {count} frames; the episode has {len(taken.tasks)} rows.",
                    hint="the episode is not saved; discard it and record it again",
                    dataset=self._root,
                    episode=self._appender.episodes,
                    camera=key,
                )

    def _refuse_other_counts(
        self, filmed: Mapping[str, Pictures], videos: Mapping[str, FinishedVideo]
    ) -> None:
        """The statistics were made of what was counted; a video must hold those very pictures."""
        for key, video in videos.items():
            if not np.array_equal(filmed[key].histogram(), video.stats.histogram()):
                raise FrameMismatchError(
                    "The camera's video holds other pictures than were counted.",
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


def _nothing(
    info: Info, frames: int
) -> tuple[dict[str, Any], dict[str, list[bytes]], dict[str, Pictures]]:
    """Return columns, pictures and their counts of an episode where nothing is to be seen."""
    columns: dict[str, Any] = {}
    for key, feature in info.features.items():
        if feature.is_numeric and key not in DEFAULT_FEATURES:
            columns[key] = np.zeros((frames, *feature.item_shape), feature.numpy_dtype)
        elif feature.is_string or feature.is_language:
            columns[key] = ["" if feature.is_string else []] * frames
    images, counts = {}, {}
    for key in info.image_keys:
        height, width, _ = info.features[key].picture_shape
        depth = info.features[key].is_depth
        shape, dtype = ((height, width), np.uint16) if depth else ((height, width, 3), np.uint8)
        images[key] = [encode_picture(np.zeros(shape, dtype), PictureCodec("png"))] * frames
        counts[key] = _black(info.features[key], frames)
    return columns, images, counts


def _black(feature: Feature, frames: int) -> Pictures:
    height, width, _ = feature.picture_shape
    counts = np.zeros((1, 65536) if feature.is_depth else (3, 256), np.int64)
    counts[:, 0] = frames * height * width
    return Pictures.counted(counts, frames)
