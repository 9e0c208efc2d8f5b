"""Reading Lance, beside lerobot-lancedb, in one run: the Lance tables of `docs/performance.md`.

    .venv/bin/python bench/read_lance.py [--rounds 3] [--times 32] [--source g1_v21]

The data are the episodes of a real recording, repeated `--times` times (32 of the G1's are 32,416
frames in three videos of 100 MB), as v3.0; lerobot-lancedb's own converter makes lance-native of
them, which both sides read. Where `demoreel.convert` is there, it makes lance-video and
lance-native too. The sides take turns, `--rounds` times; medians count, and for each the better of
0 and 2 workers. Without lerobot-lancedb's environment (`conformance/lancedb_environment.py` makes
it) the others are measured alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from made import write_long

from read import HERE, draw_batches, ours, run, say

sys.path.insert(0, str(HERE.parent / "conformance"))

import lancedb_environment

FIXTURE = HERE.parents[1] / "shared" / "fixtures" / "g1_v21"
PEER = "lerobot-lancedb"
BARS = {"frames": 1.6, "windows": 1.8}
NAMES = {"frames": "random single frames", "windows": "random windows of 8 and 16 actions"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, default=FIXTURE, help="a v2.1 dataset")
    parser.add_argument("--times", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, help="fewer, for a quick look")
    parser.add_argument("--work", type=Path, help="where to make the data, and keep them")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    options = parser.parse_args()
    if not options.source.is_dir():
        sys.exit(f"{options.source} is not there: pass --source")
    options.output.mkdir(exist_ok=True)
    with folder(options.work) as work:
        results = measure(options, work)
    (options.output / "lance.json").write_text(json.dumps(results, indent=2))
    table = markdown(results)
    (options.output / "lance.md").write_text(table)
    print(table)


@contextmanager
def folder(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
        return
    with tempfile.TemporaryDirectory() as scratch:
        yield Path(scratch)


def measure(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    python = peer_python()
    roots = make_data(options, work, python)
    batches = work / "batches.json"
    drawn = draw_batches(roots["v3.0"])
    batches.write_text(json.dumps({k: b[: options.batches] for k, b in drawn.items()}))
    rounds = []
    for number in range(options.rounds):
        say(f"round {number + 1} of {options.rounds}")
        turn = {"floor": ours("floor", roots["v3.0"], "--batches", batches)}
        for name, root in roots.items():
            turn[name] = ours("load", root, "--batches", batches)
        if python:
            turn[PEER] = peer(python, "load", roots["lance-native, theirs"], "--batches", batches)
        turn["load average"] = os.getloadavg()[0]
        rounds.append(turn)
    say("first batches, bytes of a batch")
    first = {name: ours("first_batch", root) for name, root in roots.items()}
    if python:
        first[PEER] = {"fresh": peer(python, "first_batch", roots["lance-native, theirs"])}
    return {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {sys.version.split()[0]}",
        "loading": {kind: summary(rounds, kind) for kind in NAMES},
        "first": first,
        "bytes": {
            name: ours("batch_bytes", root, "--batches", batches) for name, root in roots.items()
        },
        "rounds": rounds,
    }


def peer_python() -> Path | None:
    chosen = os.environ.get("DEMOREEL_LANCEDB_PYTHON")
    if chosen:
        return Path(chosen)
    try:
        return lancedb_environment.make_environment()
    except lancedb_environment.lerobot.CannotBeMadeError as error:
        say(f"without {PEER} to compare with: {error}")
        return None


def peer(python: Path, *arguments: object) -> dict[str, Any]:
    return run(python, HERE / "lancedb_side.py", *arguments)


def make_data(options: argparse.Namespace, work: Path, python: Path | None) -> dict[str, Path]:
    """Return the same data in every layout that can be made here."""
    say("making the data")
    roots = {"v3.0": work / "v30"}
    if not roots["v3.0"].exists():
        write_long(roots["v3.0"], options.source, times=options.times)
    if python:
        roots["lance-native, theirs"] = work / "native"
        if not (work / "native").exists():
            peer(python, "convert", roots["v3.0"], work / "native")
    import demoreel

    if hasattr(demoreel, "convert"):
        for layout in ("lance-video", "lance-native"):
            roots[layout] = work / layout
            if not roots[layout].exists():
                demoreel.convert(roots["v3.0"], roots[layout], to=layout)
    return roots


def summary(rounds: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "floor": median(r["floor"][kind]["samples_per_s"] for r in rounds),
        "floor_cpu": median(r["floor"][kind]["cpu_ms"] for r in rounds),
    }
    for side in rounds[0]:
        if side in ("floor", "load average"):
            continue
        by_workers = {
            workers: median(r[side][kind][workers]["samples_per_s"] for r in rounds)
            for workers in rounds[0][side][kind]
        }
        found[side] = {
            "best": max(by_workers.values()),
            "workers": by_workers,
            "cpu": median(r[side][kind]["0"]["cpu_ms"] for r in rounds),
        }
    return found


def markdown(results: dict[str, Any]) -> str:
    loads = ", ".join(f"{r['load average']:.1f}" for r in results["rounds"])
    lines = [f"Machine: {results['machine']}. Load average after each round: {loads}.", ""]
    for kind, name in NAMES.items():
        found = results["loading"][kind]
        other = found.get(PEER, {}).get("best")
        lines += [
            f"| {name}, samples/s | 0 workers | 2 workers | / floor | / {PEER} | CPU ms a sample |",
            "|---|---:|---:|---:|---:|---:|",
        ]
        for side, rates in found.items():
            if side.startswith("floor"):
                continue
            by, best = rates["workers"], rates["best"]
            beside = f"{best / other:.2f}" if other else "-"
            lines.append(
                f"| {side if side == PEER else f'demoreel, {side}'} | {by['0']:.0f} | "
                f"{by['2']:.0f} | {best / found['floor']:.2f} | {beside} | {rates['cpu']:.2f} |"
            )
        lines += [f"| floor | {found['floor']:.0f} | | 1 | | {found['floor_cpu']:.2f} |", ""]
    lines += [
        "| from `open` to a batch of 32 frames, s | import | open | first batch | open to batch |",
        "|---|---:|---:|---:|---:|",
    ]
    for side, kinds in results["first"].items():
        for kind, t in kinds.items():
            lines.append(
                f"| {side}, {kind} | {t['import_s']:.3f} | {t['open_s']:.3f} | "
                f"{t['batch_s']:.3f} | {t['open_s'] + t['batch_s']:.3f} |"
            )
    lines += ["", "| bytes read / bytes of the groups needed | median | most |", "|---|---:|---:|"]
    for side, ratio in results["bytes"].items():
        lines.append(f"| {side} | {ratio['median']:.2f} | {ratio['most']:.2f} |")
    bars = ", ".join(f"{kind} {bar} times" for kind, bar in BARS.items())
    lines += ["", f"Bars: {bars} {PEER}; 0.9 of the floor; 0.5 s to the first batch; 1.2.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
