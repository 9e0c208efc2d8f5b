"""lance-frames: writing it against the sum of its parts, reading it against libjpeg-turbo.

    .venv/bin/python bench/frames.py [--rounds 3] [--times 2] [--source g1_v21]

The data are the episodes of a real recording, repeated `--times` times (2 of the G1's are 2,026
frames of 480x640), as v3.0. Everything is measured in turns, `--rounds` times; medians count.

Writing: `demoreel.convert` to JPEG of quality 95, without verification, against its parts on two
threads: PyAV decodes every packet once and converts to RGB, simplejpeg encodes every image once.

Reading: samples through a DataLoader, the better of 0 and 2 workers, against two threads of
simplejpeg that decode the very same images, in memory, into the same place again and again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from demoreel_side import decode_all, needed_groups
from made import write_long

from read import HERE, draw_batches, ours, say

FIXTURE = HERE.parents[1] / "shared" / "fixtures" / "g1_v21"
THREADS = 2
BARS = {"convert": 0.7, "frames": 0.75, "windows": 0.75}
NAMES = {
    "frames": "random single frames",
    "windows": "random windows of 8 and 16 actions",
}
WARMUP = 4  # batches, as in demoreel_side.py
SIZES = (480, 640)
_IMAGES = 256  # that are encoded again and again


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, default=FIXTURE, help="a v2.1 dataset")
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=HERE / "results")
    options = parser.parse_args()
    if not options.source.is_dir():
        sys.exit(f"{options.source} is not there: pass --source")
    options.output.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        results = measure(options, Path(scratch))
    (options.output / "frames.json").write_text(json.dumps(results, indent=2))
    table = markdown(results)
    (options.output / "frames.md").write_text(table)
    print(table)


def measure(options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    import demoreel

    source = write_long(scratch / "v30", options.source, times=options.times)
    target = scratch / "frames"
    batches = draw_batches(source)
    drawn = scratch / "batches.json"
    drawn.write_text(json.dumps(batches))
    parts = Parts(source)
    converting, reading = [], []
    for number in range(options.rounds):
        say(f"round {number + 1} of {options.rounds}")
        turn = {"decode_s": parts.decode(), "encode_s": parts.encode()}
        started = time.perf_counter()
        demoreel.convert(source, target, to="lance-frames", verify=False, overwrite=True)
        turn["convert_s"] = time.perf_counter() - started
        turn["share"] = (turn["decode_s"] + turn["encode_s"]) / turn["convert_s"]
        converting.append(turn)
        reading.append(
            {
                "demoreel": ours("load", target, "--batches", drawn),
                "floor": read_floor(target, batches),
            }
        )
    return {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {sys.version.split()[0]}",
        "frames": parts.frames,
        "convert": {name: median(turn[name] for turn in converting) for name in converting[0]},
        "reading": {kind: summary(reading, kind) for kind in NAMES},
        "rounds": {"converting": converting, "reading": reading},
    }


class Parts:
    """What a conversion consists of, each part alone."""

    def __init__(self, root: Path) -> None:
        import demoreel

        dataset = demoreel.open(root)
        self.frames = len(dataset)
        self._groups = needed_groups(root, list(range(self.frames)), range(1))
        camera = dataset.cameras[0]
        shown = dataset.batch(np.linspace(0, self.frames - 1, _IMAGES).astype(int))[camera]
        self._pictures = [np.ascontiguousarray(p.transpose(1, 2, 0)) for p in shown]

    def decode(self) -> float:
        """Seconds to decode all frames once, and to convert them to RGB."""
        started = time.perf_counter()
        decode_all(self._groups, THREADS)
        return time.perf_counter() - started

    def encode(self) -> float:
        """Seconds to encode all frames once."""
        import simplejpeg

        def encode(picture: np.ndarray) -> None:
            simplejpeg.encode_jpeg(picture, quality=95, colorsubsampling="420")

        repeated = (self._pictures * (self.frames // _IMAGES + 1))[: self.frames]
        return seconds_for(encode, repeated)


def read_floor(root: Path, kinds: dict[str, list[list[int]]]) -> dict[str, Any]:
    """Samples per second of two threads that decode the same images and nothing else."""
    import simplejpeg

    import demoreel
    from demoreel.read.batch import expand

    dataset = demoreel.open(root)
    episodes = dataset.reader.episodes
    memory = threading.local()

    def decode(data: bytes) -> None:
        if not hasattr(memory, "desk"):
            memory.desk = np.empty(SIZES[0] * SIZES[1] * 3, np.uint8)
        simplejpeg.decode_jpeg(data, colorspace="RGB", buffer=memory.desk)

    answer = {}
    for kind, batches in kinds.items():
        offsets = np.arange(-7, 1) if kind == "windows" else np.arange(1)
        loaded = []
        for batch in batches:
            rows = np.array(batch)
            positions = episodes.positions_of_rows(rows)
            edges = episodes.start[positions], episodes.start[positions + 1]
            wanted = np.unique(expand(rows, offsets, *edges).rows)
            loaded.append(dataset.reader.encoded(wanted, dataset.cameras[0]))
        for pictures in loaded[:WARMUP]:
            seconds_for(decode, pictures)
        seconds = sum(seconds_for(decode, pictures) for pictures in loaded[WARMUP:])
        samples = sum(map(len, batches[WARMUP:]))
        answer[kind] = {"samples_per_s": samples / seconds, "seconds": seconds}
    return answer


def seconds_for(work: Callable[[Any], None], things: Iterable[Any]) -> float:
    """Time two threads that draw from the same list."""
    queue = iter(list(things))
    lock = threading.Lock()

    def run() -> None:
        while True:
            with lock:
                thing = next(queue, None)
            if thing is None:
                return
            work(thing)

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


def summary(rounds: Sequence[dict[str, Any]], kind: str) -> dict[str, Any]:
    by_workers = {
        workers: median(turn["demoreel"][kind][workers]["samples_per_s"] for turn in rounds)
        for workers in rounds[0]["demoreel"][kind]
    }
    floor = median(turn["floor"][kind]["samples_per_s"] for turn in rounds)
    best = max(by_workers.values())
    return {"floor": floor, "demoreel": best, "by_workers": by_workers, "share": best / floor}


def markdown(results: dict[str, Any]) -> str:
    converting = results["convert"]
    frames = results["frames"]
    lines = [
        f"Machine: {results['machine']}. {frames:,} frames of {SIZES[0]}x{SIZES[1]}, JPEG 95.",
        "",
        "| writing lance-frames | seconds | frames/s |",
        "|---|---:|---:|",
    ]
    names = {
        "decode_s": "decode every frame once, two threads",
        "encode_s": "encode every frame once, two threads",
        "convert_s": "`demoreel.convert`, without verification",
    }
    for name, words in names.items():
        lines.append(f"| {words} | {converting[name]:.2f} | {frames / converting[name]:.0f} |")
    lines += [
        "",
        f"Sum of the parts / whole: {converting['share']:.2f} (bar: {BARS['convert']}).",
        "",
        "| samples/s (better of 0 and 2 workers) | demoreel | two threads of libjpeg-turbo | ratio "
        "| bar | 0 workers | 2 workers |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for kind, words in NAMES.items():
        row = results["reading"][kind]
        lines.append(
            f"| {words} | {row['demoreel']:.0f} | {row['floor']:.0f} | {row['share']:.2f} "
            f"| {BARS[kind]} | {row['by_workers']['0']:.0f} | {row['by_workers']['2']:.0f} |"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
