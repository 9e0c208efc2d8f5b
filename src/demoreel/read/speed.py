"""Measures how fast a dataset loads on this machine, compared with the floor.

The floor is what no reader can beat: decoding and converting the very same spans of video (or
encoded images), found and loaded beforehand, on as many threads, into one image's memory. What
a reader adds to it is planning, reading bytes and rows, and making batches.

Machines are noisy, so rounds of the two alternate, each pair on the same random frames, and medians
are reported. Bytes are loaded once before a round: both sides find them in the page cache, and the
disk is not measured. ``bytes_per_sample`` tells what the disk would have to deliver.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from demoreel.errors import ArgumentError, VideoError
from demoreel.layouts.base import Reader
from demoreel.media.decode import DecodePool, Decoder, GopSpan, Job, byte_ranges, group_frames
from demoreel.media.video import Video
from demoreel.model import Feature
from demoreel.read.batch import PoolBatch, expand
from demoreel.read.cameras import Camera
from demoreel.read.dataset import Dataset
from demoreel.read.order import Share
from demoreel.read.reuse import PoolOrder, pool_form
from demoreel.storage.cache import size_in_bytes
from demoreel.storage.local import LocalFile, open_file
from demoreel.storage.store import Bytes

ROUNDS = 9
_TURNS = 3


@dataclass(frozen=True, slots=True)
class Speed:
    """What was measured.

    Attributes:
        window: Frames of each camera in a sample.
        batch_size: Samples in a batch.
        threads: Threads that decoded, on both sides.
        samples: Samples that were timed on each side.
        open_s: Seconds that opening the dataset took.
        samples_per_s: Median over the rounds, through ``Dataset.batch``.
        floor_samples_per_s: Median over the rounds; None where no camera is to be decoded.
        share: Median over the rounds of reader to floor; 1 would be perfect.
        bytes_per_sample: Encoded bytes that a sample needs, those of shared spans split.
    """

    window: int
    batch_size: int
    threads: int
    samples: int
    open_s: float
    samples_per_s: float
    floor_samples_per_s: float | None
    share: float | None
    bytes_per_sample: float


def measure_speed(
    root: str | os.PathLike[str],
    *,
    window: int = 1,
    cameras: Iterable[str] | None = None,
    batch_size: int = 32,
    seconds: float = 5.0,
    threads: int | None = None,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Speed:
    """Load random batches of a dataset, and decode the same images without the reader.

    Args:
        root: The dataset's folder.
        window: Frames of each camera in a sample, the last being the current one.
        cameras: Decode only these.
        batch_size: Samples in a batch.
        seconds: How long to measure, both sides together. Loading the bytes beforehand and
            finding out how long a batch takes come on top.
        threads: Threads that decode; by default every core.
        seed: Draws the frames.
        progress: Called with the share that is done, 0 to 1.
    """
    _refuse_nonsense(window=window, batch_size=batch_size, seconds=seconds)
    started = time.perf_counter()
    dataset = _opened(root, window, cameras, threads)
    open_s = time.perf_counter() - started
    floor = _Floor(dataset, window, threads)
    random = np.random.default_rng(seed)

    def draw(batches: int) -> list[np.ndarray]:
        return list(random.integers(0, len(dataset), (batches, batch_size)))

    batches = _batches_in(dataset, draw, seconds / (2 * ROUNDS))
    reader_rates, floor_rates, shares, loaded = [], [], [], 0
    for number in range(ROUNDS):
        work = draw(batches)
        jobs = floor.prepare(work)
        loaded += floor.loaded_bytes
        samples = batches * batch_size
        reader_rates.append(samples / _timed(lambda: _read_all(dataset, work)))  # noqa: B023
        if jobs:
            floor_rates.append(samples / _timed(lambda: floor.pool.run(jobs)))  # noqa: B023
            shares.append(reader_rates[-1] / floor_rates[-1])
        if progress is not None:
            progress((number + 1) / ROUNDS)
    return Speed(
        window=window,
        batch_size=batch_size,
        threads=floor.pool.threads,
        samples=ROUNDS * batches * batch_size,
        open_s=open_s,
        samples_per_s=median(reader_rates),
        floor_samples_per_s=median(floor_rates) if floor_rates else None,
        share=median(shares) if shares else None,
        bytes_per_sample=loaded / (ROUNDS * batches * batch_size),
    )


@dataclass(frozen=True, slots=True)
class ReuseSpeed:
    """What a pool of decoded spans gains, and what its order is like beside a full shuffle.

    Attributes:
        budget: Bytes that were allowed.
        spans: How many the pool holds.
        span_length: Samples of a span, at most.
        samples_per_s: With the pool.
        plain_samples_per_s: Random batches, without.
        decoded_per_sample: Images of a camera that were decoded for each sample, with the pool.
        episodes: Of how many episodes a batch is, on average.
        plain_episodes: Likewise of a full shuffle.
        distance: How far two neighbours in the order are apart, as a share of all samples: the
            median.
        plain_distance: Likewise of a full shuffle.
    """

    budget: int
    spans: int
    span_length: int
    samples_per_s: float
    plain_samples_per_s: float
    decoded_per_sample: float
    episodes: float
    plain_episodes: float
    distance: float
    plain_distance: float

    @property
    def gain(self) -> float:
        """How many times as fast the pool is."""
        return self.samples_per_s / self.plain_samples_per_s


def measure_reuse(
    root: str | os.PathLike[str],
    budget: int | str,
    *,
    window: int = 1,
    cameras: Iterable[str] | None = None,
    batch_size: int = 32,
    seconds: float = 5.0,
    threads: int | None = None,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> ReuseSpeed:
    """Load batches from a pool of decoded spans, and random ones without, in turns."""
    _refuse_nonsense(window=window, batch_size=batch_size, seconds=seconds)
    pooled, plain = (_opened(root, window, cameras, threads) for _ in range(2))
    form = pool_form(pooled, budget)
    random = np.random.default_rng(seed)
    share = Share(len(pooled), size=batch_size)
    lengths = pooled.episodes.length

    def order(epoch: int) -> Iterator[PoolBatch]:
        return PoolOrder(lengths, form, seed, epoch, share).batches()

    batches = itertools.chain.from_iterable(map(order, itertools.count()))
    first = next(batches)
    pooled.batch(first)  # fills it
    plain.batch(random.integers(0, len(plain), batch_size))
    before, samples, took, plain_samples, plain_took = _decoded(pooled), 0, 0.0, 0, 0.0
    for turn in range(_TURNS):
        end = time.perf_counter() + seconds / (2 * _TURNS)
        begin = time.perf_counter()
        while time.perf_counter() < end:
            samples += len(batch := next(batches))
            pooled.batch(batch)
        if pooled.pool is not None:
            pooled.pool.settle()  # it decodes ahead
        took += time.perf_counter() - begin
        begin = time.perf_counter()
        while time.perf_counter() < begin + seconds / (2 * _TURNS):
            plain.batch(random.permutation(len(plain))[:batch_size])
            plain_samples += min(batch_size, len(plain))
        plain_took += time.perf_counter() - begin
        if progress is not None:
            progress((turn + 1) / _TURNS)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    mine = np.concatenate([np.array(batch) for batch in order(0)])
    theirs = random.permutation(len(plain))
    return ReuseSpeed(
        budget=size_in_bytes(budget),
        spans=form.slots,
        span_length=form.length,
        samples_per_s=samples / took,
        plain_samples_per_s=plain_samples / plain_took,
        decoded_per_sample=(_decoded(pooled) - before) / samples / max(1, len(pooled.cameras)),
        episodes=_episodes_of(episode[mine], batch_size),
        plain_episodes=_episodes_of(episode[theirs], batch_size),
        distance=_distance(mine),
        plain_distance=_distance(theirs),
    )


def _decoded(dataset: Dataset) -> int:
    return 0 if dataset.pool is None else dataset.pool.decoded


def _episodes_of(episodes: np.ndarray, size: int) -> float:
    """Return of how many episodes a batch is, on average; of whole batches, if there are any."""
    whole = episodes[: max(size, len(episodes) // size * size)]
    batches = np.split(whole, range(size, len(whole), size))
    return float(np.mean([len(np.unique(batch)) for batch in batches]))


def _distance(order: np.ndarray) -> float:
    return float(np.median(np.abs(np.diff(order)))) / len(order) if len(order) > 1 else 0.0


def _refuse_nonsense(*, window: int, batch_size: int, seconds: float) -> None:
    for name, value in (("window", window), ("batch_size", batch_size), ("seconds", seconds)):
        if not value > 0:
            raise ArgumentError(f"{name} must be positive, not {value}.")


def _opened(
    root: str | os.PathLike[str], window: int, cameras: Iterable[str] | None, threads: int | None
) -> Dataset:
    dataset = Dataset(root, cameras=cameras, decode_threads=threads)
    if window == 1:
        return dataset
    windows = {key: _offsets(window) for key in dataset.cameras}
    return Dataset(root, cameras=dataset.cameras, windows=windows, decode_threads=threads)


def _offsets(window: int) -> list[int]:
    return list(range(1 - window, 1))


def _batches_in(dataset: Dataset, draw: Callable[[int], list[np.ndarray]], seconds: float) -> int:
    """Return how many batches fit into so many seconds, by trying: first once to warm up."""
    _read_all(dataset, draw(1))
    took = min(_timed(lambda: _read_all(dataset, draw(1))) for _ in range(2))
    return max(1, round(seconds / took))


def _read_all(dataset: Dataset, batches: list[np.ndarray]) -> None:
    for indices in batches:
        dataset.batch(indices)


def _timed(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


class _Floor:
    """Decodes and converts what batches need, all of it found and loaded beforehand."""

    def __init__(self, dataset: Dataset, window: int, threads: int | None) -> None:
        self._dataset = dataset
        self._offsets = np.array(_offsets(window))
        self._threads = threading.local()
        features = dataset.features
        self._cameras = [
            Camera(dataset.reader, features[key], None, "mm") for key in dataset.cameras
        ]
        self.pool = DecodePool(threads)
        self.loaded_bytes = 0

    def prepare(self, batches: list[np.ndarray]) -> list[Job]:
        """Return the jobs that decode these batches' images, each batch's duplicates left out."""
        self.loaded_bytes = 0
        jobs: list[Job] = []
        episodes = self._dataset.reader.episodes
        for indices in batches:
            rows = self._dataset.rows_of(indices)
            positions = episodes.positions_of_rows(rows)
            edges = episodes.start[positions], episodes.start[positions + 1]
            wanted = np.unique(expand(rows, self._offsets, *edges).rows)
            for camera in self._cameras:
                make = self._image_jobs if camera.in_tables else self._video_jobs
                jobs += make(camera, wanted)
        return jobs

    def _video_jobs(self, camera: Camera, rows: np.ndarray) -> Iterator[Job]:
        for span in spans(self._dataset.reader, camera.feature, rows):
            loaded = load(span)
            self.loaded_bytes += loaded.file.size
            yield self._video_job(camera, loaded)

    def _video_job(self, camera: Camera, span: GopSpan) -> Job:
        codec = span.index.codec

        def decode(decoder: Decoder) -> None:
            desk = self._desk(1 if camera.feature.is_depth else 3, codec.height, codec.width)
            for _, frame in decoder.frames(span):
                camera.paint(decoder, frame, desk)

        return decode

    def _image_jobs(self, camera: Camera, rows: np.ndarray) -> Iterator[Job]:
        encoded = self._dataset.reader.encoded(rows, camera.feature.key)
        self.loaded_bytes += sum(map(len, encoded))
        for row, data in zip(rows.tolist(), encoded, strict=True):
            yield self._image_job(camera, row, data)

    def _image_job(self, camera: Camera, row: int, data: bytes) -> Job:
        def decode(_: Decoder) -> None:
            channels, height, width = camera.form_of(row, data)
            desk = self._desk(channels, height, width)
            camera.paint_encoded(row, data, desk, (height, width))

        return decode

    def _desk(self, channels: int, height: int, width: int) -> np.ndarray:
        """Return the calling thread's memory for one image of this kind."""
        shape = (channels, height, width)
        desks: dict[tuple[int, ...], np.ndarray] = self._threads.__dict__.setdefault("desks", {})
        if shape not in desks:
            desks[shape] = np.empty(shape, np.float32 if channels == 1 else np.uint8)
        return desks[shape]


