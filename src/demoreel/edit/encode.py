"""Frames that a result cannot copy: encoded, and compared with their source.

Each take is encoded into a video of its own, whose packets are then copied. It begins with a
keyframe, and has exactly as many frames as it should (``VideoEncoder`` counts). Memory: one frame,
and what a codec looks ahead.

What was encoded is compared in small, as 16 by 16 averages: what a codec loses at any quality is
hardly seen there, and another frame, a shifted or a broken one is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from demoreel.edit.resample import Frames
from demoreel.edit.video_plan import Blank, PacketTake, VideoPlan
from demoreel.layouts.base import Reader
from demoreel.media.colour import depth_codes
from demoreel.media.decode import Decoder, GopSpan, group_frames
from demoreel.media.encode import VideoEncoder
from demoreel.media.images import decode_image
from demoreel.media.mp4_write import PacketRun
from demoreel.media.settings import VideoSettings
from demoreel.media.video import Video, open_video
from demoreel.media.video import VideoClip as Place

_BLACK_GOP = 128  # frames that are encoded once, and repeated
_IMAGES_AT_ONCE = 64
_SIDE = 16
_LOWEST_PSNR = 22.0


def encode_take(take: PacketTake, reader: Reader, key: str, path: Path, *, fps: float) -> PacketRun:
    """Encode frames of an episode into a video, and return its packets."""
    images = _images(take, reader, key)
    first = next(images)
    width, height = _width_and_height(first)
    with VideoEncoder(path, fps=fps, width=width, height=height, settings=take.settings) as out:
        for image in itertools.chain([first], images):
            if isinstance(image, np.ndarray):
                out.add(image)
            else:
                out.add_frame(image)
    return _all_of(open_video(path))


def encode_blank(blank: Blank, path: Path, *, fps: float) -> list[PacketRun]:
    """Encode one group of black images into a video, and return its packets, repeated."""
    height, width = blank.size
    image = _black(blank.settings, blank.size)
    with VideoEncoder(path, fps=fps, width=width, height=height, settings=blank.settings) as out:
        for _ in range(min(blank.count, _BLACK_GOP)):
            out.add(image)
    run = _all_of(open_video(path))
    whole, rest = divmod(blank.count, len(run.packets))
    return [run] * whole + ([PacketRun(run.video, run.packets[:rest])] if rest else [])


def _black(settings: VideoSettings, size: tuple[int, int]) -> np.ndarray:
    """Return a black image as ``VideoEncoder.add`` takes it; of depth, zeros."""
    if not settings.pix_fmt.startswith("gray"):
        return np.zeros((*size, 3), np.uint8)
    return np.zeros(size, np.uint8 if settings.pix_fmt == "gray" else np.uint16)


def _all_of(video: Video) -> PacketRun:
    return PacketRun(video, np.arange(len(video.index.offset), dtype=np.int32))


def _width_and_height(image: Any) -> tuple[int, int]:
    if isinstance(image, np.ndarray):
        return image.shape[1], image.shape[0]
    return image.width, image.height


def _images(take: PacketTake, reader: Reader, key: str) -> Iterator[Any]:
    """Yield images as ``VideoEncoder`` takes them; as decoded where they must be alike."""
    if reader.in_tables(key):
        yield from _from_tables(take, reader, key)
        return
    video = reader.clip(take.position, key).video
    decoder = Decoder()
    is_depth = take.settings.pix_fmt.startswith("gray")
    for frame, times in _decoded(video, take.frames, decoder):
        if take.alike and not is_depth:
            image: Any = frame
        else:
            image = depth_codes(frame) if is_depth else decoder.painter.packed(frame)
        yield from itertools.repeat(image, times)


def _decoded(video: Video, frames: Frames, decoder: Decoder) -> Iterator[tuple[Any, int]]:
    """Yield every frame once, in order, and how often it is wanted."""
    numbers, counts = np.unique(np.array(frames), return_counts=True)
    times = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
    for group in group_frames(video.index, numbers):
        span = GopSpan(video.index, video.file, video.name, group)
        for number, frame in decoder.frames(span):
            yield frame, times[number]


def _from_tables(take: PacketTake, reader: Reader, key: str) -> Iterator[np.ndarray]:
    begin = int(reader.episodes.start[take.position])
    for some in _portions(take.frames):
        for data in reader.encoded(begin + np.array(some), key):
            yield decode_image(data)


def _portions(frames: Frames) -> Iterator[Sequence[int]]:
    for at in range(0, len(frames), _IMAGES_AT_ONCE):
        yield frames[at : at + _IMAGES_AT_ONCE]


def is_encoded(of_camera: VideoPlan, clip: int, place: Place, frame: int) -> bool:
    """Whether a clip's frame was encoded anew, and is no copy."""
    return any(place.step * frame in frames for frames in of_camera.encoded.get(clip, ()))


def shows_the_same(
    mine: Place, frame: int, reader: Reader, position: int, key: str, their_frame: int
) -> bool:
    """Whether a frame of the result shows what a frame of a source's episode does.

    Depth must be the very same. Cost: decodes both.
    """
    own = _image(mine, frame)
    if reader.in_tables(key):
        row = int(reader.episodes.start[position]) + their_frame
        other = decode_image(reader.encoded(np.array([row]), key)[0])
    else:
        other = _image(reader.clip(position, key), their_frame)
    if own.shape != other.shape:
        return False
    if own.dtype == np.uint16:
        return bool(np.array_equal(own, other))
    error = float(((_in_small(own) - _in_small(other)) ** 2).mean())
    return 10 * math.log10(255**2 / max(error, 1e-9)) >= _LOWEST_PSNR


def _image(place: Place, frame: int) -> np.ndarray:
    video = place.video
    wanted = int(place.frames(np.array(frame)))
    decoder = Decoder()
    span = GopSpan(video.index, video.file, video.name, (wanted,))
    for _, found in decoder.frames(span):
        if found.format.name.startswith("gray1"):
            return depth_codes(found).copy()
        return decoder.painter.packed(found).copy()
    raise AssertionError("a decoder gives what it is asked for, or an error")


def _in_small(image: np.ndarray) -> np.ndarray:
    """Return averages of an image's parts, 16 across and 16 down or fewer."""
    height, width = image.shape[:2]
    rows = np.linspace(0, height, min(_SIDE, height) + 1).astype(int)[:-1]
    columns = np.linspace(0, width, min(_SIDE, width) + 1).astype(int)[:-1]
    sums = np.add.reduceat(np.add.reduceat(image.astype(np.float64), rows), columns, axis=1)
    down = np.diff(np.append(rows, height))
    across = np.diff(np.append(columns, width))
    return np.asarray(sums / np.multiply.outer(down, across)[..., None])
