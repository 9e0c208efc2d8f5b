"""Encoder settings of a camera, and their options for each encoder. Needs no PyAV.

Settings also come from untrusted files (``info.json``, manifests of saved episodes). So
``VideoSettings`` accepts only what stands in closed lists; see ``encoder_options.py``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Literal

from demoreel.errors import ArgumentError, DemoreelWarning, MetadataError, nearest
from demoreel.media.encoder_options import (
    HARDWARE_OPTIONS,
    LONGEST_GOP,
    OPTIONS,
    PRESETS,
    Accepts,
    as_text,
)

Codec = Literal["av1", "h264", "hevc", "vp9", "mpeg4", "ffv1"]

ENCODERS: Mapping[Codec, str] = MappingProxyType(
    {
        "av1": "libsvtav1",
        "h264": "libx264",
        "hevc": "libx265",
        "vp9": "libvpx-vp9",
        "mpeg4": "mpeg4",
        "ffv1": "ffv1",
    }
)
"""The software encoder of each codec."""

OTHER_ENCODERS: Mapping[str, Codec] = MappingProxyType({"libaom-av1": "av1"})
"""Software encoders that are used only by their names."""

HARDWARE_ENCODERS: Mapping[str, Codec] = MappingProxyType(
    {
        "h264_videotoolbox": "h264",
        "hevc_videotoolbox": "hevc",
        "h264_nvenc": "h264",
        "hevc_nvenc": "hevc",
        "h264_vaapi": "h264",
        "h264_qsv": "h264",
    }
)
"""Encoders that need a machine that has them, in the order in which ``auto`` tries them."""

# Chosen so that one core keeps up with a 640x480 camera at 30 fps. SVT-AV1 is faster still at 10
# and above (LeRobot takes 12), but there it leaves blocks of the frame before in a frame where
# much changes at once: measured on stamped frames, 4 of 100 frames at GOP 32, none at preset 9.
_FAST_PRESETS: Mapping[Codec, int | str | None] = MappingProxyType(
    {"av1": 9, "h264": "superfast", "hevc": "ultrafast", "vp9": 8, "mpeg4": None, "ffv1": None}
)

# libavcodec counts quantisers in 1/118 steps (FF_QP2LAMBDA).
_LAMBDA_PER_QUANTISER = 118

_SHORT_GOP = 4

PIXEL_FORMATS = (
    *("yuv420p", "yuvj420p", "yuv422p", "yuvj422p", "yuv444p", "yuvj444p"),
    *("yuv420p10le", "yuv422p10le", "yuv444p10le", "yuv420p12le", "yuv422p12le", "yuv444p12le"),
    *("nv12", "p010le", "gray", "gray10le", "gray12le", "gray16le"),
    *("gbrp", "gbrp10le", "gbrp12le", "bgr0"),
)
"""The pixel formats that can be asked for. Whether an encoder has one is its own affair."""

_MOST_B_FRAMES = 16
_WORST_CRF: Mapping[Codec, int] = MappingProxyType(
    {"av1": 63, "h264": 51, "hevc": 51, "vp9": 63, "mpeg4": 63, "ffv1": 63}
)
_HINT = "pass video=VideoSettings(...) to say how to encode, or correct the file"


def allowed_options(codec: Codec, encoder: str | None = None) -> Mapping[str, Accepts]:
    """Return the options that an encoder may be given, by name, and what checks each value."""
    return HARDWARE_OPTIONS if encoder in HARDWARE_ENCODERS else OPTIONS[codec]


def _shown(value: object) -> str:
    """Return a value for an error, cut short: it may come from an untrusted file."""
    try:
        shown = repr(value)
    except (ValueError, RecursionError):  # a number of 5000 digits, a thousand brackets
        shown = f"a {type(value).__name__}"
    return shown if len(shown) <= 80 else f"{shown[:80]}..."


def _whole(name: str, value: object, low: int, high: int, *, rounded: bool = False) -> int:
    """Return a setting that is a whole number in a range; 30.0 is one."""
    if isinstance(value, float) and math.isfinite(value) and (rounded or value == int(value)):
        value = round(value)  # LeRobot takes fractions of a crf
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ArgumentError(f"{name} is a whole number from {low} to {high}, not {_shown(value)}.")
    return value


@dataclass(frozen=True, kw_only=True)
class VideoSettings:
    """How to encode one camera.

    The defaults are LeRobot's, save the preset: AV1, a keyframe every second frame so that any
    frame is at most one packet away from one, constant quality 30.

    Attributes:
        codec: ``av1`` is smallest and slowest to encode, ``h264`` fastest to encode and the only
            one every GPU decodes, ``hevc`` stores 12-bit depth, ``ffv1`` is lossless and stores
            16 bits (``gray16le``), but only FFmpeg reads it.
        pix_fmt: Pixel format in the file, a libav name. ``gray12le`` takes uint16 codes.
        gop: Frames from one keyframe to the next. Larger is smaller on disk and slower to seek.
        crf: Constant quality, lower is better; 0..51 for h264 and hevc, 0..63 for av1 and vp9. For
            mpeg4 it is translated to the quantiser of about the same quality; ffv1 has none.
        b_frames: Most B-frames in a row (h264, hevc, mpeg4; av1 and vp9 have none).
        preset: The encoder's own speed setting; None is a fast one.
        open_gop: Let frames shown before a keyframe depend on the GOP before it (h264, hevc, mpeg4
            with ``b_frames``). Smaller, but a keyframe is then no clean entry for those frames.
        encoder: Which of libav's encoders makes the codec; None is the software one. The hardware
            ones (``HARDWARE_ENCODERS``) have no ``crf``: it is translated.
        options: More encoder options, from a closed list (``allowed_options``): none that names a
            file. ``x264-params``, ``x265-params`` and ``svtav1-params`` are added to ours, so
            ``{"x265-params": "lossless=1"}`` works. Numbers are kept as text.

    Raises:
        ArgumentError: A value is of the wrong kind or out of range, or an option is not listed.
    """

    codec: Codec = "av1"
    pix_fmt: str = "yuv420p"
    gop: int = 2
    crf: int = 30
    b_frames: int = 0
    preset: int | str | None = None
    open_gop: bool = False
    encoder: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what no encoder can do, or what none should, before a file is opened."""
        if not isinstance(self.codec, str) or self.codec not in ENCODERS:
            raise ArgumentError(
                f"There is no codec {_shown(self.codec)}.",
                hint=nearest(_shown(self.codec), ENCODERS),
            )
        if self.encoder is not None and self.codec != _codec_of(self.encoder):
            raise ArgumentError(
                f"The encoder {_shown(self.encoder)} does not make {self.codec}.",
                hint=nearest(
                    _shown(self.encoder).strip("'"),
                    [*ENCODERS.values(), *OTHER_ENCODERS, *HARDWARE_ENCODERS],
                ),
            )
        if not isinstance(self.pix_fmt, str) or self.pix_fmt not in PIXEL_FORMATS:
            raise ArgumentError(
                f"There is no pixel format {_shown(self.pix_fmt)} to encode.",
                hint=f"one of {', '.join(PIXEL_FORMATS)}",
            )
        if not isinstance(self.open_gop, bool):
            raise ArgumentError(f"open_gop is True or False, not {_shown(self.open_gop)}.")
        for name, low, high in (
            ("gop", 1, LONGEST_GOP),
            ("crf", 0, _WORST_CRF[self.codec]),
            ("b_frames", 0, _MOST_B_FRAMES),
        ):
            number = _whole(name, getattr(self, name), low, high, rounded=name == "crf")
            object.__setattr__(self, name, number)
        if self.codec in ("av1", "vp9", "ffv1") and (self.b_frames or self.open_gop):
            raise ArgumentError(f"{self.codec} has neither B-frames nor open GOPs.")
        if self.open_gop and not self.b_frames:
            raise ArgumentError("open_gop needs b_frames: only they can reach over a keyframe.")
        self._check_preset()
        object.__setattr__(self, "options", self._checked_options())

    def _check_preset(self) -> None:
        accepts = PRESETS.get(self.encoder or "") or PRESETS[self.codec]
        if self.preset is None:
            return
        try:
            accepts(as_text(self.preset))
        except ValueError as error:
            raise ArgumentError(
                f"{self.encoder_name} has no preset {_shown(self.preset)}: {error}."
            ) from None

    def _checked_options(self) -> dict[str, str]:
        """Return the options as text, each checked."""
        allowed = allowed_options(self.codec, self.encoder)
        if not isinstance(self.options, Mapping):
            raise ArgumentError(
                f"options is a dict of names and values, not {_shown(self.options)}."
            )
        checked = {}
        for name, value in self.options.items():
            accepts = allowed.get(name) if isinstance(name, str) else None
            if accepts is None:
                raise ArgumentError(
                    f"{self.encoder_name} may not be given the option {_shown(name)}.",
                    hint=f"allowed are {', '.join(sorted(allowed))}",
                )
            try:
                checked[name] = as_text(value)
                accepts(checked[name])
            except ValueError as error:
                raise ArgumentError(
                    f"The option {name} of {self.encoder_name} cannot be {_shown(value)}: {error}."
                ) from None
        return checked

    @classmethod
    def from_file(
        cls, noted: object, *, default: VideoSettings | None = None, **where: object
    ) -> VideoSettings:
        """Return the settings that a file notes, checked like those that a caller gives.

        Args:
            noted: Settings by the names of ``VideoSettings``; those that are None are left as they
                are in ``default``.
            default: What holds for the rest; None is ``VideoSettings()``.
            **where: For the error: ``file=``, ``camera=``.

        Raises:
            MetadataError: They are not such settings, or not ones that are allowed.
        """
        given = {item.name: getattr(default or cls(), item.name) for item in fields(cls)}
        if not isinstance(noted, Mapping) or not noted.keys() <= given.keys():
            raise MetadataError(
                f"These are no settings of an encoder: {_shown(noted)}.", hint=_HINT, **where
            )
        given |= {name: value for name, value in noted.items() if value is not None}
        try:
            return cls(**given)
        except ArgumentError as error:
            raise MetadataError(
                f"The settings that are noted here are refused: {error.what}",
                hint=f"{error.hint}; {_HINT}" if error.hint else _HINT,
                **where,
            ) from error

    def feature_info(self, *, fps: float, height: int, width: int) -> dict[str, Any]:
        """Return the ``info`` entry LeRobot keeps for a video feature encoded this way.

        Args:
            fps: Frames per second of the video.
            height: Height of a frame in pixels.
            width: Its width.
        """
        channels = 1 if self.pix_fmt.startswith("gray") else 3
        return {
            "video.height": height,
            "video.width": width,
            "video.codec": self.codec,
            "video.pix_fmt": self.pix_fmt,
            "video.fps": fps,
            "video.channels": channels,
            "has_audio": False,
            "video.g": self.gop,
            "video.crf": self.crf,
            # As lerobot notes it: of AV1 the one in effect, of others the one that was asked for.
            "video.preset": self.speed if self.codec == "av1" else self.preset,
            "video.fast_decode": self._fast_decode,
            "video.video_backend": "pyav",
            "video.extra_options": dict(self.options),
            "is_depth_map": False,
        }

    @property
    def _fast_decode(self) -> int:
        """What lerobot calls ``fast_decode``: here it is one of the options."""
        for part in self.options.get("svtav1-params", "").split(":"):
            name, _, value = part.partition("=")
            if name == "fast-decode":
                return round(float(value))
        return int(self.options.get("tune") == "fastdecode")

    @property
    def encoder_name(self) -> str:
        """The name libav has for the encoder."""
        return self.encoder or ENCODERS[self.codec]

    @property
    def speed(self) -> int | str | None:
        """The preset in effect: the one asked for, else the codec's fast one."""
        if self.preset is None and self.encoder in (*HARDWARE_ENCODERS, *OTHER_ENCODERS):
            return None
        return _FAST_PRESETS[self.codec] if self.preset is None else self.preset


