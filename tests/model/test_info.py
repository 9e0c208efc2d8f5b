"""info.json: what is read from it, what is refused, and that writing gives it back."""

from __future__ import annotations

import copy
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demoreel.errors import MetadataError, UnsafePathError, UnsupportedVersionError
from demoreel.model import READABLE_VERSIONS, Feature, Info

WHERE = "some/dataset/meta/info.json"
CAMERA = "observation.images.front"


def raw(version="v3.0", **changes):
    family = version[:2]
    chunk, file = ("chunk_index", "file_index") if family == "v3" else ("episode_chunk",) * 2
    info = {
        "codebase_version": version,
        "robot_type": "toy",
        "total_episodes": 3,
        "total_frames": 30,
        "total_tasks": 1,
        "chunks_size": 1000,
        "fps": 30,
        "splits": {"train": "0:3"},
        "data_path": f"data/{{{chunk}:03d}}/{{{file}:03d}}.parquet",
        "video_path": f"videos/{{video_key}}/{{{chunk}:03d}}.mp4",
        "features": {
            CAMERA: {
                "dtype": "video",
                "shape": [48, 64, 3],
                "names": ["height", "width", "channels"],
                "info": {"video.codec": "av1"},
            },
            "action": {"dtype": "float32", "shape": [6], "names": None},
        },
    }
    if family == "v3":
        info |= {"data_files_size_in_mb": 100, "video_files_size_in_mb": 200}
    return info | changes


def read(info):
    return Info.from_json(info, where=WHERE)


def refused(info, kind=MetadataError):
    with pytest.raises(kind) as caught:
        read(info)
    assert caught.value.where["file"] == WHERE
    return caught.value


@pytest.mark.parametrize("version", READABLE_VERSIONS)
def test_every_version_is_read(version):
    info = read(raw(version))
    assert (info.version, info.fps, info.total_frames) == (version, 30, 30)
    assert (info.cameras, info.video_keys, info.image_keys) == ((CAMERA,), (CAMERA,), ())
    assert list(info.features) == [CAMERA, "action"]
    assert info.splits == {"train": "0:3"}


@pytest.mark.parametrize("version", READABLE_VERSIONS)
def test_writing_gives_it_back(version):
    original = raw(version, my_own_field={"a": [1, 2]}, total_videos=3)
    before = copy.deepcopy(original)
    assert read(original).to_json() == before
    assert original == before


@pytest.mark.parametrize("name", ["g1_v21", "g1_v30", "kitchen_v30", "kitchen_images_v30"])
def test_writing_gives_back_what_other_tools_wrote(fixtures, name):
    stored = json.loads((fixtures / name / "meta" / "info.json").read_text())
    assert read(stored).to_json() == stored
    assert read(read(stored).to_json()) == read(stored)


@pytest.mark.parametrize("value", [None, [], "text", 3, True])
def test_no_object(value):
    assert "object" in refused(value).what


# Versions


@pytest.mark.parametrize(
    "version", ["v1.6", "v2.2", "v3.1", "v4.0", "3.0", "V3.0", "", "v3.0 ", 3.0, ["v3.0"], {}]
)
def test_other_versions_name_the_readable_ones(version):
    error = refused(raw() | {"codebase_version": version}, UnsupportedVersionError)
    assert repr(version) in error.what
    for readable in READABLE_VERSIONS:
        assert readable in error.what
    assert "newer" in error.hint


def test_no_version():
    info = raw()
    del info["codebase_version"]
    assert "codebase_version" in refused(info).what


# Missing and bad fields


@pytest.mark.parametrize("name", ["fps", "features"])
def test_fields_that_must_be_there(name):
    info = raw()
    del info[name]
    assert name in refused(info).what


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("chunks_size", 1000),
        ("total_episodes", 0),
        ("total_frames", 0),
        ("total_tasks", 0),
        ("robot_type", None),
        ("splits", {}),
    ],
)
def test_fields_that_may_be_missing(name, expected):
    info = raw()
    del info[name]
    assert getattr(read(info), name) == expected


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@pytest.mark.parametrize("value", [None, "missing"])
def test_paths_that_are_missing_are_lerobots(version, value):
    info = raw(version)
    for name in ("data_path", "video_path"):
        info.pop(name) if value else info.update({name: None})
    family = version[:2]
    found = read(info)
    fields = ("chunk_index", "file_index") if family == "v3" else ("episode_chunk", "episode_index")
    assert found.data_path.fields == fields
    assert found.video_path.fields == (*fields, "video_key")


