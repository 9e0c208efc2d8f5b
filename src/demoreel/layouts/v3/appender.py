"""Appends episodes to LeRobot v3.0, one commit for each episode.

An episode comes with files of its own: a table, a video per camera, a row of metadata. They are put
in place by ``storage/commit/journal.py`` in this order: videos, table, metadata, tasks, statistics,
``info.json``. lerobot, which has no notion of commits, takes ``info.json``'s word about how much
there is; so at every instant it reads all of the episodes that it is told of. What an append costs
does not depend on how many episodes there are.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from demoreel.errors import ArgumentError, MetadataError
from demoreel.layouts.appending import disk_error, no_room_is_an_error
from demoreel.layouts.beside import (
    NOTE,
    Histogram,
    check_histograms,
    histograms_name,
    write_histograms,
    write_note,
)
from demoreel.layouts.capture_times import (
    CAPTURE_TIMES,
    CaptureTimes,
    check_clocks,
    checks_of,
    write_capture_times,
)
from demoreel.layouts.v3.compact import Merger, read_stale, refuse_merging
from demoreel.layouts.v3.copying import CopyingProcess, copy_here
from demoreel.layouts.v3.files import FileRun, files_of
from demoreel.layouts.v3.resume import APPENDED, Book, read_book
from demoreel.layouts.v3.writer import (
    RowFiles,
    V3Writer,
    episode_columns,
    stat_columns,
    write_tasks,
)
from demoreel.layouts.writing import (
    EpisodeDraft,
    Intake,
    ProbedVideo,
    TableWriter,
    Values,
    write_json,
)
from demoreel.model import Feature, Info, Stats, stats_to_json
from demoreel.model.stats import extend_stats
from demoreel.storage.commit.files import sync_path
from demoreel.storage.commit.journal import (
    Transaction,
    clear_staging,
    is_pending,
    roll_back,
    roll_forward,
    transaction,
)
from demoreel.storage.commit.writer_lock import WriterLock
from demoreel.storage.folder import refuse_links_out
from demoreel.storage.parquet import read_schema

Videos = Callable[[], Mapping[str, ProbedVideo]]
"""Gives an episode's videos, and waits for them if they are not there yet."""

_SOON_S = 0.01  # after a commit, a control loop has its next frame ready, and goes first
_SIZES = ("chunks_size", "data_files_size_in_mb", "video_files_size_in_mb")


def check_info(info: Info) -> None:
    """Refuse an ``info`` that no v3.0 dataset can have."""
    Intake(info, versions=V3Writer.versions)