LOSSLESS_DEPTH = VideoSettings(
    codec="hevc", pix_fmt="gray12le", options={"x265-params": "lossless=1"}
)
"""What LeRobot records depth with: 12-bit codes in lossless HEVC."""

LOSSLESS_DEPTH_16 = VideoSettings(codec="ffv1", pix_fmt="gray16le", gop=1)
"""All 16 bits of depth, every value as it was. Larger than the 12-bit codes."""


_CUTREE_WIDTH = 256
"""In narrow images x265's CU tree writes past the end of a row of blocks, which corrupts the heap
of the process. Seen from 34 to 48 pixels."""


def exact_rate(fps: float | Fraction) -> Fraction:
    """Return ``fps`` as the ratio a video clock can keep: 29.97 is 2997/100.

    Not NTSC's 30000/1001: a dataset's rows say ``frame / fps``, and over an hour the two clocks
    part by a tenth of a frame. Pass a Fraction for that rate.
    """
    if fps <= 0:
        raise ArgumentError(f"fps must be positive, not {fps}.")
    return Fraction(fps).limit_denominator(10_000)


def encoder_options(
    settings: VideoSettings, *, threads: int, width: int | None = None
) -> dict[str, str]:
    """Return libav's options for ``settings``: quiet, regular keyframes, bounded threads.

    Args:
        settings: Codec and quality.
        threads: Most threads that the encoder may use.
        width: Of the images, in pixels; None is any that every option is good for.
    """
    speed, crf = str(settings.speed), str(settings.crf)
    own: dict[str, str]
    if settings.encoder in HARDWARE_ENCODERS:
        own = _hardware_options(settings)
    elif settings.encoder == "libaom-av1":
        # No look-ahead: each frame gives its packet at once.
        own = {"crf": crf, "b": "0", "cpu-used": "8", "usage": "realtime", "lag-in-frames": "0"}
    elif settings.codec == "av1":
        own = {"preset": speed, "crf": crf, "svtav1-params": f"lp={threads}"}
        if settings.gop <= _SHORT_GOP:
            # The same packets, bit for bit, but 5 frames sooner: no need to look past the GOP.
            own["svtav1-params"] += ":hierarchical-levels=2:lookahead=0"
    elif settings.codec == "h264":
        own = {"preset": speed, "crf": crf, "sc_threshold": "0"}
        own["x264-params"] = f"open-gop={int(settings.open_gop)}"
    elif settings.codec == "hevc":
        own = {"preset": speed, "crf": crf}
        own["x265-params"] = (
            f"log-level=none:scenecut=0:min-keyint=1:open-gop={int(settings.open_gop)}"
            f":pools={threads}:frame-threads={min(threads, 2)}"
        )
    elif settings.codec == "vp9":
        # No lag and no hidden frames: each frame gives its packet at once.
        own = {"crf": crf, "b": "0", "deadline": "realtime", "cpu-used": speed}
        own |= {"lag-in-frames": "0", "auto-alt-ref": "0"}
    elif settings.codec == "ffv1":
        own = {"level": "3", "slicecrc": "1"}
    else:
        quantiser = min(31, max(1, round(2 ** ((settings.crf - 12) / 6))))
        own = {"global_quality": str(quantiser * _LAMBDA_PER_QUANTISER), "flags": "+qscale"}
        if not settings.open_gop:
            # The encoder takes closed GOPs only with its scene detection out of reach.
            own |= {"flags": "+qscale+cgop", "sc_threshold": "1000000000"}
    for name, value in settings.options.items():
        joined = name in own and name.endswith("-params")
        own[name] = f"{own[name]}:{value}" if joined else value
    if settings.encoder_name == "libx265" and width is not None and width < _CUTREE_WIDTH:
        own["x265-params"] += ":cutree=0"  # last, so that no option turns it on again
    return own


