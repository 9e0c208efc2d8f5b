"""How long the control loop is kept by its cameras, and how far encoding falls behind.

    python bench/record_put.py [--seconds 20] [--cameras 3] [--codec auto|av1|h264|...]

A loop at a steady pace hands an image of each camera to ``CameraEncoders``, as a recorder does.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
from bench_images import camera_images

from demoreel.media.settings import VideoSettings
from demoreel.record.encoding.cameras import CameraEncoders
from demoreel.record.encoding.choose import choose_codec
from demoreel.record.encoding.plan import CameraPlan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--cameras", type=int, default=3)
    parser.add_argument("--fps", type=float, default=30)
    parser.add_argument("--codec", default="auto")
    parser.add_argument("--preset", default=None)
    parser.add_argument("--episodes", type=int, default=2)
    parser.add_argument("--workdir", type=Path, default=None)
    options = parser.parse_args()
    keys = [f"camera{number}" for number in range(options.cameras)]
    print("load of the machine before:", os.getloadavg(), "cores:", os.cpu_count())
    settings = _settings(options, keys)
    print("encoding as", settings)
    folder = Path(tempfile.mkdtemp(dir=options.workdir))
    plans = [CameraPlan(key, 480, 640, "rgb", settings) for key in keys]
    pictures = camera_images(120)
    begin = time.perf_counter()
    try:
        with CameraEncoders(plans, fps=options.fps, workdir=folder) as encoders:
            print(f"encoders ready after {time.perf_counter() - begin:.2f} s")
            for _ in range(options.episodes):
                print(json.dumps(_episode(encoders, keys, pictures, options)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("load of the machine after:", os.getloadavg())


def _settings(options: argparse.Namespace, keys: list[str]) -> VideoSettings:
    if options.codec == "auto":
        plans = [CameraPlan(key, 480, 640, "rgb", VideoSettings()) for key in keys]
        begin = time.perf_counter()
        chosen = choose_codec(plans, options.fps)
        print(f"chosen in {time.perf_counter() - begin:.2f} s")
        return chosen
    preset = options.preset
    return VideoSettings(codec=options.codec, preset=int(preset) if preset else None)


def _episode(
    encoders: CameraEncoders,
    keys: list[str],
    pictures: list[np.ndarray],
    options: argparse.Namespace,
) -> dict[str, object]:
    took, late, behind = [], 0, 0.0
    frames = round(options.seconds * options.fps)
    cpu, begin = time.process_time(), time.perf_counter()
    for frame in range(frames):
        due = begin + frame / options.fps
        while (left := due - time.perf_counter()) > 0:
            time.sleep(left)
        late += time.perf_counter() - due > 0.002
        for number, key in enumerate(keys):
            started = time.perf_counter()
            encoders.put(key, pictures[(frame + 31 * number) % len(pictures)])
            took.append(time.perf_counter() - started)
        if frame % 10 == 0:
            behind = max(behind, encoders.backlog.seconds_behind)
    end = time.perf_counter()
    cpu = time.process_time() - cpu
    videos = encoders.finish_episode()
    finish = time.perf_counter() - end
    sizes = [video.path.stat().st_size / video.frames for video in videos.values()]
    for video in videos.values():
        video.path.unlink()
    milliseconds = np.array(took) * 1000
    return {
        "frames": [video.frames for video in videos.values()],
        "wanted": frames,
        "fps": round((frames - 1) / (due - begin) if frames > 1 else 0, 3),
        "woken_late_by_2ms": int(late),
        "put_ms_p50": round(float(np.median(milliseconds)), 3),
        "put_ms_p99": round(float(np.quantile(milliseconds, 0.99)), 3),
        "put_ms_max": round(float(milliseconds.max()), 3),
        "loop_process_cpu": round(cpu / (end - begin), 4),
        "most_seconds_behind": round(behind, 2),
        "finish_s": round(finish, 3),
        "bytes_per_frame": round(float(np.mean(sizes))),
    }


if __name__ == "__main__":
    main()
