"""A paced recording loop, the same for both sides: what `add_frame` and `save_episode` cost it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

CAMERAS = ("observation.images.front", "observation.images.left", "observation.images.right")
JOINTS = 6


def features(height: int, width: int) -> dict[str, dict[str, Any]]:
    joints = {"dtype": "float32", "shape": (JOINTS,), "names": [f"j{n}" for n in range(JOINTS)]}
    camera = {
        "dtype": "video",
        "shape": (height, width, 3),
        "names": ["height", "width", "channels"],
    }
    return {"observation.state": joints, "action": joints, **dict.fromkeys(CAMERAS, camera)}


def frame(pictures: np.ndarray, number: int) -> dict[str, Any]:
    """Return frame `number`: each camera plays the images to and fro, from another place."""
    there_and_back = 2 * (len(pictures) - 1)
    made: dict[str, Any] = {
        "observation.state": np.full(JOINTS, number / 100, np.float32),
        "action": np.full(JOINTS, number / 50, np.float32),
        "task": "do it",
    }
    for place, camera in enumerate(CAMERAS):
        step = (number + place * len(pictures) // 3) % there_and_back
        made[camera] = pictures[min(step, there_and_back - step)]
    return made


def record_paced(
    add_frame: Callable[[dict[str, Any]], Any],
    save_episode: Callable[[], Any],
    pictures: np.ndarray,
    *,
    fps: float,
    seconds: float,
    episodes: int,
) -> dict[str, Any]:
    """Record episodes at `fps` and return what it cost."""
    add_ms, save_s, achieved, late = [], [], [], 0
    for _ in range(episodes):
        frames = round(seconds * fps)
        begin = time.perf_counter()
        for number in range(frames):
            deadline = begin + number / fps
            while (rest := deadline - time.perf_counter()) > 0:
                time.sleep(max(0.0, rest - 0.0005))
            late += -rest > 0.5 / fps
            values = frame(pictures, number)
            before = time.perf_counter()
            add_frame(values)
            add_ms.append(1000 * (time.perf_counter() - before))
        achieved.append(frames / max(frames / fps, time.perf_counter() - begin))
        before = time.perf_counter()
        save_episode()
        save_s.append(time.perf_counter() - before)
    return {
        "add_frame_ms": {
            "p50": float(np.percentile(add_ms, 50)),
            "p99": float(np.percentile(add_ms, 99)),
            "max": float(np.max(add_ms)),
        },
        "save_episode_s": save_s,
        "achieved_fps": float(np.mean(achieved)),
        "late_turns": late,
    }
