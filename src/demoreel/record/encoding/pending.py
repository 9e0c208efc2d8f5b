"""Episodes whose pictures are safe on disk but not all encoded yet.

A sealed episode's folder has, for each camera, the packets that were made, the pictures that wait,
the counts of the pictures before them, and one manifest, written last, that says how they go
together. With that alone the videos can be finished, by whoever finds them.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from demoreel.errors import ArgumentError, EncoderBehindError, FrameMismatchError, VideoError
from demoreel.media.settings import VideoSettings
from demoreel.record.encoding.files import (
    counts_path,
    episode_folders,
    packets_path,
    spill_path,
)
from demoreel.record.encoding.lane import Lane, Sealed, Take
from demoreel.record.encoding.plan import CameraPlan, FinishedVideo
from demoreel.record.encoding.shared import Progress
from demoreel.record.encoding.spill import read_spilled
from demoreel.stats.running import Pictures
from demoreel.storage.atomic import write_file

_MANIFEST = "sealed.json"


class PendingVideos:
    """An episode that is safe, and is being encoded behind the recording.

    Attributes:
        folder: Where its files are.
    """

    def __init__(
        self,
        folder: Path,
        takes: Mapping[str, Take],
        lanes: Mapping[str, Lane],
        changed: threading.Condition,
        is_settled: Callable[[Mapping[str, Take]], bool],
    ) -> None:
        self.folder = folder
        self._takes = takes
        self._lanes = lanes
        self._changed = changed
        self._is_settled = is_settled

    @property
    def is_finished(self) -> bool:
        """Whether all videos are there; ``wait`` then returns at once."""
        return all(take.finished for take in self._takes.values())

    def wait(self) -> dict[str, FinishedVideo]:
        """Wait until the episode is encoded and return its videos. ``forget`` it afterwards.

        Raises:
            EncoderBehindError: The disk is full; free some space and ask again.
            VideoError: An encoder has failed, or the encoders are closed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_settled(self._takes))
        return finished_videos(self._takes, self._lanes)

    def forget(self) -> None:
        """Remove the episode's files: the videos are where they belong, or nobody wants them."""
        _forget(self.folder)


@dataclass(frozen=True, slots=True)
class SealedEpisode:
    """A sealed episode that was found on disk.

    Attributes:
        folder: Where its files are.
        frames: How many pictures each camera has.
        note: What the caller gave when it was sealed.
    """

    folder: Path
    frames: Mapping[str, int]
    note: Mapping[str, Any]
    _fps: float
    _cameras: Sequence[Mapping[str, Any]]

    def finish(self) -> dict[str, FinishedVideo]:
        """Encode what was not encoded and return the videos. ``forget`` the episode afterwards.

        Runs in this process, one thread a camera, for as long as it takes.

        Raises:
            VideoError: The files are damaged, or cannot be written.
            OSError: They cannot be read or written.
        """
        with ThreadPoolExecutor(len(self._cameras)) as pool:
            videos = list(pool.map(self._finish_camera, self._cameras))
        return {camera["key"]: video for camera, video in zip(self._cameras, videos, strict=True)}

    def forget(self) -> None:
        """Remove the episode's files: the videos are where they belong, or nobody wants them."""
        _forget(self.folder)

    def _finish_camera(self, camera: Mapping[str, Any]) -> FinishedVideo:
        from demoreel.record.encoding.episode import EpisodeEncoder  # with PyAV

        settings = VideoSettings(**camera["settings"])
        plan = CameraPlan(
            camera["key"], camera["height"], camera["width"], camera["kind"], settings
        )
        base, fresh = self.folder / camera["files"], self.folder / f"finished-{camera['files']}"
        # An encoder of the dead recording may have an instant to live: what it writes to is left.
        if camera["safe"]:
            shutil.copyfile(packets_path(base), packets_path(fresh))
        stats = Pictures.counted(np.load(counts_path(base)), camera["safe"])
        encoder = EpisodeEncoder(
            plan,
            fps=self._fps,
            base=fresh,
            episode=0,
            note=_Note(Progress(0, camera["safe"], stats)),
            threads=1,
        )
        try:
            for picture in _pictures(plan, spill_path(base), camera["places"]):
                encoder.add(picture)
            video = encoder.finish()
        except BaseException:
            encoder.abort()
            raise
        if video.frames != camera["put"]:
            raise FrameMismatchError(
                f"{camera['put']} pictures were put, and the video has {video.frames} frames.",
                camera=plan.key,
                file=self.folder,
            )
        return video


