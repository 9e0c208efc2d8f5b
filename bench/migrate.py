"""v2.1 to v3.0 and back: beside a plain copy, and beside lerobot's own converter.

    python bench/migrate.py                 the copy and demoreel
    python bench/migrate.py --lerobot       and lerobot's converter, in turn with them: minutes

The dataset is a real recording (a G1 humanoid, AV1), repeated until it has 120 episodes and 286 MB,
as v2.1: a table and a video for each. Every run writes to a new folder and forces it to disk;
conversions verify every row and every packet unless the line says otherwise. lerobot's converter
replaces the dataset that it is given, so it is given a copy, which is not timed.

The bars: at most 2.5 times the copy, at least 5 times faster than lerobot.
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
from statistics import median

from made import copy_synced

import demoreel

HERE = Path(__file__).resolve().parent
FIXTURE = HERE.parents[1] / "shared" / "fixtures" / "g1_v30"
LAUNCHER = HERE.parent / "conformance" / "environment.py"
EPISODES = 120
AT_MOST = 2.5
AT_LEAST = 5.0

LEROBOT = """
import sys, time
from lerobot.scripts.convert_dataset_v21_to_v30 import convert_dataset
begin = time.perf_counter()
convert_dataset(repo_id="bench/migrate", root=sys.argv[1], push_to_hub=False)
print("seconds", time.perf_counter() - begin)
"""


def make_old(folder: Path) -> Path:
    """Repeat the fixture, and write it as v2.1."""
    many = once = demoreel.cut(FIXTURE)
    while len(many) < EPISODES:
        many = many.merge(once)
    parts = many.split({"kept": range(EPISODES)})
    parts["kept"].render(folder / "v30", verify=False)
    demoreel.convert(folder / "v30", folder / "v21", to="v2.1")
    return folder / "v21"


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def timed(work: Callable[[Path], object], folder: Path) -> float:
    target = folder / "out"
    os.sync()
    begin = time.perf_counter()
    work(target)
    seconds = time.perf_counter() - begin
    shutil.rmtree(target)
    return seconds


def by_command(old: Path, target: Path) -> None:
    command = [sys.executable, "-m", "demoreel", "convert", str(old), str(target)]
    # As installed, where modules are compiled once; the machine may forbid it to a checkout.
    compiled = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    subprocess.run([*command, "--to", "v3.0", "--quiet"], check=True, env=compiled)


def of_lerobot(old: Path, folder: Path) -> tuple[float, float]:
    """Return the seconds of its converter alone, and of the process that runs it."""
    copy = folder / "lerobot" / "dataset"
    shutil.copytree(old, copy)
    launcher = subprocess.run(
        [sys.executable, str(LAUNCHER)], capture_output=True, text=True, check=True
    ).stdout.split()[-1]
    begin = time.perf_counter()
    done = subprocess.run(
        [launcher, "-c", LEROBOT, str(copy)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    whole = time.perf_counter() - begin
    shutil.rmtree(copy.parent)
    return float(done.stdout.split("seconds")[-1]), whole


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lerobot", action="store_true", help="measure lerobot's converter too")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, help="where to make the data, and keep the sources")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    options = parser.parse_args()
    work = options.work or Path(tempfile.mkdtemp(prefix="demoreel-migrate-"))
    old, new = work / "v21", work / "v30"
    if not old.exists():
        work.mkdir(parents=True, exist_ok=True)
        make_old(work)
    ways: dict[str, Callable[[Path], object]] = {
        "copy of v2.1, fsync": lambda to: copy_synced(old, to),
        "v2.1 to v3.0": lambda to: demoreel.convert(old, to, to="v3.0"),
        "v2.1 to v3.0, sample": lambda to: demoreel.convert(old, to, to="v3.0", verify="sample"),
        "v2.1 to v3.0, command": lambda to: by_command(old, to),
        "v3.0 to v2.1": lambda to: demoreel.convert(new, to, to="v2.1"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    theirs: list[tuple[float, float]] = []
    for number in range(options.rounds + 1):
        for name, way in ways.items():
            seconds[name].append(timed(way, work))
        if options.lerobot and number:
            theirs.append(of_lerobot(old, work))
    found = {name: median(times[1:]) for name, times in seconds.items()}  # the first one warms up
    if options.lerobot:
        found["lerobot"], found["lerobot, command"] = map(median, zip(*theirs, strict=True))
    plain = found["copy of v2.1, fsync"]
    print(f"{size_of(old) / 1e6:.0f} MB, {EPISODES} episodes; at most {AT_MOST} times the copy, ")
    print(f"at least {AT_LEAST} times faster than lerobot; without and with a process's start")
    for name, told in found.items():
        print(f"{name:24} {told:7.2f} s {told / plain:7.2f} times the copy")
    if options.lerobot:
        times = found["lerobot"] / found["v2.1 to v3.0"]
        as_commands = found["lerobot, command"] / found["v2.1 to v3.0, command"]
        print(f"{times:.1f} times faster than lerobot; as commands, {as_commands:.1f} times")
    if options.work is None:
        shutil.rmtree(work)
    options.output.mkdir(exist_ok=True)
    (options.output / "migrate.json").write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
