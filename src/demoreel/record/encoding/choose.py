"""Chooses a codec that keeps up with the cameras on this machine, by trying.

Software encoders are judged by the processor time they take, not by the clock: what else the
machine happens to be doing must not decide how a dataset looks. Hardware encoders are judged by the
clock, for their work does not show up elsewhere.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from demoreel.errors import ArgumentError, DemoreelError, VideoError, nearest
from demoreel.media.settings import HARDWARE_ENCODERS, VideoSettings
from demoreel.record.encoding.plan import CameraPlan
from demoreel.storage.commit.files import write_file
from demoreel.storage.scratch import scratch_folder

DOCUMENTED_ORDER = (*HARDWARE_ENCODERS, "libsvtav1", "libx264")
"""What ``vcodec="auto"`` tries, first to last."""

# Beside LeRobot's AV1 (preset 12, crf 30) none has a lower PSNR; x264 takes 1.2 to 1.5 times the
# bytes at its first two speeds (measured by bench/encoders.py). For that it needs a lower crf, and
# none of its tuning for how frames look to people.
_SPEEDS: dict[str, tuple[VideoSettings, ...]] = {
    # Low delay: every frame gives its packet at once, so that nothing is left to encode when an
    # episode ends. Its crf of 36 has about the bytes and the PSNR of 30 without.
    "libsvtav1": tuple(
        VideoSettings(preset=preset, crf=crf, options={"svtav1-params": "pred-struct=1"})
        for preset, crf in ((9, 36), (12, 36))
    ),
    "libx264": tuple(
        VideoSettings(codec="h264", preset=preset, crf=crf, options={"tune": "psnr"})
        for preset, crf in (("faster", 18), ("veryfast", 17), ("superfast", 21))
    ),
}

_HEADROOM = 0.7  # most of the machine that encoding may take; the rest is the control loop's
_FRAMES = 12
_LONGEST_S = 0.7  # for one candidate
_PATTERN = 4  # different frames


def choose_codec(
    cameras: Sequence[CameraPlan],
    fps: float,
    *,
    order: Sequence[str] = DOCUMENTED_ORDER,
    cache: Path | None = None,
) -> VideoSettings:
    """Return the first settings of ``order`` that encode all cameras at ``fps`` with headroom.

    Each is tried on frames like a camera's, all cameras at once, at its slower speeds first.
    Where none is fast enough the fastest of the last is returned, and encoding will be behind. What
    was measured is kept for the next time; the first time costs up to about two seconds.

    Args:
        cameras: What is to be encoded at once. Settings of colour cameras are not looked at; depth
            cameras keep theirs.
        fps: Frames per second.
        order: Names of encoders, best first.
        cache: The file that keeps what was measured; None is one in the user's cache folder.
    """
    if not order:
        raise ArgumentError("There are no encoders to choose from.")
    for name in order:
        if name not in DOCUMENTED_ORDER:
            raise ArgumentError(
                f"There is no encoder {name!r} to choose.", hint=nearest(name, DOCUMENTED_ORDER)
            )
    if not any(plan.kind == "rgb" for plan in cameras):
        return VideoSettings()
    notes = _Notes(cache or _cache_file(), cameras)
    fastest = None
    for candidate in (each for name in order for each in _candidates(name)):
        load = notes.load_of(candidate, fps)
        if load is not None:
            fastest = candidate
        if load is not None and load <= _HEADROOM:
            return candidate
    if fastest is None:
        raise VideoError(
            f"None of {', '.join(order)} can encode these cameras.",
            hint="odd frame sizes need av1; see VideoSettings for others",
        )
    return fastest


def _candidates(encoder: str) -> tuple[VideoSettings, ...]:
    if encoder in HARDWARE_ENCODERS:
        return (VideoSettings(codec=HARDWARE_ENCODERS[encoder], encoder=encoder),)
    return _SPEEDS[encoder]


class _Notes:
    """What was measured on this machine for these cameras, now or before."""

    def __init__(self, path: Path, cameras: Sequence[CameraPlan]) -> None:
        self._path = path
        self._cameras = cameras
        sizes = sorted(
            f"{plan.width}x{plan.height} "
            + ("rgb" if plan.kind == "rgb" else plan.settings.encoder_name)
            for plan in cameras
        )
        machine = (platform.node(), platform.machine(), _cores(), importlib.metadata.version("av"))
        self._key = json.dumps([*machine, *sizes])

    def load_of(self, candidate: VideoSettings, fps: float) -> float | None:
        """Return which share of the machine the candidate takes; None if it does not work."""
        name = f"{candidate.encoder_name} {candidate.speed} {candidate.crf} {candidate.gop}"
        seconds = self._read().get(self._key, {}).get(name)
        if seconds is None:
            seconds = _seconds_a_frame(self._cameras, candidate)
            if seconds is None:
                return None  # not kept: a driver may be installed one day
            self._keep(name, seconds)
        return float(seconds) * fps

    def _read(self) -> dict[str, dict[str, float]]:
        try:
            found = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _keep(self, name: str, seconds: float) -> None:
        known = self._read()
        known.setdefault(self._key, {})[name] = seconds
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_file(self._path, json.dumps(known, indent=1).encode())


def _seconds_a_frame(cameras: Sequence[CameraPlan], candidate: VideoSettings) -> float | None:
    """Return the share of one second of the whole machine that a frame of all cameras takes."""
    hardware = candidate.encoder in HARDWARE_ENCODERS
    if hardware:
        from demoreel.media.encode import encoder_problem

        if encoder_problem(candidate.encoder_name) is not None:
            return None
    plans = [p if p.kind == "depth" else replace(p, settings=candidate) for p in cameras]
    images = {plan.shape: _like_a_camera(plan.shape) for plan in plans}
    with scratch_folder() as folder:
        paths = [folder / f"{number}.mp4" for number in range(len(plans))]
        until = time.monotonic() + _LONGEST_S
        cpu, clock = time.process_time(), time.monotonic()
        try:
            with ThreadPoolExecutor(len(plans)) as pool:
                jobs = [
                    pool.submit(_encode, plan, path, images[plan.shape], until)
                    for plan, path in zip(plans, paths, strict=True)
                ]
                frames = [job.result() for job in jobs]
        except (DemoreelError, OSError):
            return None
        cpu, clock = time.process_time() - cpu, time.monotonic() - clock
    spent = max(cpu / _cores(), clock) if hardware else cpu / _cores()
    return spent / (sum(frames) / len(frames))


def _encode(plan: CameraPlan, path: Path, images: np.ndarray, until: float) -> int:
    from demoreel.media.encode import VideoEncoder
    from demoreel.stats.running import LevelCounts

    counted = LevelCounts()
    with VideoEncoder(
        path, fps=30, width=plan.width, height=plan.height, settings=plan.settings, threads=1
    ) as video:
        while video.frames < _FRAMES and (video.frames < 2 or time.monotonic() < until):
            image = images[video.frames % len(images)]
            video.add(image)
            counted.add(image)
    return video.frames


@lru_cache(maxsize=4)
def _like_a_camera(shape: tuple[int, ...]) -> np.ndarray:
    """Return frames with shapes, edges and texture that move, and a sensor's noise.

    Encoding them takes as long as real frames of a robot's head camera do.
    """
    random = np.random.default_rng(0)
    height, width = shape[:2]
    tall, wide = height + 4 * _PATTERN, width + 4 * _PATTERN
    down = np.arange(tall)[:, None] / max(height, width)
    across = np.arange(wide)[None, :] / max(height, width)
    scene = 110 + 50 * np.sin(9 * across + 4 * np.sin(7 * down)) + 30 * (np.sin(31 * down) > 0.6)
    scene = scene + _texture(random, tall, wide)
    images = []
    for number in range(_PATTERN):
        gray = scene[2 * number :, 3 * number :][:height, :width]
        gray = np.clip(gray + random.normal(0, 1.5, (height, width)), 0, 255)
        if len(shape) == 2:
            images.append((gray * 16).astype(np.uint16))
        else:
            images.append((gray[..., None] * [1.0, 0.9, 0.8]).astype(np.uint8))
    return np.stack(images)


def _texture(random: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Return grain of several sizes."""
    texture = np.zeros((height, width))
    for size in (2, 4, 8, 16):
        grain = random.normal(0, 3, (-(-height // size), -(-width // size)))
        texture += grain.repeat(size, 0).repeat(size, 1)[:height, :width]
    return texture


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cache_file() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "demoreel" / "encoders.json"
