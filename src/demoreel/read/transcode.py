"""From the pictures of whole episodes, in videos or in tables, to encoded pictures, in order.

Every video is decoded once, from keyframe to keyframe, and each picture is encoded by the thread
that decoded it: the decoder, the colour conversion and the encoders release the GIL. Threads work
ahead of the caller, but only so far: finished pictures that wait for their turn are bounded in
bytes, however long the groups of pictures are.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from demoreel.errors import ArgumentError, DemoreelError, PictureError, VideoError
from demoreel.layouts.base import Clip, Reader
from demoreel.media.colour import depth_codes
from demoreel.media.decode import Decoder, Stretch
from demoreel.media.picture_encode import PictureCodec, encode_picture
from demoreel.media.pictures import decode_picture
from demoreel.media.video import Video
from demoreel.model import Feature
from demoreel.read.pool import default_threads
from demoreel.read.shelf import Shelf, Stopped

MOST_ROWS = 256
"""Rows in a portion, at most."""

_FRAMES_IN_JOB = 32  # at least, where the group of pictures is shorter
_PICTURES_IN_JOB = 32
_BYTES_WAITING = 128 << 20


def encoded_pictures(
    reader: Reader,
    *,
    first: int,
    stop: int,
    codec: PictureCodec,
    threads: int | None = None,
) -> Generator[dict[str, list[bytes]]]:
    """Encode every camera's pictures of the episodes at positions ``first`` to ``stop`` - 1.

    Cost: each packet of video is decoded once, but for the head of a group of pictures that begins
    before the first episode, and, in videos with open groups, about one keyframe for every 32
    frames. At most 128 MiB of encoded pictures wait for the caller.

    Depth videos give their 12-bit codes as PNG of 16 bits, whatever the codec. Depth pictures in
    tables stay as they are: they are without loss already.

    Args:
        reader: The dataset's layout.
        first: Position of the first episode.
        stop: One past the position of the last.
        codec: How to encode; ``source`` keeps the bytes of pictures that lie in tables.
        threads: How many decode and encode; None is every core. There are at least as many as
            cameras.

    Returns:
        Portions of consecutive rows, at most 256: for each camera, as many encoded pictures. A
        dataset without cameras has none.

    Raises:
        ArgumentError: There are no such episodes, or the codec is ``source`` and a camera's
            pictures lie in videos.
        VideoError: A video is missing, or a frame does not decode (while iterating, as below).
        PictureError: A picture in a table does not decode.
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
                "Video frames have no source picture bytes to keep.",
                hint="choose jpeg, png or webp-lossless",
                dataset=reader.root,
                camera=camera.key,
            )
    rows = int(reader.episodes.start[first]), int(reader.episodes.start[stop])
    plan = _Plan(reader, first, stop, codec)
    return _portions(plan, cameras, rows, max(threads or default_threads(), len(cameras)))


def _portions(
    plan: _Plan, cameras: list[Feature], rows: tuple[int, int], threads: int
) -> Generator[dict[str, list[bytes]]]:
    if not cameras:
        return
    shelf = Shelf([camera.key for camera in cameras], *rows, most_bytes=_BYTES_WAITING)
    # In the order of rows over all cameras: then the row that the caller waits for is always being
    # worked on, also when all other threads wait for the caller.
    jobs = _Jobs(heapq.merge(*map(plan.jobs, cameras), key=lambda job: job.row))
    with ThreadPoolExecutor(threads, thread_name_prefix="demoreel") as executor:
        try:
            for _ in range(threads):
                executor.submit(_work, jobs, shelf)
            yield from shelf.portions(MOST_ROWS)
        finally:
            shelf.stop()


def _work(jobs: _Jobs, shelf: Shelf) -> None:
    decoder = Decoder()
    try:
        while (job := jobs.draw()) is not None:
            job.encode(decoder, shelf)
    except Stopped:
        pass
    except BaseException as error:  # whatever it is, the caller must hear of it, or wait for ever
        shelf.fail(error)


class _Job(Protocol):
    """Consecutive pictures of one camera, from ``row`` on."""

    @property
    def row(self) -> int: ...

    def encode(self, decoder: Decoder, shelf: Shelf) -> None: ...


class _Jobs:
    """Jobs that several threads draw from; made as they are drawn."""

    def __init__(self, jobs: Iterator[_Job]) -> None:
        self._jobs = jobs
        self._lock = threading.Lock()

    def draw(self) -> _Job | None:
        with self._lock:
            return next(self._jobs, None)


