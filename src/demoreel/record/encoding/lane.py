"""One camera in the recording process: its memory, its encoder, and what is on the way between."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from demoreel.errors import EncoderBehindError, VideoError
from demoreel.record.encoding.files import packets_path, spill_path, video_path
from demoreel.record.encoding.messages import Inbox, Message, Outbox
from demoreel.record.encoding.plan import CameraPlan, FinishedVideo
from demoreel.record.encoding.shared import Progress, SharedFrames
from demoreel.record.encoding.spill import DiskThread, SpillFile
from demoreel.stats.running import Pictures

_TOUCHED = 24  # places that get their memory before the first picture
_DEATHS = 5  # encoders that may die one after the other without a frame between
_END_S = 2.0
_SOON_S = 0.01  # tidying up waits until the frame that comes now is taken


@dataclass(eq=False, slots=True)
class Held:
    """A picture that is not safe yet, and where it waits.

    Attributes:
        frame: Its number in the episode.
        place: Its place in memory.
        on_disk: Its place on disk.
        told: Whether the encoder is told of it; one that is to go to disk is told of when there.
        copying: Whether the disk's thread is reading its place in memory.
        safe: Whether its packet is in the file, or it is not wanted any more.
    """

    frame: int
    place: int | None
    on_disk: int | None = None
    told: bool = True
    copying: bool = False
    safe: bool = False


@dataclass(eq=False, slots=True)
class Take:
    """An episode of one camera that is not finished."""

    episode: int
    base: Path
    spill: SpillFile
    put: int = 0
    held: deque[Held] = field(default_factory=deque)
    ended: bool = False
    dropped: bool = False
    sealed: bool = False
    counted: Pictures | None = None
    finished: FinishedVideo | None = None
    failure: str | None = None
    stuck: str | None = None


@dataclass(frozen=True, slots=True)
class Sealed:
    """What is on disk of an episode: packets up to here, and where the pictures after them are."""

    progress: Progress
    places: list[int]


class Lane:
    """Takes pictures of one camera and has them encoded.

    ``put`` is for one thread. ``receive`` and ``revive`` are called by the thread that keeps the
    encoders; ``on_change`` is called there whenever an episode has finished, failed or moved on.

    Args:
        plan: The camera.
        fps: Frames per second.
        places: Pictures that fit into memory.
        threads: Most threads the codec may use.
        disk: The thread that writes pictures to disk.
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
        self._fps = fps
        self._places = places
        self._threads = threads
        self._disk = disk
        self._on_waiting = on_waiting
        self._shared = SharedFrames(plan, places)
        self._shared.touch(_TOUCHED)
        # The place that was given back last is taken first: it is warm, and memory that is never
        # needed is never touched. Half of them are for pictures on their way to disk.
        self._free = list(reversed(range(places)))
        self._reserve = places // 2
        self._takes: deque[Take] = deque()
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

    def begin(self, episode: int, base: Path) -> Take:
        """Begin an episode; its pictures come next."""
        take = Take(episode, base, SpillFile(spill_path(base), self.plan.nbytes))
        self._clear_leftovers()
        with self._lock:
            self._takes.append(take)
            self._send("begin", episode, str(base))
        return take

    def check_room(self) -> None:
        """Raise unless there is room for a picture, so that the next ``put`` cannot fail.

        Raises:
            EncoderBehindError: All memory is taken by pictures that nobody has taken away.
            VideoError: The encoder has failed for good.
        """
        with self._lock:
            self._reclaim()
            if self._free and self.failure is None:
                return
            stuck = [take.stuck for take in self._takes if take.stuck]
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

    def put(self, take: Take, picture: np.ndarray) -> None:
        """Copy a picture and pass it on; ``check_room`` must have found room."""
        with self._lock:
            place = self._free.pop()
        np.copyto(self._shared.pictures[place], picture)
        with self._lock:
            held = Held(take.put, place)
            take.held.append(held)
            take.put += 1
            if len(self._free) >= self._reserve:
                self._send("memory", take.episode, held.frame, place)
                return
            held.told, held.copying = False, True
        self._disk.do(lambda: self._to_disk(take, held))

    def end(self, take: Take) -> None:
        """Say that the episode has all its pictures."""
        with self._lock:
            take.ended = True
            self._send("end", take.episode, take.put)
            self._ring()

    def drop(self, take: Take) -> None:
        """Say that the episode is not wanted."""
        with self._lock:
            take.dropped = True
            self._send("drop", take.episode)

    def waiting(self) -> tuple[int, int]:
        """Return how many pictures wait in memory and on disk."""
        with self._lock:
            self._reclaim()
            held = [h for take in self._takes for h in take.held]
            in_memory = sum(h.place is not None for h in held)
            return in_memory, len(held) - in_memory

    def seal(self, take: Take) -> Sealed:
        """Bring to disk what an ended episode has in memory; its packets too. Waits for the disk.

        Raises:
            OSError: The disk is full or fails; nothing is lost by that.
        """
        with self._lock:
            take.sealed = True  # from now on its places on disk stay as they are
            self._reclaim()
            copied = [h for h in take.held if h.on_disk is None and not h.copying]
            for held in copied:
                held.copying = True
        for held in copied:
            self._disk.do(partial(self._also_to_disk, take, held))
        self._disk.finish()
        with self._lock:
            self._reclaim()
            if any(held.on_disk is None for held in take.held):
                take.sealed = False
                raise self._disk_error or OSError("a picture could not be written to disk")
            places = {held.frame: held.on_disk for held in take.held}
            progress = self._progress_of(take)
        take.spill.sync()
        sync(packets_path(take.base))
        waiting = [
            at for frame, at in places.items() if at is not None and frame >= progress.frames
        ]
        return Sealed(progress, waiting)

    def _progress_of(self, take: Take) -> Progress:
        if take.finished is not None:
            return Progress(take.episode, take.put, take.finished.stats)
        progress = self._shared.progress()
        begun = progress.episode == take.episode
        return progress if begun else Progress(take.episode, 0, Pictures())

    # What the disk's thread does

    def _also_to_disk(self, take: Take, held: Held) -> None:
        """Write a picture to disk that stays in memory for the encoder."""
        assert held.place is not None
        place = self._written(take, self._shared.pictures[held.place])
        with self._lock:
            held.copying, held.on_disk = False, place
            if held.safe:
                self._release(take, held)

    def _to_disk(self, take: Take, held: Held) -> None:
        """Write a picture to disk and let go of its memory; where that fails it stays in memory."""
        assert held.place is not None
        place = None if take.dropped else self._written(take, self._shared.pictures[held.place])
        with self._lock:
            held.copying, held.told, held.on_disk = False, True, place
            if held.safe:
                self._release(take, held)
            elif place is None:
                self._send("memory", take.episode, held.frame, held.place)
            else:
                self._free.append(held.place)
                held.place = None
                self._send("disk", take.episode, held.frame, place)

    def _written(self, take: Take, picture: np.ndarray) -> int | None:
        try:
            place = take.spill.write(picture)
        except OSError as error:
            self._disk_error = error
            return None
        self._disk_error = None
        return place

    # What the thread that keeps the encoders does

    def start(self, *, trial: Path | None = None) -> None:
        """Start an encoder, which goes on where the one before it was."""
        commands, to_encoder = os.pipe()
        bell, to_bell = os.pipe()
        from_encoder, replies = os.pipe()
        # With this process's own path: demoreel may lie where only its caller looks for it.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        handles = (commands, bell, replies, self._shared.handle)
        process = subprocess.Popen(
            [sys.executable, "-m", "demoreel.record.encoding.worker", *map(str, handles)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # whoever reads what the recorder prints waits for nobody
            pass_fds=handles,
            env=environment,
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
        """Take in what the encoder says.

        Raises:
            EOFError: The encoder is gone.
        """
        if self.inbox is None:
            return  # given up
        for message in self.inbox.receive(0):
            self._take_in(message)

    def revive(self) -> None:
        """Start another encoder after one has died, unless they die without getting anywhere."""
        with self._lock:
            self._close_pipes()
            position = self._shared.position
            busy = any(take.held for take in self._takes)
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
        """End the encoder and give up the memory; pictures that are not safe are gone."""
        self._close_pipes()
        if self._process is not None:
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._clear_leftovers()
        self._disk.finish()
        for take in self._takes:
            take.spill.close()
        self._shared.close()

    def _take_in(self, message: Message) -> None:
        kind, episode, *rest = message
        if kind == "ready":
            self.is_ready = True
            return
        if episode is None:
            self.failure = rest[0]
            return
        with self._lock:
            take = next((take for take in self._takes if take.episode == episode), None)
            if take is None:
                return
            take.stuck = rest[0] if kind == "stuck" else None
            if kind == "failed":
                take.failure = rest[0]
            elif kind == "counted":
                take.counted = Pictures.counted(rest[1], rest[0])
            elif kind == "done":
                frames, histogram, signature = rest
                take.counted = Pictures.counted(histogram, frames)
                path = video_path(take.base)
                take.finished = FinishedVideo(path, frames, take.counted, signature)
                # Not now: the disk is to be left alone until the episode is committed.
                files = [] if take.sealed else [packets_path(take.base)]
                self._leftovers.append(partial(_clear, take, *files))
                self._let_go(take)
            elif kind == "dropped":
                self._let_go(take)
                files = [packets_path(take.base), video_path(take.base)]
                self._disk.do(partial(_clear, take, *files))  # after what it still writes there

    def _let_go(self, take: Take) -> None:
        """Give back all the memory that an episode holds."""
        while take.held:
            self._release(take, take.held.popleft())
        self._takes.remove(take)

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
        for take in self._takes:
            if take.episode > episode:
                break
            while take.held and (take.episode < episode or take.held[0].frame < frames):
                self._release(take, take.held.popleft())

    def _release(self, take: Take, held: Held) -> None:
        held.safe = True
        if held.copying:
            return  # the disk's thread is reading it, and gives it back
        if held.place is not None:
            self._free.append(held.place)
        if held.on_disk is not None and not take.sealed:
            take.spill.give_back(held.on_disk)

    def _tell_all(self) -> None:
        """Tell a new encoder of everything that is not finished."""
        self._reclaim()
        for take in self._takes:
            self._send("begin", take.episode, str(take.base))
            if take.dropped:
                self._send("drop", take.episode)
                continue
            for held in take.held:
                if held.place is None:
                    self._send("disk", take.episode, held.frame, held.on_disk)
                elif held.told:
                    self._send("memory", take.episode, held.frame, held.place)
            if take.ended:
                self._send("end", take.episode, take.put)

    def _send(self, *message: object) -> None:
        if self.outbox is not None:
            self.outbox.send(message)

    def _ring(self) -> None:
        """Have the encoder look at once, for somebody waits."""
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


def _clear(take: Take, *files: Path) -> None:
    """Remove what is no longer needed of an episode; a disk that fails at that loses nothing."""
    take.spill.close()
    for path in files if take.sealed else (take.spill.path, *files):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        take.base.parent.rmdir()  # empty when the last camera has gone, and its video is taken


def sync(path: Path) -> None:
    """Force a file to disk, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
