"""``Recorder``: from a control loop to committed episodes.

``add_frame`` checks a frame, copies its pixels and returns; encoders in processes of their own make
packets of them meanwhile. ``save_episode`` commits: when it returns, the episode survives whatever
happens, and every reader that opens the dataset sees it.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, get_args

import numpy as np

from demoreel.errors import ArgumentError, DiskError, EncoderBehindError, VideoError, count
from demoreel.layouts.appending import Appender, disk_error, no_room_is_an_error
from demoreel.layouts.persisted import PersistedRows, write_rows
from demoreel.layouts.persisted_files import ROWS, WORKDIR
from demoreel.model import Info
from demoreel.model.clocks import ROWS as ROWS_CLOCK
from demoreel.model.clocks import UNKNOWN, clock_columns
from demoreel.record.clock import CaptureClock, EpisodeReport, timing
from demoreel.record.commit import BackgroundMerger, Committer, DeferredCommits, persist_note
from demoreel.record.encoding.cameras import CameraEncoders
from demoreel.record.encoding.plan import Backlog, CameraPlan
from demoreel.record.finish import clear_workdir
from demoreel.record.frames import CheckedFrame, EpisodeBuffer, FrameCheck, nanoseconds
from demoreel.record.images import ImageWriters
from demoreel.record.spec import with_units

_BEHIND_S = 0.5  # of recording yet to encode, from which saving does not wait for the encoders

OnBehind = Literal["error", "skip"]


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """What ``create`` and ``resume`` take alike, and document."""

    task: str | None
    allow_nan: bool
    on_behind: OnBehind
    memory_mb: int
    encoder_threads: int | None
    merge: bool
    times: bool = True

    def __post_init__(self) -> None:
        if self.on_behind not in get_args(OnBehind):
            raise ArgumentError(f"on_behind is 'error' or 'skip', not {self.on_behind!r}.")
        if self.memory_mb < 1:
            raise ArgumentError(f"memory_mb must be at least 1, not {self.memory_mb}.")


class Recorder:
    """Records episodes into a dataset; made by ``demoreel.create`` and ``demoreel.resume``.

    A context manager: leaving it saves nothing more, discards the episode that is not saved, and
    finalizes.

    One thread records. Other processes may open the dataset at any time, and see every episode
    whose ``save_episode`` has returned.

    Attributes:
        root: The dataset's folder.
    """

    def __init__(
        self,
        appender: Appender,
        cameras: list[CameraPlan],
        committer: Committer,
        options: RecordOptions,
    ) -> None:
        self.root = committer.root
        self._info: Info = appender.info
        self.task = options.task
        self._appender = appender
        self._check = FrameCheck(self._info, allow_nan=options.allow_nan, times=options.times)
        self._time_columns = clock_columns(self._info.features)
        self._times_beside = options.times and ROWS_CLOCK not in self._time_columns
        self._on_behind = options.on_behind
        self._merge = options.merge
        self._clock = CaptureClock()
        self._committer = committer
        self._deferred = DeferredCommits(committer)
        self._saved = appender.episodes
        self._saved_frames = appender.frames
        self._saved_tasks = set(appender.tasks)
        self._merger = BackgroundMerger(appender)
        self._closed = False
        self._workdir = workdir = self.root / WORKDIR
        workdir.mkdir(parents=True, exist_ok=True)
        self._encoders = (
            CameraEncoders(
                cameras,
                fps=self._info.fps,
                workdir=workdir,
                memory_mb=options.memory_mb,
                threads=options.encoder_threads,
            )
            if cameras
            else None
        )
        self._images = ImageWriters(
            self._info.image_keys, workdir=workdir, memory_mb=options.memory_mb
        )
        self._begin_episode()
        # One that is released without finalize() must not keep the dataset from the next.
        parts = self._deferred, self._encoders, self._images, self._merger, appender
        self._abandoned = weakref.finalize(self, _Abandon(os.getpid(), *parts))
        self._abandoned.atexit = False

    def _begin_episode(self) -> None:
        self._buffer = EpisodeBuffer()
        self._captured: list[int] = []
        self._skipped = 0

    @property
    def info(self) -> Info:
        """What the dataset is, with the totals of the episodes that are saved."""
        splits = self._info.splits
        if splits in ({}, {"train": f"0:{self._info.total_episodes}"}) and self._saved:
            splits = {"train": f"0:{self._saved}"}
        return replace(
            self._info,
            total_episodes=self._saved,
            total_frames=self._saved_frames,
            total_tasks=len(self._saved_tasks),
            splits=splits,
        )

    @property
    def num_episodes(self) -> int:
        """Episodes that are saved, whether their videos are encoded yet or not."""
        return self._saved

    @property
    def num_frames(self) -> int:
        """Frames that are saved, likewise."""
        return self._saved_frames

    @property
    def pending_episodes(self) -> int:
        """Saved episodes that wait for their encoders; they are read from their raw frames."""
        return self._deferred.waiting

    @property
    def pending_frames(self) -> int:
        """Frames of the episode that is not saved yet."""
        return len(self._buffer)

    @property
    def pending_rows(self) -> dict[str, Any]:
        """The values of the frames that are not saved, by feature; ``task``, and no images.

        Cost: none of the values is copied: they are to be looked at.
        """
        return {**self._buffer.rows, "task": list(self._buffer.tasks)}

    @property
    def backlog(self) -> Backlog:
        """What waits to be encoded."""
        return self._encoders.backlog if self._encoders is not None else Backlog()

    @property
    def encoder_processes(self) -> Mapping[str, int]:
        """The process that encodes each video camera now."""
        return self._encoders.encoder_processes if self._encoders is not None else {}

    def add_frame(
        self, frame: Mapping[str, Any], *, task: str | None = None, captured_at: int | None = None
    ) -> bool:
        """Take one frame of the episode; costs a check and a copy of its pixels.

        Args:
            frame: A value for every declared feature: numbers, images (height x width x 3 of
                uint8; depth as uint16 millimetres or float metres), text. ``task`` may be among
                them, and ``capture_time_ns.KEY``: when a camera captured its image.
            task: What the robot is doing, if the frame does not say.
            captured_at: When the frame was captured, in nanoseconds since 1970; now if None.

        Returns:
            Whether the frame was recorded; False only with ``on_behind="skip"``, when neither the
            encoders nor the disk could take it.

        Raises:
            UnknownKeyError: The frame has a key that is not declared.
            ArgumentError: The frame lacks one, or a value does not fit: it has another shape or
                kind, or is not in the range of the declared dtype. The episode continues without
                the frame.
            EncoderBehindError: Neither the encoders nor the disk could take it; none of the frame
                is recorded, and it may be given again.
        """
        self._refuse_closed()
        if self._buffer.ended:
            raise ArgumentError(
                "The episode has ended but is not saved.", hint="save or discard it"
            )
        now = self._clock.now() if captured_at is None else nanoseconds(captured_at, "captured_at")
        checked = self._check(
            frame, task=task if task is not None else self.task, number=len(self._buffer)
        )
        self._buffer.refuse_long(checked)
        now = self._add_capture_times(checked, now)
        try:
            self._put(checked)
        except EncoderBehindError:
            self._skipped += 1
            if self._on_behind == "error":
                raise
            return False
        self._buffer.add(checked)
        self._captured.append(now)
        return True

    def replace_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Give the frames that are not saved other values; their images and times stay.

        Args:
            rows: A value for every feature that is no camera, and ``task``, for each of the frames.

        Raises:
            ArgumentError: There are more or fewer rows than frames, or a value does not fit;
                nothing is replaced.
        """
        self._refuse_closed()
        if self._buffer.ended or len(rows) != len(self._buffer):
            raise ArgumentError(
                f"{count(len(rows), 'row')} cannot take the place of those of "
                f"{count(len(self._buffer), 'frame')}"
                f"{' of an episode that has ended' if self._buffer.ended else ''}."
            )
        own = {key: f for key, f in self._info.features.items() if not f.is_camera}
        check = FrameCheck(
            replace(self._info, features=own), allow_nan=self._check.allow_nan, times=False
        )
        checked = [check(row, number=number) for number, row in enumerate(rows)]
        for frame, captured in zip(checked, self._captured, strict=True):
            self._add_capture_times(frame, captured)
        self._buffer = self._buffer.with_rows(checked)

    def _add_capture_times(self, checked: CheckedFrame, now: int) -> int:
        """Complete the times of a frame, and return that of its row."""
        if self._times_beside:
            return checked.clocks.setdefault(ROWS_CLOCK, now)
        for clock, key in self._time_columns.items():
            time = now if clock == ROWS_CLOCK else UNKNOWN
            checked.numbers.setdefault(key, np.array(time, np.int64))
        return now

    def _put(self, checked: CheckedFrame) -> None:
        """Take a frame's images: all of them, or, raising, none."""
        video_frames = {k: p for k, p in checked.images.items() if self._info.features[k].is_video}
        held = self._images.hold({key: checked.images[key] for key in self._info.image_keys})
        try:
            if self._encoders is not None:
                self._encoders.put_frame(video_frames)
        except BaseException:
            self._images.let_go(held)
            raise
        self._images.encode(held)

    def save_episode(self) -> EpisodeReport:
        """Commit the episode; when this returns it is safe, and readable by every process.

        Cost: a flush of its files to disk; it does not depend on how many episodes there are.
        Where the encoders are behind (a codec that is too slow for this machine), the images that
        wait are synced to disk instead: the episode is safe then, too, and readers take its frames
        from there until it is encoded. The report says so.

        Raises:
            ArgumentError: No frame was added.
            FrameMismatchError: A camera does not hold as many frames as there are rows.
            DiskFullError: The disk is full, for this process or for an encoder. The episode is
                still here: saving again, when there is room, saves it once.
            DiskError: The disk fails otherwise; the message says what is saved. Saving again, when
                the cause is gone, saves the episode once.
            VideoError: An encoder has failed for good; the episode can only be discarded.
        """
        self._refuse_closed()
        self._deferred.retry()
        if not len(self._buffer):
            raise ArgumentError("The episode has no frames, so there is nothing to save.")
        begin = time.perf_counter()
        measured = timing(np.array(self._captured), fps=self._info.fps)
        with no_room_is_an_error(self.root):
            index, pending = self._make_safe()
        self._saved += 1
        self._saved_frames += len(self._buffer)
        self._saved_tasks.update(self._buffer.tasks)
        backlog = self.backlog
        report = EpisodeReport(
            episode_index=index,
            frames=len(self._buffer),
            **measured,
            skipped=self._skipped,
            backlog=backlog.frames_in_memory + backlog.frames_on_disk,
            pending=pending,
            save_seconds=time.perf_counter() - begin,
        )
        self._begin_episode()
        if self._merge:
            self._merger.look()
        return report

    def _make_safe(self) -> tuple[int, bool]:
        """Commit the episode, or persist it; return its number, and whether it is persisted."""
        self._state_units()
        pending = self._is_behind()
        if not pending and self._encoders is not None:
            self._encoders.end_episode()  # so that they finish meanwhile
        if not self._buffer.ended:
            self._buffer.end(*self._images.finish_episode())
        index = self._persist(self._buffer) if pending else self._commit(self._buffer)
        return index, pending

    def _state_units(self) -> None:
        """State the units of depth cameras before the first episode that needs them is saved."""
        stated = with_units(self._info.features, self._check.units)
        if stated != self._info.features:
            self._appender.redeclare(stated)
            self._info = replace(self._info, features=stated)

    def _is_behind(self) -> bool:
        if self._encoders is not None and self._encoders.must_persist:
            return True
        return self._deferred.waiting > 0 or self.backlog.seconds_behind > _BEHIND_S

    def _commit(self, episode: EpisodeBuffer) -> int:
        encoders = self._encoders
        if encoders is None:
            return self._committer.commit(episode, {}, dict)
        numbers = self._committer.count_numbers(episode)
        counts = encoders.count_episode()
        try:
            return self._committer.commit(episode, counts, encoders.finish_episode, numbers=numbers)
        except BaseException:
            encoders.doubt_videos()
            raise

    def _persist(self, episode: EpisodeBuffer) -> int:
        assert self._encoders is not None
        # The rows are beside the manifest: without it they are no episode, and are written again.
        rows = PersistedRows(episode.tasks, episode.columns, episode.images, episode.times)
        digest = write_rows(self._encoders.folder / ROWS, rows, self._info)
        pending = self._encoders.persist_episode(note=persist_note(episode, self._saved, digest))
        self._deferred.add(pending, episode)
        return self._saved

    def restate(self, **fields: Any) -> None:
        """Commit other fields of ``info.json``: sizes of files, which hold from now on, or others.

        Args:
            **fields: ``chunks_size``, ``data_files_size_in_mb``, ``video_files_size_in_mb``; any
                other is one that demoreel does not use. None takes such a one away.
        """
        self._refuse_closed()
        self._info = self._appender.restate(**fields)

    def discard_episode(self) -> int:
        """Forget the frames since the last episode; return how many they were."""
        self._refuse_closed()
        forgotten = len(self._buffer)
        if self._encoders is not None:
            self._encoders.discard_episode()
        self._images.discard_episode()
        self._begin_episode()
        return forgotten

    def finalize(self) -> None:
        """Merge small files, make the statistics exact, and release the dataset.

        Every saved episode is safe and readable without this; it makes fewer, larger files.
        Frames that were not saved are discarded. May be called twice.

        Raises:
            DiskFullError: There is no room for the larger files. Every saved episode is there, and
                the dataset is let go; ``demoreel.resume(root).finalize()`` does what is left.
            DiskError: The disk fails otherwise; the same holds.
        """
        if self._closed:
            return
        self._abandoned.detach()
        try:
            self.discard_episode()
        finally:
            self._closed = True
            try:
                self._deferred.wait()
            finally:
                if self._encoders is not None:
                    self._encoders.close()
                self._images.close()
                self._merger.stop()
                self._let_go()

    def _let_go(self) -> None:
        clear_workdir(self._workdir)
        try:
            try:
                while self._merge and self._appender.compact(finish=True):
                    pass
                self._committer.make_exact()  # reads all rows: quicker from few files
            finally:
                self._appender.close()
        except OSError as error:
            what = "every saved episode is there, but not all files are merged."
            raise disk_error(error, self.root, what=what) from error

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ArgumentError(
                "This recorder is finalized.", hint=f"demoreel.resume({os.fspath(self.root)!r})"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finalize()

    def __repr__(self) -> str:
        return (
            f"<Recorder {self.root.name}: {self.num_episodes} episodes, {self.num_frames} frames, "
            f"{self.pending_frames} pending>"
        )


@dataclass(frozen=True, slots=True)
class _Abandon:
    """Ends what a recorder started, when nothing refers to it any more.

    Frames that were not saved are gone. Small files stay small, and statistics as they were saved.
    """

    process: int
    deferred: DeferredCommits
    encoders: CameraEncoders | None
    images: ImageWriters
    merger: BackgroundMerger
    appender: Appender

    def __call__(self) -> None:
        if os.getpid() != self.process:
            return  # a forked child has a copy of the recorder
        if self.deferred.waiting:
            return  # a thread commits these; the dataset is taken until this process ends
        with contextlib.suppress(DiskError, OSError, VideoError):
            if self.encoders is not None:
                self.encoders.discard_episode()
                self.encoders.close()
            self.images.close()
        self.merger.stop()
        with contextlib.suppress(DiskError, OSError):
            self.appender.close()
