"""Streaming beside map-style random access: the same dataset, batches and workers, in one run.

    .venv/bin/python bench/stream.py [--rounds 5] [--source DATASET]

Both read whole epochs of the very same shuffled batches of 32, uint8, with 0 and with 2 workers:
`LeRobotDataset` through a `DataLoader` that is given their indices, `StreamingLeRobotDataset`
through its `loader()`. They take turns, `--rounds` times; medians count. An epoch before the clock
starts warms up workers and decoders. Without `--source` 1,280 frames of 240x320 are made.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from loading import Batches, cpu_seconds
from torch.utils.data import DataLoader

from demoreel.read.order import FrameOrder
from demoreel.testing import make_dataset
from demoreel.torch import LeRobotDataset, StreamingLeRobotDataset

BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, help="a dataset; by default one is made")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = options.source or make_dataset(
            Path(scratch) / "made",
            episodes=20,
            length=64,
            cameras={"observation.images.front": (240, 320)},
            gop=10,
            with_stats=False,
        )
        what_the_order_costs()
        for workers in (0, 2):
            compare(root, workers, options.rounds)


def what_the_order_costs() -> None:
    order = FrameOrder(10**9, seed=0, epoch=0)
    begun = cpu_seconds()
    for step in range(1000):
        order.at(np.arange(step * BATCH, (step + 1) * BATCH))
    print(f"order of a batch among 10^9 frames: {(cpu_seconds() - begun):.3f} ms of CPU")


def compare(root: Path, workers: int, rounds: int) -> None:
    ds = LeRobotDataset("me/made", root, return_uint8=True)
    frames = len(ds) // BATCH * BATCH
    sampler = Batches([])
    by_index = DataLoader(
        ds, batch_sampler=sampler, num_workers=workers, persistent_workers=workers > 0
    )
    stream = StreamingLeRobotDataset(
        "me/made", root, return_uint8=True, batch_size=BATCH, drop_last=True
    )
    loader = stream.loader(num_workers=workers)
    speeds: dict[str, list[Speed]] = {"map-style": [], "streaming": []}
    for turn in range(rounds + 1):  # the first warms up
        places = FrameOrder(len(ds), stream.seed, turn).at(np.arange(frames))
        sampler.batches = places.reshape(-1, BATCH).tolist()
        for name, batches in (("map-style", by_index), ("streaming", loader)):
            speed = measured(batches)
            if turn:
                speeds[name].append(speed)
    pairs = list(zip(speeds["streaming"], speeds["map-style"], strict=True))
    ratio = median(ours.per_second / theirs.per_second for ours, theirs in pairs)
    said = ", ".join(f"{n} {median(s.per_second for s in f):.0f}" for n, f in speeds.items())
    print(f"{workers} workers: {said} samples/s; streaming / map-style {ratio:.2f}", end="")
    if not workers:  # CPU time, which other programs hardly change
        cost = median(ours.cpu_ms / theirs.cpu_ms for ours, theirs in pairs)
        print(f", CPU of a sample {cost:.2f}", end="")
    print()


class Speed(NamedTuple):
    """How fast an epoch was."""

    per_second: float
    cpu_ms: float


def measured(batches: Iterable[dict[str, Any]]) -> Speed:
    begun, worked = time.perf_counter(), cpu_seconds()
    samples = sum(len(batch["index"]) for batch in batches)
    seconds = time.perf_counter() - begun
    return Speed(samples / seconds, (cpu_seconds() - worked) / samples * 1e3)


if __name__ == "__main__":
    main()
