"""Appending to LeRobot v3.0, an episode a commit.

An episode comes with files of its own: a table, a video per camera, a row of metadata. They are
put in place by ``storage/journal.py`` in this order: videos, table, metadata, tasks, statistics,
``info.json``. lerobot, which knows nothing of commits, believes ``info.json`` about how much there
is; so at every instant it reads all of the episodes that it is told of. What an append costs does
not depend on how many episodes there are.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow.parquet as pq

from demoreel.errors import ArgumentError
from demoreel.layouts.appending import EpisodeDraft, merged_stats, no_room_is_an_error
from demoreel.layouts.exactness import NOTE, write_note
from demoreel.layouts.histograms import (
    Histogram,
    check_histograms,
    histograms_name,
    write_histograms,
)
from demoreel.layouts.v3.compact import Merger, read_stale
from demoreel.layouts.v3.copying import CopyingProcess, copy_here
from demoreel.layouts.v3.files import Run
from demoreel.layouts.v3.meta_files import write_tasks
from demoreel.layouts.v3.resume import APPENDED, Book, read_book
from demoreel.layouts.v3.row_file import RowFiles
from demoreel.layouts.writing import Intake, NewEpisode, NewVideo, Values, write_json
from demoreel.model import Info, Stats, stats_to_json
from demoreel.storage.atomic import sync_path
from demoreel.storage.journal import (
    Transaction,
    clear_staging,
    is_pending,
    roll_back,
    roll_forward,
    transaction,
)
from demoreel.storage.writer_lock import WriterLock

VERSION = "v3.0"
Videos = Callable[[], Mapping[str, NewVideo]]
"""Gives an episode's videos, and waits for them if they are not there yet."""

_SOON_S = 0.01  # after a commit, a control loop has its next frame ready, and goes first


def check_info(info: Info) -> None:
    """Refuse an ``info`` that no v3.0 dataset can have.

    Raises:
        ArgumentError: It is of another version, or a feature cannot be stored.
    """
    Intake(info, version=VERSION)


