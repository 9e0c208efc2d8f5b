"""All cameras of a recording: takes frames without waiting, returns complete episodes."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from demoreel.errors import (
    ArgumentError,
    DiskError,
    DiskFullError,
    UnknownKeyError,
    VideoError,
    nearest,
)
from demoreel.layouts.persisted_files import episode_folder, next_episode
from demoreel.record.encoding.camera import CameraBuffer, CameraEncoder
from demoreel.record.encoding.persist import remove_manifest, write_manifest
from demoreel.record.encoding.plan import Backlog, CameraPlan, FinishedVideo
from demoreel.record.encoding.spill import DiskThread
from demoreel.stats.running import LevelCounts
from demoreel.storage.commit.files import says_no_room

_FEWEST_PLACES = 8
_MOST_THREADS = 4
_READY_S = 60.0


class CameraEncoders:
    """Encodes the frames of several cameras while they are recorded.

    Each camera has an encoder in a process of its own, at a lower priority than this one, and a
    share of ``memory_mb`` for frames on their way there. Where encoders fall behind, frames
    wait in ``workdir``. An encoder that dies is replaced, and nothing is lost by it. If this
    process is killed the encoders end by themselves.

    ``put`` and the methods that end an episode are for one thread. Construction takes about half a
    second: the encoders start, and each tries its codec.

    Attributes:
        must_persist: Whether an episode that could not be persisted may be found as persisted
            nevertheless: it can only be persisted again, or discarded.

    Args:
        cameras: The cameras; their keys differ.
        fps: Frames per second.
        workdir: A folder for this recording alone, on a disk with room; made if need be.
        memory_mb: Memory for frames that wait, in megabytes, all cameras together. It is taken as
            it is needed.
        threads: Most threads of each encoder; None shares the cores out.
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
        self._buffers: dict[str, CameraBuffer] = {}
        self._dropped: set[Path] = set()
        self._emptied: list[Path] = []
        self._finished: EpisodeVideos | None = None
        self.must_persist = False
        self._disk = DiskThread()
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        places = (memory_mb << 20) // sum(plan.nbytes for plan in cameras)
        self._cameras = {
            plan.key: CameraEncoder(
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

    def put(self, key: str, image: np.ndarray) -> None:
        """Take the next frame of one camera; costs a copy of its pixels.

        The first frame after an episode has ended begins the next.
        """
        self.put_frame({key: image})

    def put_frame(self, images: Mapping[str, np.ndarray]) -> None:
        """Take a frame of each of several cameras: all of them, or, raising, none."""
        if self._closing:
            raise ArgumentError("These encoders are closed.")
        cameras = []
        for key, image in images.items():
            camera = self._cameras.get(key)
            if camera is None:
                raise UnknownKeyError(
                    f"There is no camera {key!r}.", hint=nearest(key, self._cameras)
                )
            camera.plan.check(image)
            camera.check_room()
            buffer = self._buffers.get(key)
            if buffer is not None and buffer.failure is not None:
                raise VideoError(
                    f"The episode cannot be encoded: {buffer.failure}",
                    hint="discard the episode, and try another codec",
                    camera=key,
                )
            cameras.append((camera, image))
        for camera, image in cameras:
            camera.put(self._buffer_of(camera), image)

    def end_episode(self) -> None:
        """Say that the episode has all its frames, so that its videos are finished meanwhile.

        ``finish_episode`` and ``persist_episode`` say so, too.
        """
        if self._finished is None:
            self._end_buffers()

    def count_episode(self) -> Mapping[str, LevelCounts]:
        """Wait until the episode's frames are counted; the last ones may still be encoded."""
        self.end_episode()
        if self._finished is None:
            buffers = self._buffers
            _forget_stuck(buffers)
            with self._changed:
                self._changed.wait_for(lambda: _are_counted(buffers) or self._is_settled(buffers))
            if _are_counted(buffers):
                return {key: buffer.counted for key, buffer in buffers.items() if buffer.counted}
        return {key: video.stats for key, video in self.finish_episode().items()}

    def finish_episode(self) -> Mapping[str, FinishedVideo]:
        """Wait for what is still being encoded and return the episode's videos.

        Asking again, before another frame is put, gives the same answer. After a DiskError the
        caller may ask again, or discard; after a VideoError it can only discard.
        """
        self.end_episode()
        if self._finished is None:
            folder = episode_folder(self._workdir, self._episode)
            videos = EpisodeVideos(self, folder, self._buffers)
            videos.wait()
            self._finished, self._buffers = videos, {}
            self._emptied.append(folder)
        return self._finished.wait()

    def doubt_videos(self) -> None:
        """Have ``finish_episode`` write the videos again: they could not be synced to disk."""
        if self._finished is not None:
            self._finished.doubt()

    def wait_for(self, buffers: Mapping[str, CameraBuffer]) -> dict[str, FinishedVideo]:
        """Wait until an episode is encoded and return its videos, or raise why it cannot be."""
        _forget_stuck(buffers)
        with self._changed:
            self._changed.wait_for(lambda: self._is_settled(buffers))
        return _finished_videos(buffers, self._cameras)

    def remake(self, videos: Mapping[str, FinishedVideo]) -> dict[str, FinishedVideo]:
        """Write finished videos again, from their packets."""
        return {key: self._cameras[key].remade(video) for key, video in videos.items()}

    @property
    def folder(self) -> Path:
        """The folder of the episode that is being recorded; made if need be."""
        folder = episode_folder(self._workdir, self._episode)
        folder.mkdir(exist_ok=True)
        return folder

    def persist_episode(self, *, note: Mapping[str, Any] | None = None) -> EpisodeVideos:
        """Make the episode safe as it is, encoded or not, and continue; it is encoded behind.

        When this returns, the episode survives ``kill -9`` of everything and a power cut: every
        reader finds it, and the next writer commits it. Costs writing to disk what waits in memory,
        and a flush.

        Args:
            note: What to keep with it, for the writer that recovers it; becomes JSON.

        Where the disk is full (OSError), the episode is still here, and may be persisted again.
        """
        self._end_buffers()
        buffers, folder = self._buffers, self.folder
        try:
            persisted = {key: self._cameras[key].persist(buffer) for key, buffer in buffers.items()}
            self.must_persist = True
            write_manifest(
                folder, buffers, self._cameras, persisted=persisted, fps=self._fps, note=note or {}
            )
        except BaseException:
            with contextlib.suppress(OSError):
                remove_manifest(folder)
                self.must_persist = False
                for buffer in buffers.values():
                    buffer.persisted = False
            raise
        self.must_persist = False
        self._buffers = {}
        return EpisodeVideos(self, folder, buffers)

    def discard_episode(self) -> None:
        """Forget the frames since the last episode. Returns at once."""
        if self.must_persist:
            remove_manifest(episode_folder(self._workdir, self._episode))
            self.must_persist = False
        self._drop_buffers()
        for video in (self._finished.videos if self._finished is not None else {}).values():
            with contextlib.suppress(OSError):  # unused, and removed with the folder
                video.path.unlink(missing_ok=True)
        self._finished = None

    @property
    def backlog(self) -> Backlog:
        """What is not encoded yet."""
        waiting = {key: camera.waiting() for key, camera in self._cameras.items()}
        return Backlog(
            frames_in_memory=sum(memory for memory, _ in waiting.values()),
            frames_on_disk=sum(disk for _, disk in waiting.values()),
            bytes_on_disk=sum(n[1] * self._cameras[key].plan.nbytes for key, n in waiting.items()),
            seconds_behind=max(sum(n) for n in waiting.values()) / self._fps,
        )

    @property
    def encoder_processes(self) -> Mapping[str, int]:
        """The process that encodes each camera now."""
        return {key: camera.process_id for key, camera in self._cameras.items()}

    def close(self) -> None:
        """End the encoders. An episode that is not finished is gone; a persisted one stays on disk.

        May be called twice.
        """
        if self._closing or os.getpid() != self._process:
            return  # a forked child must not end its parent's encoders
        self._drop_buffers()
        self._closing = True
        self._wake()
        self._keeper.join()
        for camera in self._cameras.values():
            camera.close()
        self._disk.close()
        os.close(self._wake_in)
        os.close(self._wake_out)
        for folder in self._dropped:
            shutil.rmtree(folder, ignore_errors=True)
        _remove_empty(self._emptied)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _buffer_of(self, camera: CameraEncoder) -> CameraBuffer:
        buffer = self._buffers.get(camera.plan.key)
        if buffer is not None and not buffer.ended:
            return buffer
        if buffer is not None:
            raise ArgumentError(
                "The episode has ended but is not finished.", hint="finish or discard it"
            )
        if not self._buffers:
            self._begin_episode()
        number = list(self._cameras).index(camera.plan.key)
        base = episode_folder(self._workdir, self._episode) / f"camera-{number}"
        buffer = self._buffers[camera.plan.key] = camera.begin(self._episode, base)
        return buffer

    def _begin_episode(self) -> None:
        emptied, self._emptied = self._emptied, []
        if emptied:
            self._disk.do(lambda: _remove_empty(emptied))
        self._episode += 1
        self._finished = None

    def _drop_buffers(self) -> None:
        for key, buffer in self._buffers.items():
            buffer.persisted = False
            self._cameras[key].drop(buffer)
            self._dropped.add(buffer.base.parent)
        self._buffers = {}

    def _end_buffers(self) -> None:
        missing = [key for key in self._cameras if key not in self._buffers]
        if missing:
            raise ArgumentError("A camera has no frames, so there is no video.", camera=missing[0])
        for key, buffer in self._buffers.items():
            if not buffer.ended:
                self._cameras[key].end(buffer)

    def _is_settled(self, buffers: Mapping[str, CameraBuffer]) -> bool:
        """Whether all is finished, or one cannot be."""
        over = [
            buffer.failure or buffer.stuck or self._cameras[k].failure
            for k, buffer in buffers.items()
        ]
        return self._closing or any(over) or all(buffer.finished for buffer in buffers.values())

    def _wait_until_ready(self) -> None:
        cameras = self._cameras.values()
        with self._changed:
            settled = self._changed.wait_for(
                lambda: all(x.is_ready for x in cameras) or any(x.failure for x in cameras),
                _READY_S,
            )
        for camera in cameras:
            if camera.failure is not None or not settled:
                why = camera.failure or "its encoder does not start."
                if camera.failed_disk is not None:
                    raise camera.failed_disk
                raise VideoError(f"The camera cannot be encoded: {why}", camera=camera.plan.key)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # enough is in the pipe to wake it
            os.write(self._wake_out, b"!")

    def _keep_encoders(self) -> None:
        """Start encoders, hear what they say, send what waits, and replace those that have died.

        They are started here because they end with the thread that started them.
        """
        for camera in self._cameras.values():
            self._attempt(camera, lambda camera: camera.start(trial=self._workdir))
        while not self._closing:
            for camera in self._ready_cameras():
                self._attempt(camera, self._serve)

    def _attempt(self, camera: CameraEncoder, step: Callable[[CameraEncoder], None]) -> None:
        try:
            step(camera)
        except Exception as error:  # what waits for this camera must be told
            camera.failure = repr(error)
        with self._changed:
            self._changed.notify_all()

    def _serve(self, camera: CameraEncoder) -> None:
        try:
            if camera.outbox is not None:
                camera.outbox.flush()
            camera.receive()
        except EOFError:
            if not self._closing:
                camera.revive()

    def _ready_cameras(self) -> list[CameraEncoder]:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_in, selectors.EVENT_READ, None)
            for camera in self._cameras.values():
                if camera.inbox is not None:
                    selector.register(camera.inbox.handle, selectors.EVENT_READ, camera)
                if camera.outbox is not None and camera.outbox.is_waiting:
                    selector.register(camera.outbox.handle, selectors.EVENT_WRITE, camera)
            ready = [key.data for key, _ in selector.select()]
        if None in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_in, 1 << 16)
        return [camera for camera in dict.fromkeys(ready) if camera is not None]


