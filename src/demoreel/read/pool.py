"""Keeps decoded images of spans in memory that is reused; ``reuse.py`` chooses the spans.

Fresh memory costs a page fault per 4 KiB: more than half of the time that decoding into it takes.
So a slot of the pool takes its memory once, and every span that comes into it is decoded there.
Spans are decoded by threads of the pool, also while the caller trains; a caller that has to wait
for one helps.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from demoreel.media.decode import DecodePool, Decoder, Job
from demoreel.read.batch import Expanded, PoolBatch, SpanCameras, aligned_bytes
from demoreel.read.cameras import Allocate
from demoreel.read.reuse import span_rows
from demoreel.storage.threads import Threads, renew_in_children

_JOBS_TOGETHER = 8  # GOPs that one thread decodes before it looks for other work

Span = tuple[int, int, int]
"""A slot, and the rows of a span: the first, and one past the last."""


@dataclass(slots=True)
class _Slot:
    """A span that is in memory, or is on its way there.

    Attributes:
        span: Its rows, and those of its episode; None if there is none.
        memory: By camera.
        rows: By camera, the rows of the images, ascending.
        images: By camera: (rows, channels, height, width).
        loading: Parts that are being decoded.
    """

    span: tuple[int, int] | None = None
    memory: dict[str, np.ndarray] = field(default_factory=dict)
    rows: dict[str, np.ndarray] = field(default_factory=dict)
    images: dict[str, np.ndarray] = field(default_factory=dict)
    loading: list[Future[None]] = field(default_factory=list)


class SpanPool:
    """Spans of a dataset's images, each decoded once."""

    def __init__(self, threads: int | None) -> None:
        self._decoders = DecodePool(threads)
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Start again in a forked child, whose threads are not there."""
        self._process = os.getpid()
        self._slots: defaultdict[int, _Slot] = defaultdict(_Slot)
        self._waiting: deque[tuple[Future[None], Callable[[Decoder], None]]] = deque()
        self._lock = threading.Lock()
        self._threads: Threads | None = None
        self.decoded = 0
        """Images that were decoded."""

    @property
    def nbytes(self) -> int:
        """Memory that the pool has taken."""
        return sum(m.nbytes for slot in self._slots.values() for m in slot.memory.values())

    def read(
        self,
        batch: PoolBatch,
        spans: tuple[Sequence[Span], Sequence[Span]],
        rows: np.ndarray,
        images: SpanCameras,
        windows: Mapping[str, Expanded],
        allocate: Allocate,
        meanwhile: Callable[[], object],
    ) -> dict[str, np.ndarray]:
        """Return the images of a batch, by camera.

        Args:
            batch: Says which span each sample is in.
            spans: Those of the batch, and those to begin afterwards, in rows.
            rows: Of the samples.
            images: The cameras.
            windows: Of the samples.
            allocate: Makes the arrays.
            meanwhile: What is done once, while threads decode or copy.
        """
        with self._lock:
            found: dict[str, np.ndarray] = {}
            needed, ahead = spans
            of = np.array(batch.span_of)
            for numbers in _waves(needed):
                for number in numbers:
                    self._begin(needed[number], batch.length, images)
                for number in numbers:
                    self._finish(needed[number][0])
                jobs: list[Job] = []
                for number in numbers:
                    slot = self._slots[needed[number][0]]
                    for key in images.cameras:
                        wanted = windows[key].rows if key in windows else rows[:, None]
                        if key not in found:
                            shape = slot.images[key].shape[1:]
                            found[key] = allocate((*wanted.shape, *shape), slot.images[key].dtype)
                        jobs += _copies(slot, key, wanted, found[key], np.flatnonzero(of == number))
                self._decoders.run(jobs, meanwhile=meanwhile)
                meanwhile = _nothing
            for span in ahead:
                self._begin(span, batch.length, images)
            return {key: array if key in windows else array[:, 0] for key, array in found.items()}

    def settle(self) -> None:
        """Wait until all that was begun is decoded."""
        with self._lock:
            for slot in self._slots.values():
                wait(slot.loading)

    def _begin(self, wanted: Span, length: int, images: SpanCameras) -> None:
        """Begin to decode a span, unless it is in its slot already."""
        number, span = wanted[0], wanted[1:]
        slot = self._slots[number]
        if slot.span == span:
            return
        wait(slot.loading)  # of a batch that was broken off: threads still write there
        slot.span, slot.loading = None, []
        jobs: list[Job] = []
        slot.rows = images.rows_of(span)
        if images.reader.is_remote:
            images.reader.expect(slot.rows)
        for key, camera in images.cameras.items():
            rows = slot.rows[key]
            # Enough for the longest span that the slot will hold.
            most = span_rows(length, images.offsets.get(key))
            memory = _Memory(slot.memory, key, most / len(rows))
            slot.images[key], more = camera.prepare(rows).fill(memory)
            jobs += more
            self.decoded += len(slot.rows[key])
        for at in range(0, len(jobs), _JOBS_TOGETHER):
            future: Future[None] = Future()
            slot.loading.append(future)
            self._waiting.append((future, _in_turn(jobs[at : at + _JOBS_TOGETHER])))
        slot.span = span
        for _ in slot.loading:
            self._helpers.submit(self._work)

    def _finish(self, number: int) -> None:
        """Wait until a slot's span is there; the caller helps."""
        slot = self._slots[number]
        try:
            while not all(future.done() for future in slot.loading):
                if self._decoders.threads == 1 or not self._work():
                    wait(slot.loading)
            for future in slot.loading:
                future.result()
        except BaseException:
            slot.span = None  # decoded again when it is wanted again
            raise

    def _work(self) -> bool:
        """Decode the part of a span that has waited longest; False if none waits."""
        try:
            future, job = self._waiting.popleft()
        except IndexError:
            return False
        try:
            job(self._decoders.decoder)
            future.set_result(None)
        except BaseException as error:
            future.set_exception(error)
        return True

    @property
    def _helpers(self) -> Threads:
        if self._threads is None:
            self._threads = Threads(max(1, self._decoders.threads - 1), "demoreel-pool")
            weakref.finalize(self, self._threads.close)
        return self._threads


