"""Record many short episodes: is the last one saved as fast as the first?

    python bench/record_many.py [--episodes 500] [--seconds 0.5] [--folder FOLDER]

3 cameras of 480x640 at 30 frames a second, real images, at a steady pace; small files are merged
meanwhile. What counts: `save_episode` of the first and of the last 50 (the very first apart: it
also waits for encoders that have only just been started), the longest of all, and `add_frame`. Ends
with exit status 1 if a frame is missing, or if the last 50 took more than 1.1 times the first 50.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from record_pace import features, record_paced

import demoreel
from record import HERE, real_images

FPS = 30
SOME = 50
BAR = 1.1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--folder", type=Path, help="where to record; a temporary one if not given")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "record_many.json")
    options = parser.parse_args()
    if options.episodes < 2 * SOME + 1:
        parser.error(f"at least {2 * SOME + 1} episodes, to compare the first with the last")
    with tempfile.TemporaryDirectory(prefix="demoreel-many-", dir=options.folder) as scratch:
        found = record_many(Path(scratch) / "many", options.episodes, options.seconds)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=2))
    return say(found)


def record_many(root: Path, episodes: int, seconds: float) -> dict[str, Any]:
    pictures = real_images()
    recorder = demoreel.create(root, fps=FPS, features=features(*pictures.shape[1:3]))
    told = record_paced(
        recorder.add_frame,
        recorder.save_episode,
        pictures,
        fps=FPS,
        seconds=seconds,
        episodes=episodes,
    )
    begin = time.perf_counter()
    recorder.finalize()
    finalize_s = time.perf_counter() - begin
    saves = np.array(told["save_episode_s"])
    return {
        "episodes": episodes,
        "seconds": seconds,
        "missing_rows": round(seconds * FPS) * episodes - len(demoreel.open(root)),
        "first_s": float(saves[0]),
        "early_s": float(np.median(saves[1 : SOME + 1])),
        "late_s": float(np.median(saves[-SOME:])),
        "longest_s": float(saves.max()),
        "add_frame_ms": told["add_frame_ms"],
        "finalize_s": finalize_s,
        "videos": sum(1 for _ in root.rglob("*.mp4")),
    }


def say(found: dict[str, Any]) -> int:
    ratio = found["late_s"] / found["early_s"]
    add = found["add_frame_ms"]
    print(
        f"{found['episodes']} episodes of {found['seconds']} s, in the end {found['videos']} videos"
    )
    print(
        f"save_episode: the first {found['first_s'] * 1e3:.0f} ms, the median of the next {SOME} "
        f"{found['early_s'] * 1e3:.1f} ms, of the last {SOME} {found['late_s'] * 1e3:.1f} ms, "
        f"the longest {found['longest_s'] * 1e3:.0f} ms; finalize {found['finalize_s']:.2f} s"
    )
    print(f"add_frame: p50 {add['p50']:.2f}, p99 {add['p99']:.2f}, at most {add['max']:.2f} ms")
    held = {
        "no row is missing": found["missing_rows"] == 0,
        f"the last cost {ratio:.2f} times the first, at most {BAR}": ratio <= BAR,
    }
    for what, holds in held.items():
        print(f"{'yes' if holds else 'NO':>4}  {what}")
    return 0 if all(held.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
