"""In which order the frames of an epoch come, and who reads which of them.

The order is a keyed permutation that is computed, not stored: which frame stands at a place follows
from (seed, epoch, place) alone, for any places, in any process, without a list of all frames. Ranks
and workers divide the *places* among them, so that how many there are changes who reads a frame and
never when it comes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_ROUNDS = 10  # six mix well; small datasets are the hard case, and rounds are cheap


@dataclass(frozen=True, slots=True)
class FrameOrder:
    """The order of one epoch.

    The same on every machine and with every version of numpy: nothing here asks its generators.

    Attributes:
        frames: How many there are.
        seed: A whole number.
        epoch: A whole number; every epoch has an order of its own.
        shuffle: Whether frames come in a random order, or as they lie.
    """

    frames: int
    seed: int
    epoch: int
    shuffle: bool = True

    def at(self, places: np.ndarray) -> np.ndarray:
        """Return the frames that come at these places.

        Cost: some 0.1 ms for a batch, and memory for the places asked for, whatever the number of
        frames.

        Args:
            places: Whole numbers from 0 to ``frames``, the end not included.
        """
        return frames_of_orders([self], np.zeros(len(places), np.intp), places)


def frames_of_orders(
    orders: Sequence[FrameOrder], which: np.ndarray, places: np.ndarray
) -> np.ndarray:
    """Return what ``at`` does, of several orders at a time.

    Cost: some 10 µs for each order, and 0.1 ms for all of them.

    Args:
        orders: The orders.
        which: The order of each place, by its number in ``orders``.
        places: The places.
    """
    numbers = places.astype(np.uint64)
    mixed = np.array([order.shuffle and order.frames > 1 for order in orders], np.bool_)
    frames = np.array([order.frames for order in orders], np.uint64)
    rows = np.array([math.isqrt(max(0, order.frames - 1)) + 1 for order in orders], np.uint64)
    columns = (frames + rows - np.uint64(1)) // rows
    keys = np.stack([_round_keys(order.seed, order.epoch) for order in orders], axis=1)
    wide = np.flatnonzero(mixed[which])
    # The permutation is one of a rectangle with a few places too many. A number that lands there
    # goes on until it is back among the frames: the walk follows a cycle, so no two meet.
    while len(wide):
        own = which[wide]
        numbers[wide] = _permuted(numbers[wide], rows[own], columns[own], keys[:, own])
        wide = wide[numbers[wide] >= frames[own]]
    return numbers.astype(np.int64)


def _round_keys(seed: int, epoch: int) -> np.ndarray:
    text = f"demoreel order 1: seed {seed}, epoch {epoch}"
    return np.frombuffer(hashlib.shake_256(text.encode()).digest(8 * _ROUNDS), "<u8")


def _permuted(
    numbers: np.ndarray, rows: np.ndarray, columns: np.ndarray, keys: np.ndarray
) -> np.ndarray:
    """Permute the smallest near-square rectangle that holds all frames: a Feistel network.

    A number is a row and a column. In turns, one of them is moved by an amount that follows from
    the other; each such move can be undone, so the whole is a permutation.
    """
    row, column = np.divmod(numbers, columns)
    for turn, key in enumerate(keys):
        if turn % 2:
            column = (column + _amount(row, key, columns)) % columns
        else:
            row = (row + _amount(column, key, rows)) % rows
    return np.asarray(row * columns + column)


def _amount(numbers: np.ndarray, key: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Return a pseudo-random amount for each number: the finaliser of SplitMix64, keyed."""
    mixed = numbers + key
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return np.asarray(((mixed >> np.uint64(32)) * below) >> np.uint64(32))


@dataclass(frozen=True, slots=True)
class Share:
    """Which places of an epoch's order one worker of one rank reads, step by step.

    Of the places that are left after ``consumed``, rank r of R gets every R-th, beginning with the
    r-th. So when all ranks have taken n samples, the first n x R places are taken, and any other
    number of ranks can go on from there. A rank's samples are then divided among its workers, who
    deliver in turns, as they do in a ``DataLoader``: batch by batch (``whole_batches``), or sample
    by sample.

    Attributes:
        frames: How many there are in an epoch.
        consumed: Places that all ranks together have taken already.
        rank: Which of the ranks.
        world_size: How many ranks there are.
        worker: Which of the rank's workers.
        workers: How many workers the rank has.
        size: Samples of a step.
        whole_batches: Whether a step is a batch, or ``size`` samples that are delivered singly.
        even: Give every rank equally many: up to ``world_size - 1`` places at the end are dropped.
        drop_last: Drop a rank's last batch if it is short.
    """

    frames: int
    consumed: int = 0
    rank: int = 0
    world_size: int = 1
    worker: int = 0
    workers: int = 1
    size: int = 1
    whole_batches: bool = True
    even: bool = True
    drop_last: bool = False

    @property
    def samples(self) -> int:
        """Samples that the rank gets, all workers together."""
        left = self.frames - self.consumed
        count = left // self.world_size if self.even else _every(left, self.rank, self.world_size)
        return count - count % self.size if self.drop_last and self.whole_batches else count

    @property
    def steps(self) -> int:
        """Steps of this worker."""
        if self.whole_batches:
            return _every(-(-self.samples // self.size), self.worker, self.workers)
        return -(-_every(self.samples, self.worker, self.workers) // self.size)

    def places(self, step: int) -> np.ndarray:
        """Return the places of this worker's step; ``step`` counts from 0."""
        if self.whole_batches:
            first = (self.worker + step * self.workers) * self.size
            numbers = np.arange(first, min(first + self.size, self.samples))
        else:
            first = self.worker + step * self.size * self.workers
            beyond = min(first + self.size * self.workers, self.samples)
            numbers = np.arange(first, beyond, self.workers)
        return self.consumed + self.rank + self.world_size * numbers

    def consumed_after(self, samples: int) -> int:
        """Return how many places are taken when every rank has taken that many samples."""
        return min(self.frames, self.consumed + self.world_size * samples)


def _every(count: int, first: int, stride: int) -> int:
    """Return how many of ``count`` things taking every ``stride``-th gives."""
    return max(0, -(-(count - first) // stride))
