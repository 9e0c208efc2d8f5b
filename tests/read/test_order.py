"""The order of an epoch: a permutation, at random, divided without loss, the same everywhere."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demoreel.read.order import FrameOrder, Share

FRAMES = st.integers(1, 5000)
SEEDS = st.integers(0, 2**63 - 1)
EPOCHS = st.integers(0, 10**6)


def whole(order: FrameOrder) -> np.ndarray:
    return order.at(np.arange(order.frames))


def delivered(share: Share) -> list[int]:
    """The places in the order in which a DataLoader delivers them from a rank's workers."""
    workers = [replace(share, worker=number) for number in range(share.workers)]
    if share.whole_batches:
        streams = [[w.places(step).tolist() for step in range(w.steps)] for w in workers]
    else:
        streams = [
            [[place] for step in range(w.steps) for place in w.places(step).tolist()]
            for w in workers
        ]
    rounds = range(max(map(len, streams), default=0))
    turns = (stream[n] for n in rounds for stream in streams if n < len(stream))
    return list(chain.from_iterable(turns))


@given(FRAMES, SEEDS, EPOCHS)
def test_every_frame_comes_once(frames, seed, epoch):
    order = FrameOrder(frames, seed, epoch)
    found = whole(order)
    assert np.array_equal(np.sort(found), np.arange(frames))
    places = np.array([0, frames // 2, frames - 1])
    assert np.array_equal(order.at(places), found[places])  # one by one as all together


def test_without_shuffling_frames_come_as_they_lie():
    assert np.array_equal(whole(FrameOrder(1000, 1, 2, shuffle=False)), np.arange(1000))


def test_the_order_stays_what_it_was():
    """A checkpoint of today continues with the demoreel of tomorrow."""
    assert whole(FrameOrder(10, 42, 0)).tolist() == [9, 1, 6, 7, 5, 8, 3, 4, 0, 2]
    places = np.array([0, 1, 10**9 - 1])
    assert FrameOrder(10**9, 7, 3).at(places).tolist() == [627058140, 863124353, 48074721]


def test_seeds_and_epochs_have_orders_of_their_own():
    orders = [whole(FrameOrder(500, seed, epoch)) for seed in range(8) for epoch in range(8)]
    pairs = [(a, b) for n, a in enumerate(orders) for b in orders[:n]]
    same = [int((a == b).sum()) for a, b in pairs]
    assert max(same) < 10  # two random orders agree at one place on average
    assert 0.9 < np.mean(same) < 1.1


@pytest.mark.parametrize("frames", [3, 4, 5])
@pytest.mark.soak
def test_small_datasets_get_all_orders_equally_often(frames):
    draws = 3000
    counts = Counter(tuple(whole(FrameOrder(frames, seed, 0))) for seed in range(draws))
    orders = int(np.prod(np.arange(1, frames + 1)))
    assert len(counts) == orders
    assert chi_square_z(np.array(list(counts.values())), draws / orders) < 4


def test_every_frame_comes_anywhere():
    frames, draws = 60, 2000
    orders = np.stack([whole(FrameOrder(frames, seed, 5)) for seed in range(draws)])
    for column in orders.T:
        counts = np.bincount(column, minlength=frames)
        assert abs(chi_square_z(counts, draws / frames)) < 5.5


def test_the_shuffle_is_global():
    """Neighbours are no neighbours any more, and frames travel any distance."""
    frames = 100_000
    found = whole(FrameOrder(frames, 3, 1))
    steps = np.diff(found) % frames
    assert (np.isin(steps, (1, frames - 1))).sum() < 15  # two are expected
    bins = 100
    for values in (steps, (found - np.arange(frames)) % frames):
        counts = np.bincount(values * bins // frames, minlength=bins)
        assert abs(chi_square_z(counts, len(values) / bins)) < 5
    tenth = found[: frames // 10]  # the first tenth of an epoch has seen all the dataset
    counts = np.bincount(tenth * bins // frames, minlength=bins)
    assert abs(chi_square_z(counts, len(tenth) / bins)) < 5


def chi_square_z(counts: np.ndarray, expected: float) -> float:
    """By how many of its standard deviations chi-square is off, for uniform counts."""
    freedom = len(counts) - 1
    return (((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)


def test_a_billion_frames_take_no_memory():
    tracemalloc.start()
    try:
        order = FrameOrder(10**9, 42, 7)
        share = Share(10**9, rank=3, world_size=8, worker=1, workers=4, size=64)
        seen = np.concatenate(
            [order.at(share.places(step)) for step in (0, 1, share.steps // 2, share.steps - 1)]
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(set(seen.tolist())) == len(seen)
    assert seen.min() >= 0
    assert seen.max() < 10**9
    assert seen.max() > 8 * 10**8
    assert peak < 1 << 20


SHARES = st.fixed_dictionaries(
    {
        "frames": st.integers(1, 400),
        "world_size": st.integers(1, 6),
        "workers": st.integers(1, 5),
        "size": st.integers(1, 40),
        "whole_batches": st.booleans(),
    }
)


@given(SHARES, st.data())
@settings(max_examples=200)
def test_ranks_and_workers_together_read_everything_once(arguments, data):
    consumed = data.draw(st.integers(0, arguments["frames"]))
    ranks = range(arguments["world_size"])
    shares = [Share(**arguments, rank=rank, consumed=consumed, even=False) for rank in ranks]
    found = [delivered(share) for share in shares]
    assert [len(part) for part in found] == [share.samples for share in shares]
    assert sorted(chain.from_iterable(found)) == list(range(consumed, arguments["frames"]))
    for rank, part in enumerate(found):  # and whatever the workers, each rank in its order
        assert part == list(range(consumed + rank, arguments["frames"], len(ranks)))


@given(SHARES)
def test_even_ranks_get_equally_many_and_lose_less_than_one_each(arguments):
    ranks = range(arguments["world_size"])
    found = [delivered(Share(**arguments, rank=rank)) for rank in ranks]
    taken = arguments["frames"] // len(ranks) * len(ranks)
    assert {len(part) for part in found} == {taken // len(ranks)}
    assert sorted(chain.from_iterable(found)) == list(range(taken))


@given(SHARES)
def test_a_short_last_batch_can_be_dropped(arguments):
    arguments = {**arguments, "whole_batches": True}
    kept, dropped = (Share(**arguments, drop_last=drop) for drop in (False, True))
    assert delivered(dropped) == delivered(kept)[: dropped.samples]
    assert dropped.samples == kept.samples // kept.size * kept.size


@given(SHARES, st.lists(st.tuples(st.integers(1, 6), st.integers(0, 30)), max_size=4))
def test_any_number_of_ranks_goes_on_where_others_stopped(arguments, stops):
    """The places of all ranks, step by step, are the one sequence, however often it changed."""
    frames = arguments["frames"]
    consumed, sequence = 0, []
    for world_size, samples in stops:
        given = {**arguments, "world_size": world_size, "consumed": consumed}
        parts = [delivered(Share(**given, rank=rank))[:samples] for rank in range(world_size)]
        sequence += chain.from_iterable(zip(*parts, strict=True))
        consumed = Share(**given).consumed_after(len(parts[0]))
        assert sequence == list(range(consumed))
    last = Share(**{**arguments, "world_size": 1}, consumed=consumed)
    assert sequence + delivered(last) == list(range(frames))
