"""Reading, beside lerobot, in one run: the table and the plot of `docs/performance.md`.

    make bench
    .venv/bin/python bench/read.py [--rounds 3] [--dataset ../shared/fixtures/g1_v30]

The three sides take turns, `--rounds` times; medians count, and for each side the better of 0 and 2
workers. Without lerobot's environment, demoreel and the floor are measured alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from made import write_metadata_only

HERE = Path(__file__).resolve().parent
FIXTURE = HERE.parents[1] / "shared" / "fixtures" / "g1_v30"
LEROBOT = os.environ.get("DEMOREEL_LEROBOT_PYTHON")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", type=Path, default=FIXTURE)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=HERE / "results")
    parser.add_argument("--plot", type=Path, help="also draw the plot of the documentation here")
    options = parser.parse_args()
    if not options.dataset.is_dir():
        sys.exit(f"{options.dataset} is not there: pass --dataset")
    options.output.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        results = measure(options, Path(scratch))
    (options.output / "read.json").write_text(json.dumps(results, indent=2))
    table = markdown(results)
    (options.output / "read.md").write_text(table)
    print(table)
    if options.plot:
        draw(results, options.plot)


def measure(options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    root = options.dataset
    batches = scratch / "batches.json"
    batches.write_text(json.dumps(draw_batches(root)))
    rounds = []
    for number in range(options.rounds):
        say(f"round {number + 1} of {options.rounds}")
        turn = {
            "demoreel": ours("load", root, "--batches", batches),
            "floor": ours("floor", root, "--batches", batches),
        }
        if LEROBOT:
            turn["lerobot"] = theirs("load", root, "--batches", batches)
        rounds.append(turn)
    say("opening, subsets, cameras, a million episodes")
    results: dict[str, Any] = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {sys.version.split()[0]}",
        "loading": summary(rounds),
        "opening": {"demoreel": ours("import_open", root)},
        "subset": ours("subset", root),
        "cameras": ours("cameras", three_cameras(scratch / "three")),
        "episodes": [
            ours("million", write_metadata_only(scratch / f"{count}", count))
            for count in (1_000, 30_000, 1_000_000)
        ],
        "rounds": rounds,
    }
    if LEROBOT:
        results["video_backend"] = rounds[0]["lerobot"]["video_backend"]
        results["opening"]["lerobot"] = theirs("import_open", root)
    return results


def draw_batches(root: Path, *, frames: int = 64, windows: int = 24) -> dict[str, list[list[int]]]:
    info = json.loads((root / "meta/info.json").read_text())
    rng = np.random.default_rng(0)
    return {
        kind: rng.integers(0, info["total_frames"], (count, 32)).tolist()
        for kind, count in (("frames", frames), ("windows", windows))
    }


def three_cameras(path: Path) -> Path:
    from demoreel.testing import make_dataset

    cameras = {f"observation.images.cam{number}": (240, 320) for number in range(3)}
    return make_dataset(path, episodes=[60] * 4, cameras=cameras, gop=2, codec="h264")


def ours(*arguments: object) -> dict[str, Any]:
    return run(sys.executable, HERE / "demoreel_side.py", *arguments)


def theirs(*arguments: object) -> dict[str, Any]:
    assert LEROBOT
    return run(LEROBOT, HERE / "lerobot_side.py", *arguments)


def run(*command: object) -> dict[str, Any]:
    done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in ("frames", "windows"):
        found[kind] = {"floor": median(r["floor"][kind]["samples_per_s"] for r in rounds)}
        for side in ("demoreel", "lerobot"):
            if side not in rounds[0]:
                continue
            by_workers = {
                workers: median(r[side][kind][workers]["samples_per_s"] for r in rounds)
                for workers in rounds[0][side][kind]
            }
            found[kind][side] = max(by_workers.values())
            found[kind][f"{side}_by_workers"] = by_workers
    return found


def markdown(results: dict[str, Any]) -> str:
    backend = results.get("video_backend", "not measured")
    lines = [
        f"Machine: {results['machine']}. lerobot's decoder: {backend}.",
        "",
        "| samples/s (better of 0 and 2 workers) | lerobot 0.6.1 | demoreel | floor "
        "| demoreel / lerobot | demoreel / floor |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    names = {"frames": "random single frames", "windows": "random windows of 8 and 16 actions"}
    for kind, name in names.items():
        row = results["loading"][kind]
        other = row.get("lerobot")
        lines.append(f"| {name} | {other:.0f} | " if other else f"| {name} | - | ")
        lines[-1] += f"{row['demoreel']:.0f} | {row['floor']:.0f} | "
        lines[-1] += f"{row['demoreel'] / other:.2f} | " if other else "- | "
        lines[-1] += f"{row['demoreel'] / row['floor']:.2f} |"
    lines += ["", "| by workers | 0 | 2 |", "|---|---:|---:|"]
    for kind in names:
        for side in ("lerobot", "demoreel"):
            by = results["loading"][kind].get(f"{side}_by_workers")
            if by:
                lines.append(f"| {side}, {kind} | {by['0']:.0f} | {by['2']:.0f} |")
    opening = results["opening"]
    mine = opening["demoreel"]
    lines += ["", "| import and open | seconds |", "|---|---:|"]
    if "lerobot" in opening:
        lines.append(f"| lerobot | {opening['lerobot']['median_s']:.2f} |")
    lines += [
        f"| `import demoreel; demoreel.open(...)` | {mine['demoreel']['median_s']:.2f} |",
        f"| of that, `import demoreel` | {mine['demoreel']['import_s']:.3f} |",
        f"| `demoreel.torch.LeRobotDataset(...)`, torch included "
        f"| {mine['demoreel.torch']['median_s']:.2f} |",
        "",
        "| episodes (metadata only) | import and open, s | peak memory, MB | lookup of a row, µs |",
        "|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {e['episodes']:,} | {e['open_s']:.2f} | {e['peak_mb']:.0f} | {e['lookup_us']:.0f} |"
        for e in results["episodes"]
    ]
    subset, cameras = results["subset"], results["cameras"]
    lines += [
        "",
        f"With `episodes=` (half of them): {subset['ratio']:.2f} of the speed without, on the same "
        "frames.",
        f"One of three cameras: {cameras['ratio']:.2f} times the samples/s of all three.",
        "",
    ]
    return "\n".join(lines)


def draw(results: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(8, 3.2))
    colours = {"lerobot": "#b9b3a7", "demoreel": "#1f77b4"}
    titles = {"frames": "random single frames", "windows": "random windows of 8"}
    for panel, (kind, title) in zip(panels, titles.items(), strict=True):
        row = results["loading"][kind]
        sides = [side for side in ("lerobot", "demoreel") if side in row]
        bars = panel.bar(sides, [row[s] for s in sides], color=[colours[s] for s in sides])
        panel.bar_label(bars, fmt="%.0f", label_type="center")
        panel.axhline(row["floor"], color="black", linestyle="--", linewidth=1)
        panel.annotate(
            f"floor of the codec: {row['floor']:.0f}",
            (0.02, row["floor"]),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            fontsize=8,
        )
        panel.set_ylim(0, max(row["floor"], *(row[s] for s in sides)) * 1.18)
        panel.set_title(title, fontsize=10)
        panel.set_ylabel("samples/s")
        panel.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
