"""The order of a mixture: exact shares, every sample once an epoch, exact resuming."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demoreel.errors import ArgumentError
from demoreel.read.interleave import Interleave, MixtureOrder, refuse_mixed_kinds, weights_of
from demoreel.read.part import Part

WEIGHTS = st.lists(st.integers(0, 5000), min_size=1, max_size=9).filter(any)
SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=5)


def taken(order: MixtureOrder, first: int, stop: int) -> list[tuple[int, int]]:
    parts, samples = order.at(np.arange(first, stop))
    return list(zip(parts.tolist(), samples.tolist(), strict=True))


@given(WEIGHTS, st.integers(0, 3), st.integers(1, 700))
def test_every_part_is_within_one_of_its_share_from_the_first_step_on(weights, cycles, steps):
    interleave = Interleave(weights)
    parts, before = interleave.at(np.arange(cycles * interleave.cycle, steps + cycles * 9))
    if cycles:
        parts, before = Interleave(weights).at(np.arange(steps))
    drawn = np.cumsum(parts[:, None] == np.arange(len(weights)), axis=0)
    share = np.array(weights) / sum(weights)
    wanted = np.arange(1, len(parts) + 1)[:, None] * share
    assert (np.abs(drawn - wanted) < 1).all()
    np.testing.assert_array_equal(before, drawn[np.arange(len(parts)), parts] - 1)


def test_far_beyond_a_cycle_the_shares_are_still_exact():
    interleave = Interleave([7, 2, 1])
    step = 10**15 + 3
    drawn = interleave.drawn(step)
    assert sum(drawn) == step
    for count, weight in zip(drawn, (7, 2, 1), strict=True):
        assert abs(count - Fraction(step * weight, 10)) < 1
    parts, before = interleave.at(np.array([step]))
    assert before[0] == drawn[parts[0]]


@given(WEIGHTS, st.integers(0, 20_000), st.integers(1, 50))
@settings(max_examples=30)
def test_a_known_step_saves_the_way_there_and_changes_nothing(weights, step, more):
    whole = Interleave(weights)
    wanted = whole.at(np.arange(step, step + more))
    known = Interleave(weights, step=step, drawn=whole.drawn(step))
    for found, expected in zip(known.at(np.arange(step, step + more)), wanted, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert known.drawn(step + more) == whole.drawn(step + more)


def test_segments_that_were_forgotten_come_again():
    interleave = Interleave([9973, 9967, 3])
    first = interleave.at(np.arange(5000))
    for step in range(0, 19_000, 4096):
        interleave.at(np.arange(step, step + 10))
    for found, expected in zip(interleave.at(np.arange(5000)), first, strict=True):
        np.testing.assert_array_equal(found, expected)


@given(SIZES, st.data(), st.integers(1, 4), st.integers(0, 2**63 - 1))
@settings(max_examples=40)
def test_ranks_share_the_walk_of_every_part(sizes, data, ranks, seed):
    """Nothing twice within an epoch of a part, nothing skipped, each rank exact."""
    weights = data.draw(st.lists(st.integers(1, 9), min_size=len(sizes), max_size=len(sizes)))
    steps = 3 * sum(sizes)
    found = [
        taken(MixtureOrder(sizes, weights, seed=seed, rank=rank, world_size=ranks), 0, steps)
        for rank in range(ranks)
    ]
    for part, size in enumerate(sizes):
        walk = [sample for step in zip(*found, strict=True) for own, sample in step if own == part]
        for begin in range(0, len(walk), size):
            epoch = walk[begin : begin + size]
            assert len(set(epoch)) == len(epoch)
            if len(epoch) == size:
                assert set(epoch) == set(range(size))
        for rank in found:
            count = sum(own == part for own, _ in rank)
            assert abs(count - Fraction(steps * weights[part], sum(weights))) < 1


@given(SIZES, st.data())
@settings(max_examples=60)
def test_resuming_goes_on_exactly(sizes, data):
    weights = data.draw(st.lists(st.integers(1, 9), min_size=len(sizes), max_size=len(sizes)))
    ranks, step = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 200))
    rank = data.draw(st.integers(0, ranks - 1))
    whole = MixtureOrder(sizes, weights, seed=5, rank=rank, world_size=ranks)
    begin = whole.position(step)
    assert sum(begin.taken) == step * ranks
    resumed = MixtureOrder(sizes, weights, seed=5, rank=rank, world_size=ranks, begin=begin)
    assert taken(resumed, step, step + 50) == taken(whole, step, step + 50)


@given(SIZES, st.data())
@settings(max_examples=60)
def test_with_other_ranks_every_part_is_walked_on(sizes, data):
    """The walk of a part is the uninterrupted one, whatever ranks there were before and after."""
    weights = data.draw(st.lists(st.integers(1, 9), min_size=len(sizes), max_size=len(sizes)))
    before, after = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    step = data.draw(st.integers(0, 60))

    def walks(ranks, begin, first, stop):
        orders = [
            MixtureOrder(sizes, weights, seed=5, rank=rank, world_size=ranks, begin=begin)
            for rank in range(ranks)
        ]
        steps = zip(*(taken(order, first, stop) for order in orders), strict=True)
        every = [one for step in steps for one in step]
        return [[s for own, s in every if own == part] for part in range(len(sizes))]

    begin = MixtureOrder(sizes, weights, seed=5, world_size=before).position(step)
    first = walks(before, None, 0, step)
    then = walks(after, begin, step, step + 30)
    alone = walks(1, None, 0, 10 * (step + 30) * 4)
    for own, more, wanted in zip(first, then, alone, strict=True):
        together = own + more
        assert together == wanted[: len(together)]


def test_another_seed_and_another_part_walk_otherwise():
    first = taken(MixtureOrder([500, 500], [1, 1], seed=0), 0, 1000)
    assert taken(MixtureOrder([500, 500], [1, 1], seed=1), 0, 1000) != first
    own, other = ([s for part, s in first if part == number] for number in (0, 1))
    assert own != other
    straight = taken(MixtureOrder([500, 500], [1, 1], seed=0, shuffle=False), 0, 1000)
    assert [s for part, s in straight if part == 1] == list(range(500))


class TestWeights:
    def of(self, *parts, sizes=(100, 400), weights=None, temperature=None):
        refuse_mixed_kinds(parts, weights, temperature)
        return weights_of(parts, sizes, weights, temperature)

    def test_decimals_are_taken_as_they_are_written(self):
        found, samples = self.of(
            Part("a", probability=0.7), Part("b", probability=0.2), Part("c", probability=0.1),
            sizes=(10, 10, 10),
        )  # fmt: skip
        assert found == [7, 2, 1]
        assert samples == 30

    def test_kinds(self):
        a, b = Part("a"), Part("b")
        assert self.of(a, b) == ([100, 400], 500)
        assert self.of(a, b, weights="length") == ([100, 400], 500)
        assert self.of(a, b, weights="equal") == ([1, 1], 500)
        (first, second), _ = self.of(a, b, weights="sqrt")
        assert second / first == pytest.approx(2)
        assert self.of(a, b, temperature=0.5)[0] == [first, second]
        assert self.of(a, b, temperature=0)[0][0] == self.of(a, b, temperature=0)[0][1]
        assert self.of(a, b, weights=[1.5, 3]) == ([3, 6], 500)
        assert self.of(Part("a", repeat=2), Part("b", repeat=0.5)) == ([200, 200], 400)
        assert self.of(Part("a", samples=30), Part("b", samples=60)) == ([30, 60], 90)

    @pytest.mark.parametrize(
        ("parts", "weights", "words"),
        [
            ([Part("a", probability=0.5), Part("b", repeat=1)], None, "several ways"),
            ([Part("a", probability=1.0), Part("b")], None, "missing for part 1"),
            ([Part("a", probability=0.5), Part("b", probability=0.4)], None, "add up to 0.9"),
            ([Part("a", samples=5), Part("b", samples=5)], "length", "several ways"),
            ([Part("a"), Part("b")], "long", "must be"),
            ([Part("a"), Part("b")], [1], "must be"),
            ([Part("a", repeat=-1), Part("b", repeat=1)], None, "from 0"),
            ([Part("a", repeat=0), Part("b", repeat=0)], None, "No part"),
        ],
    )
    def test_what_makes_no_sense(self, parts, weights, words):
        with pytest.raises(ArgumentError, match=words):
            self.of(*parts, weights=weights)
