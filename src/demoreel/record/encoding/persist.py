"""Episodes whose frames are synced to disk but not all encoded yet.

A persisted episode's folder has, for each camera, the packets that were made, the frames that
wait, the counts of the frames before them, and one manifest, written last, that says how they go
together (``layouts/persisted.py`` reads them). With that alone the videos can be finished: by the
recorder that continues, the next one, or ``demoreel finish``.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from demoreel.layouts.persisted import Manifest, PersistedCamera, read_counts
from demoreel.layouts.persisted_files import (
    MANIFEST,
    counts_path,
    episode_folders,
    is_persisted,
    packets_path,
    spill_path,
    unsaved,
)
from demoreel.media.settings import VideoSettings
from demoreel.record.encoding.camera import CameraBuffer, CameraEncoder, PersistedFrames
from demoreel.record.encoding.plan import CameraPlan, FinishedVideo
from demoreel.record.encoding.spill import read_spilled
from demoreel.stats.running import LevelCounts
from demoreel.storage.commit.files import sync_path, write_file


def finish_videos(
    manifest: Manifest, *, encoded: Callable[[], None] = lambda: None
) -> dict[str, FinishedVideo]:
    """Encode what was not encoded of a persisted episode and return its videos.

    Runs in this process, one thread a camera, for as long as it takes. The persisted files stay
    as they are: ``forget`` them when the episode is committed.
    """
    with ThreadPoolExecutor(len(manifest.cameras)) as pool:
        jobs = [
            pool.submit(_finish_camera, manifest, camera, encoded) for camera in manifest.cameras
        ]
    return {camera.key: job.result() for camera, job in zip(manifest.cameras, jobs, strict=True)}


def _finish_camera(
    manifest: Manifest, camera: PersistedCamera, encoded: Callable[[], None]
) -> FinishedVideo:
    from demoreel.record.encoding.episode import finish_video  # with PyAV

    settings = VideoSettings.from_file(
        camera.settings, camera=camera.key, file=manifest.folder / MANIFEST
    )
    plan = CameraPlan(camera.key, camera.height, camera.width, camera.kind, settings)
    base, fresh = camera.base, camera.base.with_name(f"finished-{camera.base.name}")
    # An encoder of the dead recording may have an instant to live: what it writes to is left.
    if camera.safe:
        shutil.copyfile(packets_path(base), packets_path(fresh))
    return finish_video(
        plan,
        fps=manifest.fps,
        base=fresh,
        safe=camera.safe,
        stats=LevelCounts.counted(read_counts(camera), camera.safe),
        images=_images(plan, spill_path(base), camera.places.tolist(), encoded),
        threads=1,
    )


def clear_unsaved(workdir: Path) -> list[Path]:
    """Remove what is left of episodes that were not saved; return the folders of the others.

    For a folder that no recording is using: call it before ``CameraEncoders``. Where the disk does
    not tell which are saved (OSError), none is removed that may be.
    """
    for path in unsaved(workdir):
        if path.suffix == ".mp4":
            path.unlink(missing_ok=True)
        else:
            shutil.rmtree(path, ignore_errors=True)
    return [folder for folder in episode_folders(workdir) if is_persisted(folder)]


def write_manifest(
    folder: Path,
    buffers: Mapping[str, CameraBuffer],
    encoders: Mapping[str, CameraEncoder],
    *,
    persisted: Mapping[str, PersistedFrames],
    fps: float,
    note: Mapping[str, Any],
) -> None:
    """Say how an episode's files go together; they must be on disk. This persists the episode."""
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
    sync_path(folder.parent)
    sync_path(folder.parent.parent)  # the working folder may be new, too


def remove_manifest(folder: Path) -> None:
    """Take back what ``write_manifest`` wrote, if it did; the frames stay.

    An OSError means that the episode is persisted, or will be found so.
    """
    (folder / MANIFEST).unlink(missing_ok=True)
    sync_path(folder)


def _images(
    plan: CameraPlan, path: Path, places: Sequence[int], encoded: Callable[[], None]
) -> Iterator[np.ndarray]:
    for place in places:
        image = np.empty(plan.shape, plan.dtype)
        read_spilled(path, place, image)
        yield image
        encoded()


def forget(folder: Path) -> None:
    """Remove the files of a persisted episode that is committed."""
    # The manifest first: what is left without it belongs to no episode.
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
