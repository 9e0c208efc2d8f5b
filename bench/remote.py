"""Reading from an object store, beside local reading and lerobot-lancedb, in one run.

    .venv/bin/python bench/remote.py [--rounds 3] [--times 32] [--work FOLDER]

The data are those of `read_lance.py`: a real recording repeated until it has 32,416 frames. A real
S3 server (SeaweedFS) on this machine serves them, on the same cores that decode: what a request
costs the server is lost to the reader. Batches are drawn at random, so that hardly any group of
images is read twice; where nothing else is said, no cache on disk is used. For each side the
better of 0 and 2 workers counts, and the median of the rounds. There are enough of them that
beginnings, when nothing is on its way yet, do not count for more than they do in training.

Then, through a proxy: 30 ms added to every request; requests and bytes of a batch; and 5 % of
requests failing, while every item is compared with the local one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from read_lance import FIXTURE, NAMES, PEER, folder, make_data, peer, peer_python

from read import HERE, draw_batches, ours, say

LATENCY_S = 0.03
BARS = "0.9 of local; 1.8 times lerobot-lancedb; 0.7 of local with 30 ms; 1.2 times the bytes; 2 s"
FIRST = """
import sys, time
import demoreel, demoreel.read.dataset
started = time.perf_counter()
ds = demoreel.open(sys.argv[1])
opened = time.perf_counter()
ds.batch(range(0, len(ds), len(ds) // 32)[:32])
print(opened - started, time.perf_counter() - opened)
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, default=FIXTURE, help="a v2.1 dataset")
    parser.add_argument("--times", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, help="fewer, for a quick look")
    parser.add_argument("--work", type=Path, help="where to make the data, and keep them")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    parser.add_argument("--plot", type=Path, help="draw the rates into this file, too")
    options = parser.parse_args()
    options.output.mkdir(exist_ok=True)
    with folder(options.work) as work, tempfile.TemporaryDirectory() as scratch:
        results = measure(options, work, Path(scratch))
    (options.output / "remote.json").write_text(json.dumps(results, indent=2))
    table = markdown(results)
    (options.output / "remote.md").write_text(table)
    print(table)
    if options.plot is not None:
        plot(results, options.plot)


def measure(options: argparse.Namespace, work: Path, scratch: Path) -> dict[str, Any]:
    from support.fault_proxy import FaultProxy
    from support.s3_server import S3Server

    python = None if options.no_peer else peer_python()
    roots = make_data(options, work, python)
    theirs = roots.pop("lance-native, theirs", None)
    roots = {name: roots[name] for name in ("v3.0", "lance-video") if name in roots}
    batches = work / "batches.json"
    drawn = draw_batches(roots["v3.0"], frames=200, windows=60)
    batches.write_text(json.dumps({k: b[: options.batches] for k, b in drawn.items()}))
    with S3Server(scratch / "s3") as server, FaultProxy(server.endpoint) as proxy:
        say("putting the data into the store")
        uris = {name: server.upload(root, name) for name, root in roots.items()}
        their_uri = server.upload(theirs, "theirs") if theirs is not None else None
        direct = {**server.environment, "AWS_ALLOW_HTTP": "true"}
        slow = {**direct, "AWS_ENDPOINT_URL": proxy.endpoint}
        rounds = []
        for number in range(options.rounds):
            say(f"round {number + 1} of {options.rounds}")
            turn: dict[str, Any] = {}
            with environment(direct, scratch):
                for name, uri in uris.items():
                    turn[f"{name}, local"] = ours("load", roots[name], "--batches", batches)
                    turn[f"{name}, S3"] = ours("load", uri, "--batches", batches)
                if python and their_uri:
                    turn[f"{PEER}, S3"] = peer(python, "load", their_uri, "--batches", batches)
            proxy.latency_s = LATENCY_S
            with environment(slow, scratch):
                for name, uri in uris.items():
                    slowly = f"{name}, S3 and 30 ms"
                    turn[slowly] = ours("load", uri, "--batches", batches)
                    turn[f"{slowly}, streamed"] = ours("stream", uri, "--batches", batches)
            proxy.latency_s = 0.0
            turn["load average"] = os.getloadavg()[0]
            rounds.append(turn)
        say("kept on disk, read again")
        again = {}
        with environment(direct, scratch):
            for name, uri in uris.items():
                cached = ("load", uri, "--batches", batches, "--cache-dir", scratch / name)
                ours(*cached)
                again[name] = ours(*cached)
        with environment(slow, scratch):
            counted = {name: requests_of(uri, roots[name], proxy) for name, uri in uris.items()}
            say("5 % of requests fail")
            right = {name: all_right(uri, roots[name], proxy) for name, uri in uris.items()}
        with environment(direct, scratch):
            first = {name: first_batch(uri) for name, uri in uris.items()}
    return {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {sys.version.split()[0]}",
        "loading": {kind: summary(rounds, kind) for kind in NAMES},
        "again": {kind: {n: best(a[kind]) for n, a in again.items()} for kind in NAMES},
        "counted": counted,
        "right": right,
        "first": first,
        "rounds": rounds,
    }


@contextmanager
def environment(more: dict[str, str], scratch: Path) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(more, DEMOREEL_CACHE=str(scratch / "metadata"))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def best(by_workers: dict[str, Any]) -> float:
    return max(found["samples_per_s"] for found in by_workers.values())


def summary(rounds: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    found = {}
    for side in rounds[0]:
        if side != "load average":
            found[side] = {
                workers: median(r[side][kind][workers]["samples_per_s"] for r in rounds)
                for workers in ("0", "2")
            }
    return found


def requests_of(uri: str, root: Path, proxy: Any) -> dict[str, Any]:
    """Count what opening costs, and what batches of 32 frames cost beyond their images' bytes."""
    import demoreel
    from demoreel.media.decode import byte_ranges
    from demoreel.read.cameras import _spans_of

    proxy.reset()
    remote, near = demoreel.open(uri), demoreel.open(root)
    opening = proxy.requests
    rng = np.random.default_rng(1)
    # Rows and packet indices are read once; then, batches cost their images.
    remote.batch(remote.episodes.start[:-1])
    ratios, requests = [], []
    for _ in range(10):
        rows = np.unique(rng.integers(0, len(remote), 32))
        needed = 0
        for camera in near.cameras:
            by_video: dict[str, Any] = {}
            for row in rows.tolist():
                position = int(near.episodes.positions_of_rows(np.array([row]))[0])
                clip = near.reader.clip(position, camera)
                frames = by_video.setdefault(clip.video.name, (clip.video, []))[1]
                frames.append(clip.first + row - int(near.episodes.start[position]))
            for video, frames in by_video.values():
                spans = list(_spans_of(video, np.unique(frames)))
                ends = video.index.ends_of_groups(np.array([s.last for s in spans]))
                begins = [begin for begin, _ in byte_ranges(spans)]
                needed += int(sum(ends.tolist()) - sum(begins))
        proxy.reset()
        remote.batch(rows)
        ratios.append(proxy.bytes / needed)
        requests.append(proxy.requests)
    return {
        "opening": opening,
        "bytes": [median(ratios), max(ratios)],
        "requests": [median(requests), max(requests)],
    }


def all_right(uri: str, root: Path, proxy: Any) -> dict[str, Any]:
    """Compare items with local ones while requests fail."""
    import demoreel
    from support.fault_proxy import Cut, Reset, ShortBody, Status

    proxy.reset()
    near = demoreel.open(root)
    faults = [Status(503), Status(429, retry_after=0), Cut(after=100), ShortBody(by=10), Reset()]
    proxy.fail(rate=0.05, how=faults, seed=0)
    try:
        remote = demoreel.open(uri)
        rng = np.random.default_rng(2)
        wrong = compared = 0
        for _ in range(30):
            rows = rng.integers(0, len(remote), 32)
            mine, theirs = remote.batch(rows), near.batch(rows)
            for key, column in theirs.items():
                if isinstance(column, np.ndarray):
                    wrong += int((np.asarray(mine[key]) != column).any())
                    compared += 1
        failed = sum(1 for each in proxy.log if each.status not in (200, 206))
        return {"columns": compared, "wrong": wrong, "requests": proxy.requests, "failed": failed}
    finally:
        proxy.clear()


def first_batch(uri: str) -> dict[str, float]:
    import subprocess

    times = []
    for _ in range(4):
        command = [sys.executable, "-c", FIRST, uri]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        times.append([float(part) for part in done.stdout.split()])
        time.sleep(0.1)
    open_s, batch_s = (median(part) for part in zip(*times, strict=True))
    return {"open_s": open_s, "batch_s": batch_s}


def plot(results: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4))
    for axis, (kind, name) in zip(axes, NAMES.items(), strict=True):
        rates = {side: max(by.values()) for side, by in results["loading"][kind].items()}
        for side, rate in results["again"][kind].items():
            rates[f"{side}, S3, cache_dir"] = rate
        sides = sorted(rates, key=lambda side: (side.startswith(PEER), side))
        colours = [
            "0.6" if side.startswith(PEER) else "tab:blue" if "local" in side else "tab:orange"
            for side in sides
        ]
        axis.barh(sides, [rates[side] for side in sides], color=colours)
        axis.invert_yaxis()
        axis.set_title(f"{name}, samples/s", fontsize=10)
        axis.tick_params(labelsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def markdown(results: dict[str, Any]) -> str:
    loads = ", ".join(f"{r['load average']:.1f}" for r in results["rounds"])
    lines = [f"Machine: {results['machine']}. Load average after each round: {loads}.", ""]
    for kind, name in NAMES.items():
        found = results["loading"][kind]
        other = max(found.get(f"{PEER}, S3", {"0": 0}).values())
        lines += [
            f"| {name}, samples/s | 0 workers | 2 workers | / local | / {PEER} from S3 |",
            "|---|---:|---:|---:|---:|",
        ]
        for side, rates in found.items():
            local = found.get(side.partition(",")[0] + ", local")
            top = max(rates.values())
            share = f"{top / max(local.values()):.2f}" if local else "-"
            beside = f"{top / other:.2f}" if other else "-"
            lines.append(f"| {side} | {rates['0']:.0f} | {rates['2']:.0f} | {share} | {beside} |")
        for side, rate in results["again"][kind].items():
            share = rate / max(found[f"{side}, local"].values())
            lines.append(f"| {side}, S3, kept in `cache_dir` | | {rate:.0f} | {share:.2f} | |")
        lines.append("")
    lines += [
        "| | requests to open | requests a batch | bytes / groups needed | open, s | batch, s |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, found in results["counted"].items():
        first = results["first"][name]
        lines.append(
            f"| {name} | {found['opening']} | {found['requests'][0]:.0f} | "
            f"{found['bytes'][0]:.2f}, at most {found['bytes'][1]:.2f} | "
            f"{first['open_s']:.2f} | {first['batch_s']:.2f} |"
        )
    for name, found in results["right"].items():
        lines.append(
            f"\n{name}, 5 % failing: {found['failed']} of {found['requests']} requests failed, "
            f"{found['wrong']} of {found['columns']} columns were wrong."
        )
    lines += ["", f"Bars: {BARS}.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