class _Memory:
    """Allocates a camera's part of a slot, which is taken once."""

    def __init__(self, memory: dict[str, np.ndarray], key: str, larger: float) -> None:
        self._memory = memory
        self._key = key
        self._larger = max(1.0, larger)

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> np.ndarray:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        block = self._memory.get(self._key)
        if block is None or block.nbytes < size:
            block = self._memory[self._key] = aligned_bytes(round(size * self._larger))
        return block[:size].view(dtype).reshape(shape)


def _waves(spans: Sequence[Span]) -> list[list[int]]:
    """Group spans, by their numbers, so that no two of a group need the same slot."""
    waves: list[list[int]] = []
    seen: defaultdict[int, int] = defaultdict(int)
    for number, (slot, _, _) in enumerate(spans):
        if seen[slot] == len(waves):
            waves.append([])
        waves[seen[slot]].append(number)
        seen[slot] += 1
    return waves


def _copies(
    slot: _Slot, key: str, wanted: np.ndarray, out: np.ndarray, samples: np.ndarray
) -> list[Job]:
    places = np.searchsorted(slot.rows[key], wanted[samples])
    images = slot.images[key]

    def copy(sample: int, place: np.ndarray, _: Decoder) -> None:
        images.take(place, axis=0, out=out[sample], mode="clip")  # releases the GIL

    return [
        partial(copy, sample, place) for sample, place in zip(samples.tolist(), places, strict=True)
    ]


def _in_turn(jobs: Sequence[Job]) -> Job:
    def run(decoder: Decoder) -> None:
        for job in jobs:
            job(decoder)

    return run


def _nothing() -> None:
    pass