class V3Appender:
    """Appends to a v3.0 dataset; see ``layouts/appending.py`` for the contract.

    Opening finishes what a dead writer had begun, and reads the metadata.

    Args:
        root: The dataset's folder.

    Raises:
        DatasetBusyError: Another process is appending to it.
        MetadataError: Its metadata are broken, or such that no episode can follow.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = WriterLock(root)
        try:
            sync_path(root)  # the hidden folder may be new
            self._lock.sign()
            roll_forward(root)
            clear_staging(root)
            self._book = self._read_book()
            self._intake = _intake(self._book)
        except BaseException:
            self._lock.release()
            raise
        self._turn = threading.RLock()
        self._unusable = ""
        self._durable: set[Path] = set()
        self._copying = CopyingProcess()
        self._settler = ThreadPoolExecutor(1, thread_name_prefix="demoreel-settle")
        self._settling: Future[None] | None = None
        self._hurry = threading.Event()
        self._merger = self._new_merger()
        self._row_files = RowFiles({APPENDED: b"1"})

    def _read_book(self) -> Book:
        return read_book(self.root)

    def _new_merger(self) -> Merger:
        return Merger(self.root, self._book, self._turn, self._commit, read_stale(self.root))

    @property
    def info(self) -> Info:
        """What the dataset is, with its totals so far."""
        return self._book.info

    @property
    def episodes(self) -> int:
        """Episodes that are committed."""
        return self._intake.episodes

    @property
    def frames(self) -> int:
        """Frames of them all."""
        return self._intake.frames

    @property
    def tasks(self) -> Mapping[str, int]:
        """Every task and its index."""
        return self._intake.tasks

    @property
    def stats(self) -> Stats | None:
        """Statistics of the whole dataset; None where it has none."""
        return self._book.stats

    def default_columns(
        self, tasks: Sequence[str], *, timestamps: Values | None = None
    ) -> dict[str, np.ndarray]:
        """Return the columns (timestamp, index, ...) that the next ``append`` will add."""
        return self._intake.default_columns(tasks, timestamps=timestamps)

    def check(self, draft: EpisodeDraft) -> None:
        """Raise what ``append`` would refuse the episode for. Changes nothing."""
        self._checked(draft)

    def append(self, draft: EpisodeDraft, *, total_stats: Stats | None = None) -> int:
        """Commit an episode and return its index; see ``layouts/appending.py``.

        Cost: writing the episode's rows, and two disk flushes one after the other.
        """
        with self._turn:
            self._refuse_pending()
            episode = self._checked(draft)
            videos = self._videos_of(draft, episode)
            stats = self._total(draft.stats, total_stats)
            info = self._info_with(episode)
            with no_room_is_an_error(self.root):
                with transaction(self.root) as changes:
                    runs = self._write(changes, episode, videos, stats, info)
                    changes.record()
                self._put_in_place(changes)
            self._count_in(episode, stats, info, runs)
            for video in videos().values():
                video.path.unlink(missing_ok=True)
            return episode.index

    def rehearse(self, draft: EpisodeDraft, *, total_stats: Stats | None = None) -> None:
        """Make all that ``append`` would make of such an episode, and leave nothing of it."""
        with self._turn:
            self._refuse_unusable()
            episode = self._checked(draft)
            with no_room_is_an_error(self.root), transaction(self.root) as changes:
                self._write_content(changes, episode, dict)
                self._write_metadata(changes, episode, total_stats, self._info_with(episode))

    def replace_stats(
        self, stats: Stats, *, approximate: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """Commit other statistics of the whole dataset; see ``layouts/appending.py``."""
        with self._turn, no_room_is_an_error(self.root):
            self._refuse_pending()
            with transaction(self.root) as changes:
                fresh = changes.new("meta/stats.json")
                write_json(fresh, stats_to_json(stats))
                if approximate is not None:
                    write_note(changes.new(f"meta/{NOTE}"), approximate, stats=fresh)
                self._commit(changes)
            self._book.stats = stats

    def compact(self, *, finish: bool = False, aside: bool = False) -> bool:
        """Merge some small files; return whether there is more to do.

        One step merges at most 64 files of each kind, at the finish a gigabyte of them. Copying
        goes on beside ``append`` when this is called in another thread; only the commit waits for
        its turn, and with ``aside`` the copying leaves this process's threads alone, too.

        Raises:
            DiskFullError: There is no room for the merged file; the dataset is as it was.
        """
        self._refuse_unusable()
        with no_room_is_an_error(self.root):
            return self._merger.step(finish=finish, copy=self._copying if aside else copy_here)

    def close(self) -> None:
        """Let go of the dataset, and leave nothing in it that is not the dataset's."""
        if self._unusable == "closed":
            return
        with self._merger.alone, self._turn:
            try:
                self._wait_until_settled()
                roll_forward(self.root)
                clear_staging(self.root)
                self._tidy_up()
                self._wait_until_settled()
                self._merger.forget_stale()
            finally:
                self._copying.close()
                self._settler.shutdown()
                self._unusable = "closed"
                self._lock.release(remove=True)

    def _tidy_up(self) -> None:
        """Do what remains to be done before the dataset is let go."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _refuse_unusable(self) -> None:
        if self._unusable:
            raise ArgumentError(
                f"This appender is {self._unusable}.", hint="open another one", dataset=self.root
            )

    def _refuse_pending(self) -> None:
        """Refuse to go on after a commit that was interrupted; a second record would replace it."""
        self._refuse_unusable()
        self._wait_until_settled()
        if is_pending(self.root):
            self._unusable = "in the middle of a commit that was interrupted"
            self._refuse_unusable()

    def _wait_until_settled(self) -> None:
        """Wait for what is done after a commit. Where its record stays, the disk has failed."""
        if self._settling is not None:
            self._hurry.set()
            wait([self._settling])
            self._settling = None
            self._hurry.clear()

    def _settle(self, changes: Transaction) -> None:
        self._hurry.wait(_SOON_S)
        changes.settle(self._durable)

    def _checked(self, draft: EpisodeDraft) -> NewEpisode:
        check_histograms(draft.histograms, self.info.cameras)
        episode = self._intake.check(
            draft.columns,
            tasks=draft.tasks,
            videos=None if callable(draft.videos) else draft.videos,
            images=draft.images,
            stats=draft.stats or None,
        )
        return replace(episode, histograms=draft.histograms)

    def _videos_of(self, draft: EpisodeDraft, episode: NewEpisode) -> Videos:
        """Return what gives the episode's videos, checked, and waits for them if need be."""
        coming = draft.videos
        if not callable(coming):
            return lambda: episode.videos
        return lru_cache(1)(lambda: self._intake.check_videos(coming(), episode.length))

    def _total(self, more: Stats, total: Stats | None) -> Stats | None:
        """Return the dataset's statistics with one more episode, as far as there can be any."""
        before = self._book.stats
        if before is None and self.episodes:
            return None  # of the episodes before nothing is known
        if total is not None:
            return total
        return (merged_stats(before, more) if before is not None else more) or None

    def _info_with(self, episode: NewEpisode) -> Info:
        info, total = self._book.info, self.episodes + 1
        splits = dict(info.splits)
        if splits in ({}, {"train": f"0:{self.episodes}"}):
            splits = {"train": f"0:{total}"}
        return replace(
            info,
            total_episodes=total,
            total_frames=self.frames + episode.length,
            total_tasks=len({*self.tasks, *episode.tasks}),
            splits=splits,
        )

    def _write(
        self,
        changes: Transaction,
        episode: NewEpisode,
        videos: Videos,
        stats: Stats | None,
        info: Info,
    ) -> list[Run]:
        """Write all of the episode's files aside, in the order in which they are to appear.

        What can be written before the videos are there is.
        """
        content = self._write_content(changes, episode, videos)
        metadata = self._write_metadata(changes, episode, stats, info)
        changes.begin_forcing()
        return [*content(), metadata]

    def _write_metadata(
        self, changes: Transaction, episode: NewEpisode, stats: Stats | None, info: Info
    ) -> Run:
        book = self._book
        path = changes.new(book.metadata.name_of(book.metadata.upcoming))
        size = self._write_row(path, episode)
        if episode.histograms:
            write_histograms(
                changes.new(histograms_name(book.metadata.upcoming)),
                (
                    Histogram(episode.index, key, episode.length, counts)
                    for key, counts in episode.histograms.items()
                ),
            )
        fresh = [task for task in episode.tasks if task not in self.tasks]
        if fresh:
            numbers = {task: len(self.tasks) + place for place, task in enumerate(fresh)}
            write_tasks(changes.new("meta/tasks.parquet"), {**self.tasks, **numbers})
        if stats is not None:
            # Without line breaks, which take longer than all else; ``replace_stats`` makes them.
            text = json.dumps(stats_to_json(stats), ensure_ascii=False)
            changes.new("meta/stats.json").write_text(text, "utf-8", "backslashreplace")
        write_json(changes.new("meta/info.json"), info.to_json())
        return Run(episode.index, episode.index + 1, book.metadata.upcoming, size)

    def _write_row(self, path: Path, episode: NewEpisode) -> int:
        """Write the episode's metadata and return their size."""
        return path.write_bytes(self._row_files.encoded(self._row(episode), self._book.schema))

    def _write_content(
        self, changes: Transaction, episode: NewEpisode, videos: Videos
    ) -> Callable[[], list[Run]]:
        """Write the episode's rows aside.

        Returns:
            What takes the videos when all else is written, and returns where both lie, the rows
            first.
        """
        book = self._book
        one = (episode.index, episode.index + 1)
        films = {key: changes.new(f.name_of(f.upcoming)) for key, f in book.videos.items()}
        path = changes.new(book.tables.name_of(book.tables.upcoming))
        pq.write_table(episode.table, path, row_group_size=episode.length, compression="snappy")
        rows = Run(*one, book.tables.upcoming, path.stat().st_size)

        def take_videos() -> list[Run]:
            runs = [rows]
            for key, video in videos().items():
                changes.fill(films[key], video.path)
                runs.append(Run(*one, book.videos[key].upcoming, video.size, video.signature))
            return runs

        return take_videos

    def _row(self, episode: NewEpisode) -> dict[str, Any]:
        book = self._book
        row: dict[str, Any] = {
            "episode_index": episode.index,
            "tasks": episode.tasks,
            "length": episode.length,
            **book.tables.columns(book.tables.upcoming),
            "dataset_from_index": episode.start,
            "dataset_to_index": episode.start + episode.length,
        }
        for files in book.videos.values():
            row |= files.columns(files.upcoming)
            row[f"{files.prefix}/from_timestamp"] = 0.0
            row[f"{files.prefix}/to_timestamp"] = episode.length / book.info.fps
        for key, kinds in (episode.stats or {}).items():
            row |= {f"stats/{key}/{name}": np.asarray(value) for name, value in kinds.items()}
        return row | book.metadata.columns(book.metadata.upcoming)

    def _count_in(
        self, episode: NewEpisode, stats: Stats | None, info: Info, runs: list[Run]
    ) -> None:
        book = self._book
        for files, run in zip([*book.files, book.metadata], runs, strict=True):
            files.add(run)
        if book.schema is None:
            path = self.root / book.metadata.name_of(runs[-1].place)
            self._settling = self._settler.submit(self._learn_schema, path)
        book.lengths.append(episode.length)
        book.info, book.stats = info, stats
        self._intake.accept(episode)
        book.tasks = self._intake.tasks

    def _learn_schema(self, path: Path) -> None:
        """Note the columns of the first episode's metadata, as whoever reads them sees them."""
        self._book.schema = pq.read_schema(path)

    def _commit(self, changes: Transaction) -> None:
        """Commit changes that add no episode; ``info.json`` is renewed so that readers notice."""
        self._refuse_pending()
        write_json(changes.new("meta/info.json"), self._book.info.to_json())
        changes.record()
        self._put_in_place(changes)

    def _put_in_place(self, changes: Transaction) -> None:
        """Take the steps of a commit, and have them forced to disk; its record vouches for them."""
        try:
            changes.put_in_place()
            self._settling = self._settler.submit(self._settle, changes)
        except BaseException:
            # Say nothing that is not true: either the commit is undone, or this object, which
            # does not know of it, must not go on. Whoever opens the dataset next finishes it.
            self._unusable = "in the middle of a commit that failed"
            if roll_back(self.root):
                self._unusable = ""
            raise


def _intake(book: Book) -> Intake:
    intake = Intake(book.info, version=VERSION)
    intake.episodes = len(book.lengths)
    intake.frames = sum(book.lengths)
    intake.tasks = dict(book.tasks)
    return intake
