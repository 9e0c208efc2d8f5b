"""Decoding every image once, in long runs, some runs at a time.

A run is a few hundred frames that begin with a keyframe: long enough that codecs are not started
anew all the time, short enough that two threads share one video. What a run brings back are a few
numbers a frame, so memory does not grow with the dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from demoreel.check.codes import code_for
from demoreel.check.deep_watch import Levels, Watch, Watched, luma_of
from demoreel.errors import DemoreelError, PictureError
from demoreel.media.decode import Decoder, GopSpan, group_frames
from demoreel.media.images import decode_image
from demoreel.media.video import Video
from demoreel.read.in_order import runs_of

_FRAMES_OF_A_RUN = 256
_BYTES_OF_A_RUN = 16 << 20

# What broken bytes can do to a decoder, beside the errors that it foresees.
_BROKEN = (DemoreelError, ValueError, IndexError, OSError, MemoryError, OverflowError)


@dataclass(frozen=True, slots=True)
class Damage:
    """Frames that do not decode.

    Attributes:
        frame: The first of them, or the one that the codec stumbled over.
        lost: All of them.
        what: What the codec says.
        code: The finding's code; ``video-decodes-short`` where the codec gave no error, but fewer
            frames than packets.
    """

    frame: int
    lost: tuple[int, ...]
    what: str
    code: str = "picture-undecodable"


@dataclass(slots=True)
class FrameRun:
    """What one run brought back."""

    watched: Watched
    damage: list[Damage] = field(default_factory=list)


Job = Callable[[Decoder], FrameRun]


def video_runs(video: Video, wanted: Iterable[int], levels: Levels) -> Iterator[Job]:
    """Yield the jobs that decode all of a video, in order.

    Args:
        video: The video.
        wanted: Frames whose appearance is noted.
        levels: See ``Watch``.
    """
    chosen = np.unique(np.fromiter(wanted, np.int64))
    every = np.arange(video.index.frames)
    for first, stop in runs_of(
        video.index, every, least=_FRAMES_OF_A_RUN, most_bytes=_BYTES_OF_A_RUN
    ):
        begin, end = np.searchsorted(chosen, [first, stop])
        yield _video_job(video, every[first:stop], chosen[begin:end].tolist(), levels)


def _video_job(video: Video, frames: np.ndarray, wanted: list[int], levels: Levels) -> Job:
    def watch(decoder: Decoder, groups: list[tuple[int, ...]]) -> FrameRun:
        seen = Watch(wanted, levels)
        damage = []
        for group in groups:
            shown: set[int] = set()
            try:
                span = GopSpan(video.index, video.file, video.name, group)
                for number, frame in decoder.frames(span):
                    shown.add(number)
                    seen.add(number, *luma_of(frame))
            except _BROKEN as error:
                lost = tuple(n for n in group if n not in shown) or group[-1:]
                damage.append(_damage(error, lost))
        return FrameRun(seen.seen(), damage)

    def decode(decoder: Decoder) -> FrameRun:
        whole = watch(decoder, [tuple(frames.tolist())])
        if not whole.damage:
            return whole
        # Once more, GOP by GOP, so that damage costs no more than its own.
        return watch(decoder, group_frames(video.index, frames))

    return decode


def _damage(error: Exception, lost: tuple[int, ...]) -> Damage:
    what = error.what if isinstance(error, DemoreelError) else f"{type(error).__name__}: {error}."
    said = error.where.get("frame") if isinstance(error, DemoreelError) else None
    frame = said if isinstance(said, int) else lost[0]
    return Damage(frame, lost, what, code_for(error, "picture-undecodable"))


def image_job(first: int, encoded: list[bytes], wanted: Iterable[int], levels: Levels) -> Job:
    """Return the job that decodes images from a table.

    Args:
        first: The first one's number.
        encoded: The images.
        wanted: Numbers of those whose appearance is noted.
        levels: See ``Watch``.
    """

    def decode(decoder: Decoder) -> FrameRun:
        watch = Watch(wanted, levels)
        damage = []
        for number, data in enumerate(encoded, first):
            try:
                watch.add(number, decode_image(data, on_desk=True))
            except PictureError as error:
                damage.append(Damage(number, (number,), error.what))
        return FrameRun(watch.seen(), damage)

    return decode