BAD = {
    "fps": [0, -1, "30", None, True, math.nan, math.inf, [30], 10**400, 1e-300, 1e300],
    "total_episodes": [-1, 1.5, "3", True, [3]],
    "total_frames": [-1, 1.5, "3", False, 10**300],
    "total_tasks": [-1, 1.5, "3"],
    "chunks_size": [-1, 1.5, "1000", True],
    "data_files_size_in_mb": ["100", 0, -5, True, [1]],
    "video_files_size_in_mb": ["100", 0, -5, math.nan],
    "splits": ["0:3", [1], 7],
    "robot_type": [{"a": 1}, ["x"], 5, True, "\ud800", "x" * 5000],
    "codebase_version": [["v3.0"], {}, 3],
    "features": [None, {}, [], "action", 3],
    "data_path": [3, [], {}, True],
    "video_path": [3, ["a"], {"a": 1}],
}


@pytest.mark.parametrize(("name", "value"), [(name, v) for name in BAD for v in BAD[name]])
def test_bad_values(name, value):
    error = refused(raw() | {name: value})
    assert name in error.what
    assert len(error.what) < 200


@pytest.mark.parametrize("name", ["data_path", "video_path"])
@pytest.mark.parametrize(
    "text", ["/etc/{chunk_index}", "../x", "{video_key.__class__}", "../{nothing}"]
)
def test_unsafe_paths_name_the_file(name, text):
    error = refused(raw() | {name: text}, UnsafePathError)
    assert name in error.what


def test_a_video_path_does_not_matter_without_videos():
    features = {"action": {"dtype": "float32", "shape": [6], "names": None}}
    info = read(raw(features=features, video_path="../{nothing}"))
    assert info.video_path is None


def test_a_data_path_has_no_camera():
    error = refused(raw(data_path="{video_key}/{chunk_index}"))
    assert error.code == "template-wrong"


@pytest.mark.parametrize(
    "feature",
    [
        None,
        [],
        {},
        {"dtype": "float32"},
        {"shape": [3]},
        {"dtype": 32, "shape": [3]},
        {"dtype": "float33", "shape": [3]},
        {"dtype": "float32", "shape": [-1]},
    ],
)
def test_a_bad_feature_is_named(feature):
    info = raw()
    info["features"]["strange"] = feature
    assert "strange" in refused(info).what


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.sampled_from(sorted(raw())), json_values, st.sampled_from(READABLE_VERSIONS))
def test_any_json_in_any_field_is_read_or_refused(name, value, version):
    try:
        info = read(raw(version) | {name: value})
    except MetadataError:
        return
    assert info.fps > 0
    info.to_json()
    assert info.cameras is not None


@given(st.dictionaries(st.sampled_from(["dtype", "shape", "names", "info", "x"]), json_values))
def test_any_json_in_a_feature_is_read_or_refused(value):
    info = raw()
    info["features"]["strange"] = value
    try:
        found = read(info)
    except MetadataError:
        return
    feature = found.features["strange"]
    assert feature.item_shape is not None
    feature.to_json()


# New datasets


@pytest.mark.parametrize("place", ["extra", "names", "splits"])
def test_what_nests_too_deep_is_refused(place):
    """What reads it later recurses, as comparing names does."""
    deep: list = []
    for _ in range(500):
        deep = [deep]
    info = raw()
    if place == "names":
        info["features"][CAMERA]["names"] = deep
    else:
        info[place] = {"x": deep}
    with pytest.raises(MetadataError, match="nests deeper"):
        Info.from_json(info, where=WHERE)


@pytest.mark.parametrize("version", READABLE_VERSIONS)
def test_a_new_dataset_has_the_default_columns(version):
    features = {"action": Feature("action", "float32", (6,))}
    info = Info.new(version=version, fps=30, features=features, robot_type="toy")
    assert list(info.features) == [
        "action",
        "timestamp",
        "frame_index",
        "episode_index",
        "index",
        "task_index",
    ]
    assert info.video_path is None
    assert read(info.to_json()) == info
    camera = {CAMERA: Feature(CAMERA, "video", (48, 64, 3))}
    assert Info.new(version=version, fps=30, features=camera).video_path is not None
