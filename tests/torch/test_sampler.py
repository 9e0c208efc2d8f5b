"""Batches that say which ones come next: the same batches, and the right ones ahead."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, RandomSampler

from demoreel.errors import ArgumentError
from demoreel.torch import PrefetchBatchSampler


class Noting(Dataset):
    """Gives, with each index, the worker that was asked, and the batches that it was told of."""

    def __len__(self):
        return 22

    def __getitems__(self, indices):
        info = torch.utils.data.get_worker_info()
        worker = 0 if info is None else info.id
        return [(indices, worker, getattr(indices, "upcoming", None))]


def seen(sampler, **options):
    options.setdefault("multiprocessing_context", "fork" if options.get("num_workers") else None)
    return DataLoader(Noting(), batch_sampler=sampler, collate_fn=lambda items: items[0], **options)


def assert_told(loader, *, ahead, batches):
    noted = list(loader)
    assert [list(indices) for indices, _, _ in noted] == batches
    for number, (_, worker, upcoming) in enumerate(noted):
        later = [list(indices) for indices, other, _ in noted[number + 1 :] if other == worker]
        assert [list(batch) for batch in upcoming] == later[:ahead]


PLAIN = [list(range(at, min(at + 4, 22))) for at in range(0, 22, 4)]


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("ahead", [1, 3])
def test_each_worker_is_told_what_it_will_get(workers, ahead):
    options = {"num_workers": workers, "persistent_workers": workers == 2}
    sampler = PrefetchBatchSampler(range(22), batch_size=4, num_workers=workers, ahead=ahead)
    assert len(sampler) == 6
    loader = seen(sampler, **options)
    for _ in range(2):
        assert_told(loader, ahead=ahead, batches=PLAIN)


def test_any_sampler():
    generator = torch.Generator().manual_seed(3)
    wanted = list(BatchSampler(RandomSampler(range(22), generator=generator), 5, True))
    generator.manual_seed(3)
    sampler = PrefetchBatchSampler(
        RandomSampler(range(22), generator=generator), batch_size=5, drop_last=True
    )
    assert (list(sampler), len(sampler)) == (wanted, 4)
    assert list(PrefetchBatchSampler(PLAIN, num_workers=9)) == PLAIN
    assert list(PrefetchBatchSampler([])) == []
    of_two = DistributedSampler(range(22), num_replicas=2, rank=1, seed=1)
    mine = PrefetchBatchSampler(of_two, batch_size=4)
    first = list(mine)
    of_two.set_epoch(1)
    assert len(first) == len(mine) == 3
    assert list(mine) == list(BatchSampler(of_two, 4, False)) != first


@pytest.mark.filterwarnings("ignore:PrefetchBatchSampler")  # forked workers inherit it
def test_another_number_of_workers():
    """What was meant for others is not fetched; a worker says so."""
    sampler = PrefetchBatchSampler(PLAIN, num_workers=3)
    batch = pickle.loads(pickle.dumps(next(iter(sampler))))
    assert (batch, [list(later) for later in batch.upcoming]) == (PLAIN[0], [PLAIN[3]])
    assert [noted[2] for noted in seen(sampler, num_workers=1)] == [()] * 6


@pytest.mark.parametrize(
    "options",
    [{"ahead": 0}, {"ahead": 5}, {"num_workers": -1}, {"batch_size": 0}, {"drop_last": True}],
)
def test_what_makes_no_sense(options):
    with pytest.raises(ArgumentError):
        PrefetchBatchSampler(range(4), **options)
