"""Batches of indices that say which ones come after them."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler, Sampler, get_worker_info

from demoreel.errors import ArgumentError

_MOST_AHEAD = 4  # a dataset keeps 8 announced batches


class PrefetchBatch(list[int]):
    """Indices of a batch, and of those that the same worker will be asked for next.

    Attributes:
        upcoming: The batches to come; a dataset on remote storage begins to fetch them.
    """

    def __init__(
        self, indices: Iterable[int], upcoming: Iterable[Sequence[int]] = (), *, workers: int = 1
    ) -> None:
        super().__init__(indices)
        self.upcoming = tuple(upcoming)
        self._workers = workers

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (list(self), self.upcoming, self._workers)


def _arrived(indices: list[int], upcoming: Sequence[Sequence[int]], workers: int) -> PrefetchBatch:
    """Unpickle a batch: in a worker, what comes next holds for that number of workers only."""
    info = get_worker_info()
    if info is not None and info.num_workers != workers:
        warnings.warn(
            f"PrefetchBatchSampler(num_workers={workers}) in a DataLoader of {info.num_workers} "
            "workers: nothing is fetched ahead. Give both the same number.",
            stacklevel=2,
        )
        upcoming = ()
    return PrefetchBatch(indices, upcoming, workers=workers)


class PrefetchBatchSampler(Sampler[list[int]]):
    """Gives a ``DataLoader`` batches that say which ones come next.

    A dataset on remote storage fetches these while it decodes the batch before them. Batches and
    their order are those of the sampler; of local datasets nothing else changes.

        sampler = PrefetchBatchSampler(RandomSampler(dataset), batch_size=32, num_workers=4)
        loader = DataLoader(dataset, batch_sampler=sampler, num_workers=4)

    Args:
        sampler: Any sampler of indices, for instance a ``DistributedSampler``; without
            ``batch_size``, any sampler of batches.
        batch_size: Indices to a batch.
        drop_last: Leave out a last batch that is smaller.
        num_workers: That of the ``DataLoader``: of W workers, each one gets every W-th batch.
        ahead: How many batches of each worker to fetch ahead, 1 to 4.

    Raises:
        ArgumentError: A number is out of range, or ``drop_last`` has no ``batch_size``.
    """

    def __init__(
        self,
        sampler: Iterable[Any],
        *,
        batch_size: int | None = None,
        drop_last: bool = False,
        num_workers: int = 0,
        ahead: int = 2,
    ) -> None:
        if not 1 <= ahead <= _MOST_AHEAD:
            raise ArgumentError(f"ahead is {ahead}; it can be 1 to {_MOST_AHEAD}.")
        if num_workers < 0:
            raise ArgumentError(f"num_workers is {num_workers}; it cannot be negative.")
        if batch_size is not None and batch_size < 1:
            raise ArgumentError(f"batch_size is {batch_size}; a batch has one index at least.")
        if drop_last and batch_size is None:
            raise ArgumentError("drop_last needs batch_size: the sampler makes the batches.")
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.num_workers = num_workers
        self.ahead = ahead
        self._batches: Any = (
            sampler if batch_size is None else BatchSampler(sampler, batch_size, drop_last)
        )

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        step = max(1, self.num_workers)
        batches = iter(self._batches)
        window = deque(islice(batches, self.ahead * step))
        for batch in batches:
            window.append(batch)
            yield _first(window, step)
        while window:
            yield _first(window, step)


def _first(window: deque[Sequence[int]], step: int) -> PrefetchBatch:
    first = window.popleft()
    return PrefetchBatch(first, islice(window, step - 1, None, step), workers=step)