def _codec_of(encoder: object) -> Codec | None:
    if not isinstance(encoder, str):
        return None
    software = {name: codec for codec, name in ENCODERS.items()}
    others = {**HARDWARE_ENCODERS, **OTHER_ENCODERS}
    return others.get(encoder) or software.get(encoder)


def codec_named(name: str) -> tuple[Codec, str | None]:
    """Return the codec that a name means, and the encoder if it is not the codec's usual one.

    Args:
        name: A codec's name, or that of one of FFmpeg's encoders.
    """
    for codec, encoder in ENCODERS.items():
        if name in (codec, encoder):
            return codec, None
    found = _codec_of(name)
    if found is None:
        known = dict.fromkeys([*ENCODERS, *ENCODERS.values(), *OTHER_ENCODERS, *HARDWARE_ENCODERS])
        raise ArgumentError(f"There is no codec {_shown(name)}.", hint=nearest(str(name), known))
    return found, name


def with_known_chroma(settings: VideoSettings) -> VideoSettings:
    """Return settings with yuv420p, and warn, where LeRobot has no yuv444p: AV1 and HEVC."""
    if settings.pix_fmt != "yuv444p" or settings.codec not in ("av1", "hevc"):
        return settings
    warnings.warn(
        f"yuv444p does not go with {settings.codec} in LeRobot's format; yuv420p is used instead.",
        DemoreelWarning,
        stacklevel=2,
    )
    return replace(settings, pix_fmt="yuv420p")


def _hardware_options(settings: VideoSettings) -> dict[str, str]:
    """Return a hardware encoder's options: constant quality, in the terms it has for that."""
    kind = str(settings.encoder).rpartition("_")[2]
    preset = {} if settings.preset is None else {"preset": str(settings.preset)}
    if kind == "videotoolbox":
        quality = max(1, min(100, 100 - 2 * settings.crf))
        return {
            "global_quality": str(quality * _LAMBDA_PER_QUANTISER),
            "flags": "+qscale",
            "realtime": "1",
            **preset,
        }
    if kind == "nvenc":
        # Every keyframe an IDR: with gop 2 decoding begins at any of them.
        return {"rc": "constqp", "qp": str(settings.crf), "forced-idr": "1", "delay": "0", **preset}
    if kind == "vaapi":
        return {"rc_mode": "CQP", "qp": str(settings.crf), **preset}
    return {"global_quality": str(settings.crf), **preset}
