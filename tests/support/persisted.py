"""Saved episodes that wait for their encoders, made without a recorder."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from demoreel.layouts.persisted import PersistedRows, write_rows
from demoreel.layouts.persisted_files import (
    MANIFEST,
    ROWS,
    WORKDIR,
    PacketFile,
    counts_path,
    episode_folder,
    next_episode,
    packets_path,
    spill_path,
)
from demoreel.media.encode import VideoEncoder
from demoreel.media.images import ImageCodec, encode_image
from demoreel.media.settings import LOSSLESS_DEPTH, VideoSettings
from demoreel.model import DEFAULT_FEATURES, Feature, Info
from demoreel.stats.running import LevelCounts
from demoreel.testing.stamp import stamp


def leave_persisted(
    root: Path,
    *,
    frames: int = 3,
    task: str = "wait",
    episode: int = 0,
    encoded: int = 0,
    note: str = "",
    **settings: Any,
) -> Path:
    """Leave an episode in a dataset as a recorder that was killed does; return its folder.

    Where they are large enough, images are stamped with ``episode`` and their frame.

    Args:
        root: The dataset's folder.
        frames: How many frames.
        task: Their task.
        episode: What images are stamped with, and what numbers are.
        encoded: How many of the frames are encoded.
        note: What texts are.
        **settings: Of the encoders, as the manifest is to say: not checked.
    """
    info = Info.from_json(json.loads((root / "meta" / "info.json").read_text()), where=str(root))
    workdir = root / WORKDIR
    workdir.mkdir(parents=True, exist_ok=True)
    folder = episode_folder(workdir, next_episode(workdir))
    folder.mkdir()
    columns: dict[str, Any] = {}
    for key, feature in info.features.items():
        if feature.is_numeric and key not in DEFAULT_FEATURES:
            columns[key] = np.full((frames, *feature.item_shape), episode, feature.numpy_dtype)
        elif feature.is_string or feature.is_language:
            columns[key] = [note if feature.is_string else []] * frames
    images, counts = {}, {}
    for key in info.image_keys:
        pictures, counted = _pictures(info.features[key], frames, episode), LevelCounts()
        for picture in pictures:
            counted.add(picture)
        images[key] = [encode_image(picture, ImageCodec("png")) for picture in pictures]
        counts[key] = {"count": frames, "levels": counted.histogram().tolist()}
    digest = write_rows(folder / ROWS, PersistedRows([task] * frames, columns, images), info)
    cameras = [
        _camera(
            folder / f"camera-{number}",
            info.features[key],
            _pictures(info.features[key], frames, episode),
            encoded,
            info.fps,
            settings,
        )
        for number, key in enumerate(info.video_keys)
    ]
    kept = {"episode": info.total_episodes, "rows": ROWS, "rows_digest": digest, "counts": counts}
    said = {"fps": info.fps, "note": kept, "cameras": cameras}
    (folder / MANIFEST).write_text(json.dumps(said))
    return folder


def _camera(
    base: Path,
    feature: Feature,
    pictures: list[np.ndarray],
    encoded: int,
    fps: float,
    settings: dict[str, Any],
) -> dict[str, Any]:
    height, width, _ = feature.image_shape
    default = VideoSettings(codec="h264", preset="ultrafast")
    known = asdict(LOSSLESS_DEPTH if feature.is_depth else default)
    spill_path(base).write_bytes(b"".join(p.tobytes() for p in pictures[encoded:]))
    counts = np.zeros((1, 65536) if feature.is_depth else (3, 256), np.int64)
    if encoded:
        counts = _encode(base, pictures[:encoded], fps, VideoSettings(**known))
    np.save(counts_path(base), counts)
    return {
        "key": feature.key,
        "height": height,
        "width": width,
        "kind": "depth" if feature.is_depth else "rgb",
        "settings": known | settings,
        "files": base.name,
        "put": len(pictures),
        "safe": encoded,
        "places": list(range(len(pictures) - encoded)),
    }


def _encode(
    base: Path, pictures: list[np.ndarray], fps: float, settings: VideoSettings
) -> np.ndarray:
    """Note the packets of these images, and return their levels."""
    seen, height, width = LevelCounts(), *pictures[0].shape[:2]
    log, video = PacketFile(packets_path(base), keep=0), base.with_suffix(".made")
    with VideoEncoder(
        video, fps=fps, width=width, height=height, settings=settings, log=log
    ) as encoder:
        for picture in pictures:
            seen.add(picture)
            encoder.add(picture)
    log.close()
    video.unlink()
    return seen.histogram()


def _pictures(feature: Feature, frames: int, episode: int) -> list[np.ndarray]:
    height, width, _ = feature.image_shape
    found: list[np.ndarray] = []
    for frame in range(frames):
        if feature.is_depth:
            found.append(np.full((height, width), 100 * episode + frame, np.uint16))
            continue
        picture = np.full((height, width, 3), 90, np.uint8)
        stamp(picture, episode, frame)
        found.append(picture)
    return found
