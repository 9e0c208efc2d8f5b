"""What a DataLoader worker will be asked for next, without a change to what it gets."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from demoreel.torch.lookahead import upcoming_batches


class Peeking(Dataset):
    """Notes what it sees ahead of each batch."""

    def __init__(self, *, waits=False):
        self.waits = waits

    def __len__(self):
        return 40

    def __getitems__(self, indices):
        ahead = upcoming_batches()
        later = upcoming_batches()
        while self.waits and 0 in indices and not (ahead or later):  # more are on their way
            later = upcoming_batches()
        assert not any(batch in ahead for batch in later)  # each is told once
        ahead += later
        seen = torch.tensor([len(ahead), sum(len(batch) for batch in ahead)])
        return [(torch.tensor(index), seen) for index in indices]


def test_nothing_is_known_outside_of_a_worker():
    assert upcoming_batches() == []
    batches = list(DataLoader(Peeking(), batch_size=4))
    assert [index for numbers, _ in batches for index in numbers.tolist()] == list(range(40))
    assert all(seen.sum() == 0 for _, seen in batches)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_batches_come_in_order_and_each_once(workers, persistent):
    loader = DataLoader(
        Peeking(waits=True),
        batch_size=4,
        num_workers=workers,
        prefetch_factor=3,
        persistent_workers=persistent,
        multiprocessing_context="fork",
    )
    for _ in range(2):
        batches = list(loader)
        assert [index for numbers, _ in batches for index in numbers.tolist()] == list(range(40))
    counts = [int(seen[0][0]) for _, seen in batches]
    assert max(counts) >= 1  # it does see ahead
    assert all(
        int(seen[0][1]) == 4 * count for (_, seen), count in zip(batches, counts, strict=True)
    )


def test_a_loop_that_is_left_early():
    loader = DataLoader(Peeking(), batch_size=2, num_workers=1, persistent_workers=True)
    for _ in range(3):
        numbers, _ = next(iter(loader))
        assert numbers.tolist() == [0, 1]
