"""How fast is a cut? Deleting 3 of 93 episodes, beside a plain copy and beside lerobot.

    python bench/cut.py                 the copy and demoreel
    python bench/cut.py --lerobot       and lerobot, which takes minutes

The dataset is a real recording (a G1 humanoid, AV1), repeated until it has 93 episodes: 286 MB less
what its own files repeat. Every run writes to a new folder and forces it to disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from demoreel.edit.cut import cut

FIXTURE = Path(__file__).resolve().parents[2] / "shared" / "fixtures" / "g1_v30"
EPISODES = 93
DELETED = [3, 40, 77]
RUNS = 5

LEROBOT = """
import json, sys, time
from pathlib import Path
from lerobot.datasets.dataset_tools import delete_episodes
from lerobot.datasets.lerobot_dataset import LeRobotDataset
ds = LeRobotDataset("bench/cut", root=sys.argv[1])
begin = time.perf_counter()
delete_episodes(ds, json.loads(sys.argv[3]), output_dir=Path(sys.argv[2]), repo_id="bench/out")
print(json.dumps({"seconds": time.perf_counter() - begin}))
"""


def make_large(folder: Path) -> Path:
    """Repeat the fixture until it has 93 episodes."""
    once = cut(FIXTURE)
    many = once
    while len(many) < EPISODES:
        many = many.merge(once)
    chosen = many._with_clips(many.clips[:EPISODES])
    chosen.render(folder / "large", video_files_size_in_mb=200, verify=False)
    return folder / "large"


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def copied(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)
    subprocess.run(["sync", *map(str, (p for p in target.rglob("*") if p.is_file()))], check=True)


def demoreel(source: Path, target: Path) -> None:
    cut(source).delete(DELETED).render(target)


def by_command(source: Path, target: Path) -> None:
    command = [sys.executable, "-m", "demoreel", "cut", "delete", str(source), str(target)]
    subprocess.run([*command, "--episodes", ",".join(map(str, DELETED)), "--quiet"], check=True)


def timed(work: Callable[[Path, Path], None], source: Path, folder: Path) -> float:
    target = folder / f"out-{time.monotonic_ns()}"
    begin = time.perf_counter()
    work(source, target)
    seconds = time.perf_counter() - begin
    shutil.rmtree(target)
    os.sync()
    return seconds


def measured(source: Path, folder: Path) -> dict[str, list[float]]:
    """Run the contestants in turn, so that a slow moment of the disk hits all of them."""
    works = {"cp and fsync": copied, "demoreel": demoreel, "demoreel cut delete": by_command}
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(RUNS):
        for name, work in works.items():
            found[name].append(timed(work, source, folder))
    return found


def of_lerobot(source: Path, folder: Path) -> float | None:
    python = os.environ.get("DEMOREEL_LEROBOT_PYTHON")
    if not python:
        print("set DEMOREEL_LEROBOT_PYTHON to compare with lerobot", file=sys.stderr)
        return None
    done = subprocess.run(
        [python, "-c", LEROBOT, str(source), str(folder / "lerobot"), json.dumps(DELETED)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        return None
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lerobot", action="store_true", help="measure lerobot too: minutes")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="demoreel-bench-") as name:
        folder = Path(name)
        source = make_large(folder)
        print(f"{EPISODES} episodes, {size_of(source) / 1e6:.0f} MB; deleting {len(DELETED)}")
        found = measured(source, folder)
        for who, seconds in found.items():
            print(f"{who:24} best {min(seconds):6.2f} s   all {[round(s, 2) for s in seconds]}")
        if wanted.lerobot:
            seconds = of_lerobot(source, folder)
            if seconds is not None:
                print(
                    f"{'lerobot':24} {seconds:.1f} s, {seconds / min(found['demoreel']):.0f} times"
                )


if __name__ == "__main__":
    main()