class V3Appender:
    """Appends to a v3.0 dataset; see ``layouts/appending.py`` for the contract.

    Opening finishes what a dead writer had begun, and reads the metadata.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        refuse_links_out(root)  # episodes would be written where they lead
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
        self._outdated = False  # whether the dataset holds what this object does not know of
        # Columns and index of an episode whose commit failed; merging may have completed it since.
        self._failed: tuple[object, int] | None = None
        self._unsettled: Transaction | None = None  # in place, and not synced to disk yet
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
        with self._turn, no_room_is_an_error(self.root):
            self._resolve()
            failed, self._failed = self._failed, None
            if failed is not None and failed[0] is draft.columns and self.episodes > failed[1]:
                return failed[1]  # the commit that failed could only be completed
            table, videos = self._checked(draft)
            stats = self._total(draft.stats, total_stats)
            self._failed = draft.columns, self.episodes
            with transaction(self.root) as changes:
                runs = self._write(changes, draft, table, videos, stats)
                for name in draft.replaces:
                    changes.delete(name)
                self._carry_out(changes, lambda: self._count_in(draft, stats, runs))
            self._failed = None
            for video in videos().values():
                with suppress(OSError):  # the episode is saved; what is left is not the dataset's
                    video.path.unlink(missing_ok=True)
            return self.episodes - 1

    def redeclare(self, features: Mapping[str, Feature]) -> None:
        """Commit more details of the features; see ``layouts/appending.py``."""
        self._state(lambda info: replace(info, features=features))

    def replace_stats(
        self, stats: Stats, *, approximate: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """Commit other statistics of the whole dataset; see ``layouts/appending.py``."""
        with self._turn, no_room_is_an_error(self.root):
            self._resolve()
            with transaction(self.root) as changes:
                fresh = changes.new("meta/stats.json")
                write_json(fresh, stats_to_json(stats))
                if approximate is not None:
                    write_note(changes.new(f"meta/{NOTE}"), approximate, stats=fresh)
                self._commit(changes)
            self._book.stats = stats

    def restate(self, **fields: Any) -> Info:
        """Commit other fields of ``info.json``, and return it; see ``layouts/appending.py``."""
        known = {name: fields.pop(name) for name in _SIZES if name in fields}

        def changed(info: Info) -> Info:
            extra = {n: v for n, v in {**info.extra, **fields}.items() if v is not None}
            return replace(info, **known, extra=extra)

        return self._state(changed)

    def _state(self, change: Callable[[Info], Info]) -> Info:
        """Commit an ``info.json`` that says something else, and return it; files get its sizes."""
        with self._turn, no_room_is_an_error(self.root):
            self._resolve()
            before = self._book.info
            self._book.info = info = change(before)
            try:
                with transaction(self.root) as changes:
                    self._commit(changes)
            except BaseException:
                self._book.info = before
                raise
            self._intake.info = info
            tables, videos, metadata = files_of(info)
            fresh = [tables, *videos.values(), metadata]
            for files, like in zip([*self._book.files, self._book.metadata], fresh, strict=True):
                files.limit, files.per_chunk = like.limit, like.per_chunk
            return info

    def recover(self) -> None:
        """Settle or undo what has failed before, if anything; see ``layouts/appending.py``."""
        with self._turn, no_room_is_an_error(self.root):
            self._refuse_unusable()
            if self._settling is None or self._settling.done():
                self._resolve()

    def compact(self, *, finish: bool = False, aside: bool = False) -> bool:
        """Merge some small files; return whether there is more to do.

        One step merges at most 64 files of each kind, at the finish a gigabyte of them. Copying
        continues beside ``append`` when this is called in another thread; only the commit waits for
        its turn, and with ``aside`` the copying leaves this process's threads alone, too.
        """
        self.recover()
        with no_room_is_an_error(self.root):
            return self._merger.step(finish=finish, copy=self._copying if aside else copy_here)

    def close(self) -> None:
        """Let go of the dataset, and leave nothing in it that is not the dataset's."""
        if self._unusable == "closed":
            return
        with self._merger.alone, self._turn:
            try:
                with no_room_is_an_error(self.root):
                    self._resolve()
                    clear_staging(self.root)
                    self._tidy_up()
                    self._resolve()
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse_unusable(self) -> None:
        if self._unusable:
            raise ArgumentError(
                f"This appender is {self._unusable}.", hint="open another one", dataset=self.root
            )

    def _resolve(self) -> None:
        """Bring the dataset and this object to one state, whatever has failed before.

        What is left of a commit here is this object's: it holds the lock. A commit that is in place
        but not settled is settled; one that is not in place is undone, or, where a disk has no
        links, completed.
        """
        self._refuse_unusable()
        self._wait_until_settled()
        if self._unsettled is not None:
            try:
                self._settle_now(self._unsettled)
            except OSError as error:
                what = "the commit before this is in place, but not yet safe from a power cut."
                raise disk_error(error, self.root, what=what) from error
        if is_pending(self.root) and not roll_back(self.root):
            self._outdated = roll_forward(self.root)
        if self._outdated:
            self._reread()

    def _reread(self) -> None:
        """Know again what is in the dataset."""
        book = self._read_book()
        self._merger.retire()
        self._book, self._intake = book, _intake(book)
        self._merger = self._new_merger()
        self._outdated = False

    def _wait_until_settled(self) -> None:
        """Wait for what is done after a commit; where that has failed, ``_unsettled`` says so."""
        if self._settling is not None:
            self._hurry.set()
            wait([self._settling])
            self._settling = None
            self._hurry.clear()

    def _settle(self, changes: Transaction) -> None:
        self._hurry.wait(_SOON_S)
        self._settle_now(changes)

    def _settle_now(self, changes: Transaction) -> None:
        changes.settle(self._durable)
        self._unsettled = None

    def _checked(self, draft: EpisodeDraft) -> tuple[pa.Table, Videos]:
        """Return the episode's rows, and what gives its videos, and waits for them if need be."""
        check_histograms(draft.histograms, self.info.cameras)
        check_clocks(draft.capture_times, self.info.cameras, draft.length)
        table, coming = self._intake.check(draft), draft.videos
        if callable(coming):
            return table, lru_cache(1)(lambda: self._intake.check_videos(coming(), draft.length))
        videos = self._intake.check_videos(coming, draft.length)
        return table, lambda: videos

    def _total(self, more: Stats, total: Stats | None) -> Stats | None:
        """Return the dataset's statistics with one more episode, as far as there can be any."""
        before = self._book.stats
        if before is None and self.episodes:
            return None  # of the episodes before nothing is known
        if total is not None:
            return total
        return (extend_stats(before, more) if before is not None else more) or None

    def _write(
        self,
        changes: Transaction,
        draft: EpisodeDraft,
        table: pa.Table,
        videos: Videos,
        stats: Stats | None,
    ) -> list[FileRun]:
        """Write all of the episode's files aside, in the order in which they are to appear.

        What can be written before the videos are there is.
        """
        content = self._write_content(changes, draft, table, videos)
        metadata = self._write_metadata(changes, draft, stats)
        changes.begin_forcing()
        return [*content(), metadata]

    def _write_metadata(
        self, changes: Transaction, draft: EpisodeDraft, stats: Stats | None
    ) -> FileRun:
        files, episode = self._book.metadata, self.episodes
        path = changes.new(files.name_of(files.upcoming))
        size = path.write_bytes(self._row_files.encoded(self._row(draft), self._book.schema))
        if draft.capture_times:
            sums = checks_of(self.info.features, draft.columns)
            write_capture_times(
                changes.new(CAPTURE_TIMES.path(files.upcoming)),
                [CaptureTimes(episode, c, times, sums) for c, times in draft.capture_times.items()],
            )
        if draft.histograms:
            write_histograms(
                changes.new(histograms_name(files.upcoming)),
                (
                    Histogram(episode, key, draft.length, counts)
                    for key, counts in draft.histograms.items()
                ),
            )
        fresh = [task for task in draft.task_names if task not in self.tasks]
        if fresh:
            numbers = {task: len(self.tasks) + place for place, task in enumerate(fresh)}
            write_tasks(changes.new("meta/tasks.parquet"), {**self.tasks, **numbers})
        if stats is not None:
            # Without line breaks, which take longer than all else; ``replace_stats`` makes them.
            text = json.dumps(stats_to_json(stats), ensure_ascii=False)
            changes.new("meta/stats.json").write_text(text, "utf-8", "backslashreplace")
        write_json(changes.new("meta/info.json"), self._intake.info_with(draft).to_json())
        return FileRun(episode, episode + 1, files.upcoming, size)

    def _write_content(
        self, changes: Transaction, draft: EpisodeDraft, table: pa.Table, videos: Videos
    ) -> Callable[[], list[FileRun]]:
        """Write the episode's rows aside.

        Returns:
            What takes the videos when all else is written, and returns where both are, the rows
            first.
        """
        book = self._book
        one = (self.episodes, self.episodes + 1)
        new_videos = {key: changes.new(f.name_of(f.upcoming)) for key, f in book.videos.items()}
        path = changes.new(book.tables.name_of(book.tables.upcoming))
        with TableWriter(path, table.schema) as writer:
            writer.write(table)
        rows = FileRun(*one, book.tables.upcoming, path.stat().st_size)

        def take_videos() -> list[FileRun]:
            runs = [rows]
            for key, video in videos().items():
                size = video.size
                changes.fill(new_videos[key], video.path)
                runs.append(FileRun(*one, book.videos[key].upcoming, size, video.signature))
            return runs

        return take_videos

    def _row(self, draft: EpisodeDraft) -> dict[str, Any]:
        book = self._book
        row = episode_columns(
            self.episodes,
            tasks=draft.task_names,
            length=draft.length,
            start=self.frames,
            table=book.tables.upcoming,
            videos={key: (files.upcoming, 0.0) for key, files in book.videos.items()},
            fps=book.info.fps,
        )
        return {
            **row,
            **stat_columns(draft.stats),
            **book.metadata.columns(book.metadata.upcoming),
        }

    def _count_in(self, draft: EpisodeDraft, stats: Stats | None, runs: list[FileRun]) -> None:
        book = self._book
        for files, run in zip([*book.files, book.metadata], runs, strict=True):
            files.add(run)
        if book.schema is None:
            path = self.root / book.metadata.name_of(runs[-1].place)
            self._settling = self._settler.submit(self._learn_schema, path)
        book.lengths.append(draft.length)
        self._intake.accept(draft)
        book.info, book.stats, book.tasks = self._intake.info, stats, self._intake.tasks

    def _learn_schema(self, path: Path) -> None:
        """Note the columns of the first episode's metadata, as a reader gets them."""
        self._book.schema = read_schema(path)

    def _commit(self, changes: Transaction) -> None:
        """Commit changes that add no episode; ``info.json`` is renewed so that readers notice."""
        merger = self._merger
        self._resolve()
        if merger is not self._merger:
            refuse_merging(changes)
        write_json(changes.new("meta/info.json"), self._book.info.to_json())
        self._carry_out(changes)

    def _carry_out(self, changes: Transaction, count_in: Callable[[], None] | None = None) -> None:
        """Commit, put in place, and have that synced to disk beside; the record vouches for it."""
        try:
            changes.record()
            changes.put_in_place()
            if count_in is not None:
                self._outdated = True
                count_in()
                self._outdated = False
        except BaseException:
            with suppress(OSError, MetadataError):
                roll_back(self.root)
            raise
        self._unsettled = changes
        with suppress(RuntimeError):  # no thread to be had: ``_resolve`` settles it
            self._settling = self._settler.submit(self._settle, changes)


def _intake(book: Book) -> Intake:
    intake = Intake(book.info, versions=V3Writer.versions)
    intake.episodes = len(book.lengths)
    intake.frames = sum(book.lengths)
    intake.tasks = dict(book.tasks)
    return intake
