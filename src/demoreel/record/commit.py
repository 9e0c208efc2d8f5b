"""Commits recorded episodes, at once or deferred, and merges small files.

A codec that is too slow for the cameras is honoured: the episode's frames and rows are forced to
disk, ``save_episode`` returns, and the episode is committed when it is encoded, in order, while the
next one is recorded. Readers see it meanwhile (``layouts/pending.py``). If everything is killed,
``finish`` or the next recorder encodes and commits it.

An episode leaves its folder by the very commit that adds it to the dataset: the journal deletes its
manifest among the steps of that commit. So a kill at any instant neither loses nor repeats it, and
whatever else was appended meanwhile, it gets the next number.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from demoreel.errors import DiskError, FrameMismatchError
from demoreel.layouts.appending import Appender
from demoreel.layouts.base import Reader
from demoreel.layouts.beside import histogram_files
from demoreel.layouts.detect import open_reader
from demoreel.layouts.persisted_files import MANIFEST, ROWS
from demoreel.layouts.spans import require_frames
from demoreel.layouts.writing import EpisodeDraft, ProbedVideo
from demoreel.model import Feature, Info, Stats
from demoreel.model.stats import extend_stats
from demoreel.record.encoding.cameras import EpisodeVideos
from demoreel.record.encoding.persist import forget
from demoreel.record.encoding.plan import FinishedVideo
from demoreel.record.frames import EpisodeBuffer
from demoreel.stats.columns import number_stats
from demoreel.stats.inherited import inherited_from
from demoreel.stats.levels import cameras_stats, counted_levels, is_in_metres
from demoreel.stats.rows import all_numbers
from demoreel.stats.running import LevelCounts

log = logging.getLogger(__name__)
_RETRY_S = 1.0
_SOON_S = 0.01  # the frame that follows on an episode goes first


class CountedNumbers(NamedTuple):
    """Statistics of all that is no camera: of an episode, and of the dataset with it."""

    episode: Stats
    total: Stats


class Committer:
    """Commits episodes, and keeps the statistics of them all.

    For one thread at a time.
    """

    def __init__(self, appender: Appender, *, root: Path) -> None:
        pa.array([""])  # its first array imports pandas: half a second, here and not in a save
        self._appender = appender
        self.root = root
        self._totals = Totals(None)
        if appender.episodes:
            committed = open_reader(root, pending=False)
            self._totals = Totals(appender.stats, counted_before(committed))
        self.saved = 0

    @property
    def info(self) -> Info:
        """What the dataset is."""
        return self._appender.info

    @property
    def episodes(self) -> int:
        """Episodes that are committed."""
        return self._appender.episodes

    def count_numbers(self, episode: EpisodeBuffer) -> CountedNumbers:
        """Return the statistics of an episode's numbers; its videos may still be encoded.

        They are good for the next ``commit`` only.
        """
        made = self._appender.default_columns(episode.tasks)
        stats = number_stats(self.info.features, {**episode.columns, **made})
        return CountedNumbers(stats, self._totals.with_numbers(stats, self.info.cameras))

    def commit(
        self,
        episode: EpisodeBuffer,
        video_counts: Mapping[str, LevelCounts],
        videos: Callable[[], Mapping[str, FinishedVideo]],
        *,
        numbers: CountedNumbers | None = None,
        replaces: Sequence[str] = (),
    ) -> int:
        """Commit an episode and return its number.

        Args:
            episode: The episode.
            video_counts: The counts of its videos' images.
            videos: Gives the videos; called late, so that it may wait for them.
            numbers: What ``count_numbers`` said of it; without, it is asked here.
            replaces: Files that the commit deletes: see ``EpisodeDraft``.
        """
        counts = {**episode.counts, **video_counts}
        self._require_frames(episode, {key: len(made) for key, made in episode.images.items()})

        def finished() -> dict[str, ProbedVideo]:
            found = videos()
            self._require_frames(episode, {key: video.frames for key, video in found.items()})
            self._refuse_other_counts(video_counts, found)
            return {k: ProbedVideo(v.path, v.signature, v.frames) for k, v in found.items()}

        numbers = numbers or self.count_numbers(episode)
        seen, whole = self._totals.with_frames(counts, self.info.features)
        histograms = {key: counted.histogram() for key, counted in counts.items()}
        stats = {**numbers.episode, **seen}
        draft = EpisodeDraft(
            episode.columns,
            episode.tasks,
            finished,
            episode.images,
            stats,
            histograms,
            episode.times,
            replaces,
        )
        total = {**numbers.total, **whole}
        index = self._appender.append(draft, total_stats=total)
        self._totals.keep(total, counts)
        self.saved += 1
        return index

    def commit_persisted(
        self, episode: EpisodeBuffer, videos: Mapping[str, FinishedVideo], folder: Path
    ) -> int:
        """Commit an episode that is persisted in a folder, with its videos; return its number.

        The same commit deletes the manifest.
        """
        video_counts = {key: video.stats for key, video in videos.items()}
        manifest = (folder / MANIFEST).relative_to(self.root).as_posix()
        return self.commit(episode, video_counts, lambda: videos, replaces=(manifest,))

    def _require_frames(self, episode: EpisodeBuffer, frames: Mapping[str, int]) -> None:
        for key, count in frames.items():
            require_frames(
                count,
                len(episode.tasks),
                of="camera",
                hint="the episode is not saved; discard it and record it again",
                dataset=self.root,
                episode=self._appender.episodes,
                camera=key,
            )

    def _refuse_other_counts(
        self, video_counts: Mapping[str, LevelCounts], videos: Mapping[str, FinishedVideo]
    ) -> None:
        """The statistics were made of what was counted; a video must hold those very images."""
        for key, video in videos.items():
            if not np.array_equal(video_counts[key].histogram(), video.stats.histogram()):
                raise FrameMismatchError(
                    "The camera's video holds other images than were counted.",
                    hint="the episode is not saved; discard it and record it again",
                    dataset=self.root,
                    episode=self._appender.episodes,
                    camera=key,
                )

    def make_exact(self) -> None:
        """Replace quantiles that were merged by those of all rows; reads the numbers once."""
        stats = self._totals.stats
        self._appender.recover()
        if self.saved and stats is not None:
            self._appender.replace_stats(
                with_exact_numbers(stats, open_reader(self.root, pending=False)),
                approximate=self._totals.approximate(self.info.features),
            )


class DeferredCommits:
    """Commits persisted episodes, in order, in a thread.

    Args:
        committer: Commits them; nothing else may use it while episodes wait.
    """

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._queue: deque[tuple[EpisodeVideos, EpisodeBuffer]] = deque()
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    @property
    def waiting(self) -> int:
        """Episodes that are safe, but not committed yet."""
        return len(self._queue)

    def add(self, pending: EpisodeVideos, episode: EpisodeBuffer) -> None:
        """Add an episode that is persisted."""
        with self._changed:
            self._queue.append((pending, episode))
            if self._failure is None:
                self._start()

    def _start(self) -> None:
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._work, name="demoreel-commits", daemon=True)
        try:
            thread.start()
            self._thread = thread
        except RuntimeError as error:  # there is no thread to be had; the episodes are safe
            self._failure = error

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._queue:
                    self._thread = None
                    self._changed.notify_all()
                    return
                pending, episode = self._queue[0]
            try:
                self._committer.commit_persisted(episode, pending.wait(), pending.folder)
            except BaseException as error:  # the recording thread raises it
                pending.doubt()
                with self._changed:
                    self._failure, self._thread = error, None
                    self._changed.notify_all()
                return
            try:
                forget(pending.folder)
            except OSError as error:
                log.warning("files of an episode that is committed stay behind: %s", error)
            with self._changed:
                self._queue.popleft()
                self._changed.notify_all()

    def retry(self) -> None:
        """Try again to commit what could not be committed, if anything; waits for a moment."""
        with self._changed:
            if self._failure is None:
                return
            before, self._failure = len(self._queue), None
            self._start()
            self._changed.wait_for(
                lambda: len(self._queue) < before or self._failure is not None, _RETRY_S
            )
        self._raise_failure()

    def _raise_failure(self) -> None:
        failure = self._failure
        if isinstance(failure, DiskError):
            raise type(failure)(
                f"An episode that was saved waits to be committed. {failure.what}",
                hint=f"{failure.hint}; it is safe on disk meanwhile",
                **failure.where,
            ) from failure
        if failure is not None:
            raise failure

    def wait(self) -> None:
        """Wait until all are committed."""
        with self._changed:
            if self._failure is not None:
                self._failure = None
                self._start()
            self._changed.wait_for(lambda: not self._queue or self._failure is not None)
        self._raise_failure()


def persist_note(buffer: EpisodeBuffer, episode: int, rows_digest: str) -> dict[str, Any]:
    """Return what is kept with a persisted episode, so that it can be committed by another."""
    counts = {
        key: {"count": counted.count, "levels": counted.histogram().tolist()}
        for key, counted in buffer.counts.items()
    }
    return {"episode": episode, "rows": ROWS, "rows_digest": rows_digest, "counts": counts}


class BackgroundMerger:
    """Merges a dataset's small files in a thread, a step at a time, whenever there are enough.

    The thread only waits and commits; the copying is done in another process.

    A step that fails costs nothing but the merging: episodes are safe in their small files.
    """

    def __init__(self, appender: Appender) -> None:
        self._appender = appender
        self._wanted = threading.Event()
        self._over = False
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """Look, soon, whether there is something to merge."""
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="demoreel-merger", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the episode is saved; merging can wait
                log.warning("small files stay unmerged for now: %s", error)
                return
            self._thread = thread
        self._wanted.set()

    def _work(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            time.sleep(_SOON_S)
            try:
                while not self._over and self._appender.compact(aside=True):
                    pass
            except Exception as error:  # the thread continues: the next step may do well
                log.warning("small files stay unmerged for now: %s", error)
            if self._over:
                return

    def stop(self) -> None:
        """End after the step that is being done."""
        self._over = True
        if self._thread is not None:
            self._wanted.set()
            self._thread.join()
            self._thread = None


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
        """Return the statistics of the cameras: of one more episode, and of all with it."""
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
    stated = inherited_from(reader, list(cameras)).cameras
    found = counted_levels(reader, stated, np.arange(len(reader.episodes)))
    return found if found.keys() == set(cameras) else None


def with_exact_numbers(stats: Stats, reader: Reader) -> Stats:
    """Return statistics whose numbers are those of all rows, quantiles too.

    Cost: reads the columns of numbers a few times; memory for some 100,000 rows.
    """
    exact = all_numbers(reader, each_episode=False).whole
    return {key: exact.get(key, kinds) for key, kinds in stats.items()}
