"""Converts decoded video frames to arrays: RGB planes, sizes, depth codes.

Frames are handed out as channels, height, width. swscale writes RGB planes (``gbrp``) straight
from 8-bit 4:2:0 video faster than it writes packed ``rgb24``, and then no transpose is needed; but
the packed conversion is the one whose bytes everyone else's frames have. So planes are used only
where this machine's swscale is seen to give the very same bytes.

PyAV converts into a frame of its own, whose pixels must then be copied: together, twice the time of
the conversion itself. ``DirectSwscale`` calls the swscale that PyAV has loaded, whose functions
have been the same for fifteen years, and lets it write into the array. Where they are not found, or
do not give the same bytes, PyAV's conversion serves.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from demoreel.packages import load_late

if TYPE_CHECKING:
    import av
    from av.video.reformatter import VideoReformatter
else:
    av = load_late("av")

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


class NoDirectSwscaleError(Exception):
    """PyAV must do it: its swscale is not to be found, or does not take such frames."""


class DirectSwscale:
    """Converts frames of one kind into RGB planes. Not for two threads at once."""

    def __init__(self, kind: Kind) -> None:
        swscale, formats = _libraries()
        if swscale is None or formats is None:
            raise NoDirectSwscaleError
        size = (kind.width, kind.height)
        form, planes = formats.number(kind.form), formats.number("gbrp")
        self._context = swscale.sws_getContext(
            *size, form, *size, planes, _BILINEAR, None, None, None
        )
        if not self._context:
            raise NoDirectSwscaleError
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
        """Write a frame into ``out`` (3, height, width; uint8), for which ``_fits`` holds."""
        planes = frame.planes
        pixels = _Pointers(*(plane.buffer_ptr for plane in planes))
        strides = _Strides(*(plane.line_size for plane in planes))
        red = out.__array_interface__["data"][0]
        into = _Pointers(red + self._plane, red + 2 * self._plane, red, 0)  # G, B, R
        self._scale(self._context, pixels, strides, 0, self._height, into, self._strides)


def _fits(out: np.ndarray) -> bool:
    """Whether rows of pixels are one behind the other, where processors like them to begin."""
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
            raise NoDirectSwscaleError
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
    # First of all: this may be what loads PyAV, and with it the library.
    home = os.path.dirname(os.path.dirname(os.path.abspath(av.__file__)))
    with open(_MAPS) as maps:
        lines = [line.split(maxsplit=5) for line in maps if f"/{name}" in line]
    paths = {line[5].strip() for line in lines if len(line) == 6}
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


_PLANAR_CANDIDATES = frozenset({"yuv420p", "yuvj420p", "yuv422p", "yuv444p"})
_MOST_REFORMATTERS = 16
_GBR_TO_RGB = (1, 2, 0)  # planes come as G, B, R
_PIXELS_TO_COMPARE = 1 << 16
_MOST_TRIALS = 64


# PyAV before 17, which lerobot needs, has no threads= (it converts on one), and takes every
# frame for BT.601 in limited range unless it is told what the frame says of itself.
@cache
def _is_old_pyav() -> bool:
    return int(av.__version__.split(".")[0]) < 17


def one_thread() -> dict[str, Any]:
    """Return the arguments that let PyAV convert a frame in this thread."""
    return {} if _is_old_pyav() else {"threads": 1}


_BT709, _BT601 = 1, 5


class Painter:
    """Writes frames into arrays. Not for two threads at once: swscale contexts are stateful."""

    def __init__(self) -> None:
        self._reformatters: OrderedDict[tuple[object, ...], VideoReformatter] = OrderedDict()
        self._direct: dict[Kind, DirectSwscale | None] = {}

    def paint(self, frame: av.VideoFrame, out: np.ndarray) -> None:
        """Write a frame as RGB into ``out`` (3, height, width; uint8), scaling to its size."""
        _, height, width = out.shape
        if (frame.height, frame.width) != (height, width):
            self._planes(frame, out, height, width)
            return
        form, color_range, space = frame.format.name, frame.color_range, frame.colorspace
        kind = Kind(form, width, height, int(color_range), int(space))
        # PyAV converts the two fields of an interlaced frame by themselves.
        usual = _fits(out) and not frame.interlaced_frame
        direct = self._direct_for(kind) if usual else None
        if direct is not None:
            direct.paint(frame, out)
        elif _planes_are_exact(kind):
            self._planes(frame, out, height, width)
        else:
            out[...] = self._packed(frame, height, width).transpose(2, 0, 1)

    def _direct_for(self, kind: Kind) -> DirectSwscale | None:
        if kind not in self._direct:
            if len(self._direct) >= _MOST_REFORMATTERS:
                self._direct.clear()
            self._direct[kind] = DirectSwscale(kind) if _direct_is_exact(kind) else None
        return self._direct[kind]

    def packed(self, frame: av.VideoFrame, size: tuple[int, int] | None = None) -> np.ndarray:
        """Return a frame as RGB (height, width, 3; uint8), the same pixels as ``paint`` gives.

        Args:
            frame: The frame.
            size: Height and width to scale to; None keeps them.
        """
        height, width = size or (frame.height, frame.width)
        return self._packed(frame, height, width)

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
            reformatter = self._reformatters[key] = av.video.reformatter.VideoReformatter()
            if len(self._reformatters) > _MOST_REFORMATTERS:
                self._reformatters.popitem(last=False)
        return reformatter.reformat(
            frame,
            width=width,
            height=height,
            format=form,
            interpolation=av.video.reformatter.Interpolation.BILINEAR,
            **(_colours_of(frame) if _is_old_pyav() else one_thread()),
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
def _direct_is_exact(kind: Kind) -> bool:
    """Compare the conversion into an array with PyAV's, likewise."""
    try:
        direct = DirectSwscale(kind)
    except NoDirectSwscaleError:
        return False
    return _agrees(kind, direct.paint)


def _agrees(kind: Kind, paint: Callable[[av.VideoFrame, np.ndarray], None]) -> bool:
    """Whether a conversion gives what everyone else's gives."""
    # Where they differ by one in one pixel of hundreds, a small frame may not show it.
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
