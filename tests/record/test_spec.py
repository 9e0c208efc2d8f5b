"""Features are checked before anything is written."""

from __future__ import annotations

import pytest

from demoreel.errors import ArgumentError
from demoreel.media.settings import LOSSLESS_DEPTH, VideoSettings
from demoreel.record.spec import CAPTURE_TIME, capture_key, describe, with_encoding

STATE = {"dtype": "float32", "shape": (2,), "names": None}
CAMERA = {"dtype": "video", "shape": (8, 12, 3), "names": ["height", "width", "channels"]}


def test_default_columns_and_capture_times_are_added():
    info = describe({"state": STATE}, fps=30)
    assert list(info.features) == [
        "state",
        CAPTURE_TIME,
        "timestamp",
        "frame_index",
        "episode_index",
        "index",
        "task_index",
    ]
    assert CAPTURE_TIME not in describe({"state": STATE}, fps=30, capture_times=False).features


def test_a_camera_with_a_clock_has_a_column_for_it():
    info = describe({"front": CAMERA}, fps=30, cameras_with_clocks=["front"])
    assert info.features[capture_key("front")].dtype == "int64"


def test_default_columns_may_be_declared_as_lerobot_scripts_do():
    index = {"dtype": "int64", "shape": (1,), "names": None}
    assert describe({"state": STATE, "index": index}, fps=30).features["index"].dtype == "int64"


def test_video_cameras_are_height_width_channels_whatever_their_order():
    first = {"dtype": "video", "shape": (3, 8, 12), "names": ["channels", "height", "width"]}
    assert describe({"front": first}, fps=30).features["front"].shape == (8, 12, 3)


@pytest.mark.parametrize(
    ("features", "options", "says"),
    [
        ({}, {}, "at least one feature"),
        ({"a/b": STATE}, {}, "'/'"),
        ({"state": {"dtype": "float32"}}, {}, "shape"),
        ({"state": {"dtype": "complex64", "shape": (1,)}}, {}, "complex64"),
        ({"front": {"dtype": "video", "shape": (8, 12, 4)}}, {}, "4 channels"),
        ({"state": STATE}, {"fps": 0}, "fps"),
        ({"state": STATE}, {"layout": "lance-frames"}, "lance-frames"),
        ({"state": STATE}, {"cameras_with_clocks": ["state"]}, "no camera"),
    ],
)
def test_what_cannot_be_recorded_is_refused(features, options, says):
    with pytest.raises(ArgumentError, match=says):
        describe(features, **{"fps": 30, **options})


def test_native_lance_says_so():
    info = describe({"state": STATE}, fps=30, layout="lance-native")
    assert info.to_json()["storage_format"] == "lance"


def test_encoding_is_noted_as_lerobot_notes_it():
    deep = {"dtype": "video", "shape": (8, 12, 1), "info": {"is_depth_map": True}}
    info = describe({"front": CAMERA, "deep": deep}, fps=30)
    noted = with_encoding(info, {"front": VideoSettings(codec="h264"), "deep": LOSSLESS_DEPTH})
    assert noted.features["front"].info["video.codec"] == "h264"
    assert noted.features["front"].info["video.height"] == 8
    depth = noted.features["deep"].info
    assert depth["is_depth_map"] is True
    assert depth["video.depth_max"] == 10.0
    assert depth["depth_unit"] == "mm"
    assert noted.features["deep"].is_depth
