"""An encoder: a program that encodes the frames of one camera until no more are sent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from demoreel.errors import DemoreelError
from demoreel.layouts.persisted_files import spill_path, video_path
from demoreel.media.encode import VideoEncoder, renounce_urgency, threads_of_this_process
from demoreel.record.encoding.episode import EpisodeEncoder
from demoreel.record.encoding.ipc import Inbox, Message, SharedFrames, send_all
from demoreel.record.encoding.plan import CameraPlan
from demoreel.record.encoding.spill import read_spilled
from demoreel.storage.commit.files import disk_errno

_NICENESS = 5
_LOOK_S, _IDLE_LOOK_S, _BUSY_S = 0.004, 0.02, 2.0
_FULL_DISK_S = 0.25
_FLUSH_S = 1.0
_FIRST_MESSAGE_S = 60.0
_PR_SET_PDEATHSIG = 1
_ATTEMPTS = 3
_COUNTED_AHEAD = 4  # frames; where more wait, they wait for their codec


@dataclass
class _Job:
    """An episode, as far as this encoder has been told of it."""

    episode: int
    base: Path
    in_memory: dict[int, int] = field(default_factory=dict)
    on_disk: dict[int, int] = field(default_factory=dict)
    frames: int | None = None
    counted: bool = False
    dropped: bool = False
    failed: bool = False
    attempts: int = 0
    attempted_at: int = -1
    encoder: EpisodeEncoder | None = None


class Worker:
    """Encodes episodes in the order in which they were begun.

    Args:
        inbox: Where it is told what to do.
        bell: A pipe that is written to when the recording process waits.
        replies: The pipe on which it says what it has done.
        plan: The camera.
        frames: The memory it shares with the recording process.
        fps: Frames per second.
        threads: Most threads the codec may use.
    """

    def __init__(
        self,
        inbox: Inbox,
        bell: int,
        replies: int,
        plan: CameraPlan,
        frames: SharedFrames,
        *,
        fps: float,
        threads: int,
    ) -> None:
        self._inbox = inbox
        self._bell = bell
        self._rung = select.poll()
        self._rung.register(bell, select.POLLIN)
        self._replies = replies
        self._plan = plan
        self._shared = frames
        self._fps = fps
        self._threads = threads
        self._jobs: dict[int, _Job] = {}
        self._parent = os.getppid()
        self._flushed: Path | None = None
        self._flushing = threading.Lock()
        self._lost: OSError | None = None
        self._stuck = False

    def try_out(self, folder: Path) -> None:
        """Encode one frame, so that a codec that does not work is known before it matters."""
        path = folder / f".trial-{os.getpid()}.mp4"
        try:
            with VideoEncoder(
                path,
                fps=self._fps,
                width=self._plan.width,
                height=self._plan.height,
                settings=self._plan.settings,
                threads=self._threads,
            ) as video:
                video.add(np.zeros(self._plan.shape, self._plan.dtype))
        finally:
            path.unlink(missing_ok=True)

    def run(self, messages: list[Message]) -> None:
        """Work until the recording process is gone; ``messages`` came already."""
        threading.Thread(target=self._keep_flushing, daemon=True).start()
        busy_until = 0.0
        while os.getppid() == self._parent:
            for message in messages:
                self._handle(message)
            if messages:
                busy_until = time.monotonic() + _BUSY_S
            if not self._work():
                # Not waiting for frames: a sender that wakes a reader may lose its core to it,
                # for milliseconds on a busy machine, and here the sender is the control loop. Only
                # the end of an episode, which is waited for, rings.
                self._rest(_LOOK_S if time.monotonic() < busy_until else _IDLE_LOOK_S)
            try:
                messages = self._inbox.receive(0)
            except EOFError:
                return

    def _rest(self, seconds: float) -> None:
        """Sleep, unless the bell rings."""
        if self._rung.poll(1000 * seconds):
            os.read(self._bell, 1 << 12)

    def _handle(self, message: Message) -> None:
        kind, episode, *rest = message
        if kind == "begin":
            self._jobs[episode] = _Job(episode, Path(rest[0]))
            return
        job = self._jobs.get(episode)
        if job is None:
            return  # dropped in the meantime
        if kind == "memory":
            job.in_memory[rest[0]] = rest[1]
        elif kind == "disk":
            job.on_disk[rest[0]] = rest[1]
        elif kind == "end":
            job.frames = rest[0]
        elif kind == "drop":
            job.dropped = True

    def _work(self) -> bool:
        """Do one thing for the oldest episode; return whether there was one to do."""
        job = next(iter(self._jobs.values()), None)
        if job is None:
            return False
        if job.dropped:
            self._drop(job)
            return True
        if job.failed:
            return False
        try:
            self._raise_lost()
            return self._advance(job)
        except (DemoreelError, OSError) as error:
            self._recover(job, error)
            return True

    def _advance(self, job: _Job) -> bool:
        if job.encoder is None:
            job.base.parent.mkdir(parents=True, exist_ok=True)
            job.encoder = EpisodeEncoder(
                self._plan,
                fps=self._fps,
                base=job.base,
                episode=job.episode,
                note=self._shared,
                threads=self._threads,
            )
            self._flushed = video_path(job.base)
        frame = job.encoder.next_frame
        if frame == job.frames:
            self._finish(job)
            return True
        if job.frames is not None and not job.counted:
            self._count_ahead(job, range(frame, job.frames))
        image = self._image(job, frame)
        if image is None:
            return False
        job.encoder.add(image)
        self._forget_safe(job, job.encoder.safe_frames)
        if self._stuck:
            self._stuck = False
            self._say("moving", job.episode)
        return True

    def _count_ahead(self, job: _Job, frames: range) -> None:
        """Say what is in the last frames before they are encoded: saving waits for that."""
        job.counted = True
        places = [job.in_memory.get(frame) for frame in frames[:_COUNTED_AHEAD]]
        images = [self._shared.images[place] for place in places if place is not None]
        if job.encoder is not None and len(images) == len(frames):
            counts = job.encoder.counts_with(images)
            self._say("counted", job.episode, counts.count, counts.histogram())

    def _image(self, job: _Job, frame: int) -> np.ndarray | None:
        place = job.in_memory.get(frame)
        if place is not None:
            shared: np.ndarray = self._shared.images[place]
            return shared
        at = job.on_disk.get(frame)
        if at is None:
            return None
        image = np.empty(self._plan.shape, self._plan.dtype)
        read_spilled(spill_path(job.base), at, image)
        return image

    def _finish(self, job: _Job) -> None:
        assert job.encoder is not None
        with self._flushing:
            self._flushed = None
        self._raise_lost()
        video = job.encoder.finish()
        # Told before anything else: should this process end now, the episode is done. Its codec
        # ends after that.
        self._say("done", job.episode, video.frames, video.stats.histogram(), video.signature)
        del self._jobs[job.episode]

    def _drop(self, job: _Job) -> None:
        self._flushed = None
        if job.encoder is not None:
            job.encoder.abort()
        self._say("dropped", job.episode)
        del self._jobs[job.episode]

    def _recover(self, job: _Job, error: Exception) -> None:
        """Begin again at the first frame that is not safe; give up if that never helps."""
        self._flushed = None
        episode, safe = self._shared.position
        safe = safe if episode == job.episode else 0
        if job.encoder is not None:
            job.encoder.abort()
            job.encoder = None
        number = disk_errno(error)
        if number:  # which may pass: nothing is given up for it
            self._stuck = True
            self._say("stuck", job.episode, number, os.strerror(number))
            time.sleep(_FULL_DISK_S)
            return
        job.attempts = job.attempts + 1 if safe <= job.attempted_at else 1
        job.attempted_at = max(safe, job.attempted_at)
        if job.attempts >= _ATTEMPTS:
            job.failed = True
            self._say("failed", job.episode, str(error))

    def _forget_safe(self, job: _Job, safe: int) -> None:
        for known in (job.in_memory, job.on_disk):
            while known and (first := next(iter(known))) < safe:
                del known[first]

    def _say(self, *message: object) -> None:
        with contextlib.suppress(BrokenPipeError):  # the end of the inbox ends this process
            send_all(self._replies, message)

    def _keep_flushing(self) -> None:
        """Force the video to disk while it grows, so that little is left to do when it is saved."""
        while True:
            time.sleep(_FLUSH_S)
            with self._flushing:
                if self._flushed is not None:
                    self._flush(self._flushed)

    def _flush(self, path: Path) -> None:
        try:
            handle = os.open(path, os.O_RDONLY)
        except OSError:
            return
        try:
            os.fsync(handle)
        except OSError as error:
            # The system tells this once, and what was to be written is lost: no later fsync fails.
            self._lost = error
        finally:
            os.close(handle)

    def _raise_lost(self) -> None:
        """Raise if a part of the video is lost: it is then written again, from its packets."""
        error, self._lost = self._lost, None
        if error is not None:
            raise error


def _step_back() -> None:
    """Let the control loop go first."""
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    if hasattr(os, "SCHED_BATCH"):
        # A frame that arrives must not push the loop off its core, in the middle of its frame.
        # Libraries have started threads by now, which run as the process that started this one.
        for thread in threads_of_this_process() or {0}:
            with contextlib.suppress(OSError):
                os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
    renounce_urgency()


def _end_with_parent() -> None:
    """Have the system end this process with the one that started it, even one that is stopped."""
    with contextlib.suppress(OSError, AttributeError):  # elsewhere the end of the pipe must do
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Encode until the recording process is gone. Its arguments are the handles to use."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the recording process
    _end_with_parent()
    _step_back()
    commands, bell, replies, memory = map(int, sys.argv[1:5])
    inbox = Inbox(commands)
    try:
        (plan, places, fps, threads, trial), *messages = inbox.receive(_FIRST_MESSAGE_S)
    except (EOFError, ValueError):
        return
    try:
        frames = SharedFrames(plan, places, handle=memory)
        worker = Worker(inbox, bell, replies, plan, frames, fps=fps, threads=threads)
        if trial is not None:
            worker.try_out(Path(trial))
    except (DemoreelError, OSError) as error:
        send_all(replies, ("failed", None, str(error), disk_errno(error)))
        return
    try:
        send_all(replies, ("ready", None))
    except BrokenPipeError:  # the recording has ended before it began
        return
    worker.run(messages)
