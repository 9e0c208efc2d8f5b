"""``demoreel.finish``: completes the commits and the pending episodes of killed writers."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from demoreel.errors import (
    DemoreelError,
    DiskError,
    VideoError,
    refuse_shortage,
)
from demoreel.layouts.appending import disk_error, open_appender
from demoreel.layouts.detect import not_a_dataset
from demoreel.layouts.meta import read_info
from demoreel.layouts.pending import Damaged, find_waiting
from demoreel.layouts.persisted import PersistedEpisode
from demoreel.layouts.persisted_files import MANIFEST, WORKDIR
from demoreel.model import Info
from demoreel.record.commit import Committer
from demoreel.record.encoding.persist import clear_unsaved, finish_videos, forget
from demoreel.record.frames import EpisodeBuffer
from demoreel.stats.running import LevelCounts
from demoreel.storage.amounts import ShareDone
from demoreel.storage.commit.consistent import finish_commit
from demoreel.storage.commit.files import says_no_room
from demoreel.storage.commit.journal import is_pending
from demoreel.storage.commit.replace import finish_replacing, wait_for_replacing
from demoreel.storage.commit.writer_lock import is_held

log = logging.getLogger(__name__)

Report = Callable[[float], None]


def clear_workdir(workdir: Path) -> None:
    """Remove the folder of a recording that has ended, but for episodes that are saved in it."""
    try:
        if clear_unsaved(workdir):
            return  # what is there is an episode
    except OSError as error:  # all that was recorded is safe; the next writer clears it
        log.warning("the folder of the recording stays as it is: %s", error)
        return
    shutil.rmtree(workdir, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class FinishedEpisode:
    """A saved episode that was committed.

    Attributes:
        episode_index: The number that it has in the dataset.
        frames: Its frames.
    """

    episode_index: int
    frames: int


@dataclass(frozen=True, slots=True)
class Finished:
    """What ``demoreel.finish`` did, or with ``dry_run`` would do.

    Attributes:
        path: The dataset's folder.
        dry_run: Whether nothing was done.
        completed: Whether a writer had died in the middle of a commit, which is whole now.
        episodes: The saved episodes that were encoded and committed.
        kept: Those that could not be; nothing of them is deleted.
    """

    path: Path
    dry_run: bool
    completed: bool
    episodes: tuple[FinishedEpisode, ...]
    kept: tuple[Damaged, ...]


def finish(
    path: str | os.PathLike[str], *, dry_run: bool = False, report: Report | None = None
) -> Finished:
    """Put in place all that writers which were killed have left of a dataset.

    A commit that was interrupted is completed. Episodes that were saved, but not yet encoded, are
    encoded with the settings that they were recorded with and committed, in the order in which they
    were saved. One that cannot be is kept as it is and reported; the others are committed all the
    same. Reading does none of this: it shows saved episodes as they are. ``demoreel.resume`` does.

    Cost: decodes the frames that were encoded, so that nothing damaged is committed, encodes the
    others, and reads the columns of numbers once; nothing where nothing waits.

    Args:
        path: The dataset's folder.
        dry_run: Only say what would be done. Nothing is written.
        report: Called with the share that is done.

    Returns:
        What was done.

    Raises:
        DatasetNotFoundError: There is no dataset.
        DatasetBusyError: A recording is going on, which does this itself.
        MetadataError: The dataset is such that no episode can follow, or the record of a commit is
            damaged.
        DiskFullError: There is no room; what was not committed is as it was.
        DiskError: The disk fails otherwise; likewise.
    """
    root = Path(path)
    if dry_run:
        return _would_finish(root)
    completed = finish_replacing(root)
    completed = finish_commit(root) or completed
    waiting = find_waiting(root, _info(root))
    episodes: list[FinishedEpisode] = []
    kept = list(waiting.damaged)
    if waiting.episodes:
        appender = open_appender(root)
        try:
            committer = Committer(appender, root=root)
            episodes, kept = commit_pending(root, committer, report=report)
            clear_workdir(root / WORKDIR)
            if episodes:
                committer.make_exact()
        finally:
            appender.close()
    if report is not None:
        report(1.0)
    return Finished(root, False, completed, tuple(episodes), tuple(kept))


def _info(root: Path) -> Info:
    path = root / "meta" / "info.json"
    if not path.is_file():
        raise not_a_dataset(root)
    return read_info(path)


def _would_finish(root: Path) -> Finished:
    if not root.exists():
        wait_for_replacing(root)
    info = _info(root)
    waiting = find_waiting(root, info)
    episodes: list[FinishedEpisode] = []
    kept = list(waiting.damaged)
    for persisted in waiting.episodes:
        try:
            persisted.verify()
        except (DemoreelError, OSError) as error:
            refuse_shortage(error)
            kept.append(Damaged.by(persisted.manifest.folder, error))
        else:
            number = info.total_episodes + len(episodes)
            episodes.append(FinishedEpisode(number, len(persisted)))
    completes = is_pending(root) and not is_held(root)
    return Finished(root, True, completes, tuple(episodes), tuple(kept))


def commit_pending(
    root: Path, committer: Committer, *, report: Report | None = None
) -> tuple[list[FinishedEpisode], list[Damaged]]:
    """Encode and commit what was persisted; the caller holds the dataset.

    Returns:
        What was committed, and what could not be and is kept.
    """
    clear_unsaved(root / WORKDIR)
    waiting = find_waiting(root, committer.info)
    kept = list(waiting.damaged)
    episodes: list[FinishedEpisode] = []
    progress = _FrameCounter(waiting.episodes, report)
    for persisted in waiting.episodes:
        try:
            number = _commit_persisted(committer, persisted, progress)
        except (DemoreelError, OSError) as error:
            refuse_shortage(error)
            if isinstance(error, DiskError) or says_no_room(error):
                # Not the episode's fault: it would only change places with those behind it.
                raise _stopped(root, error, len(episodes), len(waiting.episodes)) from error
            kept.append(Damaged.by(persisted.manifest.folder, error))
        else:
            episodes.append(FinishedEpisode(number, len(persisted)))
    return episodes, kept


def _commit_persisted(
    committer: Committer, persisted: PersistedEpisode, progress: _FrameCounter
) -> int:
    manifest = persisted.manifest
    counts = _counts(persisted, committer.info)
    persisted.verify()
    buffer = EpisodeBuffer(
        persisted.tasks, persisted.columns, persisted.images, counts, persisted.times
    )
    videos = finish_videos(manifest, encoded=progress.step)
    number = committer.commit_persisted(buffer, videos, manifest.folder)
    rows = manifest.rows
    forget(manifest.folder)
    rows.unlink(missing_ok=True)  # older recorders kept them beside the folder
    return number


class _FrameCounter:
    """Counts the frames that were encoded, in all threads."""

    def __init__(self, episodes: tuple[PersistedEpisode, ...], report: Report | None) -> None:
        cameras = [camera for persisted in episodes for camera in persisted.manifest.cameras]
        self._total = max(1, sum(len(camera.places) for camera in cameras))
        self._report = report
        self._done = 0
        self._lock = threading.Lock()

    def step(self) -> None:
        with self._lock:
            self._done += 1
            if self._report is not None:
                self._report(ShareDone(self._done, self._total, "frame"))


def _stopped(root: Path, error: Exception, done: int, total: int) -> DiskError:
    if isinstance(error, DiskError) and is_pending(root):
        return error  # it says what became of the commit
    what = f"{done} of {total} saved episodes were committed; the others are as they were."
    return disk_error(error, root, what=what)


def _counts(persisted: PersistedEpisode, info: Info) -> dict[str, LevelCounts]:
    """Return the levels of image cameras that were noted, checked: statistics follow from them."""
    noted = persisted.manifest.note.get("counts")
    if not isinstance(noted, dict) or set(noted) != set(info.image_keys):
        raise VideoError(
            "A saved episode does not count the levels of its images.",
            file=persisted.manifest.folder / MANIFEST,
        )
    counts = {}
    for key, said in noted.items():
        shape = (1, 65536) if info.features[key].is_depth else (3, 256)
        try:
            levels = np.array(said["levels"], np.int64)
            if levels.shape != shape or (levels < 0).any() or said["count"] != len(persisted):
                raise ValueError(f"{levels.shape}")
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise VideoError(
                f"A saved episode counts levels that cannot be ({error}).",
                camera=key,
                file=persisted.manifest.folder / MANIFEST,
            ) from error
        counts[key] = LevelCounts.counted(levels, len(persisted))
    return counts
