"""Measure lerobot-lancedb on its own layout. Runs beside lerobot-lancedb; prints JSON.

    lancedb_side.py convert V30_ROOT TARGET
    lancedb_side.py load ROOT --batches batches.json [--workers 0 2] [--warmup 4]
    lancedb_side.py first_batch ROOT [--repeat 5]

`convert` makes a lance-native dataset with lerobot-lancedb's own converter. `load` mirrors
`lerobot_side.py`, with workers started as lerobot-lancedb wants them. `first_batch` prints the
seconds that a fresh process takes to import, to open, and to load a batch of 32 random frames.
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
import sys, time
started = time.perf_counter()
from lerobot_lancedb import LanceDBDataset
imported = time.perf_counter()
ds = LanceDBDataset(root=sys.argv[1], return_uint8=True)
opened = time.perf_counter()
ds.__getitems__(list(range(0, len(ds), len(ds) // 32))[:32])
print(imported - started, opened - imported, time.perf_counter() - opened)
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    modes = parser.add_subparsers(dest="mode", required=True)
    convert = modes.add_parser("convert")
    convert.add_argument("root", type=Path)
    convert.add_argument("target", type=Path)
    load = modes.add_parser("load")
    load.add_argument("root", help="a folder, or s3://...")
    load.add_argument("--batches", type=Path, required=True)
    load.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    load.add_argument("--warmup", type=int, default=4, help="batches before the clock starts")
    first = modes.add_parser("first_batch")
    first.add_argument("root", type=Path)
    first.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    answer = globals()[f"measure_{options.mode}"](options)
    print(json.dumps({"lerobot_lancedb": version("lerobot-lancedb"), **answer}))


def measure_convert(options: argparse.Namespace) -> dict[str, Any]:
    from lerobot_lancedb.convert import convert

    convert(options.target, root=options.root)
    return {}


def measure_load(options: argparse.Namespace) -> dict[str, Any]:
    from lerobot_lancedb import lance_mp_context
    from loading import samples_per_second

    kinds = json.loads(options.batches.read_text())
    answer: dict[str, Any] = {kind: {} for kind in kinds}
    for workers in sorted(options.workers, reverse=True):
        for kind, batches in kinds.items():
            answer[kind][str(workers)] = samples_per_second(
                open_dataset(options.root, windows=kind == "windows"),
                batches,
                workers=workers,
                warmup=options.warmup,
                context=lance_mp_context(),
            )
    return answer


def open_dataset(root: str, *, windows: bool) -> Any:
    from lerobot_lancedb import LanceDBDataset

    delta_timestamps = None
    if windows:
        meta = LanceDBDataset(root=root).meta
        delta_timestamps = {
            meta.video_keys[0]: [offset / meta.fps for offset in range(-7, 1)],
            "action": [offset / meta.fps for offset in range(16)],
        }
    return LanceDBDataset(root=root, delta_timestamps=delta_timestamps, return_uint8=True)


def measure_first_batch(options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-c", FRESH_PROCESS, str(options.root)]
    runs = []
    for _ in range(1 + options.repeat):
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        runs.append(list(map(float, done.stdout.split()[-3:])))
    import_s, open_s, batch_s = (median(part) for part in zip(*runs[1:], strict=True))
    return {"import_s": import_s, "open_s": open_s, "batch_s": batch_s}


if __name__ == "__main__":
    main()
