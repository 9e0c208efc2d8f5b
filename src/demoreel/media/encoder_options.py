"""The closed list of encoder options, none of which can name a file, and their values.

FFmpeg's encoders have options that write files (``x264-params=dump-yuv=PATH``), and settings come
from untrusted files, too. An option that is not listed here reaches no encoder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

Accepts = Callable[[str], None]
"""Raises ValueError, saying what is accepted, for a value that is not."""

_NUMBER = re.compile(r"-?[0-9]{1,12}(\.[0-9]{1,12})?")
_BITRATE = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?[kM]?")
_MOST_PARAMS = 64

LONGEST_GOP = 1 << 20
"""Frames from one keyframe to the next, at most."""


def _number(low: float, high: float) -> Accepts:
    def accepts(value: str) -> None:
        if not _NUMBER.fullmatch(value) or not low <= float(value) <= high:
            raise ValueError(f"it is a number from {low:g} to {high:g}")

    return accepts


def _word(*words: str) -> Accepts:
    def accepts(value: str) -> None:
        if value not in words:
            raise ValueError(f"it is one of {', '.join(words)}" if words else "it takes none")

    return accepts


def _either(*kinds: Accepts) -> Accepts:
    def accepts(value: str) -> None:
        said = []
        for kind in kinds:
            try:
                return kind(value)
            except ValueError as error:
                said.append(str(error))
        raise ValueError(", or ".join(said))

    return accepts


def _pair(low: float, high: float) -> Accepts:
    """One number, or two with a comma between: a colon would begin the next parameter."""
    one = _number(low, high)

    def accepts(value: str) -> None:
        parts = value.split(",")
        if len(parts) > 2:
            raise ValueError("it is one number, or two with a comma between")
        for part in parts:
            one(part)

    return accepts


def _bitrate(value: str) -> None:
    if not _BITRATE.fullmatch(value):
        raise ValueError("it is a bit rate such as 4000000, 4000k or 4M")


def _params(keys: Mapping[str, Accepts], flags: Iterable[str]) -> Accepts:
    """A list ``key=value:key=value`` as x264, x265 and SVT-AV1 take it; a flag may stand alone."""
    switches = {name for flag in flags for name in (flag, f"no-{flag}")}
    named = {**dict.fromkeys(switches, _SWITCH), **keys}

    def accepts(value: str) -> None:
        items = value.split(":")
        if len(items) > _MOST_PARAMS:
            raise ValueError(f"it has more than {_MOST_PARAMS} parameters")
        for item in items:
            key, equals, said = item.partition("=")
            if key not in named:
                raise ValueError(f"parameter {key[:40]!r} is not among {', '.join(sorted(named))}")
            if not equals and key in switches:
                continue
            try:
                named[key](said)
            except ValueError as error:
                raise ValueError(f"parameter {key}: {error}") from None

    return accepts


_SWITCH = _word("0", "1")
_COLOUR = _either(
    _number(0, 255),
    _word(
        *("tv", "pc", "mpeg", "jpeg", "limited", "full", "unknown", "undef"),
        *("bt709", "bt470m", "bt470bg", "smpte170m", "smpte240m", "film", "gbr", "GBR", "fcc"),
        *("bt2020", "bt2020nc", "bt2020c", "bt2020-10", "bt2020-12", "iec61966-2-1", "linear"),
        *("smpte2084", "arib-std-b67", "ycgco", "YCgCo"),
    ),
)
_LEVEL = _number(0, 255)
_X26_SPEEDS = _word(
    *("ultrafast", "superfast", "veryfast", "faster", "fast"),
    *("medium", "slow", "slower", "veryslow", "placebo"),
)
_NO_PRESET = _word()
_NVENC_SPEEDS = _word(
    *(f"p{number}" for number in range(1, 8)),
    *("default", "slow", "medium", "fast", "hp", "hq", "bd", "ll", "llhq", "llhp"),
    *("lossless", "losslesshp"),
)

PRESETS: Mapping[str, Accepts] = MappingProxyType(
    {
        "av1": _number(-2, 13),
        "h264": _X26_SPEEDS,
        "hevc": _X26_SPEEDS,
        "vp9": _number(-8, 8),
        "mpeg4": _NO_PRESET,
        "ffv1": _NO_PRESET,
        "libaom-av1": _NO_PRESET,
        "h264_videotoolbox": _NO_PRESET,
        "hevc_videotoolbox": _NO_PRESET,
        "h264_nvenc": _NVENC_SPEEDS,
        "hevc_nvenc": _NVENC_SPEEDS,
        "h264_vaapi": _NO_PRESET,
        "h264_qsv": _X26_SPEEDS,
    }
)

_COMMON: dict[str, Accepts] = {
    **dict.fromkeys(("color_range", "colorspace", "color_primaries", "color_trc"), _COLOUR),
    **dict.fromkeys(("b", "maxrate", "minrate", "bufsize"), _bitrate),
    **dict.fromkeys(("qmin", "qmax"), _number(-1, 69)),
    "qcomp": _number(0, 1),
    "refs": _number(0, 16),
    "threads": _number(0, 64),
}

_RATE: dict[str, Accepts] = {
    **dict.fromkeys(("crf", "crf-max", "crf-min"), _number(0, 63)),
    **dict.fromkeys(("qp", "qpmin", "qpmax", "qpstep"), _number(0, 69)),
    **dict.fromkeys(("vbv-maxrate", "vbv-bufsize"), _number(0, 1e7)),
    **dict.fromkeys(("qcomp", "ipratio", "pbratio"), _number(0, 10)),
    **dict.fromkeys(("psy-rd", "psy-rdoq", "deblock"), _pair(-50, 50)),
    **dict.fromkeys(("colorprim", "transfer", "colormatrix", "range"), _COLOUR),
    **dict.fromkeys(("keyint", "min-keyint"), _number(1, LONGEST_GOP)),
    "aq-strength": _number(0, 3),
    "scenecut": _number(0, 100),
    "rc-lookahead": _number(0, 250),
    "ref": _number(1, 16),
    "merange": _number(0, 1024),
    "slices": _number(0, 64),
}

_X264_PARAMS = _params(
    {
        **_RATE,
        "aq-mode": _number(0, 3),
        "me": _word("dia", "hex", "umh", "esa", "tesa"),
        "subme": _number(0, 11),
        "trellis": _number(0, 2),
        "weightp": _number(0, 2),
        "sps-id": _number(0, 31),
        "level": _LEVEL,
        "nal-hrd": _word("none", "vbr", "cbr"),
        "fullrange": _SWITCH,
        **dict.fromkeys(("threads", "lookahead-threads"), _number(0, 64)),
    },
    flags=(
        *("open-gop", "intra-refresh", "psy", "cabac", "8x8dct", "weightb", "mbtree"),
        *("fast-pskip", "dct-decimate", "sliced-threads", "force-cfr", "mixed-refs", "chroma-me"),
        *("constrained-intra", "aud"),
    ),
)
_X265_PARAMS = _params(
    {
        **_RATE,
        "log-level": _either(_number(-1, 4), _word("none", "error", "warning", "info")),
        "pools": _either(_number(0, 64), _word("none")),
        "frame-threads": _number(0, 16),
        "aq-mode": _number(0, 4),
        "me": _word("dia", "hex", "umh", "star", "sea", "full"),
        "subme": _number(0, 7),
        "rd": _number(1, 6),
        "rdoq-level": _number(0, 2),
        "ctu": _word("16", "32", "64"),
        "min-cu-size": _word("8", "16", "32", "64"),
        "max-tu-size": _word("4", "8", "16", "32"),
        "limit-refs": _number(0, 3),
        "hash": _number(0, 3),
        "level-idc": _LEVEL,
    },
    flags=(
        *("lossless", "cu-lossless", "open-gop", "wpp", "pmode", "pme", "sao", "cutree", "tskip"),
        *("rect", "amp", "early-skip", "fast-intra", "b-intra", "weightp", "weightb"),
        *("strong-intra-smoothing", "signhide", "info", "repeat-headers", "aud", "hrd"),
        *("high-tier", "constrained-intra", "intra-refresh"),
    ),
)
_SVT_PARAMS = _params(
    {
        **dict.fromkeys(("crf", "qp", "min-qp", "max-qp"), _number(0, 63)),
        **dict.fromkeys(("tbr", "mbr"), _number(0, 1e6)),
        **dict.fromkeys(("qm-min", "qm-max", "enable-qm"), _number(0, 15)),
        **dict.fromkeys(
            ("color-primaries", "transfer-characteristics", "matrix-coefficients", "color-range"),
            _COLOUR,
        ),
        **dict.fromkeys(("tile-rows", "tile-columns"), _number(0, 6)),
        **dict.fromkeys(("enable-tf", "enable-dlf", "aq-mode", "rc"), _number(0, 2)),
        **dict.fromkeys(("enable-cdef", "enable-restoration", "scd", "lossless"), _SWITCH),
        "lp": _number(0, 64),
        "pin": _SWITCH,
        "pred-struct": _number(1, 2),
        "hierarchical-levels": _number(0, 5),
        "lookahead": _number(-1, 120),
        "fast-decode": _number(0, 2),
        "tune": _number(0, 5),
        "film-grain": _number(0, 50),
        "film-grain-denoise": _SWITCH,
        "sharpness": _number(-7, 7),
        "scm": _number(0, 3),
        "irefresh-type": _number(1, 2),
        "enable-variance-boost": _SWITCH,
        "variance-boost-strength": _number(1, 4),
        "variance-octile": _number(1, 8),
    },
    flags=(),
)

_X26: dict[str, Accepts] = {
    **_COMMON,
    "tune": _word(
        *("film", "animation", "grain", "stillimage", "psnr", "ssim", "fastdecode", "zerolatency")
    ),
    "profile": _word(
        *("baseline", "main", "high", "high10", "high422", "high444"),
        *("main10", "main12", "main-intra", "main10-intra", "main12-intra", "mainstillpicture"),
        *("main422-10", "main444-8", "main444-10", "main444-12", "main422-12"),
    ),
    "qp": _number(-1, 69),
    "forced-idr": _SWITCH,
}
HARDWARE_OPTIONS: dict[str, Accepts] = {
    **_COMMON,
    **dict.fromkeys(
        ("profile",), _word("baseline", "constrained_baseline", "main", "high", "main10")
    ),
    **dict.fromkeys(("qp", "cq", "global_quality"), _number(-1, 255)),
    **dict.fromkeys(("level", "delay", "gpu"), _LEVEL),
    "rc": _word("constqp", "vbr", "cbr"),
    "rc_mode": _word("auto", "CQP", "CBR", "VBR", "ICQ", "QVBR", "AVBR"),
    "tune": _word("hq", "uhq", "ll", "ull", "lossless"),
    "multipass": _word("disabled", "qres", "fullres"),
    **dict.fromkeys(
        (
            *("forced-idr", "zerolatency", "spatial-aq", "temporal-aq", "realtime", "allow_sw"),
            *("low_power", "look_ahead", "strict_gop", "prio_speed"),
        ),
        _SWITCH,
    ),
    "aq-strength": _number(1, 15),
    **dict.fromkeys(
        ("rc-lookahead", "look_ahead_depth", "async_depth", "surfaces"), _number(0, 100)
    ),
}
OPTIONS: Mapping[str, Mapping[str, Accepts]] = MappingProxyType(
    {
        "av1": {**_COMMON, "svtav1-params": _SVT_PARAMS},
        "h264": {
            **_X26,
            "x264-params": _X264_PARAMS,
            "level": _LEVEL,
            "aq-mode": _number(-1, 3),
            "aq-strength": _number(0, 3),
            "rc-lookahead": _number(-1, 250),
            "crf_max": _number(-1, 51),
            **dict.fromkeys(("psy", "8x8dct", "mbtree", "weightb", "intra-refresh"), _SWITCH),
        },
        "hevc": {**_X26, "x265-params": _X265_PARAMS},
        "vp9": {
            **_COMMON,
            **dict.fromkeys(("deadline", "quality"), _word("best", "good", "realtime")),
            "cpu-used": _number(-8, 8),
            "tile-columns": _number(0, 6),
            "tile-rows": _number(0, 2),
            "aq-mode": _number(0, 4),
            "noise-sensitivity": _number(0, 4),
            "sharpness": _number(0, 7),
            "static-thresh": _number(0, 1e6),
            "tune-content": _word("default", "screen", "film"),
            **dict.fromkeys(("row-mt", "lossless", "frame-parallel"), _SWITCH),
        },
        "mpeg4": {
            **_COMMON,
            "mpeg_quant": _SWITCH,
            "trellis": _number(0, 2),
            "mbd": _word("simple", "bits", "rd", "0", "1", "2"),
        },
        "ffv1": {
            "level": _word("0", "1", "3"),
            "coder": _either(_number(-2, 2), _word("rice", "range_def", "range_tab", "ac")),
            "context": _SWITCH,
            "slices": _number(0, 1024),
            "slicecrc": _number(-1, 2),
            "threads": _number(0, 64),
        },
    }
)


def as_text(value: object) -> str:
    """Return an option's value as text; files may hold a number where an encoder takes text."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError("it is a text or a number")
    return f"{value:g}" if isinstance(value, float) else str(value)
