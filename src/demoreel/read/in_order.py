"""Decodes every frame of whole episodes once, on several threads, and yields them in order.

Frames are cut into runs that begin where decoding can begin. Each run is a job of one thread: the
codec, the colour conversion and what is made of a frame release the GIL. Threads work ahead of the
caller, but only so far: what they have finished waits in a reorder buffer, which is bounded in
bytes however long the GOPs are.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

import numpy as np

from demoreel.errors import (
    ArgumentError,
    DemoreelError,
    FrameMismatchError,
    PictureError,
    VideoError,
)
from demoreel.layouts.base import Reader
from demoreel.layouts.columns import FEW_BYTES, image_steps
from demoreel.media.colour import depth_codes
from demoreel.media.decode import Decoder, GopSpan, default_threads
from demoreel.media.images import ImageCodec, decode_image, encode_image, image_size
from demoreel.media.video import PacketIndex, Video, VideoClip
from demoreel.model import Feature
from demoreel.read.cameras import wrong_size

T = TypeVar("T")
Lane = TypeVar("Lane", bound=Hashable)

Job = Callable[[Decoder], Iterable[T]]
"""Yields what it makes, one thing after the other."""

_FRAMES_IN_RUN = 32  # at least, where the GOP is shorter
_AHEAD = 2  # jobs a thread that are begun or wait for a thread

MOST_ROWS = 256
"""Rows in a portion, at most."""

_BYTES_WAITING = 64 << 20


def in_order(
    jobs: Iterable[tuple[Lane, Job[T]]],
    lanes: Sequence[Lane],
    *,
    threads: int,
    most: int = 1,
    room: int | None = None,
    size: Callable[[T], int] = lambda item: 1,
) -> Generator[dict[Lane, list[T]]]:
    """Run jobs on threads, and yield what they make, in the order of the jobs of each lane.

    Lanes (cameras) are taken in step: a portion has equally many things of each. Jobs are drawn by
    the caller's thread, a few ahead of those that are done.

    Args:
        jobs: Each with its lane. Those of several lanes come in the order in which their first
            things are wanted.
        lanes: All lanes.
        threads: How many run at once; at least as many as lanes do, so that one always continues.
        most: How many things of a lane are in a portion: fewer at the end, and where the buffer is
            full.
        room: When the buffer is full, in the unit of ``size``. It may hold one thing of each
            thread more. None is never: for jobs that make one thing.
        size: How much room a thing takes.
    """
    buffer = ReorderBuffer(lanes, room=room, size=size)
    own = threading.local()

    def work(job: Job[T], place: _Place[T]) -> None:
        try:
            if not hasattr(own, "decoder"):
                own.decoder = Decoder()
            for item in job(own.decoder):
                buffer.put(place, item)
            buffer.end(place)
        except BufferStopped:
            pass
        except BaseException as error:  # the caller must hear of it, or wait for ever
            buffer.fail(error)

    executor = ThreadPoolExecutor(max(threads, len(lanes)), thread_name_prefix="demoreel")
    queue, drawn = iter(jobs), False
    try:
        while True:
            while not drawn and buffer.begun < _AHEAD * max(threads, len(lanes)):
                drawn = (following := next(queue, None)) is None
                if following is not None:
                    executor.submit(work, following[1], buffer.begin(following[0]))
            portion = buffer.take(most, drawn=drawn)
            if portion:
                yield portion
            elif portion is None:
                return
    finally:
        buffer.stop()
        executor.shutdown(cancel_futures=True)


def one_by_one(jobs: Iterable[Job[T]], *, threads: int) -> Iterator[T]:
    """Run jobs on threads, and yield what they make, in the order of the jobs."""
    for portion in in_order(((None, job) for job in jobs), [None], threads=threads):
        yield from portion[None]


class BufferStopped(Exception):
    """Nothing will be taken any more."""


class ReorderBuffer(Generic[Lane, T]):
    """Things that threads have made, waiting for their turn.

    A full buffer takes only what the caller waits for: the next thing of a lane that has none.
    """

    def __init__(
        self, lanes: Sequence[Lane], *, room: int | None, size: Callable[[T], int]
    ) -> None:
        self._lanes: dict[Lane, _Queue[T]] = {lane: _Queue() for lane in lanes}
        self._room = room
        self._size = size
        self._stopped = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self.held = 0
        """How much room is taken."""
        self.begun = 0
        """Jobs that were begun, and of which not everything was in its place when last asked."""

    def begin(self, lane: Lane) -> _Place[T]:
        """Announce the next job of a lane, and return the place for what it makes."""
        with self._changed:
            self.begun += 1
            place = _Place(self._lanes[lane])
            place.lane.places.append(place)
            return place

    def put(self, place: _Place[T], item: T) -> None:
        """Add the next thing of a job; waits while there is no room."""
        lane = place.lane
        with self._changed:
            while self._is_full and not (lane.places[0] is place and not lane.ready):
                if self._stopped:
                    break
                self._changed.wait()
            if self._stopped:
                raise BufferStopped
            self.held += self._size(item)
            (lane.ready if lane.places[0] is place else place.early).append(item)
            self._changed.notify_all()

    def end(self, place: _Place[T]) -> None:
        """Note that a job has made all that it makes."""
        with self._changed:
            place.is_done = True
            self.begun -= place.lane.advance()
            self._changed.notify_all()

    def take(self, most: int, *, drawn: bool) -> dict[Lane, list[T]] | None:
        """Wait for a portion; None is the end, an empty one that more jobs can be begun."""
        lanes = self._lanes
        with self._changed:
            begun = self.begun
            while True:
                if self._error is not None:
                    raise self._error
                ready = min(len(lane.ready) for lane in lanes.values())
                ended = drawn and not self.begun
                if ready >= most or (ready and (ended or self._is_full)):
                    break
                if ended:
                    return None
                if not drawn and self.begun < begun:
                    return {}
                self._changed.wait()
            count = min(ready, most)
            portion = {
                key: [lane.ready.popleft() for _ in range(count)] for key, lane in lanes.items()
            }
            self.held -= sum(self._size(item) for items in portion.values() for item in items)
            self._changed.notify_all()
            return portion

    @property
    def _is_full(self) -> bool:
        return self._room is not None and self.held >= self._room

    def fail(self, error: BaseException) -> None:
        """Let the caller have an error in place of a portion; the first one counts."""
        with self._changed:
            self._error = self._error or error
            self._stopped = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Turn away what would still be put."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


class _Queue(Generic[T]):
    """Things whose turn has come, and the places of the jobs that make the next ones."""

    def __init__(self) -> None:
        self.ready: deque[T] = deque()
        self.places: deque[_Place[T]] = deque()

    def advance(self) -> int:
        """Go on to the first job that is not done; return how many are behind now."""
        passed = 0
        while self.places and self.places[0].is_done:
            self.places.popleft()
            passed += 1
            if self.places:
                self.ready.extend(self.places[0].early)
                self.places[0].early.clear()
        return passed


class _Place(Generic[T]):
    """What a job has made before its turn."""

    def __init__(self, lane: _Queue[T]) -> None:
        self.lane = lane
        self.early: list[T] = []
        self.is_done = False


def runs_of(
    index: PacketIndex,
    frames: np.ndarray,
    *,
    least: int = _FRAMES_IN_RUN,
    most_bytes: int | None = None,
) -> Iterator[tuple[int, int]]:
    """Cut frames of a video where decoding can start again: from one place among them to another.

    Args:
        index: The video's packets.
        frames: The frames, ascending.
        least: A run is cut at the first chance after so many frames,
        most_bytes: or so many bytes of packets.
    """
    cuts = (np.flatnonzero(np.diff(index.starts(frames))) + 1).tolist()
    size = np.concatenate([[0], np.cumsum(index.size[index.packet_of[frames]])])
    begin = 0
    for cut in (*cuts, len(frames)):
        is_large = most_bytes is not None and size[cut] - size[begin] >= most_bytes
        if cut > begin and (cut - begin >= least or is_large or cut == len(frames)):
            yield begin, cut
            begin = cut


class FrameRuns:
    """Cuts whole episodes of a dataset into runs of frames.

    Cost of decoding all of them: each packet once, but for the head of a GOP that begins before the
    first episode, and, in videos with open GOPs, about one keyframe for every 32 frames.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.lock = threading.Lock()  # readers hand out rows to one thread at a time

    def of(self, camera: Feature, first: int, stop: int) -> Iterator[VideoRun | ImageRun]:
        """Yield a camera's runs in the episodes at ``first`` to ``stop`` - 1, in order."""
        if self.reader.in_tables(camera.key):
            start = self.reader.episodes.start
            rows = np.arange(int(start[first]), int(start[stop]))
            with self.lock:
                steps = image_steps(
                    self.reader.encoded, rows, [camera.key], _FRAMES_IN_RUN, most_bytes=FEW_BYTES
                )
            for at, end in steps:
                yield ImageRun(self, camera, int(rows[at]), int(rows[end - 1]) + 1)
            return
        for whole in self._videos(camera, first, stop):
            for at, end in runs_of(whole.video.index, np.array(whole.frames)):
                yield replace(whole, frames=whole.frames[at:end], row=whole.row + at)

    def _videos(self, camera: Feature, first: int, stop: int) -> Iterator[VideoRun]:
        """Yield runs as long as episodes follow one another in a video."""
        episodes = self.reader.episodes
        run: VideoRun | None = None
        for position in range(first, stop):
            row = int(episodes.start[position])
            try:
                with self.lock:
                    clip = self.reader.clip(position, camera.key)
            except VideoError as error:
                raise self.located(error, camera, row) from error
            end = clip.first + clip.step * int(episodes.length[position])
            if run and run.is_followed_by(clip):
                run = replace(run, frames=range(run.frames.start, end, clip.step))
                continue
            if run:
                yield run
            run = VideoRun(self, camera, row, clip.video, range(clip.first, end, clip.step))
        if run:
            yield run

    def located(
        self, error: DemoreelError, camera: Feature, row: int, **more: object
    ) -> DemoreelError:
        """Return the error with dataset, episode and camera added."""
        episodes = self.reader.episodes
        position = int(episodes.positions_of_rows(np.array([row]))[0])
        where = {
            "dataset": self.reader.root,
            "episode": int(episodes.episode_index[position]),
            "camera": camera.key,
            **more,
            **error.where,
        }
        return type(error)(error.what, hint=error.hint, **where)


