"""From decoded video frames to arrays: RGB planes, sizes, depth codes.

Pictures are handed out as channels, height, width. swscale writes RGB planes (``gbrp``) straight
from 8-bit 4:2:0 video faster than it writes packed ``rgb24``, and then no transpose is needed; but
the packed conversion is the one whose bytes everyone else's pictures have. So planes are used only
where this machine's swscale is seen to give the very same bytes; and so is the shorter way, which
lets it write them into the array itself.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import av
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter

from demoreel.media.straight import Kind, NoShortCutError, Straight, fits

_PLANAR_CANDIDATES = frozenset({"yuv420p", "yuvj420p", "yuv422p", "yuv444p"})
_MOST_REFORMATTERS = 16
_GBR_TO_RGB = (1, 2, 0)  # planes come as G, B, R
_PIXELS_TO_COMPARE = 1 << 16
_MOST_TRIALS = 64

# PyAV before 17, which lerobot wants, knows no threads= (it converts on one), and takes every
# picture for BT.601 in limited range unless it is told what the frame says of itself.
_OLD_PYAV = int(av.__version__.split(".")[0]) < 17
ONE_THREAD: dict[str, Any] = {} if _OLD_PYAV else {"threads": 1}
_BT709, _BT601 = 1, 5
_FULL_RANGE = 2


class Painter:
    """Writes frames into arrays. Not for two threads at once: swscale contexts are stateful."""

    def __init__(self) -> None:
        self._reformatters: OrderedDict[tuple[object, ...], VideoReformatter] = OrderedDict()
        self._straight: dict[Kind, Straight | None] = {}

    def paint(self, frame: av.VideoFrame, out: np.ndarray) -> None:
        """Write a frame as RGB into ``out`` (3, height, width; uint8), scaling to its size."""
        _, height, width = out.shape
        if (frame.height, frame.width) != (height, width):
            self._planes(frame, out, height, width)
            return
        form, color_range, space = frame.format.name, frame.color_range, frame.colorspace
        kind = Kind(form, width, height, int(color_range), int(space))
        # PyAV converts the two fields of an interlaced frame by themselves.
        usual = fits(out) and not frame.interlaced_frame
        straight = self._straight_for(kind) if usual else None
        if straight is not None:
            straight.paint(frame, out)
        elif _planes_are_exact(kind):
            self._planes(frame, out, height, width)
        else:
            out[...] = self._packed(frame, height, width).transpose(2, 0, 1)

    def _straight_for(self, kind: Kind) -> Straight | None:
        if kind not in self._straight:
            if len(self._straight) >= _MOST_REFORMATTERS:
                self._straight.clear()
            self._straight[kind] = Straight(kind) if _straight_is_exact(kind) else None
        return self._straight[kind]

    def packed(self, frame: av.VideoFrame) -> np.ndarray:
        """Return a frame as RGB (height, width, 3; uint8), the same pixels as ``paint`` gives."""
        return self._packed(frame, frame.height, frame.width)

    def _packed(self, frame: av.VideoFrame, height: int, width: int) -> np.ndarray:
        packed = self._reformat(frame, "rgb24", height, width)
        return _rows(packed.planes[0], height, width * 3).reshape(height, width, 3)

    def _planes(self, frame: av.VideoFrame, out: np.ndarray, height: int, width: int) -> None:
        planar = self._reformat(frame, "gbrp", height, width)
        for plane, channel in zip(planar.planes, _GBR_TO_RGB, strict=True):
            out[channel] = _rows(plane, height, width)

    def _reformat(self, frame: av.VideoFrame, form: str, height: int, width: int) -> av.VideoFrame:
        # One swscale context per kind of conversion: cameras of several sizes would otherwise
        # rebuild it for every frame.
        key = (form, frame.format.name, frame.width, frame.height, width, height)
        reformatter = self._reformatters.get(key)
        if reformatter is None:
            reformatter = self._reformatters[key] = VideoReformatter()
            if len(self._reformatters) > _MOST_REFORMATTERS:
                self._reformatters.popitem(last=False)
        return reformatter.reformat(
            frame,
            width=width,
            height=height,
            format=form,
            interpolation=Interpolation.BILINEAR,
            **(_colours_of(frame) if _OLD_PYAV else ONE_THREAD),
        )


def _colours_of(frame: av.VideoFrame) -> dict[str, int]:
    """Return what old versions of PyAV must be told to convert a frame's colours to RGB."""
    space = int(frame.colorspace)
    full = frame.format.name.startswith("yuvj")  # whatever else the frame says
    return {
        "src_colorspace": space,
        "src_color_range": _FULL_RANGE if full else int(frame.color_range),
        # RGB has none, but only where the two differ is the source's looked at.
        "dst_colorspace": _BT601 if space == _BT709 else _BT709,
    }


def depth_codes(frame: av.VideoFrame) -> np.ndarray:
    """Return a depth frame's 12-bit codes (height, width; uint16)."""
    if frame.format.name not in ("gray12le", "yuv420p12le", "yuv444p12le", "gray16le"):
        frame = frame.reformat(format="gray12le")
    plane = frame.planes[0]
    codes = np.frombuffer(memoryview(plane), dtype="<u2").reshape(-1, plane.line_size // 2)
    return np.asarray(codes[: frame.height, : frame.width])


def _rows(plane: av.video.plane.VideoPlane, height: int, width: int) -> np.ndarray:
    """View a plane's bytes as rows, without the padding at their ends."""
    stride = plane.line_size
    rows = np.frombuffer(memoryview(plane), np.uint8, height * stride).reshape(height, stride)
    return np.asarray(rows[:, :width])


@lru_cache(maxsize=64)
def _planes_are_exact(kind: Kind) -> bool:
    """Compare both conversions on noise of the very same geometry; some milliseconds, once."""
    return _agrees(kind, lambda noise, out: Painter()._planes(noise, out, *out.shape[1:]))


@lru_cache(maxsize=64)
def _straight_is_exact(kind: Kind) -> bool:
    """Compare the conversion into an array with PyAV's, likewise."""
    try:
        straight = Straight(kind)
    except NoShortCutError:
        return False
    return _agrees(kind, straight.paint)


def _agrees(kind: Kind, paint: Callable[[av.VideoFrame, np.ndarray], None]) -> bool:
    """Whether a conversion gives what everyone else's gives."""
    # Where they differ by one in one pixel of hundreds, a small picture may not show it.
    trials = -(-_PIXELS_TO_COMPARE // (kind.width * kind.height))
    if kind.form not in _PLANAR_CANDIDATES or trials > _MOST_TRIALS:
        return False
    return all(_agrees_on_noise(kind, paint) for _ in range(trials))


def _agrees_on_noise(kind: Kind, paint: Callable[[av.VideoFrame, np.ndarray], None]) -> bool:
    noise = av.VideoFrame(kind.width, kind.height, kind.form)
    for plane in noise.planes:
        plane.update(os.urandom(plane.buffer_size))
    noise.color_range = kind.color_range
    noise.colorspace = kind.space
    planes = np.empty((3, kind.height, kind.width), dtype=np.uint8)
    paint(noise, planes)
    return bool(np.array_equal(planes.transpose(1, 2, 0), Painter().packed(noise)))
