"""Episodes that are safe on disk and wait for their encoders.

A codec that is too slow for the cameras is honoured: the episode's pictures and rows are forced to
disk, ``save_episode`` returns, and the episode is committed when it is encoded, in order, while the
next one is recorded. If everything is killed meanwhile, whoever opens the dataset next finishes it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from demoreel.errors import DatasetBusyError, DemoreelError
from demoreel.layouts.appending import open_appender
from demoreel.record.commit import Committer, Taken
from demoreel.record.encoding import FinishedVideo, PendingVideos, recover_pending
from demoreel.record.rows_file import read_rows, write_rows
from demoreel.stats.running import Pictures

WORKDIR = Path(".demoreel") / "encoding"
"""Where pictures wait, in the dataset's folder."""


class Behind:
    """Commits sealed episodes, in order, in a thread.

    Args:
        committer: Commits them; nobody else may use it while ``waiting``.
    """

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._queue: deque[tuple[PendingVideos, Taken, Path]] = deque()
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    @property
    def waiting(self) -> int:
        """Episodes that are safe, but not committed yet."""
        return len(self._queue)

    def add(self, pending: PendingVideos, taken: Taken, rows: Path) -> None:
        """Take an episode that is sealed."""
        with self._changed:
            self._queue.append((pending, taken, rows))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="demoreel-behind", daemon=True
                )
                self._thread.start()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._queue:
                    self._thread = None
                    self._changed.notify_all()
                    return
                pending, taken, rows = self._queue[0]
            try:
                commit_finished(self._committer, taken, pending.wait())
            except BaseException as error:  # whoever records must hear of it
                with self._changed:
                    self._failure, self._thread = error, None
                    self._changed.notify_all()
                return
            pending.forget()
            rows.unlink(missing_ok=True)
            with self._changed:
                self._queue.popleft()
                self._changed.notify_all()

    def raise_failure(self) -> None:
        """Raise what has kept an episode from being committed; it is still safe on disk."""
        if self._failure is not None:
            raise self._failure

    def wait(self) -> None:
        """Wait until all are committed.

        Raises:
            DemoreelError: One could not be; it is still safe on disk.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._queue or self._failure is not None)
        self.raise_failure()


def commit_finished(committer: Committer, taken: Taken, videos: Mapping[str, FinishedVideo]) -> int:
    """Commit an episode whose videos are there; return its number."""
    filmed = {key: video.stats for key, video in videos.items()}
    return committer.commit(taken, filmed, lambda: videos)


def rows_path(workdir: Path, episode: int) -> Path:
    """Return where the rows of a sealed episode wait."""
    return workdir / f"rows-{episode:06d}.arrow"


def seal_note(taken: Taken, rows: Path, episode: int) -> dict[str, Any]:
    """Return what is kept with a sealed episode, so that it can be committed by another."""
    counts = {
        key: {"count": counted.count, "levels": counted.histogram().tolist()}
        for key, counted in taken.counts.items()
    }
    return {"episode": episode, "rows": rows.name, "counts": counts}


def write_sealed_rows(workdir: Path, taken: Taken, committer: Committer, episode: int) -> Path:
    """Write an episode's rows, forced to disk; return where."""
    path = rows_path(workdir, episode)
    write_rows(path, taken, committer.info)
    return path


def has_pending(root: Path) -> bool:
    """Whether episodes may wait for their encoders; costs a stat where none ever did."""
    workdir = root / WORKDIR
    return workdir.is_dir() and any(workdir.glob("*/sealed.json"))


def finish_pending(root: Path) -> int:
    """Encode and commit what a recording that was killed had sealed; return how many episodes.

    Does nothing while a recording is going on.

    Raises:
        DemoreelError: An episode could not be finished; it stays as it is.
    """
    try:
        appender = open_appender(root)
    except DatasetBusyError:
        return 0
    try:
        return commit_pending(root, Committer(appender, root=root))
    finally:
        appender.close()


def commit_pending(root: Path, committer: Committer) -> int:
    """Encode and commit what was sealed; the caller holds the dataset."""
    workdir = root / WORKDIR
    if not workdir.is_dir():
        return 0
    done = 0
    for sealed in recover_pending(workdir):
        rows = workdir / _file_name(sealed.note)
        if committer.episodes <= int(sealed.note["episode"]):
            taken = read_rows(rows, committer.info)
            counts = _counts(sealed.note)
            whole = Taken(taken.tasks, taken.columns, taken.images, counts)
            commit_finished(committer, whole, sealed.finish())
            done += 1
        sealed.forget()
        rows.unlink(missing_ok=True)
    return done


def _file_name(note: Mapping[str, Any]) -> str:
    name = str(note["rows"])
    if Path(name).name != name:
        raise DemoreelError(f"A sealed episode names its rows {name!r}, outside its folder.")
    return name


def _counts(note: Mapping[str, Any]) -> dict[str, Pictures]:
    return {
        key: Pictures.counted(np.array(said["levels"], np.int64), int(said["count"]))
        for key, said in note["counts"].items()
    }
