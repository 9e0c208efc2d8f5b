"""Are pictures that were encoded anew those of the source? By how far they are from one another.

Pictures are compared in small, 16 by 16 averages: what a codec loses at any quality is hardly seen
there, and another picture, a shifted or a broken one is.
"""

from __future__ import annotations

import math

import numpy as np

from demoreel.edit.footage import Footage
from demoreel.layouts.base import Clip as Place
from demoreel.layouts.base import Reader
from demoreel.media.colour import depth_codes
from demoreel.media.decode import Decoder, Stretch
from demoreel.media.pictures import decode_picture

_SIDE = 16
_LOWEST_PSNR = 22.0


def is_encoded(footage: Footage, clip: int, place: Place, frame: int) -> bool:
    """Whether a clip's frame was encoded anew, and is no copy."""
    return any(place.step * frame in frames for frames in footage.encoded.get(clip, ()))


def shows_the_same(
    mine: Place, frame: int, reader: Reader, position: int, key: str, their_frame: int
) -> bool:
    """Whether a frame of the result shows what a frame of a source's episode does.

    Depth must be the very same. Cost: decodes both.
    """
    own = _picture(mine, frame)
    if reader.in_tables(key):
        row = int(reader.episodes.start[position]) + their_frame
        other = decode_picture(reader.encoded(np.array([row]), key)[0])
    else:
        other = _picture(reader.clip(position, key), their_frame)
    if own.shape != other.shape:
        return False
    if own.dtype == np.uint16:
        return bool(np.array_equal(own, other))
    error = float(((_in_small(own) - _in_small(other)) ** 2).mean())
    return 10 * math.log10(255**2 / max(error, 1e-9)) >= _LOWEST_PSNR


def _picture(place: Place, frame: int) -> np.ndarray:
    video = place.video
    wanted = int(place.frames(np.array(frame)))
    decoder = Decoder()
    stretch = Stretch(video.index, video.file, video.name, (wanted,))
    for _, found in decoder.frames(stretch):
        if found.format.name.startswith("gray1"):
            return depth_codes(found).copy()
        return decoder.painter.packed(found).copy()
    raise AssertionError("a decoder gives what it is asked for, or an error")


def _in_small(picture: np.ndarray) -> np.ndarray:
    """Return averages of a picture's parts, 16 across and 16 down or fewer."""
    height, width = picture.shape[:2]
    rows = np.linspace(0, height, min(_SIDE, height) + 1).astype(int)[:-1]
    columns = np.linspace(0, width, min(_SIDE, width) + 1).astype(int)[:-1]
    sums = np.add.reduceat(np.add.reduceat(picture.astype(np.float64), rows), columns, axis=1)
    down = np.diff(np.append(rows, height))
    across = np.diff(np.append(columns, width))
    return np.asarray(sums / np.multiply.outer(down, across)[..., None])
