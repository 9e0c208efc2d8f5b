"""How a camera is to be encoded, and what that means to each encoder. Needs no PyAV."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Literal

from demoreel.errors import ArgumentError, nearest

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
# and above (LeRobot takes 12), but there it leaves blocks of the frame before in a picture where
# much changes at once: measured on stamped pictures, 4 of 100 frames at GOP 32, none at preset 9.
_FAST_PRESETS: Mapping[Codec, int | str | None] = MappingProxyType(
    {"av1": 9, "h264": "superfast", "hevc": "ultrafast", "vp9": 8, "mpeg4": None, "ffv1": None}
)

# libavcodec counts quantisers in 1/118 steps (FF_QP2LAMBDA).
_LAMBDA_PER_QUANTISER = 118

_SHORT_GOP = 4


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
        open_gop: Let frames shown before a keyframe lean on the GOP before it (h264, hevc, mpeg4
            with ``b_frames``). Smaller, but a keyframe is then no clean entry for those frames.
        encoder: Which of libav's encoders makes the codec; None is the software one. The hardware
            ones (``HARDWARE_ENCODERS``) have no ``crf``: it is translated.
        options: More encoder options, passed through as they are. ``x265-params`` and
            ``svtav1-params`` are added to ours, so ``{"x265-params": "lossless=1"}`` works.
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
        """Refuse what no encoder can do, before a file is opened."""
        if self.codec not in ENCODERS:
            raise ArgumentError(
                f"There is no codec {self.codec!r}.", hint=nearest(self.codec, ENCODERS)
            )
        if self.encoder is not None and self.codec != _codec_of(self.encoder):
            raise ArgumentError(
                f"The encoder {self.encoder!r} does not make {self.codec}.",
                hint=nearest(self.encoder, [*ENCODERS.values(), *HARDWARE_ENCODERS]),
            )
        if self.gop < 1:
            raise ArgumentError(f"gop must be at least 1 frame, not {self.gop}.")
        if self.b_frames < 0:
            raise ArgumentError(f"b_frames must not be negative, not {self.b_frames}.")
        if self.codec in ("av1", "vp9", "ffv1") and (self.b_frames or self.open_gop):
            raise ArgumentError(f"{self.codec} has neither B-frames nor open GOPs.")
        if self.open_gop and not self.b_frames:
            raise ArgumentError("open_gop needs b_frames: only they can reach over a keyframe.")

    def feature_info(self, *, fps: float, height: int, width: int) -> dict[str, Any]:
        """Return the ``info`` entry LeRobot keeps for a video feature encoded this way."""
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
            "video.preset": self.speed,
            "video.fast_decode": 0,
            "video.video_backend": "pyav",
            "video.extra_options": dict(self.options),
            "is_depth_map": False,
        }

    @property
    def encoder_name(self) -> str:
        """The name libav has for the encoder."""
        return self.encoder or ENCODERS[self.codec]

    @property
    def speed(self) -> int | str | None:
        """The preset in effect: the one asked for, else the codec's fast one."""
        if self.preset is None and self.encoder in HARDWARE_ENCODERS:
            return None
        return _FAST_PRESETS[self.codec] if self.preset is None else self.preset


LOSSLESS_DEPTH = VideoSettings(
    codec="hevc", pix_fmt="gray12le", options={"x265-params": "lossless=1"}
)
"""What LeRobot records depth with: 12-bit codes in lossless HEVC."""

LOSSLESS_DEPTH_16 = VideoSettings(codec="ffv1", pix_fmt="gray16le", gop=1)
"""All 16 bits of depth, every value as it was. Larger than the 12-bit codes."""


def exact_rate(fps: float | Fraction) -> Fraction:
    """Return ``fps`` as the ratio a video clock can keep: 29.97 is 2997/100.

    Not NTSC's 30000/1001: a dataset's rows say ``frame / fps``, and over an hour the two clocks
    part by a tenth of a frame. Pass a Fraction for that rate.
    """
    if fps <= 0:
        raise ArgumentError(f"fps must be positive, not {fps}.")
    return Fraction(fps).limit_denominator(10_000)


def encoder_options(settings: VideoSettings, *, threads: int) -> dict[str, str]:
    """Return libav's options for ``settings``: quiet, regular keyframes, bounded threads."""
    speed, crf = str(settings.speed), str(settings.crf)
    own: dict[str, str]
    if settings.encoder in HARDWARE_ENCODERS:
        own = _hardware_options(settings)
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
        # No lag and no hidden frames: each picture gives its packet at once.
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
    return own


def _codec_of(encoder: str) -> str | None:
    software = {name: codec for codec, name in ENCODERS.items()}
    return HARDWARE_ENCODERS.get(encoder) or software.get(encoder)


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
