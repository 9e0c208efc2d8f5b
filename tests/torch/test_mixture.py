"""Mixtures in torch: loaders, workers, ranks, resuming, statistics for policies, a part on S3."""

from __future__ import annotations

import itertools
import os
import pickle
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from demoreel.errors import ArgumentError, OutOfRangeError, VideoError
from demoreel.testing import make_dataset
from demoreel.torch import LeRobotDataset, Mixture, Part
from support.hub_server import HubServer

from ..conftest import LAYOUTS, assert_same

CAMERA = "observation.images.cam0"
SIZES = (41, 25, 13)


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixture")
    return [
        make_dataset(folder / name, episodes=lengths, cameras={CAMERA: (32, 48)}, gop=4)
        for name, lengths in (("one", [20, 21]), ("two", [10, 15]), ("three", [13]))
    ]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numbers")
    return [
        make_dataset(folder / f"{n}", episodes=[size - 5, 5], cameras=0)
        for n, size in enumerate(SIZES)
    ]


def parts(roots):
    shares = (0.5, 0.3, 0.2)
    return [Part(root, probability=p) for root, p in zip(roots, shares, strict=True)]


def ids(batch):
    return list(zip(batch["dataset_index"].tolist(), batch["index"].tolist(), strict=True))


def taken(loader, batches=None):
    return [one for batch in itertools.islice(loader, batches) for one in ids(batch)]


def whole(roots, steps, **options):
    mixture = Mixture(parts(roots), **options)
    return list(zip(*(a.tolist() for a in mixture.order(range(steps))), strict=True))


def test_items_are_those_of_lerobot_dataset(roots):
    windows = {CAMERA: [-1 / 30, 0.0], "action": [0.0, 1 / 30]}
    for options in ({}, {"return_uint8": True}):
        mixture = Mixture(roots, delta_timestamps=windows, **options)
        own = [LeRobotDataset("me/x", r, delta_timestamps=windows, **options) for r in roots]
        for place, (part, frame) in enumerate(zip(*mixture.order(range(6)), strict=True)):
            item = mixture[place]
            assert item.pop("dataset_index") == part
            assert item.pop("normalization_key") == roots[part].name
            assert_same(item, own[part][int(frame)])
    with pytest.raises(OutOfRangeError):
        mixture[len(mixture)]


@pytest.mark.parametrize(
    ("workers", "context"),
    [(0, None), (2, "fork"), pytest.param(3, "spawn", marks=pytest.mark.soak)],
)
def test_a_plain_loader_gives_the_order_and_the_state_knows_what_it_handed_out(
    roots, workers, context
):
    wanted = whole(roots, 200)
    mixture = Mixture(parts(roots))
    loader = DataLoader(mixture, batch_size=8, num_workers=workers, multiprocessing_context=context)
    assert taken(loader, 4) == wanted[:32]
    state = mixture.state_dict()
    assert state["step"] == 32
    resumed = Mixture(parts(roots), seed=9)
    resumed.load_state_dict(pickle.loads(pickle.dumps(state)))
    assert taken(DataLoader(resumed, batch_size=5, num_workers=1), 3) == wanted[32:47]
    assert resumed.state_dict()["step"] == 47
    assert taken(loader, 1) == wanted[32:40]  # another pass goes on where the first was left


def test_inside_the_loop_and_over_the_end_of_an_epoch(roots):
    wanted = whole(roots, 400)
    mixture = Mixture(parts(roots))
    assert len(mixture) == sum(SIZES)
    loader = DataLoader(mixture, batch_size=10, num_workers=2, persistent_workers=True)
    found = []
    for _ in range(3):
        for batch in loader:
            found += ids(batch)
            assert mixture.state_dict()["step"] == len(found)
    assert found == wanted[: 3 * len(mixture)]


def test_shares_are_exact_and_nothing_comes_twice(roots):
    found = np.array(whole(roots, 1000))
    drawn = np.cumsum(found[:, :1] == np.arange(3), axis=0)
    wanted = np.arange(1, 1001)[:, None] * [0.5, 0.3, 0.2]
    assert (np.abs(drawn - wanted) < 1).all()
    for part, size in enumerate(SIZES):
        frames = found[found[:, 0] == part, 1]
        for begin in range(0, len(frames) - size, size):
            assert sorted(frames[begin : begin + size]) == list(range(size))


