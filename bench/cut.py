"""How fast are cuts? Beside a plain copy of the same bytes, and beside lerobot, in one run.

    python bench/cut.py                           copies and demoreel
    python bench/cut.py --lerobot                 and lerobot 0.6.1, which takes many minutes
    python bench/cut.py --only delete,in-place    some of: delete in-place merge split jobs memory

The dataset is a real recording (a G1 humanoid, AV1), repeated until it has 93 episodes and 286 MB.
Every contestant writes to a new folder and forces it to disk; they take turns, and medians count.
``in-place`` makes a new version of the same data in Lance, and counts the bytes that appear in the
table of videos. ``jobs`` are cuts that calculate: tables of 2 million rows, and images that are
re-encoded; a cut that only copies is as fast as the disk, whatever the number of processes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import demoreel
from demoreel.edit.cut import Cut

HERE = Path(__file__).parent
FIXTURE = HERE.parents[1] / "shared" / "fixtures" / "g1_v30"
EPISODES, DELETED = 93, [3, 40, 77]
DATASETS = 20
SHARES = {"train": 0.8, "val": 0.2}
BARS = {
    "delete": "at most 2 copies, 100 times lerobot",
    "in-place": "under 0.5 s, no byte of video",
    "merge": "at most 2.5 copies, 5 times lerobot",
    "split": "at most 2.5 copies, 5 times lerobot",
    "jobs": "two at least 1.6 times one",
    "memory": "under 1 GB",
}

LEROBOT = """
import json, sys, time
from pathlib import Path
from lerobot.datasets import dataset_tools as tools
from lerobot.datasets.lerobot_dataset import LeRobotDataset
verb, out, sources, argument = sys.argv[1], Path(sys.argv[2]), *map(json.loads, sys.argv[3:5])
held = [LeRobotDataset(f"bench/{n}", root=path) for n, path in enumerate(sources)]
begin = time.perf_counter()
if verb == "delete":
    tools.delete_episodes(held[0], argument, output_dir=out, repo_id="bench/out")
elif verb == "merge":
    tools.merge_datasets(held, output_repo_id="bench/out", output_dir=out)
else:
    tools.split_dataset(held[0], argument, output_dir=out)
print(json.dumps({"seconds": time.perf_counter() - begin}))
"""

Way = Callable[[Path], object]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lerobot", action="store_true", help="measure lerobot too: minutes")
    parser.add_argument("--only", default=",".join(BARS), help="which of them, by comma")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=HERE / "results")
    options = parser.parse_args()
    wanted = options.only.split(",")
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="demoreel-cut-") as name:
        folder = Path(name)
        source = make_large(folder)
        print(f"{EPISODES} episodes, {size_of(source) / 1e6:.0f} MB", file=sys.stderr)
        for verb in wanted:
            print(f"{verb}: the bar is {BARS[verb]}", file=sys.stderr)
            results[verb] = MEASURES[verb](source, folder, options)
            print(json.dumps({verb: results[verb]}, indent=2))
    options.output.mkdir(exist_ok=True)
    (options.output / "cut.json").write_text(json.dumps(results, indent=2))


def make_large(folder: Path) -> Path:
    """Repeat the fixture until it has 93 episodes."""
    many = _repeated(demoreel.cut(FIXTURE), EPISODES)
    many.render(folder / "large", video_files_size_in_mb=200, verify=False)
    return folder / "large"


def _repeated(once: Cut, episodes: int) -> Cut:
    clips = once.clips * (episodes // len(once) + 1)
    return Cut(replace(once.cutlist, clips=clips[:episodes]))


def delete(source: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    episodes = ",".join(map(str, DELETED))
    ways: dict[str, Way] = {
        "copy": lambda to: copy([source], to),
        "demoreel": lambda to: demoreel.cut(source).delete(DELETED).render(to),
        "demoreel cut delete": lambda to: command("delete", source, to, "--episodes", episodes),
    }
    return compared(ways, folder, options, "delete", [source], DELETED)


def merge(source: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    each = -(-EPISODES // DATASETS)
    parts = []
    for number in range(DATASETS):
        chosen = range(number * each, min(EPISODES, (number + 1) * each))
        if chosen:
            parts.append(folder / f"part-{number}")
            demoreel.cut(source).keep(list(chosen)).render(parts[-1], verify=False)
    while len(parts) < DATASETS:
        parts.append(Path(shutil.copytree(parts[0], folder / f"part-{len(parts)}")))

    def ours(to: Path) -> None:
        demoreel.cut(parts[0]).merge(*parts[1:]).render(to)

    ways: dict[str, Way] = {"copy": lambda to: copy(parts, to), "demoreel": ours}
    return compared(ways, folder, options, "merge", parts, None)


def split(source: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    def ours(to: Path) -> None:
        for name, part in demoreel.cut(source).split(SHARES).items():
            part.render(to / name)

    ways: dict[str, Way] = {"copy": lambda to: copy([source], to), "demoreel": ours}
    return compared(ways, folder, options, "split", [source], SHARES)


def in_place(source: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for layout in ("lance-video", "lance-native"):
        table = "large_videos.lance" if layout == "lance-video" else "videos.lance"
        seconds, video_bytes = [], []
        for _ in range(options.rounds):
            place = folder / "lance"
            demoreel.convert(source, place, to=layout, verify=False)
            os.sync()
            before = size_of(place / table)
            begin = time.perf_counter()
            demoreel.cut(place).delete(DELETED).render_in_place()
            seconds.append(time.perf_counter() - begin)
            video_bytes.append(size_of(place / table) - before)
            shutil.rmtree(place)
        found[layout] = {
            "seconds": median(seconds),
            "all": [round(s, 3) for s in seconds],
            "bytes_of_video": max(video_bytes),
        }
    return found


def jobs(source: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    tables = make_tables(folder / "tables")
    films = _repeated(demoreel.cut(FIXTURE), 16)
    return {
        "tables": by_jobs(lambda to, n: _kept(tables).render(to, jobs=n), folder, options),
        "encoding": by_jobs(
            lambda to, n: films.render(to, jobs=n, vcodec="h264", verify=False), folder, options
        ),
    }


def make_tables(root: Path) -> Path:
    """Make numbers without cameras: 400 episodes of 5,000 rows of 26 floats."""
    features = {"observation.state": {"dtype": "float32", "shape": [26], "names": None}}
    rng = np.random.default_rng(0)
    with demoreel.create(root, fps=50, features=features, data_files_size_in_mb=10) as recorder:
        for row in rng.normal(size=(5000, 26)).astype(np.float32):
            recorder.add_frame({"observation.state": row, "task": "move"})
        recorder.save_episode()
    many = root.with_name("many")
    _repeated(demoreel.cut(root), 400).render(many, data_files_size_in_mb=10, verify=False)
    return many


def _kept(dataset: Path) -> Cut:
    return demoreel.cut(dataset).delete([0])


def by_jobs(
    work: Callable[[Path, int], object], folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    ways: dict[str, Way] = {f"{n}": lambda to, n=n: work(to, n) for n in (1, 2)}
    seconds = in_turn(ways, folder, min(options.rounds, 3))
    one, two = median(seconds["1"]), median(seconds["2"])
    return {"one": one, "two": two, "times": one / two, "all": rounded(seconds)}


def memory(source: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Peak memory of a process that cuts ten times the dataset: its own, and its page cache not."""
    large = folder / "ten"
    _repeated(demoreel.cut(source), 10 * EPISODES).render(large, verify=False)
    command("delete", large, folder / "less", "--episodes", "3,40,77")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    found = {"source_megabytes": size_of(large) / 1e6, "peak_megabytes": peak * 1024 / 1e6}
    for made in (large, folder / "less"):
        shutil.rmtree(made)
    return found


