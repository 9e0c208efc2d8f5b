"""What each encoder makes of a robot's images: speed on one core, bytes, PSNR.

    python bench/encoders.py [--frames 60] [--scan]

Beside LeRobot's AV1 (libsvtav1, preset 12, crf 30, GOP 2). ``--scan`` tries more of x264.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import av
import numpy as np
from bench_images import real_images, toy_images

from demoreel.media.encode import VideoEncoder
from demoreel.media.settings import VideoSettings
from demoreel.record.encoding.choose import DOCUMENTED_ORDER, _candidates, _opens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=60)
    parser.add_argument("--scan", action="store_true")
    options = parser.parse_args()
    print("load of the machine:", os.getloadavg())
    films = {
        "real robot": real_images(options.frames),
        "toy arm": toy_images(options.frames),
        "toy arm, noise": toy_images(options.frames, noise=2.0),
    }
    chosen = [VideoSettings(preset=12)]
    for name in DOCUMENTED_ORDER:
        if "_" not in name or _opens(name):
            chosen += [each for each in _candidates(name) if each not in chosen]
    if options.scan:
        chosen = [VideoSettings(preset=12), *_scan()]
    for film, pictures in films.items():
        if pictures is None:
            continue
        print(f"\n{film}\n{'encoder':44} {'fps/core':>8} {'bytes':>7} {'ratio':>6} {'PSNR':>6}")
        first = None
        for settings in chosen:
            speed, size, psnr = measure(pictures, settings)
            first = first or size
            name = f"{settings.encoder_name} {settings.speed} crf {settings.crf} "
            name += " ".join(f"{k}={v}" for k, v in settings.options.items())
            print(f"{name:44} {speed:8.0f} {size:7.0f} {size / first:6.2f} {psnr:6.2f}")


def _scan() -> list[VideoSettings]:
    tried = {"faster": (19, 20), "veryfast": (18, 19), "superfast": (21, 22), "ultrafast": (19, 20)}
    return [
        VideoSettings(codec="h264", preset=preset, crf=crf, options={"tune": "psnr"})
        for preset, each in tried.items()
        for crf in each
    ]


def measure(pictures: list[np.ndarray], settings: VideoSettings) -> tuple[float, float, float]:
    """Frames a second of one core, bytes a frame, and PSNR in RGB, the mean of the frames'."""
    height, width = pictures[0].shape[:2]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "video.mp4"
        begin = time.process_time()
        with VideoEncoder(
            path, fps=30, width=width, height=height, settings=settings, threads=1
        ) as video:
            for picture in pictures:
                video.add(picture)
        seconds = time.process_time() - begin
        with av.open(str(path)) as container:
            shown = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        size = path.stat().st_size / len(pictures)
    assert len(shown) == len(pictures)
    errors = [
        np.mean((a.astype(np.float32) - b) ** 2) for a, b in zip(pictures, shown, strict=True)
    ]
    psnr = float(np.mean([10 * np.log10(255**2 / max(error, 1e-9)) for error in errors]))
    return len(pictures) / seconds, size, psnr


if __name__ == "__main__":
    main()
