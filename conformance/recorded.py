"""Datasets that demoreel records: finished, still being recorded, appended to lerobot's."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import demoreel
from demoreel.testing.stamp import stamp

FRONT, WRIST, DEPTH = "observation.images.front", "observation.images.wrist", "observation.depth"
_NAMES = ["height", "width", "channels"]
_FEATURES: dict[str, dict[str, Any]] = {
    "observation.state": {"dtype": "float32", "shape": (4,), "names": None},
    "action": {"dtype": "float32", "shape": (4,), "names": None},
    "observation.touch": {"dtype": "float32", "shape": (2, 3), "names": None},
    "next.done": {"dtype": "bool", "shape": (1,), "names": None},
    "note": {"dtype": "string", "shape": (1,), "names": None},
    FRONT: {"dtype": "video", "shape": (96, 128, 3), "names": _NAMES},
    WRIST: {"dtype": "image", "shape": (48, 64, 3), "names": _NAMES},
    DEPTH: {"dtype": "video", "shape": (48, 64, 1), "names": _NAMES,
            "info": {"is_depth_map": True}},
    "observation.far": {"dtype": "video", "shape": (48, 64, 1), "names": _NAMES,
            "info": {"is_depth_map": True, "video.depth_max": 20.0, "video.use_log": False}},
    "observation.whole": {"dtype": "image", "shape": (48, 64, 1), "names": _NAMES,
            "info": {"is_depth_map": True}},
    "observation.metres": {"dtype": "image", "shape": (48, 64, 1), "names": _NAMES,
            "info": {"is_depth_map": True}},
}  # fmt: skip
_LENGTHS = (5, 1, 2, 9)
_OPEN: list[demoreel.Recorder] = []  # recorders whose datasets are read while they record


def recorded(codec: str, *, finish: bool) -> Callable[[Path], None]:
    """Record a dataset with every kind of feature."""

    def write(folder: Path) -> None:
        recorder = demoreel.create(folder, fps=20, features=_FEATURES, vcodec=codec)
        _record(recorder, _LENGTHS, _frame)
        if finish:
            recorder.finalize()
        else:
            recorder.add_frame(_frame(9, 0))  # in the middle of the next episode
            _OPEN.append(recorder)

    return write


def resumed(fixture: Path) -> Callable[[Path], None]:
    """Append to a dataset that lerobot has recorded."""

    def write(folder: Path) -> None:
        shutil.copytree(fixture, folder)
        recorder = demoreel.resume(folder)
        _record(recorder, (3, 1), lambda episode, frame: _like(recorder.info, episode, frame))
        recorder.finalize()

    return write


def close_all() -> None:
    """End the recordings that were read while they went on."""
    while _OPEN:
        _OPEN.pop().finalize()


def _record(recorder: Any, lengths: tuple[int, ...], make: Callable[[int, int], Any]) -> None:
    for episode, length in enumerate(lengths):
        for frame in range(length):
            recorder.add_frame(make(episode, frame))
        recorder.save_episode()


def _image(height: int, width: int, episode: int, frame: int) -> np.ndarray:
    image = np.full((height, width, 3), 100, np.uint8)
    stamp(image, episode, frame)
    return image


def _frame(episode: int, frame: int) -> dict[str, Any]:
    return {
        "observation.state": np.arange(4) / 7 + episode,
        "action": np.arange(4) / 3 - frame,
        "observation.touch": np.arange(6).reshape(2, 3) * (frame + 1) / 9,
        "next.done": frame == 3,
        "note": f"päckchen {episode}/{frame}",
        FRONT: _image(96, 128, episode, frame),
        WRIST: _image(48, 64, episode, frame),
        DEPTH: np.add.outer(np.arange(48), np.arange(64)).astype(np.uint16) * 9 + 300 + frame,
        "observation.far": np.linspace(0, 18, 48 * 64, dtype=np.float32).reshape(48, 64) + frame,
        "observation.whole": np.arange(48 * 64).astype(np.uint16).reshape(48, 64) * 21 + frame,
        "observation.metres": np.linspace(0, 9, 48 * 64, dtype=np.float32).reshape(48, 64) + frame,
        "task": "pick" if frame < 4 else "抓起杯子",
    }


def _like(info: Any, episode: int, frame: int) -> dict[str, Any]:
    """Return a frame for whatever a dataset declares."""
    made: dict[str, Any] = {"task": "one more"}
    for key, feature in info.features.items():
        height, width = feature.image_shape[:2] if feature.is_camera else (0, 0)
        if key in ("timestamp", "frame_index", "episode_index", "index", "task_index"):
            continue
        if feature.is_depth:
            made[key] = np.full((height, width), 700 + frame, np.uint16)
        elif feature.is_camera:
            made[key] = _image(height, width, episode, frame)
        elif feature.is_string:
            made[key] = f"{episode}/{frame}"
        else:
            made[key] = np.full(feature.shape, frame % 2).astype(feature.numpy_dtype)
    return made
