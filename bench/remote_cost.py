"""Where the time goes when frames are read from a store on the same cores.

    .venv/bin/python bench/remote_cost.py --work FOLDER [--workers 2] [--latency-ms 0] [--clients]

FOLDER is that of `remote.py --work`, which makes the data. Batches of 32 random frames, 100 at a
time after 60 that are not counted; for each, the milliseconds of the cores that a frame took from
the reader and its workers, from the server and from the proxy, and how long the cores were idle.

With --clients: the same frames of the v3.0 dataset by our own HTTP client and by urllib3 (a pool of
connections, a thread for each request), in turns. What a range must be is checked by the same code.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NoReturn

import numpy as np
import psutil
from loading import Batches
from torch.utils.data import DataLoader

WARMUP, TIMED, TURNS, SIZE = 60, 100, 3, 32


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--clients", action="store_true", help="our HTTP client beside urllib3")
    options = parser.parse_args()
    from support.fault_proxy import FaultProxy
    from support.s3_server import S3Server

    with (
        tempfile.TemporaryDirectory() as scratch,
        S3Server(Path(scratch) / "s3") as server,
        FaultProxy(server.endpoint) as proxy,
    ):
        others = processes_below()
        os.environ.update(server.environment, DEMOREEL_CACHE=f"{scratch}/metadata")
        if options.latency_ms:
            proxy.latency_s = options.latency_ms / 1000
            os.environ["AWS_ENDPOINT_URL"] = proxy.endpoint
        if options.clients:
            compare_clients(server.upload(options.work / "v30", "v30"), others, options.workers)
            return
        for name in ("v30", "lance-video"):
            for place in (str(options.work / name), server.upload(options.work / name, name)):
                measure(place, others, options.workers)


def compare_clients(place: str, others: Sequence[psutil.Process], workers: int) -> None:
    from demoreel.storage.remote import http

    def not_ours(*_: object) -> NoReturn:
        raise http.NotPlainError  # what it cannot send goes to urllib3

    own = http.question
    costs: dict[str, list[tuple[float, float]]] = {"own": [], "urllib3": []}
    for _ in range(TURNS):
        for name, found in costs.items():
            http.question = own if name == "own" else not_ours
            print(name, end=" ")
            found += measure(place, others, workers)
    http.question = own
    for name, found in costs.items():
        rate, cpu = (median(values) for values in zip(*found, strict=True))
        print(
            f"{name}, medians: {rate:.0f} frames/s, {cpu:.2f} ms of a core a frame, server included"
        )


def measure(
    place: str, others: Sequence[psutil.Process], workers: int
) -> list[tuple[float, float]]:
    """Print what frames of a dataset take; return frames a second and ms of a core, each turn."""
    from demoreel.torch import LeRobotDataset, PrefetchBatchSampler

    remote = place.startswith("s3://")
    name, root = (place, None) if remote else ("bench/local", place)
    dataset = LeRobotDataset(name, root=root, return_uint8=True)
    rng = np.random.default_rng(5)
    numbers = rng.integers(0, len(dataset), (WARMUP + TURNS * TIMED, SIZE)).tolist()
    sampler = Batches(numbers[:WARMUP])
    loader = DataLoader(
        dataset,
        batch_sampler=PrefetchBatchSampler(sampler, num_workers=workers),
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    for _ in loader:
        pass
    readers = [psutil.Process(), *(p for p in processes_below() if p not in others)]
    costs = []
    for turn in range(TURNS):
        begin = WARMUP + turn * TIMED
        sampler.batches = numbers[begin : begin + TIMED]
        before, started = (spent(readers), spent(others)), time.perf_counter()
        for _ in loader:
            pass
        seconds = time.perf_counter() - started
        own, other = spent(readers) - before[0], spent(others) - before[1]
        idle = (os.cpu_count() or 1) * seconds - own - other
        frames = TIMED * SIZE
        costs.append((frames / seconds, (own + other) / frames * 1e3))
        print(
            f"{place}: {frames / seconds:.0f} frames/s; ms a frame: reader "
            f"{own / frames * 1e3:.2f}, server and proxy {other / frames * 1e3:.2f}, "
            f"idle {idle / frames * 1e3:.2f}",
            flush=True,
        )
    return costs


def processes_below() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def spent(processes: Sequence[psutil.Process]) -> float:
    """Return the processor time of these processes, without that of their children."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


if __name__ == "__main__":
    main()
