"""Measure lerobot on a dataset. Runs beside lerobot; prints JSON.

    lerobot_side.py load ROOT --batches batches.json [--workers 0 2] [--warmup 4] [--camera KEY]
    lerobot_side.py import_open ROOT [--repeat 5]

`load` reads batches of indices, `{"frames": [[...], ...], "windows": [[...], ...]}`, and loads each
kind with each number of workers, as uint8 and with the default collate function:

    frames    single frames
    windows   8 frames of the camera, offsets -7 to 0, and 16 actions, 0 to 15

It prints `{"frames": {"0": {"samples_per_s": ...}, "2": ...}, "windows": ...}`, and which decoder
lerobot used. `import_open` prints the seconds that a fresh process takes to import the dataset
class and to open the dataset: once while caches fill, then `--repeat` times.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

FRESH_PROCESS = """
import time
started = time.perf_counter()
from lerobot.datasets.lerobot_dataset import LeRobotDataset
imported = time.perf_counter()
import sys
LeRobotDataset("bench/dataset", root=sys.argv[1])
opened = time.perf_counter()
print(imported - started, opened - imported)
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    modes = parser.add_subparsers(dest="mode", required=True)
    load = modes.add_parser("load")
    load.add_argument("root", type=Path)
    load.add_argument("--batches", type=Path, required=True)
    load.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    load.add_argument("--warmup", type=int, default=4, help="batches before the clock starts")
    load.add_argument("--camera", help="the camera of the windows; the first one if not given")
    load.add_argument("--video-backend", help="lerobot's own choice if not given")
    fresh = modes.add_parser("import_open")
    fresh.add_argument("root", type=Path)
    fresh.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()

    if options.mode == "load":
        answer = measure_loading(options)
    else:
        answer = measure_import_and_open(options.root, options.repeat)
    print(json.dumps({"lerobot": version("lerobot"), **answer}))


def measure_loading(options: argparse.Namespace) -> dict[str, Any]:
    from loading import samples_per_second

    kinds = json.loads(options.batches.read_text())
    answer: dict[str, Any] = {kind: {} for kind in kinds}
    # Worker processes first: lerobot must not have decoded in the process they are forked from.
    for workers in sorted(options.workers, reverse=True):
        for kind, batches in kinds.items():
            dataset = open_dataset(options, windows=kind == "windows")
            answer["video_backend"] = dataset.reader._video_backend
            answer[kind][str(workers)] = samples_per_second(
                dataset, batches, workers=workers, warmup=options.warmup
            )
    return answer


def open_dataset(options: argparse.Namespace, *, windows: bool) -> Any:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset, LeRobotDatasetMetadata

    delta_timestamps = None
    if windows:
        meta = LeRobotDatasetMetadata("bench/dataset", root=options.root)
        camera = options.camera or meta.video_keys[0]
        delta_timestamps = {
            camera: [offset / meta.fps for offset in range(-7, 1)],
            "action": [offset / meta.fps for offset in range(16)],
        }
    return LeRobotDataset(
        "bench/dataset",
        root=options.root,
        delta_timestamps=delta_timestamps,
        video_backend=options.video_backend,
        return_uint8=True,
    )


def measure_import_and_open(root: Path, repeat: int) -> dict[str, Any]:
    command = [sys.executable, "-c", FRESH_PROCESS, str(root)]
    runs = []
    for _ in range(1 + repeat):
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        import_s, open_s = map(float, done.stdout.split())
        runs.append({"import_s": import_s, "open_s": open_s, "total_s": import_s + open_s})
    return {
        "first": runs[0],
        "runs": runs[1:],
        "median_s": median(run["total_s"] for run in runs[1:]),
    }


if __name__ == "__main__":
    main()
