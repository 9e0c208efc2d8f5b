"""A pass of a stream through an epoch: where it stands, whose rank this is, what it hands out."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from demoreel.errors import ArgumentError
from demoreel.read.batch import PoolBatch
from demoreel.read.order import FrameOrder, Share
from demoreel.read.reuse import PoolForm, PoolOrder
from demoreel.torch.collate import collate_samples
from demoreel.torch.dataset import LeRobotDataset

_BEYOND = 2**63  # what 64 bits hold


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the sequence of all epochs.

    Attributes:
        seed: Of the order.
        epoch: Which epoch.
        consumed: Samples of it that all ranks together have been given.
    """

    seed: int
    epoch: int
    consumed: int = 0

    def to_state(self) -> dict[str, int]:
        """Return it as plain numbers."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any], frames: int) -> Position:
        """Return the position that was saved, in epochs of so many frames."""
        beyond = {"seed": _BEYOND, "epoch": _BEYOND, "consumed": frames + 1}
        for name, end in beyond.items():
            value = state.get(name)
            if not isinstance(value, int) or not 0 <= value < end:
                raise ArgumentError(
                    f"This is no state of this stream: {name} is {value!r}.",
                    hint="give what state_dict() returned",
                )
        return cls(**{name: state[name] for name in beyond})


class SharedPosition:
    """Where the next pass begins, in memory that workers see, also those that live on.

    A worker gets the dataset once, when it is started. What is said to the dataset later (another
    epoch, another position) reaches it this way, in forked and in spawned workers.
    """

    def __init__(self, position: Position) -> None:
        self._numbers = torch.zeros(4, dtype=torch.int64)
        self._numbers.share_memory_()  # type: ignore[no-untyped-call]
        self.set(position)

    def get(self) -> Position:
        """Return it."""
        seed, epoch, consumed, _ = self._numbers.tolist()
        return Position(seed, epoch, consumed)

    def set(self, position: Position) -> None:
        """Let the next pass begin there."""
        values = (position.seed, position.epoch, position.consumed, 0)
        self._numbers.copy_(torch.tensor(values, dtype=torch.int64))

    def is_counted(self) -> None:
        """Say that passes are counted in the training process: no worker need keep notes."""
        self._numbers[3] = -1

    def note_the_end(self, epoch: int) -> None:
        """Remember, from a worker, that an epoch was read to its end."""
        if self._numbers[3] >= 0:
            self._numbers[3] = epoch + 1

    def has_ended(self, epoch: int) -> bool:
        """Whether workers have read that epoch to its end, and none has moved on since."""
        return int(self._numbers[3]) == epoch + 1

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._numbers.share_memory_()  # type: ignore[no-untyped-call]  # a deep copy was not


def checked_seed(seed: int) -> int:
    """Return a seed that positions can hold."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__") or not 0 <= seed < _BEYOND:
        raise ArgumentError(f"seed must be a whole number from 0 to 2**63, not {seed!r}.")
    return int(seed)


