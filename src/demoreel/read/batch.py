"""Reads one batch: windows, rows, a plan of images, one round of decoding."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from demoreel.errors import ArgumentError, UnknownKeyError, nearest
from demoreel.layouts.base import Column, Reader
from demoreel.media.decode import DecodePool, Job
from demoreel.model.depth import DepthUnit
from demoreel.read.cameras import Allocate, Camera, Prepared, Size
from demoreel.storage.threads import renew_in_children, think_ahead

if TYPE_CHECKING:
    from demoreel.read.packets import PacketDecoder

Offsets = Iterable[int] | Iterable[float]
Windows = Mapping[str, Offsets]
"""Feature key -> offsets from the current frame: integers are frames, floats are seconds."""

Batch = dict[str, Any]
"""Feature key -> a column with one entry per sample: an array, or a list for text."""

_MOST_AHEAD = 8  # announced batches that are kept until they are read
_WORTH_KEEPING = 1 << 20
_MOST_KEPT = 1 << 30
_MOST_BLOCKS = 8
_ALIGNMENT = 64


def frame_offsets(
    windows: Windows, *, known: Iterable[str], fps: float, tolerance_s: float
) -> dict[str, np.ndarray]:
    """Translate windows into frame offsets."""
    names = list(known)
    offsets: dict[str, np.ndarray] = {}
    off_grid: dict[str, list[float]] = {}
    for key, values in windows.items():
        if key not in names:
            raise UnknownKeyError(
                f"There is no feature {key!r} to take a window of.", hint=nearest(key, names)
            )
        listed = list(values)
        if not listed:
            raise ArgumentError(f"The window of {key!r} is empty.")
        bad = [value for value in listed if not _on_grid(value, fps, tolerance_s)]
        if bad:
            off_grid[key] = bad
        else:
            frames = [v if _is_frames(v) else round(v * fps) for v in listed]
            offsets[key] = np.array(frames, dtype=np.int64)
    if off_grid:
        lines = "; ".join(f"{key}: {values}" for key, values in off_grid.items())
        raise ArgumentError(
            f"These offsets are not multiples of 1/{fps:g} s within {tolerance_s:g} s: {lines}.",
            hint="give seconds that fall on frames, or integers, which are frames",
        )
    return offsets


def _is_frames(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _on_grid(value: float, fps: float, tolerance_s: float) -> bool:
    if _is_frames(value):
        return True
    if not isinstance(value, (float, np.floating)) or not np.isfinite(value):
        return False
    return bool(abs(value * fps - round(value * fps)) / fps <= tolerance_s)


@dataclass(frozen=True, slots=True)
class Expanded:
    """Rows of a window for each sample.

    Attributes:
        rows: Positions in the dataset (samples, offsets), clamped to each sample's episode.
        is_pad: Where clamping was needed.
    """

    rows: np.ndarray
    is_pad: np.ndarray


def expand(rows: np.ndarray, offsets: np.ndarray, start: np.ndarray, stop: np.ndarray) -> Expanded:
    """Expand rows by offsets; ``start`` and ``stop`` are the edges of each row's episode."""
    wanted = rows[:, None] + offsets[None, :]
    low, high = start[:, None], stop[:, None] - 1
    return Expanded(
        rows=np.minimum(np.maximum(wanted, low), high),
        is_pad=(wanted < low) | (wanted > high),
    )


@dataclass(frozen=True, slots=True)
class Begun:
    """A batch that was planned, for one use; several may be decoded together.

    Attributes:
        jobs: Decode its images.
        meanwhile: Reads its other columns; to be called once, while or after the jobs run.
        finish: Returns the batch, when both are done.
    """

    jobs: Iterator[Job]
    meanwhile: Callable[[], None]
    finish: Callable[[], Batch]


