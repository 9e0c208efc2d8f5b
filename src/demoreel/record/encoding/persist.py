"""Episodes whose frames are safe on disk but not all encoded yet.

A persisted episode's folder has, for each camera, the packets that were made, the frames that
wait, the counts of the frames before them, and one manifest, written last, that says how they go
together (``layouts/persisted.py`` reads them). With that alone the videos can be finished: by the
recorder that goes on, the next one, or ``demoreel finish``.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from demoreel.errors import (
    ArgumentError,
    DiskError,
    DiskFullError,
    VideoError,
)
from demoreel.layouts.persisted import Manifest, PersistedCamera, read_counts
from demoreel.layouts.persisted_files import (
    MANIFEST,
    counts_path,
    episode_folders,
    is_persisted,
    packets_path,
    spill_path,
)
from demoreel.layouts.spans import require_frames
from demoreel.media.settings import VideoSettings
from demoreel.record.encoding.camera import CameraBuffer, CameraEncoder, PersistedFrames
from demoreel.record.encoding.ipc import EncodingProgress
from demoreel.record.encoding.plan import CameraPlan, FinishedVideo
from demoreel.record.encoding.spill import read_spilled
from demoreel.stats.running import LevelCounts
from demoreel.storage.commit.files import write_file
from demoreel.storage.no_room import says_no_room


class PendingVideos:
    """An episode that is safe, and is being encoded behind the recording.

    Attributes:
        folder: Where its files are.
    """

    def __init__(
        self,
        folder: Path,
        buffers: Mapping[str, CameraBuffer],
        cameras: Mapping[str, CameraEncoder],
        changed: threading.Condition,
        is_settled: Callable[[Mapping[str, CameraBuffer]], bool],
    ) -> None:
        self.folder = folder
        self._buffers = buffers
        self._cameras = cameras
        self._changed = changed
        self._is_settled = is_settled
        self._doubtful = False

    @property
    def is_finished(self) -> bool:
        """Whether all videos are there; ``wait`` then returns at once."""
        return all(buffer.finished for buffer in self._buffers.values())

    def wait(self) -> dict[str, FinishedVideo]:
        """Wait until the episode is encoded and return its videos. ``forget`` it afterwards.

        Raises:
            DiskFullError: The disk is full; free some space and ask again.
            DiskError: The disk fails otherwise; ask again.
            VideoError: An encoder has failed, or the encoders are closed.
        """
        forget_stuck(self._buffers)
        with self._changed:
            self._changed.wait_for(lambda: self._is_settled(self._buffers))
        videos = finished_videos(self._buffers, self._cameras)
        if self._doubtful:
            videos = {key: self._cameras[key].remade(video) for key, video in videos.items()}
        return videos

    def doubt(self) -> None:
        """Have ``wait`` write the videos again: they could not be forced to disk."""
        self._doubtful = True

    def forget(self) -> None:
        """Remove the episode's files: the videos are where they belong, or nobody wants them."""
        forget(self.folder)


def finish_videos(
    manifest: Manifest, *, encoded: Callable[[], None] = lambda: None
) -> dict[str, FinishedVideo]:
    """Encode what was not encoded of a persisted episode and return its videos.

    Runs in this process, one thread a camera, for as long as it takes. The persisted files stay
    as they are: ``forget`` them when the episode is committed.

    Args:
        manifest: The episode.
        encoded: Called after each frame, from several threads.

    Raises:
        ArgumentError: Its settings are none that an encoder may be given.
        VideoError: The files are damaged, or cannot be written.
        OSError: They cannot be read or written.
    """
    with ThreadPoolExecutor(len(manifest.cameras)) as pool:
        jobs = [
            pool.submit(_finish_camera, manifest, camera, encoded) for camera in manifest.cameras
        ]
    return {camera.key: job.result() for camera, job in zip(manifest.cameras, jobs, strict=True)}


