"""Datasets of an arm that moves as arms do: smooth, everywhere, its state a little behind.

Made for checks of motion, of images and of copies: nothing in them is out of the ordinary unless
``change`` or ``image`` makes it so.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from demoreel.layouts.writing import EpisodeDraft, create_writer
from demoreel.media.encode import Codec, VideoEncoder, VideoSettings
from demoreel.model import Feature, Info
from demoreel.stats.running import LevelCounts
from demoreel.testing.factory import GatheredStats

FRONT = "observation.images.front"
JOINTS = 6
LENGTHS = (60, 52, 66, 57, 63, 55, 61, 58, 64, 50)
SIZE = (64, 64)

Columns = dict[str, np.ndarray]
Change = Callable[[int, Columns], Columns]
"""Gets an episode's number and its columns; returns other columns, which may be shorter."""

Image = Callable[[int, int, np.ndarray], np.ndarray]
"""Gets an episode's number, a frame's and its image; returns another image."""


def make_moving(
    path: str | os.PathLike[str],
    *,
    lengths: Sequence[int] = LENGTHS,
    fps: int = 10,
    films: bool = False,
    gop: int = 10,
    change: Change = lambda episode, columns: columns,
    image: Image = lambda episode, frame, image: image,
    names: tuple[str, str] = ("action", "observation.state"),
    capture_times: bool = True,
    seed: int = 0,
) -> Path:
    """Write a dataset of movements (v3.0) and return its path; a tenth of a second without films.

    Args:
        path: The folder to make.
        lengths: Frames of each episode.
        fps: Frames per second.
        films: Whether there is a camera; each episode then has a video of its own.
        gop: Frames from keyframe to keyframe.
        change: Changes an episode's columns before they are written.
        image: Changes images before they are encoded.
        names: What action and state are called.
        capture_times: Whether to note when rows were captured.
        seed: Of the movements.
    """
    info = _info(fps, films, names, capture_times)
    gathered = GatheredStats(info.features)
    with tempfile.TemporaryDirectory() as scratch, create_writer(path, info) as writer:
        for episode, length in enumerate(lengths):
            moves = dict(zip(names, movements(episode, length, seed=seed), strict=True))
            if capture_times:
                begin = 1_700_000_000_000_000_000 + episode * 60_000_000_000
                moves["capture_time_ns"] = begin + np.arange(length) * (1_000_000_000 // fps)
            columns = change(episode, moves)
            frames = len(columns[names[0]])
            videos, seen = {}, {}
            if films:
                file = Path(scratch) / f"{episode}.mp4"
                images = [
                    image(episode, frame, view(columns[names[1]][frame], episode))
                    for frame in range(frames)
                ]
                videos, seen = {FRONT: file}, {FRONT: film(file, images, fps=fps, gop=gop)}
            tasks = ["wave"] * frames
            every = {**columns, **writer.default_columns(tasks)}
            stats = gathered.add(every, seen)
            writer.append(EpisodeDraft(columns, tasks, videos, stats=stats))
        writer.commit(stats=gathered.whole())
    return Path(path)


def make_anew(root: Path, **options: Any) -> None:
    """Put another dataset of movements into the place of one; see ``make_moving``."""
    shutil.rmtree(root)
    make_moving(root, **options)


def movements(episode: int, length: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return an episode's action and state (frames, joints; float32)."""
    random = np.random.default_rng([seed, episode])
    time = np.arange(-2, length)[:, None, None]
    speed, phase, size = (
        random.uniform(low, high, (1, JOINTS, 4))
        for low, high in ((0.05, 0.35), (0, 6.3), (0.3, 1.0))
    )
    told = (size * np.sin(speed * time + phase)).sum(axis=2)
    state = 0.6 * told[1:-1] + 0.4 * told[:-2]  # a frame and a bit behind
    state += random.normal(0, 0.002, state.shape)
    return told[2:].astype(np.float32), state.astype(np.float32)


def view(state: np.ndarray, episode: int) -> np.ndarray:
    """Return what the camera sees: blocks that move with the joints, before a scene."""
    height, width = SIZE
    ramp = np.arange(width)[None, :, None] + np.arange(height)[:, None, None]
    image = np.broadcast_to((ramp + 23 * episode) % 120 + 40, (height, width, 3)).astype(np.uint8)
    for joint, (across, down) in enumerate(zip(state[::2], state[1::2], strict=True)):
        left = int(np.clip((across + 4) / 8, 0, 1) * (width - 16))
        top = int(np.clip((down + 4) / 8, 0, 1) * (height - 16))
        image[top : top + 16, left : left + 16] = 220 - 60 * joint
    return image


def film(
    path: Path,
    images: Sequence[np.ndarray],
    *,
    fps: float,
    codec: Codec = "h264",
    crf: int = 20,
    gop: int = 10,
) -> LevelCounts:
    """Encode images into a video in this place; return their statistics."""
    path.unlink(missing_ok=True)
    seen = LevelCounts()
    height, width = images[0].shape[:2]
    preset = "ultrafast" if codec == "h264" else None
    settings = VideoSettings(codec=codec, pix_fmt="yuv420p", gop=gop, crf=crf, preset=preset)
    with VideoEncoder(path, fps=fps, width=width, height=height, settings=settings) as video:
        for image in images:
            seen.add(image)
            video.add(image)
    return seen


def _info(fps: int, films: bool, names: tuple[str, str], capture_times: bool) -> Info:
    joints = [f"joint_{number}" for number in range(JOINTS)]
    features = {key: Feature(key, "float32", (JOINTS,), joints) for key in names}
    if capture_times:
        features["capture_time_ns"] = Feature("capture_time_ns", "int64", (1,))
    if films:
        settings = VideoSettings(codec="h264", pix_fmt="yuv420p", gop=10, crf=20)
        details = settings.feature_info(fps=fps, height=SIZE[0], width=SIZE[1])
        shape = ["height", "width", "channels"]
        features[FRONT] = Feature(FRONT, "video", (*SIZE, 3), shape, details)
    return Info.new(
        version="v3.0", fps=fps, features=features, robot_type="made_up",
        video_files_size_in_mb=0.0001,
    )  # fmt: skip
