"""Samplers: episodes with bounds, scores, ranks, resuming; batches that say what comes next."""

from __future__ import annotations

import logging
import math
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, Sampler, get_worker_info

from demoreel.errors import ArgumentError
from demoreel.read.order import FrameOrder, Share

log = logging.getLogger(__name__)

_AT_ONCE = 1024  # places whose frames are found together
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


class _EpochSampler(Sampler[int]):
    """An order for each epoch, of which every rank gets its share; resumes where a state says."""

    def __init__(
        self, num_frames: int, seed: int, rank: int | None, world_size: int | None
    ) -> None:
        self._num_frames = num_frames
        self.seed = seed
        self.rank, self.world_size = 0, 1
        if rank is not None or world_size is not None:
            from demoreel.torch.stream_pass import rank_and_world_size

            self.rank, self.world_size = rank_and_world_size(rank, world_size)
        self._epoch = 0
        self._start_index = 0

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be this epoch's."""
        self._epoch = epoch

    def state_dict(self) -> dict[str, int]:
        """Return what the next pass begins with: its epoch, and the places that it leaves out.

        ``start_index`` counts places of all ranks together; ``compute_sampler_state`` tells that
        of a training step.
        """
        return {"epoch": self._epoch, "start_index": self._start_index}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Let the next pass begin as a state says, with any number of ranks."""
        self._epoch, self._start_index = state["epoch"], state["start_index"]

    def __iter__(self) -> Iterator[int]:
        epoch, start = self._epoch, self._start_index
        self._epoch += 1
        self._start_index = 0
        return self._pass(epoch, start)

    def _pass(self, epoch: int, start: int) -> Iterator[int]:
        share = Share(
            self._num_frames,
            consumed=min(start, self._num_frames),
            rank=self.rank,
            world_size=self.world_size,
            size=_AT_ONCE,
        )
        order = self._order(epoch)
        for step in range(share.steps):
            yield from order(share.places(step)).tolist()

    def _order(self, epoch: int) -> Callable[[np.ndarray], np.ndarray]:
        raise NotImplementedError

    def __len__(self) -> int:
        """Frames that a rank gets in a whole epoch."""
        return self._num_frames // self.world_size


class EpisodeAwareSampler(_EpochSampler):
    """Frames of episodes without their first or last ones: lerobot's sampler, its order and state.

    With the same seed the frames come in lerobot 0.6.1's order. Ranks are ours: rank r of R gets
    every R-th place of that order. lerobot's training leaves that to accelerate, so ranks are given
    here by hand.

    Cost: a permutation of all frames for each epoch, 8 bytes a frame.

    Args:
        dataset_from_indices: The first frame of each episode.
        dataset_to_indices: One behind the last frame of each.
        episode_indices_to_use: Only these episodes; None is all.
        drop_n_first_frames: Frames at the begin of each episode that are left out.
        drop_n_last_frames: Frames at the end of each episode that are left out.
        shuffle: Whether frames come in a random order, another one in each epoch.
        seed: Of the orders.
        absolute_to_relative_idx: Which item a frame of the whole dataset is, where only some
            episodes were chosen.
        rank: Whose share; None is the only rank.
        world_size: How many ranks there are.

    Raises:
        ArgumentError: No frame is left, or a number makes no sense.
    """

    def __init__(
        self,
        dataset_from_indices: Sequence[int],
        dataset_to_indices: Sequence[int],
        episode_indices_to_use: Sequence[int] | None = None,
        drop_n_first_frames: int = 0,
        drop_n_last_frames: int = 0,
        shuffle: bool = False,
        seed: int = 0,
        absolute_to_relative_idx: Mapping[int, int] | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        for name, value in (("first", drop_n_first_frames), ("last", drop_n_last_frames)):
            if value < 0:
                raise ArgumentError(f"drop_n_{name}_frames must be >= 0, got {value}.")
        first = np.asarray(dataset_from_indices, np.int64)
        stop = np.asarray(dataset_to_indices, np.int64)
        if first.shape != stop.shape:
            raise ArgumentError(
                "dataset_from_indices and dataset_to_indices must have the same length, got "
                f"{len(first)} and {len(stop)}."
            )
        used = np.ones(len(first), np.bool_)
        if episode_indices_to_use is not None:
            used[:] = False
            used[np.asarray(episode_indices_to_use, np.int64)] = True
        length = stop - first - drop_n_first_frames - drop_n_last_frames
        for episode in np.flatnonzero(used & (length <= 0)).tolist():
            log.warning(
                "Episode %d has %d frames, and all of them are dropped.",
                episode,
                int(stop[episode] - first[episode]),
            )
        used &= length > 0
        if not used.any():
            raise ArgumentError("No frame is left: all episodes are too short, or not chosen.")
        self._first = (first + drop_n_first_frames)[used]
        self._ends = np.cumsum(length[used])
        self._item_of = absolute_to_relative_idx
        self.shuffle = shuffle
        super().__init__(int(self._ends[-1]), seed, rank, world_size)

    @property
    def indices(self) -> list[int]:
        """All frames, in their own order."""
        found: list[int] = self._at(np.arange(self._num_frames)).tolist()
        return found

    def _at(self, places: np.ndarray) -> np.ndarray:
        episode = np.searchsorted(self._ends, places, side="right")
        before = np.concatenate([[0], self._ends])[episode]
        frames = np.asarray(self._first[episode] + places - before)
        if self._item_of is None:
            return frames
        return np.array([self._item_of[frame] for frame in frames.tolist()], np.int64)

    def _order(self, epoch: int) -> Callable[[np.ndarray], np.ndarray]:
        if not self.shuffle:
            return self._at
        # lerobot's: one number of 64 bits from both seeds the permutation.
        (number,) = np.random.SeedSequence([self.seed, epoch]).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(number))
        order = torch.randperm(self._num_frames, generator=generator).numpy()
        return lambda places: self._at(order[places])


class WeightedSampler(_EpochSampler):
    """Frames as often as their score says, in a random order.

    Of ``num_samples`` draws every frame gets its share within one: no luck, and no limit of 2^24
    frames as in ``torch.multinomial``. Which frames get the odd draws changes with the epoch.

    Cost: 8 bytes a frame.

    Args:
        scores: A score for each frame of the dataset, 0 or more; or the dataset's own column of
            that name.
        dataset: The dataset, where ``scores`` names a column.
        num_samples: Draws of an epoch, all ranks together; None is as many as there are frames.
        seed: Of the order.
        rank: Whose share; None is the only rank.
        world_size: How many ranks there are.

    Raises:
        ArgumentError: Scores are negative, not finite or all 0, or there is no such column.
    """

    def __init__(
        self,
        scores: str | Sequence[float] | np.ndarray,
        dataset: Any = None,
        *,
        num_samples: int | None = None,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        values = _column(dataset, scores) if isinstance(scores, str) else np.asarray(scores)
        values = values.astype(np.float64).reshape(-1)
        if not len(values) or not np.isfinite(values).all() or values.min() < 0 or not values.any():
            raise ArgumentError(
                "Scores are finite numbers from 0, and not all of them 0.",
                hint="clip or shift them before",
            )
        if num_samples is not None and num_samples < 1:
            raise ArgumentError(f"num_samples must be positive, not {num_samples}.")
        self._sums = np.cumsum(values)
        super().__init__(num_samples or len(values), seed, rank, world_size)

    def _order(self, epoch: int) -> Callable[[np.ndarray], np.ndarray]:
        total = self._num_frames
        shuffled = FrameOrder(total, self.seed, epoch)
        offset = np.random.SeedSequence([self.seed, epoch]).generate_state(1)[0] / 2**32
        last = int(np.flatnonzero(np.diff(self._sums, prepend=0.0))[-1])

        def at(places: np.ndarray) -> np.ndarray:
            # Equal distances on the line of all scores: each frame is hit within one of its share.
            wanted = (shuffled.at(places) + offset) * (self._sums[-1] / total)
            found = np.searchsorted(self._sums, wanted, side="right")
            return np.asarray(np.minimum(found, last))

        return at


def _column(dataset: Any, name: str) -> np.ndarray:
    reader = getattr(dataset, "reader", None)
    if reader is None:
        raise ArgumentError(f"dataset= is needed to read the scores {name!r}.")
    feature = reader.features.get(name)
    if feature is None or not feature.is_numeric or feature.item_shape:
        raise ArgumentError(f"The dataset has no column {name!r} of single numbers.")
    rows = reader.rows_of(np.arange(len(reader)))
    return np.asarray(reader.reader.rows(rows, [name])[name])


def compute_sampler_state(
    step: int, num_frames: int, batch_size: int, num_processes: int
) -> dict[str, int]:
    """Return the state of a sampler after so many training steps, as lerobot's of this name.

    Args:
        step: Steps that were done.
        num_frames: Frames of an epoch, all ranks together.
        batch_size: Of one rank.
        num_processes: How many ranks there are.
    """
    batches = math.ceil(math.ceil(num_frames / batch_size) / num_processes)
    epoch, done = divmod(step, batches)
    return {"epoch": epoch, "start_index": min(done * batch_size * num_processes, num_frames)}