def spans(reader: Reader, camera: Feature, rows: np.ndarray) -> Iterator[GopSpan]:
    """Yield the spans of video that hold these distinct, ascending rows' images."""
    episodes = reader.episodes
    positions = episodes.positions_of_rows(rows)
    videos: dict[str, tuple[Video, list[np.ndarray]]] = {}
    for part in np.split(rows, np.flatnonzero(np.diff(positions)) + 1):
        position = int(episodes.positions_of_rows(part[:1])[0])
        clip = reader.clip(position, camera.key)
        _, frames = videos.setdefault(clip.video.name, (clip.video, []))
        frames.append(clip.frames(part - int(episodes.start[position])))
    for video, parts in videos.values():
        for group in group_frames(video.index, np.unique(np.concatenate(parts))):
            yield GopSpan(video.index, video.file, video.name, group)


class _Loaded:
    """A part of a video's bytes, held in memory; what is outside is read from the video.

    Attributes:
        size: Bytes held.
    """

    __slots__ = ("_begin", "_behind", "_data", "_identity", "size")

    def __init__(self, begin: int, data: bytes, behind: Bytes) -> None:
        self._begin = begin
        self._data = data
        # By its path, a local file is opened again: thousands of GOP spans may wait at once.
        self._behind: Bytes | str = behind.path if isinstance(behind, LocalFile) else behind
        self._identity = behind.identity if isinstance(behind, LocalFile) else None
        self.size = len(data)

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes there, by their position in the video."""
        start = offset - self._begin
        if start >= 0 and start + length <= self.size:
            return self._data[start : start + length]
        # A GOP span that seems damaged is tried once more, from further back.
        if not isinstance(self._behind, str):
            return self._behind.read(offset, length)
        behind = open_file(self._behind)
        if behind.identity != self._identity:
            raise VideoError(
                "A video was replaced while it was being read.",
                hint="another process writes to the dataset; read again",
                file=self._behind,
            )
        return behind.read(offset, length)


def load(gop_span: GopSpan) -> GopSpan:
    """Return the GOP span with its bytes in memory; it holds no local file open."""
    [(begin, length)] = byte_ranges([gop_span])
    return replace(gop_span, file=_Loaded(begin, gop_span.file.read(begin, length), gop_span.file))