class PoolBatch(list[int]):
    """Indices of a batch, and the spans of a pool that its images are taken from.

    ``Dataset.batch`` serves it from the dataset's pool; any other reader takes it for a list.

    Attributes:
        spans: (slot, first frame, one past the last) of each span that is needed, in order.
        span_of: Which of them each sample is in.
        ahead: Spans that are begun when the batch has been read, in slots that it leaves.
        length: Samples of a span of this pool, at most.
    """

    def __init__(
        self,
        indices: Sequence[int],
        spans: Sequence[tuple[int, int, int]],
        span_of: Sequence[int],
        ahead: Sequence[tuple[int, int, int]],
        length: int,
    ) -> None:
        super().__init__(indices)
        self.spans = list(spans)
        self.span_of = list(span_of)
        self.ahead = list(ahead)
        self.length = length

    def in_rows(
        self, rows_of: Callable[[list[int]], np.ndarray]
    ) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
        """Return the spans and those ahead, in positions of the layout."""
        every = [*self.spans, *self.ahead]
        firsts = rows_of([start for _, start, _ in every]).tolist()
        moved = [
            (slot, first, first + stop - start)
            for (slot, start, stop), first in zip(every, firsts, strict=True)
        ]
        return moved[: len(self.spans)], moved[len(self.spans) :]

    def __reduce__(self) -> tuple[Any, ...]:
        return PoolBatch, (list(self), self.spans, self.span_of, self.ahead, self.length)


@dataclass(frozen=True, slots=True)
class SpanCameras:
    """The cameras and windows of a span of consecutive samples.

    Attributes:
        reader: The dataset's layout.
        cameras: By key.
        offsets: Windows of all features, in frames.
    """

    reader: Reader
    cameras: Mapping[str, Camera]
    offsets: Mapping[str, np.ndarray]

    def rows_of(self, span: tuple[int, int]) -> dict[str, np.ndarray]:
        """Return the rows that consecutive samples of an episode need, by camera."""
        samples = np.arange(*span)
        episodes = self.reader.episodes
        position = episodes.positions_of_rows(samples[:1])
        start, stop = (np.repeat(episodes.start[position + more], len(samples)) for more in (0, 1))
        return {
            key: np.unique(expand(samples, self.offsets[key], start, stop).rows)
            if key in self.offsets
            else samples
            for key in self.cameras
        }


Pooled = Callable[
    [SpanCameras, Mapping[str, Expanded], Allocate, Callable[[], object]], dict[str, np.ndarray]
]
"""Returns the images of a batch, by camera; calls the last of its arguments once meanwhile."""