def _finish_camera(
    manifest: Manifest, camera: PersistedCamera, encoded: Callable[[], None]
) -> FinishedVideo:
    from demoreel.record.encoding.episode import EpisodeEncoder, FixedProgress  # with PyAV

    settings = VideoSettings.from_file(
        camera.settings, camera=camera.key, file=manifest.folder / MANIFEST
    )
    plan = CameraPlan(camera.key, camera.height, camera.width, camera.kind, settings)
    base, fresh = camera.base, camera.base.with_name(f"finished-{camera.base.name}")
    # An encoder of the dead recording may have an instant to live: what it writes to is left.
    if camera.safe:
        shutil.copyfile(packets_path(base), packets_path(fresh))
    stats = LevelCounts.counted(read_counts(camera), camera.safe)
    encoder = EpisodeEncoder(
        plan,
        fps=manifest.fps,
        base=fresh,
        episode=0,
        note=FixedProgress(EncodingProgress(0, camera.safe, stats)),
        threads=1,
    )
    try:
        for image in _images(plan, spill_path(base), camera.places.tolist()):
            encoder.add(image)
            encoded()
        video = encoder.finish()
    except BaseException:
        encoder.abort()
        raise
    require_frames(video.frames, camera.frames, camera=plan.key, file=manifest.folder)
    return video


def clear_unsaved(workdir: Path) -> list[Path]:
    """Remove what is left of episodes that were not saved; return the folders of the others.

    For a folder that no recording is using: call it before ``CameraEncoders``.

    Raises:
        OSError: The disk does not say which are which; none is removed that may be saved.
    """
    for trial in workdir.glob(".trial-*.mp4"):
        trial.unlink(missing_ok=True)
    found = []
    for folder in episode_folders(workdir):
        if is_persisted(folder):
            found.append(folder)
        elif not folder.is_symlink():
            shutil.rmtree(folder, ignore_errors=True)
    return found


def write_manifest(
    folder: Path,
    buffers: Mapping[str, CameraBuffer],
    encoders: Mapping[str, CameraEncoder],
    *,
    persisted: Mapping[str, PersistedFrames],
    fps: float,
    note: Mapping[str, Any],
) -> None:
    """Say how an episode's files go together; they must be on disk. This persists the episode.

    Raises:
        OSError: The disk is full.
    """
    cameras = []
    for key, buffer in buffers.items():
        plan, stats = encoders[key].plan, persisted[key].progress.stats
        counts = io.BytesIO()  # by itself, NumPy says of a full disk only how much it wrote
        np.save(counts, stats.histogram() if stats.count else np.zeros(plan.levels, np.int64))
        with open(counts_path(buffer.base), "wb") as file:
            file.write(counts.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        cameras.append(
            {
                "key": key,
                "height": plan.height,
                "width": plan.width,
                "kind": plan.kind,
                "settings": asdict(plan.settings),
                "files": buffer.base.name,
                "put": buffer.put,
                "safe": persisted[key].progress.frames,
                "places": persisted[key].places,
            }
        )
    text = json.dumps({"fps": fps, "note": dict(note), "cameras": cameras})
    write_file(folder / MANIFEST, text.encode())
    _sync_folder(folder.parent)
    _sync_folder(folder.parent.parent)  # the working folder may be new, too


def finished_videos(
    buffers: Mapping[str, CameraBuffer], cameras: Mapping[str, CameraEncoder]
) -> dict[str, FinishedVideo]:
    """Return the videos of an episode, or raise what has kept one from being finished."""
    videos = {}
    for key, buffer in buffers.items():
        video = buffer.finished
        failure = buffer.failure or cameras[key].failure
        if video is not None:
            hint = "discard the episode and record it again"
            require_frames(video.frames, buffer.put, hint=hint, camera=key)
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


def remove_manifest(folder: Path) -> None:
    """Take back what ``write_manifest`` wrote, if it did; the frames stay.

    Raises:
        OSError: It cannot be removed: the episode is persisted, or will be found so.
    """
    (folder / MANIFEST).unlink(missing_ok=True)
    _sync_folder(folder)


def forget_stuck(buffers: Mapping[str, CameraBuffer]) -> None:
    """Forget that encoders could not write: they try again, and say so if they still cannot."""
    for buffer in buffers.values():
        buffer.stuck = None


def _images(plan: CameraPlan, path: Path, places: Sequence[int]) -> Iterator[np.ndarray]:
    for place in places:
        image = np.empty(plan.shape, plan.dtype)
        read_spilled(path, place, image)
        yield image


def forget(folder: Path) -> None:
    """Remove the files of a persisted episode that is committed."""
    # The manifest first: what is left without it belongs to no episode.
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
