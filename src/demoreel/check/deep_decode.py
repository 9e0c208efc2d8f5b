"""Decoding every picture once, in long runs, some runs at a time.

A run is a few hundred frames that begin with a keyframe: long enough that codecs are not started
anew all the time, short enough that two threads share one video. What a run brings back are a few
numbers a frame, so memory does not grow with the dataset.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from demoreel.check.deep_watch import Levels, Watch, Watched, luma_of
from demoreel.errors import DemoreelError, PictureError
from demoreel.media.decode import Decoder, Stretch, group_frames
from demoreel.media.packets import PacketIndex
from demoreel.media.pictures import decode_picture
from demoreel.media.video import Video

_FRAMES_OF_A_RUN = 256
_BYTES_OF_A_RUN = 16 << 20
_AHEAD = 2  # runs a thread that may wait to be decoded

# What broken bytes can do to a decoder, beside the errors that it foresees.
_BROKEN = (DemoreelError, ValueError, IndexError, OSError, MemoryError, OverflowError)


@dataclass(frozen=True, slots=True)
class Damage:
    """Frames that do not decode.

    Attributes:
        frame: The first of them, or the one that the codec stumbled over.
        lost: All of them.
        what: What the codec says.
        is_missing: Whether it did not stumble, but gave fewer pictures than packets.
    """

    frame: int
    lost: tuple[int, ...]
    what: str
    is_missing: bool = False


@dataclass(slots=True)
class Run:
    """What one run brought back."""

    watched: Watched
    damage: list[Damage] = field(default_factory=list)


Job = Callable[[Decoder], Run]


def video_runs(video: Video, wanted: Iterable[int], levels: Levels) -> Iterator[Job]:
    """Yield the jobs that decode all of a video, in order.

    Args:
        video: The video.
        wanted: Frames whose appearance is noted.
        levels: See ``Watch``.
    """
    chosen = np.unique(np.fromiter(wanted, np.int64))
    for groups in runs_of(video.index):
        first, last = groups[0][0], groups[-1][-1]
        begin, stop = np.searchsorted(chosen, [first, last + 1])
        yield _video_job(video, groups, chosen[begin:stop].tolist(), levels)


def runs_of(index: PacketIndex) -> Iterator[list[tuple[int, ...]]]:
    """Cut a video into runs: groups of frames that follow one another, each from a keyframe on."""
    if index.frames == 0:
        return
    run: list[tuple[int, ...]] = []
    frames = size = 0
    for group in group_frames(index, np.arange(index.frames)):
        run.append(group)
        frames += len(group)
        size += int(index.size[index.packet_of[list(group)]].sum())
        if frames >= _FRAMES_OF_A_RUN or size >= _BYTES_OF_A_RUN:
            yield run
            run, frames, size = [], 0, 0
    if run:
        yield run


def _video_job(
    video: Video, groups: list[tuple[int, ...]], wanted: list[int], levels: Levels
) -> Job:
    def decode(decoder: Decoder) -> Run:
        try:
            watch = Watch(wanted, levels)
            _watch_stretch(decoder, video, tuple(n for group in groups for n in group), watch)
            return Run(watch.seen())
        except _BROKEN:
            return _group_by_group(decoder, video, groups, wanted, levels)

    return decode


def _watch_stretch(decoder: Decoder, video: Video, frames: tuple[int, ...], watch: Watch) -> None:
    stretch = Stretch(video.index, video.file, video.name, tuple(sorted(frames)))
    for number, frame in decoder.frames(stretch):
        watch.add(number, *luma_of(frame))


def _group_by_group(
    decoder: Decoder,
    video: Video,
    groups: list[tuple[int, ...]],
    wanted: list[int],
    levels: Levels,
) -> Run:
    """Decode a damaged run once more, so that damage costs no more than its own group."""
    watch = Watch(wanted, levels)
    damage = []
    for group in groups:
        shown: set[int] = set()
        try:
            stretch = Stretch(video.index, video.file, video.name, group)
            for number, frame in decoder.frames(stretch):
                shown.add(number)
                watch.add(number, *luma_of(frame))
        except _BROKEN as error:
            damage.append(_damage(error, tuple(n for n in group if n not in shown) or group[-1:]))
    return Run(watch.seen(), damage)


def _damage(error: Exception, lost: tuple[int, ...]) -> Damage:
    what = error.what if isinstance(error, DemoreelError) else f"{type(error).__name__}: {error}."
    said = error.where.get("frame") if isinstance(error, DemoreelError) else None
    frame = said if isinstance(said, int) else lost[0]
    return Damage(frame, lost, what, "gave no picture" in what)


def picture_job(first: int, encoded: list[bytes], wanted: Iterable[int], levels: Levels) -> Job:
    """Return the job that decodes pictures from a table.

    Args:
        first: The first one's number.
        encoded: The pictures.
        wanted: Numbers of those whose appearance is noted.
        levels: See ``Watch``.
    """

    def decode(decoder: Decoder) -> Run:
        watch = Watch(wanted, levels)
        damage = []
        for number, data in enumerate(encoded, first):
            try:
                watch.add(number, decode_picture(data, on_desk=True))
            except PictureError as error:
                damage.append(Damage(number, (number,), error.what))
        return Run(watch.seen(), damage)

    return decode


def in_threads(jobs: Iterable[tuple[object, Job]], threads: int) -> Iterator[tuple[object, Run]]:
    """Run jobs and yield what they bring back, in their order; few wait, however many there are.

    Args:
        jobs: Each with a name of any kind, which comes back with the result.
        threads: How many at once.
    """
    local = threading.local()

    def run(job: Job) -> Run:
        if not hasattr(local, "decoder"):
            local.decoder = Decoder()
        return job(local.decoder)

    waiting: deque[tuple[object, Future[Run]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="demoreel-deep") as pool:
        try:
            for name, job in jobs:
                waiting.append((name, pool.submit(run, job)))
                if len(waiting) >= threads * _AHEAD:
                    name, future = waiting.popleft()
                    yield name, future.result()
            while waiting:
                name, future = waiting.popleft()
                yield name, future.result()
        finally:
            for _, future in waiting:
                future.cancel()