class BatchReader:
    """Turns positions in the dataset into batches.

    Args:
        reader: The dataset's layout.
        cameras: Cameras to decode; the others are left out of the samples.
        offsets: Frame offsets by feature key.
        size: Height and width to scale images to.
        depth_unit: Unit of depth images.
        threads: Decoding threads; None chooses.
    """

    def __init__(
        self,
        reader: Reader,
        *,
        cameras: Sequence[str],
        offsets: Mapping[str, np.ndarray],
        size: Size | None,
        depth_unit: DepthUnit,
        threads: int | None,
    ) -> None:
        if depth_unit not in ("mm", "m"):
            raise ArgumentError(f"depth_unit must be 'mm' or 'm', not {depth_unit!r}.")
        if threads is not None and threads < 1:
            raise ArgumentError(f"decode_threads must be at least 1, not {threads}.")
        size = None if size is None else _checked_size(size)
        self._reader = reader
        self._offsets = dict(offsets)
        features = reader.info.features
        self._cameras = {key: Camera(reader, features[key], size, depth_unit) for key in cameras}
        self._columns = [key for key, feature in features.items() if not feature.is_camera]
        videos = [key for key in cameras if features[key].is_video]
        rest = [key for key in features if key not in videos]
        self._order = videos + [k for k in rest if k in self._cameras or k in self._columns]
        self.pool = DecodePool(threads)
        self._ahead = _Ahead() if reader.is_remote else None

    def read(
        self,
        rows: np.ndarray,
        *,
        allocate: Allocate = np.empty,
        pooled: Pooled | None = None,
        decoder: PacketDecoder | None = None,
    ) -> Batch:
        """Return the samples at these positions.

        Args:
            rows: Positions in the dataset.
            allocate: Makes the arrays that images are decoded into.
            pooled: Gives the images, of spans that lie decoded in memory.
            decoder: See ``begin``.
        """
        if pooled is not None:
            windows = self._windows(rows)
            values: dict[str, Column] = {}
            cameras = SpanCameras(self._reader, self._cameras, self._offsets)
            read_rows = partial(self._read_rows, rows, windows, values)
            values.update(pooled(cameras, windows, allocate, read_rows))
            return self._whole(values, windows)
        begun = self.begin(rows, allocate=allocate, decoder=decoder)
        self.pool.run(begun.jobs, meanwhile=begun.meanwhile)
        return begun.finish()

    def begin(
        self,
        rows: np.ndarray,
        *,
        allocate: Allocate = np.empty,
        decoder: PacketDecoder | None = None,
    ) -> Begun:
        """Plan a batch: starts the requests for remote data, and decodes nothing yet.

        Args:
            rows: Positions in the dataset.
            allocate: Makes the arrays that images are decoded into.
            decoder: A device that decodes video. Of a camera whose frames it decodes, all of them,
                the batch holds the packets (``PacketImages``).
        """
        windows = self._windows(rows)
        values: dict[str, Any] = {}
        jobs: list[Iterator[Job]] = []
        cameras, others = self._begun(rows, windows)
        for key, prepared in cameras.items():
            if decoder is not None:
                from demoreel.read.packets import PacketImages

                found = prepared.packets(decoder.is_decoded, allocate)
                if not isinstance(found, Prepared):
                    shape = windows[key].rows.shape if key in windows else (len(rows),)
                    values[key] = PacketImages.of_packets(
                        found.reshaped(shape), (*shape, *prepared.shape[1:])
                    )
                    continue
                prepared = found
            images, more = prepared.fill(allocate)
            if key in windows:
                images = images.reshape(*windows[key].rows.shape, *images.shape[1:])
            values[key] = images
            jobs.append(more)

        def meanwhile() -> None:
            if others is None:
                self._read_rows(rows, windows, values)

        def finish() -> Batch:
            if others is not None:
                values.update(others.result())
            return self._whole(values, windows)

        return Begun(itertools.chain(*jobs), meanwhile, finish)

    def _read_rows(
        self, rows: np.ndarray, windows: Mapping[str, Expanded], values: dict[str, Column]
    ) -> None:
        values.update(self._rows(rows, windows))

    def _whole(self, values: dict[str, Column], windows: Mapping[str, Expanded]) -> Batch:
        """Return a batch in the order of the features, with masks and tasks."""
        batch: Batch = {key: values[key] for key in self._order}
        batch.update({f"{key}_is_pad": window.is_pad for key, window in windows.items()})
        tasks = values.get("task_index")
        if isinstance(tasks, np.ndarray):
            now = self._now(tasks, windows.get("task_index"))
            batch["task"] = self._reader.tasks.texts(now)
        return batch

    def prefetch(self, rows: np.ndarray) -> None:
        """Begin to fetch what a batch of these positions will need; nothing if it is local.

        Returns at once. The next ``read`` of exactly these positions, in this order, finds it.
        """
        if self._ahead is not None:
            self._ahead.begin(rows, lambda: self._plan(rows, self._windows(rows)))

    def _windows(self, rows: np.ndarray) -> dict[str, Expanded]:
        if not self._offsets:
            return {}
        episodes = self._reader.episodes
        positions = episodes.positions_of_rows(rows)
        start, stop = episodes.start[positions], episodes.start[positions + 1]
        return {key: expand(rows, offs, start, stop) for key, offs in self._offsets.items()}

    def _begun(
        self, rows: np.ndarray, windows: Mapping[str, Expanded]
    ) -> tuple[dict[str, Prepared], Future[dict[str, Column]] | None]:
        """Return the images to decode, and the other columns if they are being fetched."""
        if self._ahead is None:
            return self._prepare(rows, windows), None
        plan = self._ahead.take(rows) or self._plan(rows, windows)
        return plan.images, plan.rows

    def _plan(self, rows: np.ndarray, windows: Mapping[str, Expanded]) -> _Plan:
        """Begin to fetch all that a batch needs, at the same time."""
        others = think_ahead(lambda: self._rows(rows, windows))
        return _Plan(self._prepare(rows, windows), others)

    def _prepare(self, rows: np.ndarray, windows: Mapping[str, Expanded]) -> dict[str, Prepared]:
        wanted = {
            key: windows[key].rows.reshape(-1) if key in windows else rows for key in self._cameras
        }
        if self._ahead is not None:
            self._reader.expect(wanted)
        return {key: camera.prepare(wanted[key]) for key, camera in self._cameras.items()}

    def _rows(self, rows: np.ndarray, windows: Mapping[str, Expanded]) -> dict[str, Column]:
        plain = [key for key in self._columns if key not in windows]
        values = self._reader.rows(rows, plain)
        for key in self._columns:
            if key in windows:
                wanted = windows[key].rows
                column = self._reader.rows(wanted.reshape(-1), [key])[key]
                values[key] = _folded(column, wanted.shape)
        return values

    def _now(self, tasks: np.ndarray, window: Expanded | None) -> np.ndarray:
        """Return each sample's task; of a window of tasks, the one nearest to now."""
        if window is None:
            return tasks
        offsets = self._offsets["task_index"]
        return tasks[:, int(np.argmin(np.abs(offsets)))]


