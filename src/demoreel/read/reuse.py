"""An order of an epoch in which every frame is decoded about once.

An episode is cut into spans of consecutive frames. Some tens of spans lie decoded in memory, in the
slots of a pool, and batches are drawn from them at random; a span that is used up makes room for
the next one, of another episode. Every sample comes exactly once in an epoch. Which sample comes
when follows from (seed, epoch, the pool's form, how many ranks and workers there are), in any
process: nothing here reads the dataset. ``pool.py`` holds the memory.

Rules of the order, each of which keeps batches mixed:

- The spans of an episode are spread evenly over the epoch, so spans in memory at the same time are
  of different episodes, as far as there are as many.
- Samples are drawn in rounds: one of each span, in random order. A batch has samples of as many
  spans as it can have.
- The first spans are cut short, each at another length, so that they do not all end at once; what
  was cut off comes later.
- When no span is left to be loaded, the rest comes in random order. A dataset that fits into the
  pool as a whole is all rest: a full shuffle.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from demoreel.errors import ArgumentError
from demoreel.read.batch import PoolBatch
from demoreel.read.order import Share
from demoreel.storage.amounts import size as in_words
from demoreel.storage.cache import size_in_bytes

if TYPE_CHECKING:
    from demoreel.read.dataset import Dataset

_LONGEST = 64  # frames of a span: longer ones save little, and mix less
_SHORTEST = 8
_SPANS_WANTED = 44  # of a pool: a batch of 64 then is of about 38 spans
_PARTS_OF_GOP = 8  # a span in the middle of a long GOP costs what lies before it
_AHEAD_SHARE, _MOST_AHEAD = 8, 16  # every 8th slot loads ahead


@dataclass(frozen=True, slots=True)
class PoolForm:
    """How a pool divides its memory.

    Attributes:
        slots: How many spans it holds.
        length: Samples of a span, at most.
        gop: Frames from one keyframe to the next; spans begin at keyframes where they can.
        reach: Frames that a span's windows need before and after it, all offsets together.
    """

    slots: int
    length: int
    gop: int = 1
    reach: int = 0

    @property
    def ahead(self) -> int:
        """Slots whose spans are decoded before they are drawn from."""
        return min(_MOST_AHEAD, self.slots // _AHEAD_SHARE)

    def to_state(self) -> dict[str, int]:
        """Return it as plain numbers."""
        return {"slots": self.slots, "length": self.length, "gop": self.gop}


def pool_form(dataset: Dataset, budget: int | str, *, pools: int = 1) -> PoolForm:
    """Divide a memory budget into spans of a dataset's frames.

    Spans are as long as they can be while the pool holds enough of them to mix: longer ones decode
    fewer frames twice, those at their edges.

    Cost: the packet index of one video of each camera.

    Args:
        dataset: With its cameras, windows and ``image_size``.
        budget: Bytes, or words as ``"4GB"``, for all pools of this machine together.
        pools: How many pools (of workers) share it.
    """
    each = size_in_bytes(budget) // max(1, pools)
    longest = int(dataset.episodes.length.max(initial=1))
    gop = min(_gop_of(dataset), longest)

    def spans_in(length: int) -> int:
        return each // max(1, _span_bytes(dataset, length))

    if spans_in(1) < 1:
        raise ArgumentError(
            f"reuse={budget!r} does not hold one sample for each of {pools} pools.",
            hint=f"a sample takes {in_words(_span_bytes(dataset, 1))}: give more, read fewer "
            "cameras, or use image_size=",
            dataset=dataset.root,
        )
    reach = max((_reach(dataset, key) for key in dataset.cameras), default=0)
    short = max(_SHORTEST, min(reach, _LONGEST), min(_LONGEST, gop // _PARTS_OF_GOP))
    lengths = range(_LONGEST, 0, -1)
    whole = int((-(-dataset.episodes.length // _LONGEST)).sum())
    mixing = (n for n in lengths if n >= short and spans_in(n) >= min(_SPANS_WANTED, whole))
    fitting = (n for n in lengths if n <= short and spans_in(n) >= 2)
    length = next(mixing, 0) or next(fitting, 1)
    if gop <= length:
        length -= length % gop
    # More slots than spans would never be used; a phase adds one span to an episode.
    most = int((-(-dataset.episodes.length // length)).sum()) if gop <= length else len(dataset)
    return PoolForm(max(1, min(spans_in(length), most)), length, gop, reach)


def _reach(dataset: Dataset, key: str) -> int:
    """Return how many frames more than samples a span of a camera holds, if it is long."""
    return _frames_of(dataset, key, _LONGEST) - _LONGEST


def _frames_of(dataset: Dataset, key: str, length: int) -> int:
    """Return how many frames of a camera the windows of so many consecutive samples need."""
    return span_rows(length, dataset.offsets.get(key))


def span_rows(length: int, offsets: np.ndarray | None) -> int:
    """Return how many rows the windows of so many consecutive samples need."""
    return length if offsets is None else len(np.unique(np.arange(length)[:, None] + offsets))


def _span_bytes(dataset: Dataset, length: int) -> int:
    """Return how much memory the images of so many consecutive samples take."""
    return sum(
        _frames_of(dataset, key, length) * image_bytes(dataset, key) for key in dataset.cameras
    )


def image_bytes(dataset: Dataset, key: str) -> int:
    """Return how much memory an image of a camera takes in a sample."""
    feature = dataset.features[key]
    height, width = dataset.image_size or feature.image_shape[:2]
    return height * width * (4 if feature.is_depth else 3)


def _gop_of(dataset: Dataset) -> int:
    """Return how far keyframes are apart, in frames of the dataset, in the first episode."""
    found = 1
    reader = dataset.reader
    for key in dataset.cameras:
        if reader.in_tables(key) or not len(dataset.episodes):
            continue
        position = reader.episodes.position_of(int(dataset.episodes.episode_index[0]))
        clip = reader.clip(position, key)
        frames = clip.frames(np.arange(int(reader.episodes.length[position])))
        keys = np.flatnonzero(np.diff(clip.video.index.starts(frames))) + 1
        gaps = np.diff(np.concatenate([[0], keys, [len(frames)]]))
        found = max(found, int(np.median(gaps[:-1] if len(gaps) > 1 else gaps)))
    return found


@dataclass(frozen=True)
class PoolOrder:
    """The order of one epoch in the pools of all ranks and workers.

    Attributes:
        lengths: Frames of each episode; samples are counted through all of them.
        form: Of each pool.
        seed: A whole number.
        epoch: A whole number.
        share: Whose part of it this is, and in what steps; nothing of it is consumed.
    """

    lengths: np.ndarray
    form: PoolForm
    seed: int
    epoch: int
    share: Share

    def batches(self, first: int = 0) -> Iterator[PoolBatch]:
        """Yield the batches (or steps) of this pool, from step ``first`` on.

        Cost: under a millisecond a batch; what comes before ``first`` is drawn, not read.
        """
        batches = _Batches(self._draws(), self.form.length)
        for step in range(self.share.steps):
            batch = batches.take(len(self.share.places(step)))
            if step >= first:
                yield batch

    @cached_property
    def spans(self) -> tuple[np.ndarray, np.ndarray]:
        """First sample of every span of the epoch, and one past its last, in the epoch's order."""
        bits = self._bits("spans")
        start, stop, episode = self._cut(bits)
        if len(start) == 0:
            return start, stop
        # Each episode's spans in random order, and that order spread evenly over the epoch.
        shuffled = np.lexsort((bits.random_raw(len(start)), episode))
        count = np.bincount(episode, minlength=len(self.lengths))
        first = np.concatenate([[0], np.cumsum(count)])[episode]
        key = (np.arange(len(start)) - first + _fractions(bits, len(start))) / count[episode]
        order = shuffled[np.argsort(key, kind="stable")]
        return start[order], stop[order]

    def _cut(self, bits: np.random.PCG64) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Cut all episodes into spans: their starts, stops and episodes."""
        gop, length = self.form.gop, self.form.length
        lengths = self.lengths.astype(np.int64)
        begin = np.cumsum(lengths) - lengths
        parts = -(-gop // length) if gop > length else 1
        piece = -(-gop // parts) if parts > 1 else length
        group = gop if parts > 1 else length
        whole = int((-(-lengths // length)).sum()) <= self.form.slots
        phase = np.zeros(len(lengths), np.int64)
        if parts == 1 and not whole:  # other neighbours in every epoch; the cuts stay at keyframes
            phase = (_fractions(bits, len(lengths)) * (length // gop)).astype(np.int64) * gop
            phase = np.where(phase < lengths, phase, 0)
        rest = lengths - phase
        count = (phase > 0) + rest // group * parts + -(-(rest % group) // piece)
        episode = np.repeat(np.arange(len(lengths)), count)
        number = np.arange(len(episode)) - (np.cumsum(count) - count)[episode]
        number -= (phase > 0)[episode]
        inside, part = np.divmod(np.maximum(number, 0), parts)
        start = np.where(number < 0, 0, phase[episode] + inside * group + part * piece)
        end = np.minimum(start + piece, phase[episode] + (inside + 1) * group)
        stop = np.where(number < 0, phase[episode], np.minimum(end, lengths[episode]))
        return begin[episode] + start, begin[episode] + stop, episode

    def _dealt(self) -> list[tuple[int, int]]:
        """Return the spans of this rank's worker, cut so that each gets the samples it is due.

        A span goes to the pool that lacks most.
        """
        mine: list[tuple[int, int]] = []
        share = self.share
        pools = share.world_size * share.workers
        own = share.rank * share.workers + share.worker
        lacking = [(-due, pool) for pool, due in enumerate(_due(share, pools)) if due]
        heapq.heapify(lacking)
        for start, stop in zip(*(edge.tolist() for edge in self.spans), strict=True):
            while start < stop and lacking:
                due, pool = lacking[0]
                taken = min(-due, stop - start)
                if pool == own:
                    mine.append((start, start + taken))
                start += taken
                if -due > taken:
                    heapq.heapreplace(lacking, (due + taken, pool))
                else:
                    heapq.heappop(lacking)
        return mine

    def _bits(self, what: str) -> np.random.PCG64:
        """Return random bits: numpy promises that those of a generator stay the same."""
        text = f"demoreel reuse 1: {what}, seed {self.seed}, epoch {self.epoch}"
        digest = hashlib.shake_256(text.encode()).digest(16)
        return np.random.PCG64(int.from_bytes(digest, "little"))

    def _draws(self) -> Iterator[_Drawn]:
        name = f"rank {self.share.rank}, worker {self.share.worker}"
        return _Draws(self._dealt(), self.form, self._bits(name)).rounds()


def _due(share: Share, pools: int) -> list[int]:
    due = []
    for pool in range(pools):
        rank, worker = divmod(pool, share.workers)
        one = replace(share, rank=rank, worker=worker)
        steps = one.steps
        # All steps but the last one are equally long.
        due.append((steps - 1) * len(one.places(0)) + len(one.places(steps - 1)) if steps else 0)
    return due


def _fractions(bits: np.random.PCG64, count: int) -> np.ndarray:
    return np.asarray((bits.random_raw(count) >> np.uint64(11)) * 2.0**-53)


def _shuffled(bits: np.random.PCG64, count: int) -> np.ndarray:
    return np.argsort(bits.random_raw(count), kind="stable")


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Samples in the order in which they come, and what can be loaded once they are read."""

    frames: np.ndarray
    slots: np.ndarray
    spans: np.ndarray
    """The first frame of each sample's span, and one past its last."""
    loads: list[tuple[int, int, int]]


