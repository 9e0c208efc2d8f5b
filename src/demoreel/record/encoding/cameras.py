"""All cameras of a recording: pictures in without waiting, whole episodes out."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from demoreel.errors import (
    ArgumentError,
    UnknownKeyError,
    VideoError,
    nearest,
)
from demoreel.record.encoding.files import episode_folder, next_episode
from demoreel.record.encoding.lane import Lane, Take
from demoreel.record.encoding.pending import PendingVideos, finished_videos, write_manifest
from demoreel.record.encoding.plan import Backlog, CameraPlan, FinishedVideo
from demoreel.record.encoding.spill import DiskThread
from demoreel.stats.running import Pictures

_FEWEST_PLACES = 8
_MOST_THREADS = 4
_READY_S = 60.0


class CameraEncoders:
    """Encodes the pictures of several cameras while they are recorded.

    Each camera has an encoder in a process of its own, at a lower priority than this one, and a
    share of ``memory_mb`` for pictures on their way there. Where encoders fall behind, pictures
    wait in ``workdir``. An encoder that dies is replaced, and nothing is lost by it. If this
    process is killed the encoders end by themselves.

    ``put`` and the methods that end an episode are for one thread. Construction takes about half a
    second: the encoders start, and each tries its codec.

    Args:
        cameras: The cameras; their keys differ.
        fps: Frames per second.
        workdir: A folder for this recording alone, on a disk with room; made if need be.
        memory_mb: Memory for pictures that wait, in megabytes, all cameras together. It is taken as
            it is needed.
        threads: Most threads of each encoder; None shares the cores out.

    Raises:
        ArgumentError: There are no cameras, or two have the same key.
        VideoError: A camera's codec cannot encode its pictures.
        OSError: There is no memory, or ``workdir`` cannot be written.
    """

    def __init__(
        self,
        cameras: Sequence[CameraPlan],
        *,
        fps: float,
        workdir: Path,
        memory_mb: int = 512,
        threads: int | None = None,
    ) -> None:
        keys = [plan.key for plan in cameras]
        if not keys or len(set(keys)) < len(keys):
            raise ArgumentError(f"Cameras must have keys that differ, not {keys}.")
        if memory_mb <= 0:
            raise ArgumentError(f"memory_mb must be positive, not {memory_mb}.")
        self._fps = fps
        self._workdir = Path(workdir)
        self._workdir.mkdir(parents=True, exist_ok=True)
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._closing = False
        self._episode = next_episode(self._workdir) - 1
        self._takes: dict[str, Take] = {}
        self._dropped: set[Path] = set()
        self._emptied: list[Path] = []
        self._finished: dict[str, FinishedVideo] | None = None
        self._disk = DiskThread()
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        places = (memory_mb << 20) // sum(plan.nbytes for plan in cameras)
        self._lanes = {
            plan.key: Lane(
                plan,
                fps=fps,
                places=max(_FEWEST_PLACES, places),
                threads=threads or _threads_each(len(cameras)),
                disk=self._disk,
                on_waiting=self._wake,
            )
            for plan in cameras
        }
        self._keeper = threading.Thread(
            target=self._keep_encoders, name="demoreel-encoders", daemon=True
        )
        self._keeper.start()
        try:
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def put(self, key: str, picture: np.ndarray) -> None:
        """Take the next picture of one camera; costs a copy of its pixels.

        The first picture after an episode has ended begins the next.

        Raises:
            UnknownKeyError: There is no such camera.
            ArgumentError: The picture has another shape or type.
            EncoderBehindError: Neither encoder nor disk could take it; it was not taken.
            VideoError: The camera's encoder has failed for good.
        """
        self.put_frame({key: picture})

    def put_frame(self, pictures: Mapping[str, np.ndarray]) -> None:
        """Take a picture of each of several cameras: all of them, or, raising, none.

        Raises:
            UnknownKeyError: There is no such camera.
            ArgumentError: A picture has another shape or type.
            EncoderBehindError: Neither encoder nor disk could take one.
            VideoError: A camera's encoder has failed for good.
        """
        if self._closing:
            raise ArgumentError("These encoders are closed.")
        lanes = []
        for key, picture in pictures.items():
            lane = self._lanes.get(key)
            if lane is None:
                raise UnknownKeyError(
                    f"There is no camera {key!r}.", hint=nearest(key, self._lanes)
                )
            lane.plan.check(picture)
            lane.check_room()
            take = self._takes.get(key)
            if take is not None and take.failure is not None:
                raise VideoError(
                    f"The episode cannot be encoded: {take.failure}",
                    hint="discard the episode, and try another codec",
                    camera=key,
                )
            lanes.append((lane, picture))
        for lane, picture in lanes:
            lane.put(self._take_of(lane), picture)

    def end_episode(self) -> None:
        """Say that the episode has all its pictures, so that its videos are finished meanwhile.

        ``finish_episode`` and ``seal_episode`` say so, too.

        Raises:
            ArgumentError: A camera has no picture.
        """
        if self._finished is None:
            self._end_takes()

    def count_episode(self) -> Mapping[str, Pictures]:
        """Wait until the episode's pictures are counted; the last ones may still be encoded.

        Raises:
            ArgumentError: A camera has no picture.
            EncoderBehindError: As for ``finish_episode``.
            VideoError: As for ``finish_episode``.
            FrameMismatchError: As for ``finish_episode``.
        """
        self.end_episode()
        if self._finished is None:
            takes = self._takes
            with self._changed:
                self._changed.wait_for(lambda: _are_counted(takes) or self._is_settled(takes))
            if _are_counted(takes):
                return {key: take.counted for key, take in takes.items() if take.counted}
        return {key: video.stats for key, video in self.finish_episode().items()}

    def finish_episode(self) -> Mapping[str, FinishedVideo]:
        """Wait for what is still being encoded and return the episode's videos.

        Asking again, before another picture is put, gives the same answer.

        Raises:
            ArgumentError: A camera has no picture.
            EncoderBehindError: The disk is full; free some space and ask again, or discard.
            VideoError: An encoder has failed; the episode can only be discarded.
            FrameMismatchError: A video has not as many frames as pictures were put.
        """
        self.end_episode()
        if self._finished is None:
            with self._changed:
                self._changed.wait_for(lambda: self._is_settled(self._takes))
            self._finished = finished_videos(self._takes, self._lanes)
            self._takes = {}
            self._emptied.append(episode_folder(self._workdir, self._episode))
        return self._finished

    def seal_episode(self, *, note: Mapping[str, Any] | None = None) -> PendingVideos:
        """Make the episode safe as it is, encoded or not, and go on; it is encoded behind.

        When this returns, the episode survives ``kill -9`` of everything and a power cut:
        ``recover_pending`` finds it. Costs writing to disk what waits in memory, and a flush.

        Args:
            note: What to keep with it, for whoever recovers it; becomes JSON.

        Raises:
            ArgumentError: A camera has no picture.
            OSError: The disk is full; the episode is still here, and may be sealed again.
        """
        self._end_takes()
        takes, folder = self._takes, episode_folder(self._workdir, self._episode)
        folder.mkdir(exist_ok=True)
        sealed = {key: self._lanes[key].seal(take) for key, take in takes.items()}
        write_manifest(folder, takes, self._lanes, sealed=sealed, fps=self._fps, note=note or {})
        self._takes = {}
        return PendingVideos(folder, takes, self._lanes, self._changed, self._is_settled)

    def discard_episode(self) -> None:
        """Forget the pictures since the last episode. Returns at once."""
        self._drop_takes()
        for video in (self._finished or {}).values():
            video.path.unlink(missing_ok=True)
        self._finished = None

    @property
    def backlog(self) -> Backlog:
        """What is not encoded yet."""
        waiting = {key: lane.waiting() for key, lane in self._lanes.items()}
        return Backlog(
            frames_in_memory=sum(memory for memory, _ in waiting.values()),
            frames_on_disk=sum(disk for _, disk in waiting.values()),
            bytes_on_disk=sum(n[1] * self._lanes[key].plan.nbytes for key, n in waiting.items()),
            seconds_behind=max(sum(n) for n in waiting.values()) / self._fps,
        )

    @property
    def encoder_processes(self) -> Mapping[str, int]:
        """The process that encodes each camera now."""
        return {key: lane.process_id for key, lane in self._lanes.items()}

    def close(self) -> None:
        """End the encoders. An episode that is not finished is gone; a sealed one stays on disk.

        May be called twice.
        """
        if self._closing or os.getpid() != self._process:
            return  # a forked child must not end its parent's encoders
        self._drop_takes()
        self._closing = True
        self._wake()
        self._keeper.join()
        for lane in self._lanes.values():
            lane.close()
        self._disk.close()
        os.close(self._wake_in)
        os.close(self._wake_out)
        for folder in self._dropped:
            shutil.rmtree(folder, ignore_errors=True)
        _remove_empty(self._emptied)

    def __enter__(self) -> CameraEncoders:
        """Return the encoders."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close them."""
        self.close()

    def _take_of(self, lane: Lane) -> Take:
        take = self._takes.get(lane.plan.key)
        if take is not None and not take.ended:
            return take
        if take is not None:
            raise ArgumentError(
                "The episode has ended but is not finished.", hint="finish or discard it"
            )
        if not self._takes:
            self._begin_episode()
        number = list(self._lanes).index(lane.plan.key)
        base = episode_folder(self._workdir, self._episode) / f"camera-{number}"
        take = self._takes[lane.plan.key] = lane.begin(self._episode, base)
        return take

    def _begin_episode(self) -> None:
        emptied, self._emptied = self._emptied, []
        if emptied:
            self._disk.do(lambda: _remove_empty(emptied))
        self._episode += 1
        self._finished = None

    def _drop_takes(self) -> None:
        for key, take in self._takes.items():
            take.sealed = False
            self._lanes[key].drop(take)
            self._dropped.add(take.base.parent)
        self._takes = {}

    def _end_takes(self) -> None:
        missing = [key for key in self._lanes if key not in self._takes]
        if missing:
            raise ArgumentError(
                "A camera has no pictures, so there is no video.", camera=missing[0]
            )
        for key, take in self._takes.items():
            if not take.ended:
                self._lanes[key].end(take)

    def _is_settled(self, takes: Mapping[str, Take]) -> bool:
        """Whether all is finished, or one cannot be."""
        over = [take.failure or take.stuck or self._lanes[k].failure for k, take in takes.items()]
        return self._closing or any(over) or all(take.finished for take in takes.values())

    def _wait_until_ready(self) -> None:
        lanes = self._lanes.values()
        with self._changed:
            settled = self._changed.wait_for(
                lambda: all(x.is_ready for x in lanes) or any(x.failure for x in lanes), _READY_S
            )
        for lane in lanes:
            if lane.failure is not None or not settled:
                why = lane.failure or "its encoder does not start."
                raise VideoError(f"The camera cannot be encoded: {why}", camera=lane.plan.key)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # enough is in the pipe to wake it
            os.write(self._wake_out, b"!")

    def _keep_encoders(self) -> None:
        """Start encoders, hear what they say, send what waits, and replace those that have died.

        They are started here because they end with the thread that started them.
        """
        for lane in self._lanes.values():
            self._attempt(lane, lambda lane: lane.start(trial=self._workdir))
        while not self._closing:
            for lane in self._ready_lanes():
                self._attempt(lane, self._serve)

    def _attempt(self, lane: Lane, step: Callable[[Lane], None]) -> None:
        try:
            step(lane)
        except Exception as error:  # whoever waits for this camera must hear of it
            lane.failure = repr(error)
        with self._changed:
            self._changed.notify_all()

    def _serve(self, lane: Lane) -> None:
        try:
            if lane.outbox is not None:
                lane.outbox.flush()
            lane.receive()
        except EOFError:
            if not self._closing:
                lane.revive()

    def _ready_lanes(self) -> list[Lane]:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_in, selectors.EVENT_READ, None)
            for lane in self._lanes.values():
                if lane.inbox is not None:
                    selector.register(lane.inbox.handle, selectors.EVENT_READ, lane)
                if lane.outbox is not None and lane.outbox.is_waiting:
                    selector.register(lane.outbox.handle, selectors.EVENT_WRITE, lane)
            ready = [key.data for key, _ in selector.select()]
        if None in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_in, 1 << 16)
        return [lane for lane in dict.fromkeys(ready) if lane is not None]


def _threads_each(cameras: int) -> int:
    return max(1, min(_MOST_THREADS, (os.cpu_count() or 1) // cameras))


def _are_counted(takes: Mapping[str, Take]) -> bool:
    return all(take.counted is not None for take in takes.values())


def _remove_empty(folders: Sequence[Path]) -> None:
    """Remove the folders of episodes whose videos were taken away."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()