@dataclass(frozen=True, slots=True)
class VideoRun:
    """Frames of a video that become consecutive rows, from ``row`` on."""

    _of: FrameRuns
    camera: Feature
    row: int
    video: Video
    frames: range

    def is_followed_by(self, clip: VideoClip) -> bool:
        """Whether a clip continues where this ends."""
        same = clip.video.name == self.video.name and clip.step == self.frames.step
        return same and clip.first == self.frames.stop

    def decode(
        self, decoder: Decoder, image: Callable[[bytes], T], frame: Callable[[np.ndarray], T]
    ) -> Iterator[T]:
        """Yield what is made of each frame: 8-bit RGB, or 12-bit codes of depth."""
        number: int | None = None
        try:
            span = GopSpan(self.video.index, self.video.file, self.video.name, (*self.frames,))
            for number, shown in decoder.frames(span):
                depth = self.camera.is_depth
                yield frame(depth_codes(shown) if depth else decoder.painter.packed(shown))
                number = None
        except VideoError as error:
            broken = error.where.get("frame", number)
            past = broken - self.frames.start if isinstance(broken, int) else 0
            where = {"file": self.video.name, "frame": broken}
            row = self.row + past // self.frames.step
            raise self._of.located(error, self.camera, row, **where) from error


@dataclass(frozen=True, slots=True)
class ImageRun:
    """Rows ``row`` to ``stop`` - 1, whose images are encoded in a table."""

    _of: FrameRuns
    camera: Feature
    row: int
    stop: int

    def decode(
        self, decoder: Decoder, image: Callable[[bytes], T], frame: Callable[[np.ndarray], T]
    ) -> Iterator[T]:
        """Yield what is made of each image."""
        with self._of.lock:
            held = self._of.reader.encoded(np.arange(self.row, self.stop), self.camera.key)
        for row, data in enumerate(held, self.row):
            try:
                made = image(data)
            except PictureError as error:
                raise self._of.located(error, self.camera, row) from error
            yield made


