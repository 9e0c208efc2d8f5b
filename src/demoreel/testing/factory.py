"""Datasets of any shape, whose every image and row says where it belongs.

Every image carries its episode and frame (``stamp``), and so do the numbers::

    observation.state = (episode, frame, index, episode + frame / 4096, sin(frame / 5), 1)
    action            = (-episode, -frame, -index, 0, cos(frame / 5), -1)

so a test can read off any sample which frame it got, from any camera, through any codec. Other
features hold noise that follows from the seed, the feature's key and the episode alone.
"""

from __future__ import annotations

import io
import os
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from PIL import Image

from demoreel.errors import ArgumentError
from demoreel.layouts.base import Column
from demoreel.layouts.writing import EpisodeDraft, create_writer
from demoreel.media.encode import LOSSLESS_DEPTH, Codec, VideoEncoder, VideoSettings
from demoreel.model import DepthCode, Feature, Info, Stats
from demoreel.model.depth import encode_depth
from demoreel.stats.columns import number_stats
from demoreel.stats.running import LevelCounts
from demoreel.testing.stamp import stamp

Layout = Literal["v2.0", "v2.1", "v3.0"]
Sizes = Mapping[str, tuple[int, int]]
STATE_SIZE = 6
_DEFAULT_SIZE = (64, 64)
_IMAGE_NAMES = ["height", "width", "channels"]


def make_dataset(
    path: str | os.PathLike[str],
    *,
    episodes: int | Sequence[int] = 3,
    length: int = 20,
    cameras: int | Sizes = 1,
    image_cameras: Sizes | None = None,
    depth_cameras: Sizes | None = None,
    fps: float = 30,
    codec: Codec = "h264",
    gop: int = 2,
    b_frames: int = 0,
    open_gop: bool = False,
    pix_fmt: str = "yuv420p",
    crf: int = 30,
    features: Mapping[str, Mapping[str, Any]] | None = None,
    tasks: Sequence[str] = ("do it",),
    task_changes: bool = False,
    language: bool = False,
    layout: Layout = "v3.0",
    data_files_size_in_mb: float = 100,
    video_files_size_in_mb: float = 200,
    chunks_size: int = 1000,
    with_stats: bool = True,
    seed: int = 0,
) -> Path:
    """Write a dataset and return its path. The same arguments give the same dataset.

    A hundred 64x64 frames in h264 cost about 0.1 s; av1 and hevc a few times that.

    Args:
        path: The folder to make.
        episodes: How many, or the length of each.
        length: Frames of each episode, where ``episodes`` is a number.
        cameras: Video cameras: how many (``observation.images.cam0``, ... of 64x64), or height and
            width by key.
        image_cameras: Cameras stored as PNG in the tables, height and width by key.
        depth_cameras: Depth cameras, 12-bit lossless HEVC, height and width by key.
        fps: Frames per second.
        codec: Of the video cameras, as are the next five.
        gop: Frames from keyframe to keyframe.
        b_frames: Most B-frames in a row.
        open_gop: Whether B-frames may reach over a keyframe.
        pix_fmt: Pixel format in the file.
        crf: Constant quality.
        features: More features: ``{"dtype": ..., "shape": ...}`` by key; noise, or text.
        tasks: Episode ``e`` does task ``e`` modulo their number.
        task_changes: Whether the second half of each episode does the next task.
        language: Whether to add the two language columns.
        layout: ``v3.0``, ``v2.1`` or ``v2.0``.
        data_files_size_in_mb: When a new table begins (v3.0); 0.001 gives one an episode.
        video_files_size_in_mb: When a new video begins (v3.0).
        chunks_size: Files (v3.0) or episodes (v2) in a chunk folder.
        with_stats: Whether to write statistics.
        seed: Of the noise.

    Raises:
        ArgumentError: An argument makes no sense.
        TargetExistsError: There is something at ``path``.
        VideoError: The codec cannot store such images.
    """
    if layout not in get_args(Layout):
        known = ", ".join(get_args(Layout))
        raise ArgumentError(f"layout must be one of {known}, not {layout!r}.")
    lengths = [length] * episodes if isinstance(episodes, int) else list(episodes)
    colour = VideoSettings(
        codec=codec, pix_fmt=pix_fmt, gop=gop, crf=crf, b_frames=b_frames, open_gop=open_gop,
        preset="ultrafast" if codec in ("h264", "hevc") else None,
    )  # fmt: skip
    recipe = _Recipe(
        videos=_camera_sizes(cameras),
        images=dict(image_cameras or {}),
        depths=dict(depth_cameras or {}),
        colour=colour,
        fps=fps,
        seed=seed,
    )
    declared = recipe.camera_features()
    declared |= {
        key: Feature.from_json(key, f, where="features") for key, f in (features or {}).items()
    }
    info = _info(
        layout, fps, declared, language,
        chunks_size=chunks_size,
        data_files_size_in_mb=data_files_size_in_mb,
        video_files_size_in_mb=video_files_size_in_mb,
    )  # fmt: skip
    gathered = GatheredStats(info.features)
    with tempfile.TemporaryDirectory() as scratch, create_writer(path, info) as writer:
        for episode, frames in enumerate(lengths):
            texts = _tasks_of(episode, frames, tasks, task_changes)
            videos, images, counts = recipe.record(episode, frames, Path(scratch))
            columns = _columns(info, episode, frames, sum(lengths[:episode]), seed)
            stats: Stats = {}
            if with_stats:
                every = {**columns, **writer.default_columns(texts)}
                stats = gathered.add(every, counts)
            writer.append(EpisodeDraft(columns, texts, videos, images, stats))
        writer.commit(stats=gathered.whole() if with_stats else None)
    return Path(path)


