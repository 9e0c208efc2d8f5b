"""Encoder options come from a closed list, also those of a user."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest

from demoreel.errors import ArgumentError, MetadataError
from demoreel.media.encode import VideoEncoder
from demoreel.media.settings import (
    ENCODERS,
    HARDWARE_ENCODERS,
    LOSSLESS_DEPTH,
    VideoSettings,
    allowed_options,
)

# Options of FFmpeg's encoders that read or write a file, or hand on what is not checked.
HOSTILE = [
    ("h264", "x264-params", "dump-yuv=/tmp/x"),
    ("h264", "x264-params", "sps-id=1:dump-yuv=/tmp/x"),
    ("h264", "x264-params", "psy=1:stats=/tmp/x"),
    ("h264", "x264-params", "qpfile=/etc/passwd"),
    ("h264", "x264-params", "cqmfile=/etc/passwd"),
    ("h264", "x264-params", "log-file=/tmp/x"),
    ("h264", "x264-params", "no-psy=0=dump-yuv=/tmp/x"),
    ("h264", "x264-params", "dump_yuv=/tmp/x"),
    ("h264", "x264-params", "aq-strength=1:1"),
    ("h264", "x264-params", "aq-strength=1\ndump-yuv=/tmp/x"),
    ("h264", "x264-params", ""),
    ("h264", "x264-params", ":".join(["psy=1"] * 1000)),
    ("h264", "x264opts", "dump-yuv=/tmp/x"),
    ("h264", "stats", "/tmp/x"),
    ("h264", "passlogfile", "/tmp/x"),
    ("h264", "tune", "psnr:dump-yuv=/tmp/x"),
    ("h264", "color_range", "1/../../x"),
    ("h264", "maxrate", "1M:dump-yuv=x"),
    ("hevc", "x265-params", "csv=/tmp/x"),
    ("hevc", "x265-params", "lossless=1:log-file=/tmp/x"),
    ("hevc", "x265-params", "lambda-file=/etc/passwd"),
    ("hevc", "x265-params", "analysis-save=/tmp/x"),
    ("hevc", "x265-params", "recon=/tmp/x"),
    ("hevc", "x265-params", "pools=99999999"),
    ("av1", "svtav1-params", "stats=/tmp/x"),
    ("av1", "svtav1-params", "fgs-table=/etc/passwd"),
    ("av1", "svtav1-params", "roi-map-file=/etc/passwd"),
    ("av1", "svtav1-params", "lp=1:"),
    ("av1", "svtav1-params", 7),
    ("vp9", "passlogfile", "/tmp/x"),
    ("mpeg4", "rc_eq", "1"),
    ("mpeg4", "stats", "/tmp/x"),
    ("ffv1", "level", "3/x"),
    ("h264", "threads", True),
    ("h264", "threads", None),
    ("h264", "threads", [1]),
    ("h264", 3, "1"),
]


@pytest.mark.parametrize(("codec", "name", "value"), HOSTILE)
def test_options_outside_the_list_are_refused(codec, name, value):
    with pytest.raises(ArgumentError, match="option"):
        VideoSettings(codec=codec, options={name: value})
    with pytest.raises(MetadataError, match=r"(?s)option.*sealed\.json"):
        VideoSettings.from_file({"codec": codec, "options": {name: value}}, file="sealed.json")


WRONG = [
    {"codec": ["h264"]},
    {"codec": "rawvideo"},
    {"codec": None, "encoder": "libx264"},
    {"encoder": {"a": 1}},
    {"encoder": "png"},
    {"pix_fmt": "vaapi"},
    {"pix_fmt": 3},
    {"gop": 0},
    {"gop": 1 << 40},
    {"gop": "2"},
    {"gop": True},
    {"gop": 2.5},
    {"gop": float("nan")},
    {"crf": -1},
    {"crf": 64},
    {"codec": "h264", "crf": 52},
    {"b_frames": 99, "codec": "h264"},
    {"open_gop": "yes", "codec": "h264"},
    {"preset": 99},
    {"preset": "/etc/passwd"},
    {"codec": "h264", "preset": "superfast:dump-yuv=x"},
    {"codec": "h264", "encoder": "h264_nvenc", "preset": "/x"},
    {"codec": "ffv1", "preset": 3},
    {"options": "x264-params=dump-yuv=x"},
    {"options": [["threads", "1"]]},
    {"codec": 10**5000},
]


@pytest.mark.parametrize("given", WRONG, ids=lambda given: ", ".join(given))
def test_wrong_values_are_refused(given):
    with pytest.raises((ArgumentError, MetadataError)):
        VideoSettings.from_file(given, file="info.json")
    with pytest.raises(ArgumentError):
        VideoSettings(**{name: value for name, value in given.items() if value is not None})


@pytest.mark.parametrize("noted", [None, 3, "av1", [], {"threads": 1}, {"__class__": 1}, {3: 1}])
def test_what_are_no_settings_is_refused(noted):
    with pytest.raises(MetadataError, match="no settings"):
        VideoSettings.from_file(noted, file="info.json")


PATHS = ("/tmp/x", "x", "../x", "file:x", "1:/x", "psy=/x", "sps-id=/x", "1=x", "")


def test_no_listed_option_takes_a_path():
    for codec, encoder in [*ENCODERS.items(), *((c, e) for e, c in HARDWARE_ENCODERS.items())]:
        for accepts in allowed_options(codec, encoder).values():
            for value in PATHS:
                with pytest.raises(ValueError, match=r"it |parameter"):
                    accepts(value)


def test_what_lerobot_notes_is_accepted():
    assert VideoSettings.from_file(
        {"codec": "hevc", "pix_fmt": "gray12le", "preset": None, "crf": 30.0}
        | {"options": {"x265-params": "lossless=1"}}
    ).options == {"x265-params": "lossless=1"}
    for noted in (
        {"options": {}, "preset": 12, "crf": 29.5},
        {"options": {"svtav1-params": "tune=0:fast-decode=1:lp=2"}, "preset": "12"},
        {"codec": "h264", "options": {"tune": "film", "profile": "high", "refs": 2, "threads": 4}},
        {"codec": "h264", "options": {"x264-params": "no-psy:aq-mode=2:deblock=-1,-1"}},
    ):
        settings = VideoSettings.from_file(noted)
        assert all(isinstance(value, str) for value in settings.options.values())


def test_settings_outlive_a_file():
    for settings in (VideoSettings(), LOSSLESS_DEPTH):
        assert VideoSettings.from_file(json.loads(json.dumps(asdict(settings)))) == settings


def test_listed_options_reach_the_encoder(tmp_path):
    settings = VideoSettings(
        codec="h264",
        preset="ultrafast",
        options={"x264-params": "aq-mode=2:no-psy:deblock=-1,-1", "threads": 1, "maxrate": "4M"}
        | {"bufsize": "4M", "tune": "psnr"},
    )
    with VideoEncoder(tmp_path / "v.mp4", fps=10, width=32, height=32, settings=settings) as out:
        out.add(np.zeros((32, 32, 3), np.uint8))
    assert out.frames == 1
