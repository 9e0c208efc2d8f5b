"""Batches from a pool of decoded spans (`reuse=`) against a full shuffle, in one run.

    .venv/bin/python bench/reuse.py [--budget 2GB] [--seconds 12] [--rounds 3] [--work FOLDER]

The source is the real G1 recording, repeated to 93 episodes: as it is (AV1, GOP 2), encoded as
H.264 with a keyframe every 250 frames, and scaled to 240x320. Bars are of ratios within the run.

The conversion to 240x320, without statistics and verification, is compared with its parts, each on
all cores: PyAV decodes and scales every frame once, and encodes as many frames of that size.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median

import av
from made import write_long

import demoreel
from demoreel.media.encode import VideoEncoder
from demoreel.media.settings import VideoSettings
from demoreel.read.speed import ReuseSpeed, measure_reuse, measure_speed

HERE = Path(__file__).parent
FIXTURE = HERE.parents[1] / "shared" / "fixtures" / "g1_v21"
EPISODES = 93
BATCH = 64
BARS = {"windows of 8": 4.0, "single frames": 1.3, "single frames, H.264 GOP 250": 20.0}
EPISODES_BAR, SCALED_BAR, CONVERSION_BAR = 30, 2.5, 0.85
SIZE = (240, 320)
SETTINGS = VideoSettings(codec="h264", gop=2, crf=23)
_FRAMES = 100  # that are encoded again and again
_CORES = os.cpu_count() or 1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--budget", default="2GB")
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--rounds", type=int, default=3, help="of the conversion")
    parser.add_argument("--work", type=Path, help="where to make the data, and keep it")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    options = parser.parse_args()
    work = options.work or Path(tempfile.mkdtemp(prefix="demoreel-reuse-"))
    places = prepare(work)
    found: dict[str, ReuseSpeed] = {}
    for name, window, place in (
        ("windows of 8", 8, "source"),
        ("single frames", 1, "source"),
        ("single frames, H.264 GOP 250", 1, "h264"),
    ):
        found[name] = measure_reuse(
            places[place], options.budget, window=window, batch_size=BATCH, seconds=options.seconds
        )
    scaled, whole = (
        measure_speed(places[place], batch_size=BATCH, seconds=options.seconds).samples_per_s
        for place in ("scaled", "source")
    )
    share = conversion(places["source"], work, options.rounds)
    failed = report(found, scaled / whole, share)
    if options.work is None:
        shutil.rmtree(work)
    options.output.mkdir(exist_ok=True)
    values = {name: asdict(speed) | {"gain": speed.gain} for name, speed in found.items()}
    (options.output / "reuse.json").write_text(
        json.dumps({**values, "scaled": scaled / whole, "conversion": share})
    )
    sys.exit("below the bar: " + ", ".join(failed) if failed else 0)


def prepare(work: Path) -> dict[str, Path]:
    """Make the datasets, unless they are there."""
    work.mkdir(parents=True, exist_ok=True)
    source, h264, scaled = work / "source", work / "h264", work / "scaled"
    if not source.exists():
        write_long(work / "long", FIXTURE, times=-(-EPISODES // 4))
        demoreel.cut(work / "long").keep(list(range(EPISODES))).render(source)
    if not h264.exists():
        demoreel.convert(source, h264, to="v3.0", codec="h264", gop=250, crf=23)
    if not scaled.exists():
        demoreel.convert(source, scaled, to="v3.0", image_size=(240, 320))
    return {"source": source, "h264": h264, "scaled": scaled}


def conversion(source: Path, work: Path, rounds: int) -> float:
    """Return what the parts of a conversion take, of what the conversion takes."""
    videos = sorted(source.rglob("*.mp4"))
    frames = len(demoreel.open(source))
    shares = []
    for number in range(rounds):
        target = work / f"converted-{number}"
        began = time.perf_counter()
        demoreel.convert(
            source, target, to="v3.0", codec=SETTINGS.codec, gop=SETTINGS.gop, crf=SETTINGS.crf,
            image_size=SIZE, picture_stats=False, verify="none",
        )  # fmt: skip
        whole = time.perf_counter() - began
        shutil.rmtree(target)
        parts = spent([partial(_decode, video) for video in videos])
        per_job = frames // (4 * _CORES)
        jobs = [
            partial(_encode, _first_frames(videos[0]), per_job, work / f"encoded-{job}.mp4")
            for job in range(4 * _CORES)
        ]
        parts += spent(jobs) * frames / (per_job * len(jobs))
        shares.append(parts / whole)
    return median(shares)


def spent(jobs: list[Callable[[], object]]) -> float:
    """Return the seconds that jobs take if all cores are busy all the time."""
    began = time.process_time()
    with ThreadPoolExecutor(_CORES) as pool:
        for done in [pool.submit(job) for job in jobs]:
            done.result()
    return (time.process_time() - began) / _CORES


def _decode(video: Path) -> None:
    with av.open(str(video)) as container:
        container.streams.video[0].thread_count = 1
        for frame in container.decode(video=0):
            frame.reformat(SIZE[1], SIZE[0], "yuv420p")


def _first_frames(video: Path) -> list[av.VideoFrame]:
    found = []
    with av.open(str(video)) as container:
        for frame in container.decode(video=0):
            found.append(frame.reformat(SIZE[1], SIZE[0], "yuv420p"))
            if len(found) == _FRAMES:
                break
    return found


def _encode(frames: list[av.VideoFrame], count: int, path: Path) -> None:
    with VideoEncoder(
        path, fps=30, width=SIZE[1], height=SIZE[0], settings=SETTINGS, threads=1
    ) as out:
        for number in range(count):
            out.add_frame(frames[number % len(frames)])
    path.unlink()


def report(found: dict[str, ReuseSpeed], scaled: float, share: float) -> list[str]:
    """Print what was measured; return what is below its bar."""
    failed = []
    for name, speed in found.items():
        print(
            f"{name}: {speed.samples_per_s:.0f} samples/s, {speed.plain_samples_per_s:.1f} "
            f"without: {speed.gain:.1f} times (bar {BARS[name]}); "
            f"{speed.decoded_per_sample:.2f} images decoded for each; "
            f"{speed.episodes:.1f} episodes in a batch of {BATCH} "
            f"(a full shuffle: {speed.plain_episodes:.1f}), neighbours {speed.distance:.2f} of the "
            f"dataset apart ({speed.plain_distance:.2f}); {speed.spans} spans of "
            f"{speed.span_length}"
        )
        failed += [name] if speed.gain < BARS[name] else []
        if speed.episodes < EPISODES_BAR:
            failed.append(f"{name}: episodes in a batch")
    print(f"single frames of 240x320: {scaled:.2f} times those of the source (bar {SCALED_BAR})")
    print(f"conversion to 240x320: {share:.2f} of its parts (bar {CONVERSION_BAR})")
    failed += [] if share >= CONVERSION_BAR else ["conversion"]
    return failed + ([] if scaled >= SCALED_BAR else ["240x320"])


if __name__ == "__main__":
    main()