def encoded_images(
    reader: Reader,
    *,
    first: int,
    stop: int,
    codec: ImageCodec,
    threads: int | None = None,
) -> Generator[dict[str, list[bytes]]]:
    """Encode every camera's frames of the episodes at positions ``first`` to ``stop`` - 1.

    Cost: see ``FrameRuns``. At most 64 MiB of encoded images wait for the caller.

    Depth videos give their 12-bit codes as PNG of 16 bits, whatever the codec. Depth images in
    tables stay as they are: they are without loss already.

    Args:
        reader: The dataset's layout.
        first: Position of the first episode.
        stop: One past the position of the last.
        codec: How to encode; ``source`` keeps the bytes of images that are in tables.
        threads: How many decode and encode; None is every core. There are at least as many as
            cameras.

    Returns:
        Portions of consecutive rows, at most 256: for each camera, as many encoded images. A
        dataset without cameras has none.
    """
    if not 0 <= first <= stop <= len(reader.episodes):
        raise ArgumentError(
            f"There are no episodes at positions {first} to {stop}.",
            hint=f"the dataset has {len(reader.episodes)}",
            dataset=reader.root,
        )
    if threads is not None and threads < 1:
        raise ArgumentError(f"threads must be at least 1, not {threads}.")
    cameras = [reader.info.features[key] for key in reader.info.cameras]
    for camera in cameras:
        if codec.name == "source" and not reader.in_tables(camera.key):
            raise ArgumentError(
                "Video frames have no source image bytes to keep.",
                hint="choose jpeg, png or webp-lossless",
                dataset=reader.root,
                camera=camera.key,
            )
    return _portions(reader, cameras, first, stop, codec, threads or default_threads())


