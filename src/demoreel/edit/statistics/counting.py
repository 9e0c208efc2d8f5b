"""Counting the levels of pictures by decoding them: all frames, no sample of them.

Every frame is decoded once and counted by the thread that decoded it; codecs, colour conversion and
counting release the GIL. Nothing is kept but counts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from demoreel.errors import ArgumentError, DemoreelError, PictureError, VideoError
from demoreel.layouts.base import Reader
from demoreel.media.colour import depth_codes
from demoreel.media.decode import Decoder, Stretch
from demoreel.media.pictures import decode_depth_picture, decode_picture
from demoreel.model import Feature
from demoreel.read.pool import DecodePool, Job
from demoreel.stats.running import Pictures

_FRAMES_IN_JOB = 32  # at least, where the group of pictures is shorter
_LARGEST = 65535


@dataclass(frozen=True, slots=True)
class Part:
    """Frames of one episode, as one camera saw them.

    Attributes:
        camera: The camera's key.
        position: Where the episode stands in its dataset.
        start: The first frame.
        stop: One past the last.
    """

    camera: str
    position: int
    start: int
    stop: int

    @property
    def frames(self) -> int:
        """How many they are."""
        return self.stop - self.start


Done = Callable[[Part, Pictures], None]
"""Called with each part when all of its frames are counted; by one thread at a time."""


def count_levels(
    reader: Reader,
    parts: Iterable[Part],
    done: Done,
    *,
    threads: int | None = None,
    report: Callable[[int], None] | None = None,
) -> None:
    """Decode and count all frames of these parts.

    Cost: each packet is decoded once, but for the head of a group of pictures that a part begins
    inside of. Memory for a few pictures and for the counts of parts that are being worked on.

    Args:
        reader: The dataset.
        parts: What to count; drawn as the work goes on.
        done: Takes the counts.
        threads: How many decode; None is every core.
        report: Called with the number of frames that were counted since the last call.

    Raises:
        VideoError: A video is missing, or a frame does not decode.
        PictureError: A picture in a table does not decode, or is no picture of whole numbers.
    """
    if threads is not None and threads < 1:
        raise ArgumentError(f"threads must be at least 1, not {threads}.")
    tally = _Tally(reader, done, report or (lambda frames: None))
    DecodePool(threads).run(job for part in parts for job in tally.jobs(part))


def has_fractions(reader: Reader, camera: str) -> bool:
    """Whether a camera's pictures are depths in fractions, which have no levels to count.

    Cost: one picture of a depth camera that lies in tables; nothing for others.
    """
    if not (reader.info.features[camera].is_depth and reader.in_tables(camera)):
        return False
    depth = decode_depth_picture(reader.encoded(np.arange(1), camera)[0])
    return not np.array_equal(depth, np.round(depth))


class _Tally:
    """Adds up what threads count."""

    def __init__(self, reader: Reader, done: Done, report: Callable[[int], None]) -> None:
        self._reader = reader
        self._done = done
        self._report = report
        self._lock = threading.Lock()
        self._reading = threading.Lock()  # readers hand out rows to one thread at a time
        self._open: dict[Part, Pictures] = {}

    def jobs(self, part: Part) -> Iterator[Job]:
        feature = self._reader.info.features[part.camera]
        with self._lock:
            self._open[part] = Pictures()
        if self._reader.in_tables(part.camera):
            for at in range(part.start, part.stop, _FRAMES_IN_JOB):
                frames = np.arange(at, min(at + _FRAMES_IN_JOB, part.stop))
                yield partial(self._count_encoded, part, feature, frames)
            return
        with self._located(part), self._reading:
            clip = self._reader.clip(part.position, part.camera)
        frames = clip.frames(np.arange(part.start, part.stop))
        for some in _cut_where_decoding_begins(frames, clip.video.index.starts(frames)):
            stretch = Stretch(clip.video.index, clip.video.file, clip.video.name, tuple(some))
            yield partial(self._count_filmed, part, feature, stretch)

    def _count_filmed(
        self, part: Part, feature: Feature, stretch: Stretch, decoder: Decoder
    ) -> None:
        counted = Pictures()
        with self._located(part):
            for _, frame in decoder.frames(stretch):
                if feature.is_depth:
                    counted.add(depth_codes(frame))
                else:
                    counted.add(decoder.painter.packed(frame))
        self._add(part, counted)

    def _count_encoded(
        self, part: Part, feature: Feature, frames: np.ndarray, decoder: Decoder
    ) -> None:
        counted = Pictures()
        begin = int(self._reader.episodes.start[part.position])
        with self._located(part):
            with self._reading:
                held = self._reader.encoded(begin + frames, part.camera)
            for data in held:
                counted.add(_picture(data, feature))
        self._add(part, counted)

    def _add(self, part: Part, counted: Pictures) -> None:
        with self._lock:
            whole = self._open[part]
            whole.merge(counted)
            self._report(counted.count)
            if whole.count == part.frames:
                del self._open[part]
                self._done(part, whole)

    def _located(self, part: Part) -> _Located:
        return _Located(self._reader, part)


class _Located:
    """Adds to an error which dataset, episode and camera it is about."""

    def __init__(self, reader: Reader, part: Part) -> None:
        self._reader = reader
        self._part = part

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (VideoError, PictureError)):
            assert isinstance(error, DemoreelError)
            where = {
                "dataset": self._reader.root,
                "episode": int(self._reader.episodes.episode_index[self._part.position]),
                "camera": self._part.camera,
                **error.where,
            }
            raise type(error)(error.what, hint=error.hint, **where) from error


def _cut_where_decoding_begins(frames: np.ndarray, starts: np.ndarray) -> Iterator[list[int]]:
    begin = 0
    for cut in (*(np.flatnonzero(np.diff(starts)) + 1).tolist(), len(frames)):
        if cut - begin >= _FRAMES_IN_JOB or cut == len(frames):
            yield frames[begin:cut].tolist()
            begin = cut


def _picture(data: bytes, feature: Feature) -> np.ndarray:
    if not feature.is_depth:
        return decode_picture(data, on_desk=True)
    depth = decode_depth_picture(data)
    whole = depth.astype(np.int64)
    if not np.array_equal(whole, depth) or whole.min() < 0 or whole.max() > _LARGEST:
        raise PictureError(
            "A depth picture holds fractions, which cannot be counted by level.",
            hint="leave pictures out: --no-pictures",
        )
    return whole.astype(np.uint16)
