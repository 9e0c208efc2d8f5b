"""Batches of a dataset's samples in an order in which every frame is decoded about once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import Sampler

from demoreel.errors import ArgumentError
from demoreel.read.batch import PoolBatch
from demoreel.read.dataset import Dataset
from demoreel.read.order import Share
from demoreel.read.reuse import PoolForm, PoolOrder, pool_form
from demoreel.torch.dataset import LeRobotDataset
from demoreel.torch.stream_pass import checked_seed, rank_and_world_size


def orders_of_workers(
    dataset: Dataset, form: PoolForm, *, seed: int, epoch: int, share: Share
) -> list[PoolOrder]:
    """Return the order of each of a rank's workers."""
    from dataclasses import replace

    return [
        PoolOrder(dataset.episodes.length, form, seed, epoch, replace(share, worker=worker))
        for worker in range(share.workers)
    ]


class ReuseSampler(Sampler[list[int]]):
    """Gives a ``DataLoader`` batches whose images lie decoded in memory, within a budget.

    The dataset keeps a pool of spans of video, decoded once each; batches are drawn from them at
    random, and a span that is used up makes room for another one. Every sample comes exactly once
    an epoch, and items are those of the dataset, bit for bit. What it costs is randomness: see
    ``docs/training.md``.

        sampler = ReuseSampler(dataset, batch_size=64, reuse="4GB")
        loader = DataLoader(dataset, batch_sampler=sampler)

    Of W workers each has a pool of its own, with its share of the budget: few workers mix better
    than many, and ``num_workers=0`` with every core decoding mixes best. Spans are decoded ahead on
    threads while the training computes.

    Args:
        dataset: What the loader reads.
        batch_size: Samples in a batch.
        reuse: Memory for decoded images of this process and its workers, e.g. ``"4GB"``.
        num_workers: That of the ``DataLoader``.
        seed: Of the order, as is ``set_epoch``.
        drop_last: Leave out a last batch that is smaller.
        rank: Whose part to read; by default that of ``torch.distributed``, or of ``torchrun``.
        world_size: How many ranks there are; each has the budget for itself.
        even: Give every rank equally many samples, and leave out up to ``world_size - 1``.

    Raises:
        ArgumentError: The budget does not hold a sample for each worker, or a number is out of
            range.
    """

    def __init__(
        self,
        dataset: LeRobotDataset | Dataset,
        *,
        batch_size: int,
        reuse: int | str,
        num_workers: int = 0,
        seed: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        even: bool = True,
    ) -> None:
        if batch_size < 1 or num_workers < 0:
            raise ArgumentError(
                f"batch_size={batch_size} and num_workers={num_workers} must be positive."
            )
        reader = dataset if isinstance(dataset, Dataset) else dataset.reader
        if reader is None:
            raise ArgumentError("No episode is saved yet, so there is no order to read in.")
        self._dataset: Dataset = reader
        rank, world_size = rank_and_world_size(rank, world_size)
        workers = max(1, num_workers)
        self.form = pool_form(self._dataset, reuse, pools=workers)
        self.seed = checked_seed(seed)
        self.epoch = 0
        self._first = 0
        self._given = 0
        self._share = Share(
            len(self._dataset),
            rank=rank,
            world_size=world_size,
            workers=workers,
            size=batch_size,
            even=even,
            drop_last=drop_last,
        )

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return -(-self._share.samples // self._share.size)

    def __iter__(self) -> Iterator[PoolBatch]:
        """Begin an epoch, or go on where a state was saved."""
        first, self._first = self._first, 0
        self._given = first
        workers = self._share.workers
        pools = [
            order.batches(max(0, -(-(first - pool) // workers)))
            for pool, order in enumerate(
                orders_of_workers(
                    self._dataset, self.form, seed=self.seed, epoch=self.epoch, share=self._share
                )
            )
        ]
        for number in range(first, len(self)):
            # A loader hands the first batch to its first worker, wherever the epoch goes on.
            batch = next(pools[number % workers])
            self._given = number + 1
            yield batch
        self.epoch += 1
        self._given = 0

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass read this epoch, which has an order of its own."""
        if epoch != self.epoch:
            self.epoch, self._first, self._given = epoch, 0, 0

    def state_dict(self, batches: int | None = None) -> dict[str, int]:
        """Return where the order stands, in plain numbers.

        Args:
            batches: How many batches of this epoch the training has had. Needed where workers
                read ahead; None counts those that were handed to the loader.
        """
        given = self._given if batches is None else batches
        return {"seed": self.seed, "epoch": self.epoch, "batches": given, **self._kind()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was saved: with as many workers and ranks, and the same budget.

        Raises:
            ArgumentError: The state is of another order.
        """
        ours = self._kind()
        theirs = {name: state.get(name) for name in ours}
        if theirs != ours:
            raise ArgumentError(
                f"The state is of an order of {theirs}; this one is of {ours}.",
                hint="use the same dataset, budget, batch size and workers, or begin an epoch",
            )
        self.seed, self.epoch = int(state["seed"]), int(state["epoch"])
        self._first = self._given = int(state["batches"])

    def _kind(self) -> dict[str, int]:
        share = self._share
        return {
            "frames": share.frames,
            "batch_size": share.size,
            "workers": share.workers,
            "world_size": share.world_size,
            **self.form.to_state(),
        }
