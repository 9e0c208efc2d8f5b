"""A small policy trained with `reuse=` and with a full shuffle: the loss on held-out episodes.

    .venv/bin/python bench/reuse_training.py [--seeds 3] [--epochs 20] [--output FOLDER]

For each dataset (the G1's recording, and the kitchen's) and each seed, the same network begins with
the same weights and is trained twice, for as many epochs of the same samples: in the order of a
full shuffle, and in that of a pool that holds about a tenth of them. The last episode of each task
is held out (`eval_split`). The bar: with `reuse`, the mean loss over the seeds is no higher than
with a full shuffle by more than the seeds differ.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler

import demoreel
from demoreel.read.reuse import image_bytes
from demoreel.torch import LeRobotDataset, ReuseSampler, eval_split

HERE = Path(__file__).parent
FIXTURES = HERE.parents[1] / "shared" / "fixtures"
SIZE = (48, 64)
CHUNK, BATCH, POOLED = 8, 32, 0.1
DATASETS = {"G1": ("g1_v30", 0.25), "kitchen": ("kitchen_v30", 0.2)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--fixtures", type=Path, default=FIXTURES)
    parser.add_argument("--output", type=Path, default=HERE / "results")
    options = parser.parse_args()
    torch.set_num_threads(1)  # sums of several threads differ from run to run
    found, failed = {}, []
    for name, (folder, fraction) in DATASETS.items():
        result = compare(options.fixtures / folder, fraction, options.seeds, options.epochs)
        found[name] = result
        shuffled, pooled = result["full shuffle"], result["reuse"]
        spread = max(shuffled) - min(shuffled)
        print(
            f"{name}: validation loss {told(shuffled)} with a full shuffle, {told(pooled)} with "
            f"reuse; {result['samples']} samples, {result['spans']} spans of "
            f"{result['span_length']} in the pool"
        )
        failed += [name] if mean(pooled) > mean(shuffled) + spread else []
    options.output.mkdir(exist_ok=True)
    (options.output / "reuse_training.json").write_text(json.dumps(found, indent=2))
    sys.exit("higher than with a full shuffle: " + ", ".join(failed) if failed else 0)


def told(losses: list[float]) -> str:
    each = ", ".join(f"{loss:.4f}" for loss in losses)
    return f"{mean(losses):.4f} +- {stdev(losses) if len(losses) > 1 else 0:.4f} ({each})"


def compare(root: Path, fraction: float, seeds: int, epochs: int) -> dict[str, object]:
    """Train with both orders and every seed; return the losses on the held-out episodes."""
    train, held = eval_split(demoreel.open(root), fraction)
    dataset, validation = (opened(root, episodes) for episodes in (train, held))
    assert dataset.reader is not None
    each = sum(image_bytes(dataset.reader, key) for key in dataset.reader.cameras)
    budget = int(POOLED * len(dataset) * each)
    form = ReuseSampler(dataset, batch_size=BATCH, reuse=budget).form
    losses: dict[str, list[float]] = {"full shuffle": [], "reuse": []}
    for seed in range(seeds):
        for order, own in losses.items():
            begin = time.perf_counter()
            own.append(trained(dataset, validation, order, budget, seed, epochs))
            took = time.perf_counter() - begin
            print(f"{root.name}, {order}, seed {seed}: {own[-1]:.4f} ({took:.0f} s)", flush=True,
                  file=sys.stderr)  # fmt: skip
    return {
        **losses,
        "samples": len(dataset),
        "held_out": len(validation),
        "epochs": epochs,
        "budget": budget,
        "spans": form.slots,
        "span_length": form.length,
    }


def opened(root: Path, episodes: list[int]) -> LeRobotDataset:
    fps = demoreel.open(root).fps
    return LeRobotDataset(
        "bench/data",
        root,
        episodes=episodes,
        delta_timestamps={"action": [step / fps for step in range(CHUNK)]},
        image_size=SIZE,
        return_uint8=True,
    )


def trained(
    dataset: LeRobotDataset,
    validation: LeRobotDataset,
    order: str,
    budget: int,
    seed: int,
    epochs: int,
) -> float:
    """Train from the weights of a seed; return the loss on the held-out episodes."""
    torch.manual_seed(seed)
    policy = Policy(dataset)
    if order == "reuse":
        sampler = ReuseSampler(dataset, batch_size=BATCH, reuse=budget, seed=seed)
        loader = DataLoader(dataset, batch_sampler=sampler)
    else:
        chosen = RandomSampler(dataset, generator=torch.Generator().manual_seed(seed))
        loader = DataLoader(dataset, batch_size=BATCH, sampler=chosen)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    steps = epochs * len(loader)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(epochs):
        for batch in loader:
            loss = policy.losses(batch).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            decay.step()
    policy.eval()
    with torch.no_grad():
        own = [policy.losses(batch) for batch in DataLoader(validation, batch_size=BATCH)]
    return float(torch.cat(own).mean())


class Policy(nn.Module):
    """Predicts the next actions from one image of each camera and the state."""

    def __init__(self, dataset: LeRobotDataset) -> None:
        super().__init__()
        features = dataset.meta.features
        self.cameras = [k for k in dataset.meta.camera_keys if features[k]["shape"][-1] == 3]
        state, actions = (features[k]["shape"][0] for k in ("observation.state", "action"))
        self.eyes = nn.Sequential(
            nn.Conv2d(3 * len(self.cameras), 16, 5, stride=2), nn.ReLU(),
            nn.Conv2d(16, 32, 5, stride=2), nn.ReLU(),
            nn.Conv2d(32, 32, 3, stride=2), nn.ReLU(),
            nn.Flatten(), nn.LazyLinear(64), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Sequential(
            nn.Linear(64 + state, 128), nn.ReLU(), nn.Linear(128, CHUNK * actions)
        )
        self.eyes(torch.zeros(1, 3 * len(self.cameras), *SIZE))  # makes the lazy layer
        for key in ("observation.state", "action"):
            for kind in ("mean", "std"):
                value = torch.as_tensor(np.asarray(dataset.meta.stats[key][kind]))
                self.register_buffer(f"{key.replace('.', '_')}_{kind}", value.float())

    def losses(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the L1 loss of each sample, in deviations; padded actions do not count."""
        images = torch.cat([batch[key].float() / 255 for key in self.cameras], dim=1)
        state = (batch["observation.state"] - self.observation_state_mean) / (
            self.observation_state_std + 1e-6
        )
        wanted = (batch["action"] - self.action_mean) / (self.action_std + 1e-6)
        given = self.head(torch.cat([self.eyes(images), state], dim=1)).view_as(wanted)
        real = ~batch["action_is_pad"]
        error = (given - wanted).abs().mean(-1) * real
        return error.sum(1) / real.sum(1)


if __name__ == "__main__":
    main()
