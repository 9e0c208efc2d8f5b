"""Settings of encoders as LeRobot users give them: objects like lerobot's ``RGBEncoderConfig``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from demoreel.media.settings import VideoSettings

_B_FRAMES = "bf"  # FFmpeg's name; here it is a setting, not an option
_PROFILE = {"profile:v": "profile"}  # the same option, said of video only


def settings_of(encoder: Any, *, auto: str | None = None) -> VideoSettings | None:
    """Return lerobot's encoder settings as ours; None leaves the choice to demoreel.

    Args:
        encoder: ``vcodec``, ``pix_fmt``, ``g``, ``crf``, ``preset``, ``fast_decode`` and
            ``extra_options``, as attributes; what is missing or None has our default.
        auto: What the codec ``auto`` is; None leaves everything to demoreel.

    Raises:
        ArgumentError: A value makes no sense, or an option is not allowed.
    """
    if encoder is None:
        return None
    from demoreel.media.settings import VideoSettings, codec_named

    vcodec = getattr(encoder, "vcodec", None)
    if vcodec == "auto":
        if auto is None:
            return None
        vcodec = auto
    codec, name = (None, None) if vcodec is None else codec_named(str(vcodec))
    options = _options(encoder, codec, name)
    given: dict[str, Any] = {
        "codec": codec,
        "encoder": name,
        "pix_fmt": getattr(encoder, "pix_fmt", None),
        "gop": getattr(encoder, "g", None),
        "crf": getattr(encoder, "crf", None),
        "preset": getattr(encoder, "preset", None),
        "b_frames": _as_number(options.pop(_B_FRAMES, None)),
        "options": {_PROFILE.get(option, option): value for option, value in options.items()},
    }
    return replace(
        VideoSettings(), **{name: value for name, value in given.items() if value is not None}
    )


def _as_number(value: Any) -> Any:
    """Return a number that may be a text, as options may be; else the value, to be refused."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def _options(encoder: Any, codec: str | None, name: str | None) -> dict[str, Any]:
    """Return lerobot's further options, with what its ``fast_decode`` stands for."""
    options = dict(getattr(encoder, "extra_options", None) or {})
    fast = getattr(encoder, "fast_decode", 0)
    if not fast or name is not None:
        return options
    if codec == "av1":
        parameters = (options.get("svtav1-params"), f"fast-decode={max(0, min(2, int(fast)))}")
        return options | {"svtav1-params": ":".join(filter(None, parameters))}
    return {"tune": "fastdecode", **options} if codec in ("h264", "hevc") else options
