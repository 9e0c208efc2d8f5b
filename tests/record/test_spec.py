"""Features are checked before anything is written."""

from __future__ import annotations

import pytest

from demoreel.errors import ArgumentError
from demoreel.media.settings import LOSSLESS_DEPTH, VideoSettings
from demoreel.model.clocks import CAPTURE_TIME, capture_key
from demoreel.record.spec import describe, with_encoding

STATE = {"dtype": "float32", "shape": (2,), "names": None}
DEEP = {"dtype": "video", "shape": (8, 12, 1), "info": {"is_depth_map": True}}
CAMERA = {"dtype": "video", "shape": (8, 12, 3), "names": ["height", "width", "channels"]}


def test_default_columns_are_added_and_capture_times_if_they_are_asked_for():
    info = describe({"state": STATE}, fps=30)
    assert list(info.features) == [
        "state",
        "timestamp",
        "frame_index",
        "episode_index",
        "index",
        "task_index",
    ]
    asked = describe({"state": STATE}, fps=30, capture_times="column")
    assert list(asked.features)[:2] == ["state", CAPTURE_TIME]


def test_a_camera_with_a_clock_has_a_column_for_it():
    options = {"capture_times": "column", "cameras_with_clocks": ["front"]}
    info = describe({"front": CAMERA}, fps=30, **options)
    assert info.features[capture_key("front")].dtype == "int64"


def test_default_columns_may_be_declared_as_lerobot_scripts_do():
    index = {"dtype": "int64", "shape": (1,), "names": None}
    assert describe({"state": STATE, "index": index}, fps=30).features["index"].dtype == "int64"


@pytest.mark.parametrize("dtype", ["video", "image"])
def test_a_camera_is_declared_as_the_caller_declares_it(dtype):
    names = ["channels", "height", "width"]
    given = {"dtype": dtype, "shape": (3, 8, 12), "names": names}
    front = describe({"front": given}, fps=30).features["front"]
    assert front.to_json() == {**given, "shape": [3, 8, 12]}
    assert front.image_shape == (8, 12, 3)


@pytest.mark.parametrize(
    ("shape", "names"),
    [
        ((8, 12, 3), ["height", "width", "channels"]),
        ((3, 8, 12), ["channels", "height", "width"]),
    ],
)
def test_a_camera_without_names_gets_those_of_its_order(shape, names):
    front = describe({"front": {"dtype": "video", "shape": shape}}, fps=30).features["front"]
    assert (front.shape, front.names) == (shape, names)


@pytest.mark.parametrize(
    ("features", "options", "says"),
    [
        ({}, {}, "at least one feature"),
        ({"a/b": STATE}, {}, "'/'"),
        ({"state": {"dtype": "float32"}}, {}, "shape"),
        ({"state": {"dtype": "complex64", "shape": (1,)}}, {}, "complex64"),
        ({"front": {"dtype": "video", "shape": (8, 12, 4)}}, {}, "4 channels"),
        ({"state": STATE}, {"fps": 0}, "fps"),
        ({"deep": {**DEEP, "info": {**DEEP["info"], "video.depth_max": 0.0}}}, {}, "no room"),
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
    assert "depth_unit" not in depth  # the first frame says it
    assert noted.features["deep"].is_depth