def test_ranks_are_disjoint_and_each_is_exact(roots):
    ranks = [whole(roots, 100, rank=r, world_size=3) for r in range(3)]
    for part, size in enumerate(SIZES):
        walk = [one for step in zip(*ranks, strict=True) for p, one in step if p == part]
        assert len(set(walk[:size])) == size
    assert Mixture(parts(roots), rank=1, world_size=3).world_size == 3
    assert len(Mixture(parts(roots), rank=0, world_size=3)) == sum(SIZES) // 3


@pytest.mark.parametrize("times", [20, pytest.param(200, marks=pytest.mark.soak)])
def test_random_resumes_are_exact(numbers, times):
    """As the bar says: (step, workers, ranks); workers are tried as loaders in the test above."""
    chance = random.Random(0)
    for _ in range(times):
        ranks, step = chance.randint(1, 8), chance.randint(0, 5000)
        rank = chance.randrange(ranks)
        seed = chance.randrange(2**63)
        first = Mixture(parts(numbers), seed=seed, rank=rank, world_size=ranks)
        wanted = np.stack(first.order(range(step, step + 20)))
        first._stand.move(step)
        later = Mixture(parts(numbers), rank=rank, world_size=ranks)
        later.load_state_dict(first.state_dict())
        np.testing.assert_array_equal(np.stack(later.order(range(step, step + 20))), wanted)
        got = ids(later.read_batch(range(4)))
        assert got == list(zip(*wanted[:, :4].tolist(), strict=True))


@pytest.mark.soak
def test_20_random_resumes_through_loaders(numbers):
    chance = random.Random(1)
    for _ in range(20):
        ranks, batches = chance.randint(1, 4), chance.randint(1, 6)
        rank = chance.randrange(ranks)
        wanted = whole(numbers, 200, rank=rank, world_size=ranks)
        mixture = Mixture(parts(numbers), rank=rank, world_size=ranks)
        loader = DataLoader(mixture, batch_size=2, num_workers=chance.randint(0, 4))
        assert taken(loader, batches) == wanted[: 2 * batches]
        resumed = Mixture(parts(numbers), rank=rank, world_size=ranks)
        resumed.load_state_dict(mixture.state_dict())
        loader = DataLoader(resumed, batch_size=3, num_workers=chance.randint(0, 4))
        assert taken(loader, 2) == wanted[2 * batches : 2 * batches + 6]


def test_a_state_of_another_mixture_is_refused(roots):
    mixture = Mixture(parts(roots))
    state = mixture.state_dict()
    with pytest.raises(ArgumentError, match="frames"):
        Mixture(roots[:2]).load_state_dict(state)
    with pytest.raises(ArgumentError, match="weights"):
        Mixture(roots).load_state_dict(state)
    for wrong in ({"step": -1}, {"drawn": [1]}, {"step": 7}, {"seed": "x"}, {"taken": None}):
        with pytest.raises(ArgumentError):
            mixture.load_state_dict({**state, **wrong})


def test_transforms_and_threads(roots):
    mixture = Mixture(roots, image_transforms=lambda image: image * 0, decode_threads=1)
    assert not mixture[0][CAMERA].any()
    batch = next(iter(DataLoader(mixture, batch_size=4)))
    assert batch[CAMERA].shape == (4, 3, 32, 48)
    assert not batch[CAMERA].any()


