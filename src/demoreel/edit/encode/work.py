"""Encoding frames of a result, each stretch into a video of its own whose packets are then copied.

Every stretch begins with a keyframe, and has exactly as many frames as it should (``VideoEncoder``
counts). Memory: one picture, and what a codec looks ahead.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from demoreel.edit.encode.probe import black
from demoreel.edit.footage import Blank, Take
from demoreel.edit.pace import Frames
from demoreel.layouts.base import Reader
from demoreel.media.colour import depth_codes
from demoreel.media.decode import Decoder, Stretch, group_frames
from demoreel.media.encode import VideoEncoder
from demoreel.media.mp4_write import PacketRun
from demoreel.media.pictures import decode_picture
from demoreel.media.video import Video, open_video

_BLACK_GOP = 128  # frames that are encoded once, and repeated
_PICTURES_AT_ONCE = 64


def encode_take(take: Take, reader: Reader, key: str, path: Path, *, fps: float) -> PacketRun:
    """Encode frames of an episode into a video, and return its packets.

    Raises:
        VideoError: A source's video is broken, or the encoder failed; there is no file then.
    """
    pictures = _pictures(take, reader, key)
    first = next(pictures)
    width, height = _width_and_height(first)
    with VideoEncoder(path, fps=fps, width=width, height=height, settings=take.settings) as out:
        for picture in itertools.chain([first], pictures):
            if isinstance(picture, np.ndarray):
                out.add(picture)
            else:
                out.add_frame(picture)
    return _all_of(open_video(path))


def encode_blank(blank: Blank, path: Path, *, fps: float) -> list[PacketRun]:
    """Encode one group of black pictures into a video, and return its packets, repeated."""
    height, width = blank.size
    picture = black(blank.settings, blank.size)
    with VideoEncoder(path, fps=fps, width=width, height=height, settings=blank.settings) as out:
        for _ in range(min(blank.count, _BLACK_GOP)):
            out.add(picture)
    run = _all_of(open_video(path))
    whole, rest = divmod(blank.count, len(run.packets))
    return [run] * whole + ([PacketRun(run.video, run.packets[:rest])] if rest else [])


def _all_of(video: Video) -> PacketRun:
    return PacketRun(video, np.arange(len(video.index.offset), dtype=np.int32))


def _width_and_height(picture: Any) -> tuple[int, int]:
    if isinstance(picture, np.ndarray):
        return picture.shape[1], picture.shape[0]
    return picture.width, picture.height


def _pictures(take: Take, reader: Reader, key: str) -> Iterator[Any]:
    """Yield pictures as ``VideoEncoder`` takes them; as decoded where they must be alike."""
    if reader.in_tables(key):
        yield from _from_tables(take, reader, key)
        return
    video = reader.clip(take.position, key).video
    decoder = Decoder()
    is_depth = take.settings.pix_fmt.startswith("gray")
    for frame, times in _decoded(video, take.frames, decoder):
        if take.alike and not is_depth:
            picture: Any = frame
        else:
            picture = depth_codes(frame) if is_depth else decoder.painter.packed(frame)
        yield from itertools.repeat(picture, times)


def _decoded(video: Video, frames: Frames, decoder: Decoder) -> Iterator[tuple[Any, int]]:
    """Yield every frame once, in order, and how often it is wanted."""
    numbers, counts = np.unique(np.array(frames), return_counts=True)
    times = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
    for group in group_frames(video.index, numbers):
        stretch = Stretch(video.index, video.file, video.name, group)
        for number, frame in decoder.frames(stretch):
            yield frame, times[number]


def _from_tables(take: Take, reader: Reader, key: str) -> Iterator[np.ndarray]:
    begin = int(reader.episodes.start[take.position])
    for some in _portions(take.frames):
        for data in reader.encoded(begin + np.array(some), key):
            yield decode_picture(data)


def _portions(frames: Frames) -> Iterator[Sequence[int]]:
    for at in range(0, len(frames), _PICTURES_AT_ONCE):
        yield frames[at : at + _PICTURES_AT_ONCE]