class EpisodeVideos:
    """The videos of an episode that has ended: finished, or encoded behind the recording.

    Attributes:
        videos: The videos, once ``wait`` has returned.
    """

    def __init__(
        self, encoders: CameraEncoders, folder: Path, buffers: Mapping[str, CameraBuffer]
    ) -> None:
        self.folder = folder
        self.videos: dict[str, FinishedVideo] = {}
        self._encoders = encoders
        self._buffers = buffers
        self._doubtful = False

    @property
    def is_finished(self) -> bool:
        """Whether all videos are there; ``wait`` then returns at once."""
        return all(buffer.finished for buffer in self._buffers.values())

    def wait(self) -> dict[str, FinishedVideo]:
        """Wait until the episode is encoded and return its videos; where that fails, ask again."""
        if not self.videos:
            self.videos = self._encoders.wait_for(self._buffers)
        if self._doubtful:
            self.videos = self._encoders.remake(self.videos)
            self._doubtful = False
        return self.videos

    def doubt(self) -> None:
        """Have ``wait`` write the videos again: they could not be synced to disk."""
        self._doubtful = True


def _finished_videos(
    buffers: Mapping[str, CameraBuffer], cameras: Mapping[str, CameraEncoder]
) -> dict[str, FinishedVideo]:
    """Return the videos of an episode, or raise what has kept one from being finished."""
    videos = {}
    for key, buffer in buffers.items():
        video = buffer.finished
        failure = buffer.failure or cameras[key].failure
        if video is not None:
            videos[key] = video
        elif failure is not None:
            raise VideoError(
                f"The episode cannot be encoded: {failure}",
                hint="discard the episode, and try another codec",
                camera=key,
            )
        elif buffer.stuck is not None:
            full = says_no_room(buffer.stuck)
            raise (DiskFullError if full else DiskError)(
                f"The episode's video cannot be written ({buffer.stuck.strerror}), so nothing was "
                "saved; the episode is still here.",
                hint=f"{'free disk space' if full else 'see what the disk needs'}, then save again",
                camera=key,
            )
    if len(videos) < len(buffers):
        raise ArgumentError("The encoders were closed before the episode was finished.")
    return videos


def _forget_stuck(buffers: Mapping[str, CameraBuffer]) -> None:
    """Forget that encoders could not write: they try again, and say so if they still cannot."""
    for buffer in buffers.values():
        buffer.stuck = None


def _threads_each(cameras: int) -> int:
    return max(1, min(_MOST_THREADS, (os.cpu_count() or 1) // cameras))


def _are_counted(buffers: Mapping[str, CameraBuffer]) -> bool:
    return all(buffer.counted is not None for buffer in buffers.values())


def _remove_empty(folders: Sequence[Path]) -> None:
    """Remove the folders of episodes whose videos were taken away."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()