@dataclass(frozen=True, slots=True)
class _Recipe:
    """The cameras of a dataset, and how their images are made."""

    videos: Sizes
    images: Sizes
    depths: Sizes
    colour: VideoSettings
    fps: float
    seed: int

    def camera_features(self) -> dict[str, Feature]:
        found = {}
        for key, (height, width) in self.videos.items():
            details = self.colour.feature_info(fps=self.fps, height=height, width=width)
            found[key] = Feature(key, "video", (height, width, 3), _IMAGE_NAMES, details)
        for key, (height, width) in self.images.items():
            found[key] = Feature(key, "image", (height, width, 3), _IMAGE_NAMES)
        for key, (height, width) in self.depths.items():
            details = LOSSLESS_DEPTH.feature_info(fps=self.fps, height=height, width=width)
            details |= DepthCode().to_info()
            found[key] = Feature(key, "video", (height, width, 1), _IMAGE_NAMES, details)
        return found

    def record(
        self, episode: int, frames: int, scratch: Path
    ) -> tuple[dict[str, Path], dict[str, list[bytes]], dict[str, LevelCounts]]:
        """Film one episode: its videos, its encoded images, and the statistics of both."""
        videos: dict[str, Path] = {}
        images: dict[str, list[bytes]] = {}
        gathered = {key: LevelCounts() for key in (*self.videos, *self.images, *self.depths)}
        for key, size in self.videos.items():
            shown = (_image(size, episode, frame) for frame in range(frames))
            videos[key] = self._encode(shown, size, self.colour, scratch, gathered[key])
        for key, size in self.images.items():
            shown = (_image(size, episode, frame) for frame in range(frames))
            images[key] = [_png(image, gathered[key]) for image in shown]
        for key, size in self.depths.items():
            shown = (_depth(size, episode, frame) for frame in range(frames))
            videos[key] = self._encode(shown, size, LOSSLESS_DEPTH, scratch, gathered[key])
        return videos, images, gathered

    def _encode(
        self,
        images: Any,
        size: tuple[int, int],
        settings: VideoSettings,
        scratch: Path,
        seen: LevelCounts,
    ) -> Path:
        handle, name = tempfile.mkstemp(suffix=".mp4", dir=scratch)
        os.close(handle)
        height, width = size
        with VideoEncoder(
            name, fps=self.fps, width=width, height=height, settings=settings
        ) as video:
            for image in images:
                seen.add(image)
                is_depth = image.dtype == np.uint16
                video.add(encode_depth(image, DepthCode()) if is_depth else image)
        return Path(name)


def _image(size: tuple[int, int], episode: int, frame: int) -> np.ndarray:
    """A colour ramp that moves with the frame, under the stamp."""
    height, width = size
    image = np.empty((height, width, 3), np.uint8)
    ramp = np.arange(width) * 200 // width
    for channel in range(3):
        image[..., channel] = (ramp + 5 * frame + 37 * episode + 80 * channel) % 256
    stamp(image, episode, frame)
    return image


def _depth(size: tuple[int, int], episode: int, frame: int) -> np.ndarray:
    depth = np.full(size, 1000, np.uint16)
    depth += (np.arange(size[1]) * 8 + 3 * frame + 11 * episode).astype(np.uint16)
    stamp(depth, episode, frame)
    return depth