class _Draws:
    """Draws all samples of spans through the slots of a pool."""

    def __init__(self, spans: list[tuple[int, int]], form: PoolForm, bits: np.random.PCG64) -> None:
        self._queue = deque(spans)
        self._bits = bits
        self._span = np.zeros((form.slots, 2), np.int64)
        self._samples = np.zeros((form.slots, form.length), np.int64)
        self._drawn = np.zeros(form.slots, np.int64)
        self._count = np.zeros(form.slots, np.int64)
        self._ahead: deque[int] = deque()
        self._active: np.ndarray
        fits = len(spans) <= form.slots
        if fits:  # the same in every epoch: what lies in memory stays there
            self._queue = deque(sorted(spans))
        active = len(spans) if fits else form.slots - form.ahead
        for slot in range(active):
            start, stop = self._queue.popleft()
            cut = stop if fits else start + -(-(stop - start) * (slot + 1) // active)
            self._put(slot, (start, cut))
            if cut < stop:
                self._queue.append((cut, stop))
        self._active = np.arange(active)
        self._loads = [
            self._load(slot) for slot in range(active, form.slots) if not fits and self._queue
        ]

    def rounds(self) -> Iterator[_Drawn]:
        """Yield a sample of each active span, again and again; then the rest."""
        while self._queue:
            slots = self._active[_shuffled(self._bits, len(self._active))]
            frames = self._samples[slots, self._drawn[slots]]
            spans = self._span[slots]
            self._drawn[slots] += 1
            for slot in slots[self._drawn[slots] == self._count[slots]].tolist():
                self._replace(slot)
            yield _Drawn(frames, slots, spans, self._loads)
            self._loads = []
        slots = np.concatenate([self._active, np.array(self._ahead, np.int64)])
        left = (self._count - self._drawn)[slots]
        slots = np.repeat(slots, left)
        places = np.arange(len(slots)) - np.repeat(np.cumsum(left) - left, left)
        mixed = _shuffled(self._bits, len(slots))
        slots, places = slots[mixed], places[mixed]
        frames = self._samples[slots, self._drawn[slots] + places]
        yield _Drawn(frames, slots, self._span[slots], self._loads)

    def _replace(self, slot: int) -> None:
        """Draw from the span that was loaded ahead, and load another one into this slot."""
        self._active = self._active[self._active != slot]
        if self._queue:
            self._loads.append(self._load(slot))
        if self._ahead:
            self._active = np.append(self._active, self._ahead.popleft())

    def _load(self, slot: int) -> tuple[int, int, int]:
        span = self._queue.popleft()
        self._put(slot, span)
        self._ahead.append(slot)
        return slot, *span

    def _put(self, slot: int, span: tuple[int, int]) -> None:
        count = span[1] - span[0]
        self._span[slot] = span
        self._samples[slot, :count] = span[0] + _shuffled(self._bits, count)
        self._drawn[slot], self._count[slot] = 0, count


class _Batches:
    """Puts together batches of what is drawn."""

    def __init__(self, draws: Iterator[_Drawn], length: int) -> None:
        self._draws = draws
        self._length = length
        self._rest: _Drawn | None = None

    def take(self, count: int) -> PoolBatch:
        """Return the next batch."""
        taken: list[_Drawn] = []
        loads: dict[int, tuple[int, int, int]] = {}
        while count:
            drawn = self._rest or next(self._draws)
            part, self._rest = _parted(drawn, count)
            taken.append(part)
            loads.update((load[0], load) for load in part.loads)
            count -= len(part.frames)
        needed = np.concatenate(
            [np.column_stack([part.slots, part.spans]) for part in taken], dtype=np.int64
        )
        found: dict[tuple[int, int, int], int] = {}
        of = [found.setdefault((a, b, c), len(found)) for a, b, c in needed.tolist()]
        frames = np.concatenate([part.frames for part in taken]).tolist()
        return PoolBatch(frames, list(found), of, list(loads.values()), self._length)


def _parted(drawn: _Drawn, count: int) -> tuple[_Drawn, _Drawn | None]:
    """Return the first samples, and the others; loads can begin when all are read."""
    if len(drawn.frames) <= count:
        return drawn, None
    first, rest = (
        _Drawn(drawn.frames[part], drawn.slots[part], drawn.spans[part], loads)
        for part, loads in ((slice(count), []), (slice(count, None), drawn.loads))
    )
    return first, rest
