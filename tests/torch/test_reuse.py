"""Batches from memory: the plain items, once each, with workers and ranks, and from a state."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from demoreel.errors import ArgumentError
from demoreel.testing import make_dataset
from demoreel.torch import LeRobotDataset, ReuseSampler, StreamingLeRobotDataset

from ..conftest import assert_same

CAMERA = "observation.images.cam0"
LENGTHS = [13, 8, 20, 10]
FRAMES = sum(LENGTHS)
WINDOWS = {CAMERA: [-2 / 30, -1 / 30, 0.0], "action": [0.0, 1 / 30]}
BUDGET = "600kB"  # 48 images of 64x64


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("reuse") / "made", episodes=LENGTHS, gop=5)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("reuse") / "numbers", episodes=LENGTHS, cameras=0)


def frames_of(found) -> list[int]:
    return [int(number) for item in found for number in item["index"].reshape(-1)]


def opened(root, **options) -> LeRobotDataset:
    return LeRobotDataset("me/made", root, delta_timestamps=WINDOWS, **options)


@pytest.mark.parametrize(
    ("workers", "context"),
    [(0, None), (2, "fork"), pytest.param(2, "spawn", marks=pytest.mark.soak)],
)
def test_a_loader_gives_the_plain_items(root, workers, context):
    dataset, plain = opened(root), opened(root)
    dataset[0]  # was used in the parent
    sampler = ReuseSampler(dataset, batch_size=6, reuse=BUDGET, num_workers=workers, seed=3)
    options = {"multiprocessing_context": context, "persistent_workers": True} if workers else {}
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=workers, **options)
    orders = []
    for _ in range(2):
        found = list(loader)
        assert len(found) == len(loader) == -(-FRAMES // 6)
        orders.append(frames_of(found))
        assert sorted(orders[-1]) == list(range(FRAMES))
        for batch in found:
            wanted = torch.utils.data.default_collate(plain.__getitems__(frames_of([batch])))
            assert_same(batch, wanted)
    assert orders[0] != orders[1]


@pytest.mark.parametrize("batch_size", [None, 6])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_gives_the_plain_items(root, batch_size, workers):
    plain = opened(root)
    stream = StreamingLeRobotDataset(
        "me/made", root, delta_timestamps=WINDOWS, batch_size=batch_size, reuse=BUDGET
    )
    loader = stream.loader(num_workers=workers)
    for epoch in range(2):
        assert stream.epoch == epoch
        found = list(loader)
        assert len(found) == len(stream)
        assert sorted(frames_of(found)) == list(range(FRAMES))
        for item in found[:: 1 if batch_size else 5]:
            items = plain.__getitems__(frames_of([item]))
            assert_same(item, torch.utils.data.default_collate(items) if batch_size else items[0])


@settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
@given(
    workers=st.integers(1, 4),
    ranks=st.integers(1, 3),
    size=st.integers(1, 9),
    share=st.floats(0, 1),
    drop_last=st.booleans(),
)
def test_a_sampler_goes_on_where_a_state_was_saved(numbers, workers, ranks, size, share, drop_last):
    dataset = LeRobotDataset("me/numbers", numbers)

    def sampler(rank):
        return ReuseSampler(
            dataset, batch_size=size, reuse=FRAMES * 100, num_workers=workers, seed=5,
            rank=rank, world_size=ranks, drop_last=drop_last,
        )  # fmt: skip

    seen = []
    for rank in range(ranks):
        whole = sampler(rank)
        first, second = list(whole), list(whole)
        assert len(first) == len(whole)
        seen += [index for batch in first for index in batch]
        at = int(share * len(first))
        begun, other = sampler(rank), sampler(rank)
        passing = iter(begun)
        for _ in range(at):
            next(passing)
        state = json.loads(json.dumps(begun.state_dict()))
        assert state == other.state_dict() | {"batches": at}
        other.load_state_dict(state)
        assert list(other) == first[at:]
        assert list(other) == second
    assert len(set(seen)) == len(seen)
    if not drop_last:
        assert len(seen) == FRAMES // ranks * ranks


@pytest.mark.parametrize("batch_size", [None, 5])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_goes_on_where_a_state_was_saved(numbers, batch_size, workers):
    def stream(rank=0):
        return StreamingLeRobotDataset(
            "me/numbers", numbers, batch_size=batch_size, reuse="1MB", rank=rank, world_size=2
        )

    whole = [frames_of([item]) for item in stream().loader(num_workers=workers)]
    for stop in (1, 4, len(whole) - 1):
        begun = stream().loader(num_workers=workers)
        passing = iter(begun)
        assert [frames_of([next(passing)]) for _ in range(stop)] == whole[:stop]
        state = json.loads(json.dumps(begun.state_dict()))
        other = stream().loader(num_workers=workers)
        other.load_state_dict(state)
        assert [frames_of([item]) for item in other] == whole[stop:]
    both = [*whole, *(frames_of([item]) for item in stream(1).loader(num_workers=workers))]
    assert sorted(np.concatenate(both)) == sorted(set(np.concatenate(both)))
    assert sum(map(len, both)) == FRAMES // 2 * 2


def test_a_state_of_another_order_is_refused(numbers):
    stream = StreamingLeRobotDataset("me/numbers", numbers, batch_size=5, reuse="1MB")
    passing = iter(stream)
    next(passing)
    state = stream.state_dict()
    loader = stream.loader(num_workers=2)
    loader.load_state_dict(state)
    with pytest.raises(ArgumentError, match="workers"):
        iter(loader)
    plain = StreamingLeRobotDataset("me/numbers", numbers, batch_size=5)
    with pytest.raises(ArgumentError, match="reuse="):
        plain.load_state_dict(state)
    with pytest.raises(ArgumentError, match="reuse="):
        stream.load_state_dict(plain.state_dict())
    dataset = LeRobotDataset("me/numbers", numbers)
    one, two = (
        ReuseSampler(dataset, batch_size=5, reuse="1MB", num_workers=workers) for workers in (1, 2)
    )
    with pytest.raises(ArgumentError, match="workers"):
        two.load_state_dict(one.state_dict())


def test_what_cannot_be(root):
    with pytest.raises(ArgumentError, match="shuffle=False"):
        StreamingLeRobotDataset("me/made", root, shuffle=False, reuse="1MB")
    with pytest.raises(ArgumentError, match="does not hold one sample"):
        StreamingLeRobotDataset("me/made", root, reuse=100)
    with pytest.raises(ArgumentError, match="batch_size"):
        ReuseSampler(opened(root), batch_size=0, reuse="1MB")


def test_set_epoch(numbers):
    dataset = LeRobotDataset("me/numbers", numbers)
    sampler = ReuseSampler(dataset, batch_size=5, reuse="1MB")
    first, second = list(sampler), list(sampler)
    sampler.set_epoch(1)
    assert list(sampler) == second != first
    stream = StreamingLeRobotDataset("me/numbers", numbers, batch_size=5, reuse="1MB", seed=0)
    stream.set_epoch(1)
    assert [frames_of([item]) for item in stream] == [list(batch) for batch in second]