def _png(image: np.ndarray, seen: LevelCounts) -> bytes:
    seen.add(image)
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _info(
    layout: Layout, fps: float, extra: Mapping[str, Feature], language: bool, **sizes: Any
) -> Info:
    joints = [f"joint_{number}" for number in range(STATE_SIZE)]
    every = {
        key: Feature(key, "float32", (STATE_SIZE,), joints)
        for key in ("observation.state", "action")
    }
    every |= extra
    if language:
        for key in ("language_persistent", "language_events"):
            every[key] = Feature(key, "language", (1,))
    return Info.new(version=layout, fps=fps, features=every, robot_type="made_up", **sizes)


def _camera_sizes(cameras: int | Sizes) -> Sizes:
    if isinstance(cameras, int):
        return {f"observation.images.cam{number}": _DEFAULT_SIZE for number in range(cameras)}
    return dict(cameras)


def _tasks_of(episode: int, frames: int, tasks: Sequence[str], change: bool) -> list[str]:
    first = [tasks[episode % len(tasks)]]
    if not change:
        return first * frames
    return first * (frames - frames // 2) + [tasks[(episode + 1) % len(tasks)]] * (frames // 2)


def _columns(info: Info, episode: int, frames: int, start: int, seed: int) -> dict[str, Any]:
    frame = np.arange(frames, dtype=np.float64)
    one = np.ones(frames)
    state = (episode * one, frame, start + frame, episode + frame / 4096, np.sin(frame / 5), one)
    action = (-episode * one, -frame, -start - frame, 0 * one, np.cos(frame / 5), -one)
    columns: dict[str, Any] = {
        "observation.state": np.stack(state, axis=1).astype(np.float32),
        "action": np.stack(action, axis=1).astype(np.float32),
    }
    made = {*columns, "timestamp", "frame_index", "episode_index", "index", "task_index"}
    for key, feature in info.features.items():
        if key not in made and not feature.is_camera:
            columns[key] = _made_up(feature, episode, frames, seed)
    return columns


def _made_up(feature: Feature, episode: int, frames: int, seed: int) -> Any:
    if feature.is_language:
        return [_language_rows(feature.key, episode, frame) for frame in range(frames)]
    if feature.is_string:
        return [f"{feature.key}, episode {episode}, frame {frame} ✓" for frame in range(frames)]
    random = np.random.default_rng([seed, zlib.crc32(feature.key.encode()), episode])
    shape = (frames, *feature.item_shape)
    kind = feature.numpy_dtype.kind
    if kind == "f":
        return random.normal(size=shape).astype(feature.numpy_dtype)
    low = -100 if kind == "i" else 0
    return random.integers(low, 2 if kind == "b" else 101, shape).astype(feature.numpy_dtype)


def _language_rows(key: str, episode: int, frame: int) -> list[dict[str, Any]]:
    if key == "language_persistent":
        text = f"subtask of episode {episode}"
        row = {"role": "assistant", "content": text, "style": "subtask", "timestamp": 0.0}
        return [{**row, "camera": None, "tool_calls": None}]
    if frame % 5:
        return []
    call = {
        "type": "function",
        "function": {"name": "say", "arguments": {"text": f"frame {frame}"}},
    }
    row = {"role": "user", "content": f"episode {episode}, frame {frame}", "style": "interjection"}
    return [{**row, "camera": None, "tool_calls": [call]}]


class GatheredStats:
    """Exact statistics of episodes one after the other, and of all of them; keeps every number.

    Args:
        features: The dataset's features.
    """

    def __init__(self, features: Mapping[str, Feature]) -> None:
        self._features = features
        self._columns: dict[str, list[np.ndarray]] = {}
        self._counts: dict[str, LevelCounts] = {}

    def add(self, columns: Mapping[str, Column], counts: Mapping[str, LevelCounts]) -> Stats:
        """Take an episode's columns and the counts of its cameras; return its statistics."""
        for key, values in columns.items():
            if self._features[key].is_numeric:
                self._columns.setdefault(key, []).append(np.asarray(values))
        for key, counted in counts.items():
            self._counts.setdefault(key, LevelCounts()).merge(counted)
        return self._stats(columns, counts)

    def whole(self) -> Stats:
        """Return the statistics of all episodes together."""
        every = {key: np.concatenate(parts) for key, parts in self._columns.items()}
        return self._stats(every, self._counts)

    def _stats(self, columns: Mapping[str, Column], counts: Mapping[str, LevelCounts]) -> Stats:
        frames = {key: counted.finish() for key, counted in counts.items()}
        return {**frames, **number_stats(self._features, columns)}
