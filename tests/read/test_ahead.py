"""Batches that were announced: nothing is asked for twice, and nothing is mixed up."""

from __future__ import annotations

import pytest

import demoreel
from demoreel.errors import OutOfRangeError, StoreError
from support.fault_proxy import Status

from ..conftest import assert_same_batch


@pytest.mark.parametrize("layout", ["v3.0", "lance-video"])
def test_announced_batches_are_the_same(local_datasets, uploaded, layout):
    here, there = demoreel.open(local_datasets(layout)), demoreel.open(uploaded(layout))
    batches = [[0, 50, 3], [3, 50, 0], [7, 7, -1], list(range(0, 56, 6))]
    for batch in batches:
        there.prefetch(batch)
    for batch in [*reversed(batches), *batches]:
        assert_same_batch(there.batch(batch), here.batch(batch))
    with pytest.raises(OutOfRangeError):
        there.prefetch([56])


def test_an_announced_batch_asks_nothing_more(uploaded, proxy):
    counts = []
    for announced in (True, False):
        there = demoreel.open(uploaded("v3.0"))
        proxy.reset()
        if announced:
            there.prefetch([0, 30])
        there.batch([0, 30])
        counts.append(proxy.requests)
    assert counts[0] == counts[1] > 0


def test_a_failure_ahead_does_not_last(local_datasets, uploaded, proxy):
    there = demoreel.open(uploaded("v3.0"))
    proxy.fail(1.0, Status(404), where=".mp4")
    there.prefetch([0, 30])
    with pytest.raises(StoreError):
        there.batch([0, 30])
    proxy.clear()
    assert_same_batch(there.batch([0, 30]), demoreel.open(local_datasets("v3.0")).batch([0, 30]))


def test_nothing_happens_to_a_local_dataset(local_datasets):
    here = demoreel.open(local_datasets("v3.0"))
    here.prefetch([0, 1])
    with pytest.raises(OutOfRangeError):
        here.prefetch([100])