@dataclass(frozen=True, slots=True)
class _Plan:
    """A batch whose data is being fetched.

    Attributes:
        images: The images to decode, by camera.
        rows: The other columns.
    """

    images: dict[str, Prepared]
    rows: Future[dict[str, Column]]


class _Ahead:
    """Batches that are planned in advance, by their rows."""

    def __init__(self) -> None:
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Start again in a forked child: what is under way will never arrive there."""
        self._plans: OrderedDict[bytes, Future[_Plan]] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, rows: np.ndarray, prepare: Callable[[], _Plan]) -> None:
        """Begin to prepare a batch, unless that has begun."""
        key = rows.tobytes()
        with self._lock:
            if key not in self._plans:
                self._plans[key] = think_ahead(prepare)
                while len(self._plans) > _MOST_AHEAD:
                    self._plans.popitem(last=False)

    def take(self, rows: np.ndarray) -> _Plan | None:
        """Wait for the plan of a batch and return it; None if ``begin`` was not called for it."""
        if not self._plans:
            return None
        with self._lock:
            future = self._plans.pop(rows.tobytes(), None)
        return None if future is None else future.result()


def _checked_size(size: Size) -> Size:
    if len(size) != 2 or not all(isinstance(s, (int, np.integer)) and s > 0 for s in size):
        raise ArgumentError(f"image_size must be (height, width) in pixels, not {size!r}.")
    return (int(size[0]), int(size[1]))


def _folded(column: Column, shape: tuple[int, ...]) -> Column:
    if isinstance(column, np.ndarray):
        return column.reshape(*shape, *column.shape[1:])
    samples, offsets = shape
    return [column[at * offsets : (at + 1) * offsets] for at in range(samples)]


def sample_of(batch: Batch, place: int) -> dict[str, Any]:
    """Return one sample of a batch; numbers stay arrays, also single ones."""
    return {
        key: np.asarray(column[place]) if isinstance(column, np.ndarray) else column[place]
        for key, column in batch.items()
    }


class Recycler:
    """Hands out uninitialised arrays, and takes their memory back when they are gone.

    Fresh memory costs a page fault per 4 KiB: for windows of video that is more than reading the
    rows. A training loop drops a batch every step, so its memory can serve the next one.

    An array's memory returns only when the array, every view of it and every tensor made from
    it have been freed, because each of them keeps the array object alive.
    """

    def __init__(self) -> None:
        self._free: deque[np.ndarray] = deque()
        self._lock = threading.RLock()  # a finalizer may run while this thread holds it

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Return an uninitialised array."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if size < _WORTH_KEEPING:
            return np.empty(shape, dtype)
        block = self._take(size)
        # Through ``data``, a memoryview: numpy lets views of views point at the first array in a
        # chain of arrays, and that must be the one whose end is watched, not the block.
        array = np.frombuffer(block.data, dtype, size // dtype.itemsize)
        weakref.finalize(array, self._give_back, block).atexit = False
        return array.reshape(shape)

    def _take(self, size: int) -> np.ndarray:
        with self._lock:
            for block in self._free:
                if block.nbytes == size:
                    self._remove(block)
                    return block
        return aligned_bytes(size)

    def _remove(self, block: np.ndarray) -> None:
        self._free = deque(other for other in self._free if other is not block)

    def _give_back(self, block: np.ndarray) -> None:
        with self._lock:
            self._free.append(block)
            while (
                len(self._free) > _MOST_BLOCKS
                or sum(kept.nbytes for kept in self._free) > _MOST_KEPT
            ):
                self._free.popleft()


def aligned_bytes(size: int) -> np.ndarray:
    """Return bytes that begin where processors like rows of pixels to begin."""
    block = np.empty(size + _ALIGNMENT, np.uint8)
    skipped = -int(block.__array_interface__["data"][0]) % _ALIGNMENT
    return block[skipped : skipped + size]
