"""One camera in the recording process: its shared memory, its encoder, its frames in between."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from demoreel.errors import EncoderBehindError, VideoError
from demoreel.layouts.persisted_files import packets_path, rewrite_packets, spill_path, video_path
from demoreel.record.encoding.ipc import EncodingProgress, Inbox, Message, Outbox, SharedFrames
from demoreel.record.encoding.plan import CameraPlan, FinishedVideo
from demoreel.record.encoding.spill import DiskThread, SpillFile
from demoreel.stats.running import LevelCounts
from demoreel.storage.commit.files import sync_path
from demoreel.storage.helper_process import start_python

_TOUCHED = 24  # places that get their memory before the first frame
_DEATHS = 5  # encoders that may die one after the other without a frame between
_END_S = 2.0
_SOON_S = 0.01  # tidying up waits until the frame that comes now is taken


@dataclass(eq=False, slots=True)
class HeldFrame:
    """A frame that is not safe yet, and where it waits.

    Attributes:
        frame: Its number in the episode.
        place: Its place in memory.
        on_disk: Its place on disk.
        told: Whether the encoder is told of it; one that is to go to disk is told of when there.
        copying: Whether the disk's thread is reading its place in memory.
        safe: Whether its packet is in the file, or it is not wanted any more.
        error: Why it could not be written to disk, when that was tried last.
    """

    frame: int
    place: int | None
    on_disk: int | None = None
    told: bool = True
    copying: bool = False
    safe: bool = False
    error: OSError | None = None


@dataclass(eq=False, slots=True)
class CameraBuffer:
    """An episode of one camera that is not finished."""

    episode: int
    base: Path
    spill: SpillFile
    put: int = 0
    held: deque[HeldFrame] = field(default_factory=deque)
    ended: bool = False
    dropped: bool = False
    persisted: bool = False
    counted: LevelCounts | None = None
    finished: FinishedVideo | None = None
    failure: str | None = None
    stuck: OSError | None = None
    doubtful: bool = False  # whether its packets may be lost: forcing them to disk has failed


@dataclass(frozen=True, slots=True)
class PersistedFrames:
    """What is on disk of an episode: packets up to here, and where the frames after them are."""

    progress: EncodingProgress
    places: list[int]


class CameraEncoder:
    """Takes frames of one camera and has them encoded.

    ``put`` is for one thread. ``receive`` and ``revive`` are called by the thread that keeps the
    encoders; ``on_change`` is called there whenever an episode has finished, failed or moved on.

    Args:
        plan: The camera.
        fps: Frames per second.
        places: Frames that fit into memory.
        threads: Most threads the codec may use.
        disk: The thread that writes frames to disk.
        on_waiting: Called when messages wait for a pipe to become writable.
    """

    def __init__(
        self,
        plan: CameraPlan,
        *,
        fps: float,
        places: int,
        threads: int,
        disk: DiskThread,
        on_waiting: Callable[[], None],
    ) -> None:
        self.plan = plan
        self.is_ready = False
        self.failure: str | None = None
        self.failed_disk: OSError | None = None  # what the failure was, where it is the disk's
        self._fps = fps
        self._places = places
        self._threads = threads
        self._disk = disk
        self._on_waiting = on_waiting
        self._shared = SharedFrames(plan, places)
        self._shared.touch(_TOUCHED)
        # The place that was given back last is taken first: it is warm, and memory that is never
        # needed is never touched. Half of them are for frames on their way to disk.
        self._free = list(reversed(range(places)))
        self._reserve = places // 2
        self._buffers: deque[CameraBuffer] = deque()
        self._leftovers: list[Callable[[], None]] = []
        self._lock = threading.RLock()
        self._disk_error: OSError | None = None
        self._deaths = 0
        self._died_at = (-1, -1)
        self._process: subprocess.Popen[bytes] | None = None
        self.outbox: Outbox | None = None
        self.inbox: Inbox | None = None
        self._bell: int | None = None

    @property
    def process_id(self) -> int:
        """The encoder's process; 0 while there is none."""
        with self._lock:
            return self._process.pid if self._process is not None and self.outbox else 0

    # What the control loop does

    def begin(self, episode: int, base: Path) -> CameraBuffer:
        """Begin an episode; its frames come next."""
        buffer = CameraBuffer(episode, base, SpillFile(spill_path(base), self.plan.nbytes))
        self._clear_leftovers()
        with self._lock:
            self._buffers.append(buffer)
            self._send("begin", episode, str(base))
        return buffer

    def check_room(self) -> None:
        """Raise unless there is room for a frame, so that the next ``put`` cannot fail."""
        with self._lock:
            self._reclaim()
            if self._free and self.failure is None:
                return
            stuck = [buffer.stuck for buffer in self._buffers if buffer.stuck]
            reason = self._disk_error or (stuck[0] if stuck else None)
        if self.failure is not None:
            raise VideoError(
                f"The camera's encoder has failed: {self.failure}", camera=self.plan.key
            )
        why = f"the disk fails: {reason}" if reason else "the disk is too slow"
        raise EncoderBehindError(
            f"Encoding is behind, memory is full, and {why}.",
            hint="free disk space, give more memory_mb, or take a faster codec",
            camera=self.plan.key,
        )

    def put(self, buffer: CameraBuffer, image: np.ndarray) -> None:
        """Copy a frame and pass it on; ``check_room`` must have found room."""
        with self._lock:
            place = self._free.pop()
        np.copyto(self._shared.images[place], image)
        with self._lock:
            held = HeldFrame(buffer.put, place)
            buffer.held.append(held)
            buffer.put += 1
            if len(self._free) >= self._reserve:
                self._send("memory", buffer.episode, held.frame, place)
                return
            held.told, held.copying = False, True
        self._disk.do(lambda: self._to_disk(buffer, held))

    def end(self, buffer: CameraBuffer) -> None:
        """Say that the episode has all its frames."""
        with self._lock:
            buffer.ended = True
            self._send("end", buffer.episode, buffer.put)
            self._ring()

    def drop(self, buffer: CameraBuffer) -> None:
        """Say that the episode is not wanted."""
        with self._lock:
            buffer.dropped = True
            self._send("drop", buffer.episode)

    def waiting(self) -> tuple[int, int]:
        """Return how many frames wait in memory and on disk."""
        with self._lock:
            self._reclaim()
            held = [h for buffer in self._buffers for h in buffer.held]
            in_memory = sum(h.place is not None for h in held)
            return in_memory, len(held) - in_memory

    def persist(self, buffer: CameraBuffer) -> PersistedFrames:
        """Write to disk what an ended episode has in memory; its packets too. Waits for the disk.

        Where the disk is full or fails (OSError), nothing is lost.
        """
        with self._lock:
            buffer.persisted = True  # from now on its places on disk stay as they are
            self._reclaim()
            copied = [h for h in buffer.held if h.on_disk is None and not h.copying]
            for held in copied:
                held.copying = True
        for held in copied:
            self._disk.do(partial(self._also_to_disk, buffer, held))
        self._disk.finish()
        with self._lock:
            self._reclaim()
            missing = [held for held in buffer.held if held.on_disk is None]
            if missing:
                buffer.persisted = False
                # Its own error: another frame may have found room since.
                raise missing[0].error or OSError("a frame could not be written to disk")
            places = {held.frame: held.on_disk for held in buffer.held}
            progress = self._progress_of(buffer)
        buffer.spill.sync()
        if buffer.doubtful:
            rewrite_packets(packets_path(buffer.base), progress.frames)
        buffer.doubtful = True
        with contextlib.suppress(FileNotFoundError):
            sync_path(packets_path(buffer.base))
        buffer.doubtful = False
        waiting = [
            at for frame, at in places.items() if at is not None and frame >= progress.frames
        ]
        return PersistedFrames(progress, waiting)

    def remade(self, video: FinishedVideo) -> FinishedVideo:
        """Write a finished video again, from its packets.

        For one that could not be synced to disk: the system may have dropped what it held of it.
        """
        from demoreel.record.encoding.episode import finish_video  # with PyAV

        return finish_video(
            self.plan,
            fps=self._fps,
            base=video.path.with_suffix(""),
            safe=video.frames,
            stats=video.stats,
            threads=self._threads,
        )

    def _progress_of(self, buffer: CameraBuffer) -> EncodingProgress:
        if buffer.finished is not None:
            return EncodingProgress(buffer.episode, buffer.put, buffer.finished.stats)
        progress = self._shared.progress()
        begun = progress.episode == buffer.episode
        return progress if begun else EncodingProgress(buffer.episode, 0, LevelCounts())

    # What the disk's thread does

    def _also_to_disk(self, buffer: CameraBuffer, held: HeldFrame) -> None:
        """Write a frame to disk that stays in memory for the encoder."""
        place = self._written(buffer, held)
        with self._lock:
            held.copying, held.on_disk = False, place
            if held.safe:
                self._release(buffer, held)

    def _to_disk(self, buffer: CameraBuffer, held: HeldFrame) -> None:
        """Write a frame to disk and release its memory; where that fails it stays in memory."""
        assert held.place is not None
        place = None if buffer.dropped else self._written(buffer, held)
        with self._lock:
            held.copying, held.told, held.on_disk = False, True, place
            if held.safe:
                self._release(buffer, held)
            elif place is None:
                self._send("memory", buffer.episode, held.frame, held.place)
            else:
                self._free.append(held.place)
                held.place = None
                self._send("disk", buffer.episode, held.frame, place)

    def _written(self, buffer: CameraBuffer, held: HeldFrame) -> int | None:
        assert held.place is not None
        try:
            place = buffer.spill.write(self._shared.images[held.place])
        except OSError as error:
            self._disk_error = held.error = error
            return None
        self._disk_error = held.error = None
        return place

    # What the thread that keeps the encoders does

    def start(self, *, trial: Path | None = None) -> None:
        """Start an encoder, which continues where the one before it was."""
        commands, to_encoder = os.pipe()
        bell, to_bell = os.pipe()
        from_encoder, replies = os.pipe()
        handles = (commands, bell, replies, self._shared.handle)
        process = start_python(
            "from demoreel.record.encoding.worker import main; main()",
            *map(str, handles),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # readers of the recorder's output must not wait
            pass_fds=handles,
            start_new_session=True,  # Ctrl-C in a terminal is for the recording process
        )
        os.close(commands)
        os.close(bell)
        os.close(replies)
        os.set_blocking(to_bell, False)
        with self._lock:
            self._process = process
            self._bell = to_bell
            self.inbox = Inbox(from_encoder)
            self.outbox = Outbox(to_encoder, self._on_waiting)
            self.outbox.send(
                (self.plan, self._places, self._fps, self._threads, trial and str(trial))
            )
            self._tell_all()

    def receive(self) -> None:
        """Take in what the encoder says."""
        if self.inbox is None:
            return  # given up
        for message in self.inbox.receive(0):
            self._handle(message)

    def revive(self) -> None:
        """Start another encoder after one has died, unless they die without getting anywhere."""
        with self._lock:
            self._close_pipes()
            position = self._shared.position
            busy = any(buffer.held for buffer in self._buffers)
            self._deaths = self._deaths + 1 if busy and position == self._died_at else 1
            self._died_at = position
            if self.failure is None and self._deaths > _DEATHS:
                self.failure = f"its process died {self._deaths} times at the same frame."
            give_up = self.failure is not None
        if self._process is not None:
            self._process.wait()
        if not give_up:
            self.start()

    def close(self) -> None:
        """End the encoder and give up the memory; frames that are not safe are gone."""
        self._close_pipes()
        if self._process is not None:
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._clear_leftovers()
        self._disk.finish()
        for buffer in self._buffers:
            buffer.spill.close()
        self._shared.close()

    def _handle(self, message: Message) -> None:
        kind, episode, *rest = message
        if kind == "ready":
            self.is_ready = True
            return
        if episode is None:
            self.failed_disk = OSError(rest[1], os.strerror(rest[1])) if rest[1] else None
            self.failure = rest[0]
            return
        with self._lock:
            buffer = next((buffer for buffer in self._buffers if buffer.episode == episode), None)
            if buffer is None:
                return
            buffer.stuck = OSError(*rest) if kind == "stuck" else None
            if kind == "failed":
                buffer.failure = rest[0]
            elif kind == "counted":
                buffer.counted = LevelCounts.counted(rest[1], rest[0])
            elif kind == "done":
                frames, histogram, signature = rest
                buffer.counted = LevelCounts.counted(histogram, frames)
                path = video_path(buffer.base)
                buffer.finished = FinishedVideo(path, frames, buffer.counted, signature)
                # Not now: the disk is to be left alone until the episode is committed.
                self._leftovers.append(partial(_clear, buffer, packets_path(buffer.base)))
                self._let_go(buffer)
            elif kind == "dropped":
                self._let_go(buffer)
                files = [packets_path(buffer.base), video_path(buffer.base)]
                self._disk.do(partial(_clear, buffer, *files))  # after what it still writes there

    def _let_go(self, buffer: CameraBuffer) -> None:
        """Give back all the memory that an episode holds."""
        while buffer.held:
            self._release(buffer, buffer.held.popleft())
        self._buffers.remove(buffer)

    def _clear_leftovers(self) -> None:
        """Remove what finished episodes have left on disk."""
        with self._lock:
            jobs, self._leftovers = self._leftovers, []
        if jobs:
            self._disk.do(partial(time.sleep, _SOON_S))
        for job in jobs:
            self._disk.do(job)

    def _reclaim(self) -> None:
        """Give back what the encoder has made safe since the last time."""
        episode, frames = self._shared.position
        for buffer in self._buffers:
            if buffer.episode > episode:
                break
            while buffer.held and (buffer.episode < episode or buffer.held[0].frame < frames):
                self._release(buffer, buffer.held.popleft())

    def _release(self, buffer: CameraBuffer, held: HeldFrame) -> None:
        held.safe = True
        if held.copying:
            return  # the disk's thread is reading it, and gives it back
        if held.place is not None:
            self._free.append(held.place)
        if held.on_disk is not None and not buffer.persisted:
            buffer.spill.give_back(held.on_disk)

    def _tell_all(self) -> None:
        """Tell a new encoder of everything that is not finished."""
        self._reclaim()
        for buffer in self._buffers:
            self._send("begin", buffer.episode, str(buffer.base))
            if buffer.dropped:
                self._send("drop", buffer.episode)
                continue
            for held in buffer.held:
                if held.place is None:
                    self._send("disk", buffer.episode, held.frame, held.on_disk)
                elif held.told:
                    self._send("memory", buffer.episode, held.frame, held.place)
            if buffer.ended:
                self._send("end", buffer.episode, buffer.put)

    def _send(self, *message: object) -> None:
        if self.outbox is not None:
            self.outbox.send(message)

    def _ring(self) -> None:
        """Have the encoder look at once: the caller waits for it."""
        if self._bell is not None:
            with contextlib.suppress(OSError):  # it rings already, or the encoder is gone
                os.write(self._bell, b"!")

    def _close_pipes(self) -> None:
        if self._bell is not None:
            os.close(self._bell)
            self._bell = None
        if self.outbox is not None:
            self.outbox.close()
        if self.inbox is not None:
            self.inbox.close()
        self.outbox = self.inbox = None


def _clear(buffer: CameraBuffer, *files: Path) -> None:
    """Remove what is no longer needed of an episode; a disk that fails at that loses nothing.

    Of a persisted one nothing, also if it was persisted after its video was finished: its manifest
    counts on the packets until it is committed.
    """
    buffer.spill.close()
    for path in () if buffer.persisted else (buffer.spill.path, *files):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        buffer.base.parent.rmdir()  # empty when the last camera has gone, and its video is taken