def rank_and_world_size(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return whose part of the samples is read here.

    If not given: as ``torch.distributed`` says, or the environment that ``torchrun`` makes
    (``RANK`` and ``WORLD_SIZE``), or the only one.
    """
    if (rank is None) != (world_size is None):
        raise ArgumentError("rank= and world_size= belong together.", hint="give both or neither")
    if rank is None or world_size is None:
        rank, world_size = _found_rank()
    if not 0 <= rank < world_size:
        raise ArgumentError(f"There is no rank {rank} among {world_size}.")
    return rank, world_size


def _found_rank() -> tuple[int, int]:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return 0, 1


@dataclass(slots=True)
class PassProgress:
    """How far a pass has come.

    Attributes:
        begin: Where it began.
        share: What is read of the epoch: by this process, or by all workers of the rank.
        delivered: Batches, or single samples, that it has handed out.
        pool: The pool of each worker that reads for it, if spans are reused, and how many workers.
    """

    begin: Position
    share: Share
    delivered: int = 0
    pool: dict[str, int] | None = None

    @property
    def position(self) -> Position:
        """Where another pass would go on, when all ranks have come as far."""
        size = self.share.size if self.share.whole_batches else 1
        samples = min(self.share.samples, self.delivered * size)
        return Position(self.begin.seed, self.begin.epoch, self.share.consumed_after(samples))


def pool_order(
    lengths: np.ndarray, form: PoolForm, begin: Position, share: Share, *, delivered: int = 0
) -> tuple[PoolOrder, int]:
    """Return the order of a worker whose spans are reused, and what it has handed out before.

    A pass that goes on inside an epoch begins with the next batch, in the first worker. So that
    worker takes on the pool whose turn it is.

    Args:
        lengths: Frames of each episode.
        form: Of its pool.
        begin: Where the pass begins.
        share: The worker's; what was consumed before is left out here.
        delivered: What this worker has handed out since.
    """
    size = share.size if share.whole_batches else 1
    turns = -(-begin.consumed // (share.world_size * size))
    pool = (turns + share.worker) % share.workers
    order = PoolOrder(
        lengths, form, begin.seed, begin.epoch, replace(share, consumed=0, worker=pool)
    )
    return order, max(0, -(-(turns - pool) // share.workers)) + delivered


class Pass(Iterator[dict[str, Any]]):
    """Hands out what a share holds of an order.

    No error ends it: what could not be read is tried again by the next call of ``next``, and an
    error that stays is raised again. So an end is always the epoch's end.

    Args:
        dataset: Reads the items.
        order: Which frame comes when; that of a pool has its own share, of a whole epoch.
        progress: Is kept up to date.
        finish: Called once, at the end.
        before: Batches (or samples) of the share that were handed out earlier.
    """

    def __init__(
        self,
        dataset: LeRobotDataset,
        order: FrameOrder | PoolOrder,
        progress: PassProgress,
        finish: Callable[[], None],
        before: int,
    ) -> None:
        self._dataset = dataset
        self._order = order
        self._progress = progress
        self._finish: Callable[[], None] | None = finish
        self._share = order.share if isinstance(order, PoolOrder) else progress.share
        self._ready: deque[dict[str, Any]] = deque()
        self._step, self._skip = before, 0
        if not self._share.whole_batches:
            self._step, self._skip = divmod(before, self._share.size)
        self._pooled: Iterator[PoolBatch] | None = None
        self._batch: PoolBatch | None = None

    def __next__(self) -> dict[str, Any]:
        while not self._ready:  # of the first step, all may have been handed out before
            if self._step >= self._share.steps:
                self._end()
            self._ready.extend(self._read())
        self._progress.delivered += 1
        return self._ready.popleft()

    def _end(self) -> None:
        if self._finish is not None:
            self._finish()
        self._finish = None
        raise StopIteration

    def _read(self) -> Sequence[dict[str, Any]]:
        """Read the next step: one batch, or samples that are handed out one by one."""
        if isinstance(self._order, PoolOrder):
            items = self._dataset.__getitems__(self._next_of_pool(self._order))
            self._batch = None
        else:
            frames = self._order.at(self._share.places(self._step))
            if self._step + 1 < self._share.steps:
                # Where reads wait, the next step's bytes travel while this one is decoded.
                following = self._order.at(self._share.places(self._step + 1))
                self._dataset.reader.prefetch(following)
            items = self._dataset.__getitems__(frames.tolist())
        self._step += 1
        if self._share.whole_batches:
            return [collate_samples(items)]
        skip, self._skip = self._skip, 0
        return items[skip:]

    def _next_of_pool(self, order: PoolOrder) -> PoolBatch:
        """Return this step's batch; the same one until it has been read."""
        if self._pooled is None:
            self._pooled = order.batches(self._step)
        if self._batch is None:
            self._batch = next(self._pooled)
        return self._batch