class _Plan:
    """Cuts the episodes of each camera into jobs."""

    def __init__(self, reader: Reader, first: int, stop: int, codec: PictureCodec) -> None:
        self.reader = reader
        self.codec = codec
        self._positions = range(first, stop)
        self.lock = threading.Lock()  # readers hand out rows to one thread at a time

    def jobs(self, camera: Feature) -> Iterator[_Job]:
        """Yield a camera's jobs, in the order of rows."""
        if self.reader.in_tables(camera.key):
            yield from self._table_jobs(camera)
            return
        for run in self._runs(camera):
            for at, end in _cuts(run):
                yield _VideoJob(self, camera, run, at, end)

    def _table_jobs(self, camera: Feature) -> Iterator[_Job]:
        start = self.reader.episodes.start
        row, stop = int(start[self._positions.start]), int(start[self._positions.stop])
        for at in range(row, stop, _PICTURES_IN_JOB):
            yield _TableJob(self, camera, at, min(at + _PICTURES_IN_JOB, stop))

    def _runs(self, camera: Feature) -> Iterator[_Run]:
        """Yield stretches of video as long as episodes follow one another in it."""
        run: _Run | None = None
        for position in self._positions:
            try:
                with self.lock:
                    clip = self.reader.clip(position, camera.key)
            except VideoError as error:
                raise self.located(error, camera, position=position) from error
            row = int(self.reader.episodes.start[position])
            length = int(self.reader.episodes.length[position])
            if run and run.is_followed_by(clip):
                run = replace(run, length=run.length + length)
                continue
            if run:
                yield run
            run = _Run(clip.video, clip.first, length, row, clip.step)
        if run:
            yield run

    def located(
        self, error: DemoreelError, camera: Feature, *, position: int | None = None, row: int = 0
    ) -> DemoreelError:
        """Return the error with dataset, episode and camera added."""
        episodes = self.reader.episodes
        if position is None:
            position = int(episodes.positions_of_rows(np.array([row]))[0])
        where = {
            "dataset": self.reader.root,
            "episode": int(episodes.episode_index[position]),
            "camera": camera.key,
            **error.where,
        }
        return type(error)(error.what, hint=error.hint, **where)


@dataclass(frozen=True, slots=True)
class _Run:
    """Frames of a video that become consecutive rows.

    Attributes:
        video: The video.
        first: The first of its frames.
        length: How many.
        row: The first frame's position in the dataset.
        step: Frames of the video from one to the next.
    """

    video: Video
    first: int
    length: int
    row: int
    step: int

    def is_followed_by(self, clip: Clip) -> bool:
        """Whether a clip goes on where this ends."""
        same = clip.video.name == self.video.name and clip.step == self.step
        return same and clip.first == self.frames.stop

    @property
    def frames(self) -> range:
        """The video's frames."""
        return range(self.first, self.first + self.step * self.length, self.step)


def _cuts(run: _Run) -> Iterator[tuple[int, int]]:
    """Cut a run where decoding can begin anew, every 32 frames or at the next chance after."""
    starts = run.video.index.starts(np.array(run.frames))
    begin = 0
    for cut in (*(np.flatnonzero(np.diff(starts)) + 1).tolist(), run.length):
        if cut - begin >= _FRAMES_IN_JOB or cut == run.length:
            yield begin, cut
            begin = cut


class _VideoJob:
    """Frames ``at`` to ``end`` - 1 of a run."""

    def __init__(self, plan: _Plan, camera: Feature, run: _Run, at: int, end: int) -> None:
        self._plan = plan
        self._camera = camera
        self._run = run
        self._frames = run.frames[at:end]
        self.row = run.row + at

    def encode(self, decoder: Decoder, shelf: Shelf) -> None:
        video, codec = self._run.video, self._plan.codec
        try:
            stretch = Stretch(video.index, video.file, video.name, tuple(self._frames))
            for number, frame in decoder.frames(stretch):
                if self._camera.is_depth:
                    data = encode_picture(depth_codes(frame), codec)
                else:
                    data = encode_picture(decoder.painter.packed(frame), codec)
                shelf.put(self._camera.key, self._row_of(number), data)
        except VideoError as error:
            broken = error.where.get("frame")
            row = self._row_of(broken) if isinstance(broken, int) else self.row
            raise self._plan.located(error, self._camera, row=row) from error

    def _row_of(self, frame: int) -> int:
        return self.row + (frame - self._frames.start) // self._frames.step


class _TableJob:
    """Rows whose pictures lie encoded in a table."""

    def __init__(self, plan: _Plan, camera: Feature, row: int, stop: int) -> None:
        self._plan = plan
        self._camera = camera
        self.row = row
        self._stop = stop

    def encode(self, decoder: Decoder, shelf: Shelf) -> None:
        key, codec = self._camera.key, self._plan.codec
        with self._plan.lock:
            held = self._plan.reader.encoded(np.arange(self.row, self._stop), key)
        keep = codec.name == "source" or self._camera.is_depth
        for row, data in enumerate(held, self.row):
            try:
                if not data:
                    raise PictureError("A picture is missing from its table.")
                new = data if keep else encode_picture(decode_picture(data, on_desk=True), codec)
            except PictureError as error:
                raise self._plan.located(error, self._camera, row=row) from error
            shelf.put(key, row, new)