def _portions(
    reader: Reader, cameras: list[Feature], first: int, stop: int, codec: ImageCodec, threads: int
) -> Generator[dict[str, list[bytes]]]:
    if not cameras:
        return
    runs = FrameRuns(reader)
    # In the order of rows over all cameras: then the row that the caller waits for is always being
    # worked on, also when all other threads wait for the caller.
    merged = heapq.merge(*(runs.of(c, first, stop) for c in cameras), key=lambda run: run.row)
    jobs = ((run.camera.key, partial(_encoded, run, codec)) for run in merged)
    keys = [camera.key for camera in cameras]
    yield from in_order(jobs, keys, threads=threads, most=MOST_ROWS, room=_BYTES_WAITING, size=len)


def _encoded(run: VideoRun | ImageRun, codec: ImageCodec, decoder: Decoder) -> Iterator[bytes]:
    declared = run.camera.image_shape[:2]
    keep = codec.name == "source" or run.camera.is_depth

    def image(data: bytes) -> bytes:
        found = image_size(data)
        if found != declared:
            raise PictureError(wrong_size(found, declared))
        return data if keep else encode_image(decode_image(data, on_desk=True), codec)

    def frame(shown: np.ndarray) -> bytes:
        if shown.shape[:2] != declared:
            raise FrameMismatchError(wrong_size(shown.shape[:2], declared))
        return encode_image(shown, codec)

    return run.decode(decoder, image, frame)