def test_what_a_policy_asks(roots):
    mixture = Mixture(parts(roots), delta_timestamps={"action": [0.0, 1 / 30]})
    assert mixture.meta.fps == 30
    assert mixture.meta.camera_keys == [CAMERA]
    assert mixture.meta.features["action"]["shape"] == (6,)
    assert mixture.meta.total_episodes == 5
    assert mixture.meta.episodes["dataset_to_index"] == [mixture.num_frames]
    assert set(mixture.meta.stats["action"]) >= {"mean", "std", "min", "max", "q01", "q99"}
    assert mixture.meta.stats[CAMERA]["mean"].shape == (3, 1, 1)
    mixture.meta.stats[CAMERA]["mean"] = torch.zeros(3, 1, 1)  # as lerobot's factory does
    assert mixture.meta.stats[CAMERA]["mean"].sum() == 0
    assert mixture.stats is mixture.meta.stats
    assert len(mixture.part_stats) == 3
    assert list(mixture.meta.tasks.index) == ["do it"]
    assert mixture.num_episodes == 5
    long = Mixture(parts(roots)).with_whole_epochs()
    assert long.num_frames == max(-(-41 * 10 // 5), -(-25 * 10 // 3), -(-13 * 10 // 2))


def test_normalising_by_part(roots):
    mixture = Mixture(roots, cameras=[])
    batch = next(iter(DataLoader(mixture, batch_size=len(mixture))))
    found = mixture.normalized(batch, ["observation.state"])["observation.state"]
    for part in range(3):
        own = found[batch["dataset_index"] == part].double()
        wide = own.std(0) > 0
        assert torch.allclose(own.mean(0)[wide], torch.zeros(int(wide.sum())).double(), atol=1e-3)


def test_the_table(roots):
    text = str(Mixture(parts(roots)))
    assert "one" in text
    assert "0.5" in text
    assert "an epoch is 79 samples" in text
    mixture = Mixture(parts(roots), samples_per_epoch=50)
    assert "an epoch is 50 samples" in str(mixture)
    assert str(mixture).splitlines()[2].split()[3] == f"{25 / 41:.4g}"
    assert len(mixture) == 50


def test_parts_of_every_layout_in_every_place(local_datasets, uploaded, tmp_path, monkeypatch):
    """Local folders, a store and the Hub in one batch; the samples of each are its own."""
    folders = [local_datasets(layout) for layout in LAYOUTS]
    with HubServer(tmp_path / "hub") as hub:
        for name, value in hub.environment.items():
            monkeypatch.setenv(name, value)
        hub.seed("me/task", local_datasets("v3.0"), tag="v3.0")
        remote = {uploaded("v3.0"): 2, uploaded("lance-video"): 3, "hf://datasets/me/task": 2}
        mixture = Mixture([*folders, *remote], weights="equal", return_uint8=True)
        own = [LeRobotDataset("me/x", folder, return_uint8=True) for folder in folders]
        own += [own[number] for number in remote.values()]
        size = 3 * len(own)
        loader = DataLoader(mixture, batch_size=size, num_workers=1)
        batch = next(iter(loader))
        assert np.bincount(batch["dataset_index"]).tolist() == [3] * len(own)
        for place, (part, frame) in enumerate(zip(*mixture.order(range(size)), strict=True)):
            item = own[part][int(frame)]
            item.pop("task_index")  # of the mixture's tasks
            assert_same({key: batch[key][place] for key in item}, item)
            assert mixture.tasks[int(batch["task_index"][place])] == item["task"]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_that_fails_says_which(roots, tmp_path, workers):
    """Also from a worker, whose error torch raises anew from its text alone."""
    broken = shutil.copytree(roots[1], tmp_path / "broken")
    mixture = Mixture([roots[0], broken], weights="equal")
    (video,) = broken.rglob("*.mp4")
    video.write_bytes(video.read_bytes()[:500])
    with pytest.raises(VideoError) as caught:
        list(DataLoader(mixture, batch_size=8, num_workers=workers))
    lines = str(caught.value).splitlines()
    assert f"  dataset: {broken}" in lines
    assert [line.split(":")[0] for line in lines].count("  episode") == 1
    assert [line.split(":")[0] for line in lines].count("  frame") == 1


def test_from_a_file(roots, tmp_path):
    lines = "".join(
        f"\n  - {{source: {r}, probability: {p}}}"
        for r, p in zip(roots, (0.5, 0.3, 0.2), strict=True)
    )
    (tmp_path / "mix.yaml").write_text(
        f"parts:{lines}\nseed: 3\ndelta_timestamps: {{action: [0.0]}}\n"
    )
    mixture = Mixture.from_file(tmp_path / "mix.yaml")
    assert mixture.seed == 3
    assert mixture[0]["action"].shape == (1, 6)
    assert Mixture.from_file(tmp_path / "mix.yaml", seed=4).seed == 4


def test_ranks_come_from_torch_distributed(roots, tmp_path):
    code = f"""
from demoreel.torch import Mixture
mixture = Mixture([{str(roots[0])!r}])
print(mixture.rank, mixture.world_size)
"""
    environment = {**os.environ, "RANK": "1", "WORLD_SIZE": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "2"]