class _Note:
    """How far encoding was when the episode was sealed."""

    def __init__(self, before: Progress) -> None:
        self._before = before

    def progress(self) -> Progress:
        return self._before

    def advance(self, episode: int, frames: int, stats: Pictures) -> None:
        pass  # Should this end too, it begins again where it began.


def recover_pending(workdir: Path) -> list[SealedEpisode]:
    """Return the sealed episodes in ``workdir``, oldest first, and remove what is unfinished.

    For a folder that no recording is using: call it before ``CameraEncoders``.

    Raises:
        VideoError: A manifest cannot be read.
    """
    found = []
    for trial in Path(workdir).glob(".trial-*.mp4"):
        trial.unlink(missing_ok=True)
    for folder in episode_folders(Path(workdir)):
        manifest = folder / _MANIFEST
        if not manifest.exists():
            shutil.rmtree(folder, ignore_errors=True)
            continue
        try:
            said = json.loads(manifest.read_bytes())
            frames = {camera["key"]: camera["put"] for camera in said["cameras"]}
            found.append(SealedEpisode(folder, frames, said["note"], said["fps"], said["cameras"]))
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise VideoError(
                f"The manifest of a sealed episode cannot be read: {error!r}.", file=manifest
            ) from error
    return found


def write_manifest(
    folder: Path,
    takes: Mapping[str, Take],
    lanes: Mapping[str, Lane],
    *,
    sealed: Mapping[str, Sealed],
    fps: float,
    note: Mapping[str, Any],
) -> None:
    """Say how an episode's files go together; they must be on disk. This seals the episode.

    Raises:
        OSError: The disk is full.
    """
    cameras = []
    for key, take in takes.items():
        plan, stats = lanes[key].plan, sealed[key].progress.stats
        with open(counts_path(take.base), "wb") as file:
            np.save(file, stats.histogram() if stats.count else np.zeros(plan.levels, np.int64))
            file.flush()
            os.fsync(file.fileno())
        cameras.append(
            {
                "key": key,
                "height": plan.height,
                "width": plan.width,
                "kind": plan.kind,
                "settings": asdict(plan.settings),
                "files": take.base.name,
                "put": take.put,
                "safe": sealed[key].progress.frames,
                "places": sealed[key].places,
            }
        )
    text = json.dumps({"fps": fps, "note": dict(note), "cameras": cameras})
    write_file(folder / _MANIFEST, text.encode())
    _sync_folder(folder.parent)


def finished_videos(
    takes: Mapping[str, Take], lanes: Mapping[str, Lane]
) -> dict[str, FinishedVideo]:
    """Return the videos of an episode, or raise what has kept one from being finished."""
    videos = {}
    for key, take in takes.items():
        video = take.finished
        failure = take.failure or lanes[key].failure
        if video is not None and video.frames == take.put:
            videos[key] = video
        elif video is not None:
            raise FrameMismatchError(
                f"{take.put} pictures were put, and the video has {video.frames} frames.",
                hint="discard the episode and record it again",
                camera=key,
            )
        elif failure is not None:
            raise VideoError(
                f"The episode cannot be encoded: {failure}",
                hint="discard the episode, and try another codec",
                camera=key,
            )
        elif take.stuck is not None:
            raise EncoderBehindError(
                f"The video cannot be written: {take.stuck}",
                hint="free disk space and finish the episode again",
                camera=key,
            )
    if len(videos) < len(takes):
        raise ArgumentError("The encoders were closed before the episode was finished.")
    return videos


def _pictures(plan: CameraPlan, path: Path, places: Sequence[int]) -> Iterator[np.ndarray]:
    for place in places:
        picture = np.empty(plan.shape, plan.dtype)
        read_spilled(path, place, picture)
        yield picture


def _forget(folder: Path) -> None:
    # The manifest first: what is left without it is nobody's.
    (folder / _MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
