"""Frames converted straight into our arrays, by the swscale that PyAV has brought along.

PyAV converts into a frame of its own, whose pixels must then be copied: together, twice the time of
the conversion itself. swscale writes wherever it is told to; its functions for that have been the
same for fifteen years. Where they are not to be found, or do not give the same bytes, PyAV serves.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from functools import cache
from typing import Any, NamedTuple

import av
import numpy as np

_BILINEAR = 2
_FULL_RANGE = 2
_ONE = 1 << 16  # contrast and saturation as they are
_ALIGNMENT = 16
_MAPS = "/proc/self/maps"
_KNOWN = range(5, 10)  # FFmpeg 4 to 8; what comes then may have other functions

_Pointers = ctypes.c_void_p * 4
_Strides = ctypes.c_int * 4


class Kind(NamedTuple):
    """What decides how a frame is converted.

    Attributes:
        form: Its pixel format.
        width: In pixels.
        height: In pixels.
        color_range: As the frame says.
        space: As the frame says.
    """

    form: str
    width: int
    height: int
    color_range: int
    space: int


class NoShortCutError(Exception):
    """PyAV must do it: its swscale is not to be found, or knows no such frames."""


class Straight:
    """Converts frames of one kind into RGB planes. Not for two threads at once.

    Args:
        kind: The kind.

    Raises:
        NoShortCutError: There is no way to do it here.
    """

    def __init__(self, kind: Kind) -> None:
        swscale, formats = _libraries()
        if swscale is None or formats is None:
            raise NoShortCutError
        size = (kind.width, kind.height)
        form, planes = formats.number(kind.form), formats.number("gbrp")
        self._context = swscale.sws_getContext(
            *size, form, *size, planes, _BILINEAR, None, None, None
        )
        if not self._context:
            raise NoShortCutError
        weakref.finalize(self, swscale.sws_freeContext, self._context).atexit = False
        full = kind.form.startswith("yuvj") or kind.color_range == _FULL_RANGE
        colours = swscale.sws_getCoefficients(kind.space)
        swscale.sws_setColorspaceDetails(
            self._context, colours, int(full), colours, 1, 0, _ONE, _ONE
        )
        self._scale = swscale.sws_scale
        self._height = kind.height
        self._plane = kind.width * kind.height
        self._strides = _Strides(kind.width, kind.width, kind.width, 0)

    def paint(self, frame: av.VideoFrame, out: np.ndarray) -> None:
        """Write a frame into ``out`` (3, height, width; uint8), for which ``fits`` holds."""
        planes = frame.planes
        pixels = _Pointers(*(plane.buffer_ptr for plane in planes))
        strides = _Strides(*(plane.line_size for plane in planes))
        red = out.__array_interface__["data"][0]
        into = _Pointers(red + self._plane, red + 2 * self._plane, red, 0)  # G, B, R
        self._scale(self._context, pixels, strides, 0, self._height, into, self._strides)


def fits(out: np.ndarray) -> bool:
    """Whether rows of pixels lie one behind the other, where processors like them to begin."""
    address: int = out.__array_interface__["data"][0]
    return (
        out.flags.c_contiguous
        and address % _ALIGNMENT == 0
        and out.shape[-1] % _ALIGNMENT == 0
        and out.flags.writeable
    )


class _Formats:
    """The numbers of pixel formats, by name."""

    def __init__(self, avutil: Any) -> None:
        self._get = avutil.av_get_pix_fmt
        self._get.argtypes, self._get.restype = [ctypes.c_char_p], ctypes.c_int

    def number(self, name: str) -> int:
        found: int = self._get(name.encode())
        if found < 0:
            raise NoShortCutError
        return found


@cache
def _libraries() -> tuple[Any, _Formats | None]:
    """Return the libraries that PyAV uses; None where they cannot be told."""
    try:
        swscale, avutil = _loaded("libswscale"), _loaded("libavutil")
        if swscale is None or avutil is None:
            return None, None
        swscale.swscale_version.restype = ctypes.c_uint
        if swscale.swscale_version() >> 16 not in _KNOWN:
            return None, None
        _declare(swscale)
        return swscale, _Formats(avutil)
    except (OSError, AttributeError):
        return None, None


def _loaded(name: str) -> Any:
    """Return a library that is loaded already, and is PyAV's: others may have brought their own."""
    if not os.path.exists(_MAPS):
        return None
    with open(_MAPS) as maps:
        lines = [line.split(maxsplit=5) for line in maps if f"/{name}" in line]
    paths = {line[5].strip() for line in lines if len(line) == 6}
    home = os.path.dirname(os.path.dirname(os.path.abspath(av.__file__)))
    own = {path for path in paths if path.startswith(os.path.join(home, "av.libs"))}
    found = own or paths
    return ctypes.CDLL(found.pop()) if len(found) == 1 else None


def _declare(swscale: Any) -> None:
    number, pointer = ctypes.c_int, ctypes.c_void_p
    swscale.sws_getContext.argtypes = [number] * 7 + [pointer] * 3
    swscale.sws_getContext.restype = pointer
    swscale.sws_freeContext.argtypes = [pointer]
    swscale.sws_freeContext.restype = None
    swscale.sws_getCoefficients.argtypes = [number]
    swscale.sws_getCoefficients.restype = pointer
    swscale.sws_setColorspaceDetails.argtypes = [pointer, pointer, number, pointer] + [number] * 4
    swscale.sws_scale.argtypes = [pointer, *[pointer] * 2, number, number, *[pointer] * 2]