MEASURES = {
    "memory": memory,
    "delete": delete,
    "in-place": in_place,
    "merge": merge,
    "split": split,
    "jobs": jobs,
}


def compared(
    ways: dict[str, Way],
    folder: Path,
    options: argparse.Namespace,
    verb: str,
    sources: list[Path],
    argument: object,
) -> dict[str, Any]:
    """Let all take turns, and say how many copies, and what part of lerobot's time, ours takes."""
    seconds = in_turn(ways, folder, options.rounds)
    plain = median(seconds["copy"])
    found: dict[str, Any] = {"all": rounded(seconds)}
    for name, times in seconds.items():
        found[name] = {"seconds": median(times), "copies": median(times) / plain}
    if options.lerobot:
        theirs = of_lerobot(verb, sources, argument, folder)
        found["lerobot"] = {"seconds": theirs, "times": theirs / found["demoreel"]["seconds"]}
    return found


def in_turn(ways: dict[str, Way], folder: Path, rounds: int) -> dict[str, list[float]]:
    """Run the contestants in turn, so that a slow moment of the disk hits all of them."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            target = folder / "target"
            os.sync()
            begin = time.perf_counter()
            way(target)
            if number:  # the first warms the page cache
                found[name].append(time.perf_counter() - begin)
            shutil.rmtree(target)
    return found


def copy(sources: list[Path], target: Path) -> None:
    """Copy files plainly, and force them to disk."""
    target.mkdir()
    subprocess.run(["cp", "-r", *map(str, sources), str(target)], check=True)
    subprocess.run(["sync", *map(str, (p for p in target.rglob("*") if p.is_file()))], check=True)


def command(verb: str, source: Path, target: Path, *more: str) -> None:
    line = [sys.executable, "-m", "demoreel", "cut", verb, str(source), str(target), *more]
    subprocess.run([*line, "--quiet"], check=True)


def of_lerobot(verb: str, sources: list[Path], argument: object, folder: Path) -> float:
    """Return the seconds that lerobot takes for the same."""
    environment = HERE.parent / "conformance" / "environment.py"
    python = subprocess.check_output([sys.executable, str(environment)], text=True).strip()
    out, listed = folder / "lerobot", json.dumps([str(path) for path in sources])
    done = subprocess.run(
        [*python.split(), "-c", LEROBOT, verb, str(out), listed, json.dumps(argument)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_LEROBOT_HOME": str(folder / "home")},
    )
    shutil.rmtree(out, ignore_errors=True)
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def rounded(seconds: dict[str, list[float]]) -> dict[str, list[float]]:
    return {name: [round(s, 3) for s in times] for name, times in seconds.items()}


if __name__ == "__main__":
    main()
