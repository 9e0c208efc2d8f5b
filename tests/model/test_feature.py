"""One feature: what kind it is, what shape its values have, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demoreel.errors import MetadataError
from demoreel.model import DepthCode, Feature

WHERE = "meta/info.json"


def feature(key="action", **raw):
    return Feature.from_json(key, raw, where=WHERE)


def refused(key="action", **raw):
    with pytest.raises(MetadataError) as caught:
        feature(key, **raw)
    assert caught.value.where["file"] == WHERE
    assert key in caught.value.what
    return caught.value


@pytest.mark.parametrize(
    "dtype",
    ["float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "uint16", "bool"],
)
def test_numbers(dtype):
    found = feature(dtype=dtype, shape=[6])
    assert found.is_numeric
    assert found.numpy_dtype == np.dtype(dtype)
    assert found.item_shape == (6,)
    others = ["is_camera", "is_string", "is_language", "is_depth"]
    assert [name for name in others if getattr(found, name)] == []


@pytest.mark.parametrize(("shape", "item"), [([1], ()), ([], ()), ([3], (3,)), ([1, 1], (1, 1))])
def test_a_column_of_ones_is_a_scalar(shape, item):
    assert feature(dtype="float32", shape=shape).item_shape == item


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [("video", "is_video"), ("image", "is_image"), ("string", "is_string")],
)
def test_other_kinds(dtype, kind):
    found = feature(dtype=dtype, shape=[4, 5, 3])
    kinds = ["is_video", "is_image", "is_string", "is_language", "is_numeric"]
    assert [name for name in kinds if getattr(found, name)] == [kind]


@pytest.mark.parametrize("key", ["language_persistent", "language_events"])
def test_language_is_known_by_its_name(key):
    found = feature(key, dtype="string", shape=[1])
    assert found.is_language
    assert not found.is_string


@pytest.mark.parametrize(
    "dtype",
    [
        *["float33", "object", "O", "S4", "U4", "complex64", "datetime64", "f4,i4", "(2,)f4", "V8"],
        *["", " ", "8,f]7", "20>|:", "float32\0", "list", None, 32, ["float32"], True],
    ],
)
def test_unknown_dtypes(dtype):
    refused(dtype=dtype, shape=[3])


@pytest.mark.parametrize(
    "shape",
    [
        *[None, 3, "3", [0], [-1], [1.5], ["3"], [True], [None], [[3]], {"a": 3}],
        *[[1 << 40], [1 << 20, 1 << 20], [1 << 16] * 5],
    ],
)
def test_impossible_shapes(shape):
    error = refused(dtype="float32", shape=shape)
    assert "shape" in error.what


@pytest.mark.parametrize("shape", [[], [3], [1, 2, 3, 4]])
@pytest.mark.parametrize("dtype", ["video", "image"])
def test_cameras_have_height_and_width(dtype, shape):
    assert "height" in refused("front", dtype=dtype, shape=shape).what


def test_no_object():
    with pytest.raises(MetadataError, match="not an object"):
        Feature.from_json("action", ["float32"], where=WHERE)


# Images


@pytest.mark.parametrize(
    ("shape", "names", "expected"),
    [
        ([48, 64, 3], ["height", "width", "channels"], (48, 64, 3)),
        ([3, 48, 64], ["channels", "height", "width"], (48, 64, 3)),
        ([3, 48, 64], ["channel", "height", "width"], (48, 64, 3)),
        ([3, 48, 64], None, (48, 64, 3)),
        ([48, 64, 3], None, (48, 64, 3)),
        ([1, 48, 64], None, (48, 64, 1)),
        ([48, 64], None, (48, 64, 1)),
        ([3, 4, 3], ["height", "width", "channels"], (3, 4, 3)),
        ([3, 4, 3], None, (3, 4, 3)),
        ([48, 64, 3], ["channels", "height", "width"], (48, 64, 3)),
        ([3, 48, 64], ["height", "width", "channels"], (48, 64, 3)),
        ([48, 64, 3], {"axes": ["height", "width", "channels"]}, (48, 64, 3)),
    ],
)
def test_the_shape_of_an_image_whichever_way_round(shape, names, expected):
    assert feature("front", dtype="video", shape=shape, names=names).image_shape == expected


# Depth


@pytest.mark.parametrize(
    "raw",
    [
        {"info": {"is_depth_map": True}},
        {"info": {"video.is_depth_map": True}},
        {"video_info": {"video.is_depth_map": True}},
        {"info": {"video.codec": "hevc"}, "video_info": {"video.is_depth_map": True}},
    ],
)
def test_depth_is_known_by_any_of_its_marks(raw):
    found = feature("depth", dtype="video", shape=[48, 64, 1], **raw)
    assert found.is_depth
    assert found.depth_code == DepthCode()
    assert not feature("depth", dtype="float32", shape=[48, 64, 1], **raw).is_depth


@given(
    st.builds(
        DepthCode,
        minimum=st.floats(0.01, 1.0),
        maximum=st.floats(2.0, 20.0),
        shift=st.floats(0.0, 5.0),
        log=st.booleans(),
        unit=st.sampled_from(["mm", "m"]),
    )
)
def test_a_depth_code_comes_back(code):
    found = feature("depth", dtype="video", shape=[48, 64, 1], info=code.to_info())
    assert found.depth_code == code
    assert DepthCode.from_info(code.to_info()) == code


@pytest.mark.parametrize("value", ["near", None, [1], {}, "0.1 m"])
@pytest.mark.parametrize("field", ["video.depth_min", "video.depth_max", "video.shift"])
def test_depth_ranges_that_are_no_numbers(field, value):
    info = DepthCode().to_info() | {field: value}
    assert "range" in refused("depth", dtype="video", shape=[48, 64, 1], info=info).what


def test_colour_has_no_depth_code():
    assert feature("front", dtype="video", shape=[48, 64, 3]).depth_code is None


# There and back


RAW = [
    {"dtype": "float32", "shape": [6], "names": None},
    {"dtype": "float32", "shape": [6], "names": {"motors": ["a", "b"]}, "fps": 30},
    {
        "dtype": "video",
        "shape": [4, 5, 3],
        "names": ["height", "width", "channel"],
        "info": {"a": 1},
    },
    {"dtype": "video", "shape": [4, 5, 3], "names": None, "video_info": {"video.fps": 30.0}},
    {
        "dtype": "video",
        "shape": [4, 5, 3],
        "names": None,
        "info": {"video.codec": "av1"},
        "video_info": {"video.fps": 30.0},
    },
    {"dtype": "string", "shape": [1], "names": None, "my_own": {"deep": [1, {"x": None}]}},
]


@pytest.mark.parametrize("raw", RAW)
def test_writing_gives_it_back(raw):
    assert Feature.from_json("key", raw, where=WHERE).to_json() == raw


def test_the_newer_camera_details_come_first():
    assert feature("front", **RAW[4]).info == {"video.codec": "av1"}
    assert feature("front", **RAW[3]).info == {"video.fps": 30.0}
    assert feature("front", dtype="video", shape=[4, 5, 3], info="text").info == {}
