"""A frame is checked against the features, key by key, and taken as it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demoreel.errors import ArgumentError, UnknownKeyError
from demoreel.model import DepthCode
from demoreel.model.depth import encode_depth
from demoreel.record.frames import EpisodeBuffer, FrameCheck
from demoreel.record.spec import describe

FEATURES = {
    "observation.state": {"dtype": "float32", "shape": (3,), "names": ["a", "b", "c"]},
    "touch": {"dtype": "float32", "shape": (2, 2), "names": None},
    "reward": {"dtype": "float32", "shape": (1,), "names": None},
    "done": {"dtype": "bool", "shape": (1,), "names": None},
    "phase": {"dtype": "int64", "shape": (1,), "names": None},
    "note": {"dtype": "string", "shape": (1,), "names": None},
    "front": {"dtype": "video", "shape": (8, 12, 3), "names": ["height", "width", "channels"]},
    "deep": {
        "dtype": "video",
        "shape": (8, 12, 1),
        "names": None,
        "info": {"is_depth_map": True},
    },
}


def frame(**changes):
    values = {
        "observation.state": np.arange(3, dtype=np.float32),
        "touch": np.ones((2, 2), np.float32),
        "reward": 0.5,
        "done": True,
        "phase": 2,
        "note": "über",
        "front": np.full((8, 12, 3), 7, np.uint8),
        "deep": np.full((8, 12), 900, np.uint16),
        "task": "pick",
    }
    return {key: value for key, value in {**values, **changes}.items() if value is not None}


@pytest.fixture
def check():
    return FrameCheck(describe(FEATURES, fps=30))


def test_a_frame_that_fits_keeps_its_values(check):
    checked = check(frame())
    assert checked.task == "pick"
    assert checked.numbers["observation.state"].dtype == np.float32
    assert checked.numbers["reward"].shape == ()
    assert checked.numbers["done"].dtype == bool
    assert checked.numbers["touch"].tolist() == [[1, 1], [1, 1]]
    assert checked.values == {"note": "über"}
    assert set(checked.images) == {"front", "deep"}


@pytest.mark.parametrize(
    ("dtype", "value", "says"),
    [
        ("int8", 300, "300.*-128 to 127"),
        ("int8", np.int64(-129), "-129"),
        ("int32", 2**40, "1099511627776.*int32"),
        ("int64", np.uint64(2**63), "int64"),
        ("int64", 2**70, "would not hold it"),
        ("uint8", -1, "-1.*0 to 255"),
        ("uint16", np.array([70000]), "70000"),
        ("int64", 1.5, "float64"),
        ("int64", float("nan"), "float64"),
        ("float32", 1e39, "1e\\+39.*float32"),
        ("float16", 70000, "70000"),
        ("bool", 2, "int64"),
        ("float32", "1.0", "would not hold it"),
        ("float32", [1.0, [2.0]], "no array"),
    ],
)
def test_a_value_that_does_not_fit_is_an_error_that_names_it(dtype, value, says):
    check = FrameCheck(describe({"x": {"dtype": dtype, "shape": (1,), "names": None}}, fps=30))
    with pytest.raises(ArgumentError, match=says) as caught:
        check({"x": value}, task="pick", number=7)
    assert "'x'" in str(caught.value)
    assert "frame: 7" in str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("int8", 127), ("uint8", 255), ("uint16", 0), ("float32", 2**24 + 1), ("float32", 0.1)],
)
def test_a_value_that_fits_is_taken_whatever_type_it_came_in(dtype, value):
    check = FrameCheck(describe({"x": {"dtype": dtype, "shape": (1,), "names": None}}, fps=30))
    found = check({"x": value}, task="pick").numbers["x"]
    assert found.dtype == dtype
    assert found == np.array(value, dtype)


@pytest.mark.parametrize("given", [{"note": "a\ud800"}, {"task": "a\udfff"}])
def test_half_of_a_character_is_refused_before_the_episode_has_it(check, given):
    with pytest.raises(ArgumentError, match="UTF-8"):
        check(frame(**given))


@pytest.mark.parametrize("row", [{"role": 5}, {"content": "no role"}, {"role": "a\ud800"}, 7])
def test_language_that_no_table_holds_is_refused_before_the_episode_has_it(row):
    check = FrameCheck(describe({"language_events": {"dtype": "language", "shape": (1,)}}, fps=30))
    with pytest.raises(ArgumentError, match="language_events"):
        check({"language_events": [row]}, task="pick")


def test_more_text_than_a_saved_episode_is_read_with_is_refused(check, monkeypatch):
    monkeypatch.setattr("demoreel.layouts.persisted._MOST_TEXT", 1000)
    monkeypatch.setattr("demoreel.layouts.persisted._LARGEST_TEXT", 10)
    rows = EpisodeBuffer()
    for _ in range(2):
        rows.refuse_long(check(frame(note="x" * 400)))
        rows.add(check(frame(note="x" * 400)))
    with pytest.raises(ArgumentError, match="bytes of text"):
        rows.refuse_long(check(frame(note="x" * 400)))
    rows.refuse_long(check(frame(note="x")))


def test_numbers_are_copied_for_drivers_use_their_arrays_again(check):
    state = np.arange(3, dtype=np.float32)
    checked = check(frame(**{"observation.state": state}))
    state[:] = -1
    assert checked.numbers["observation.state"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"observation.state": np.zeros(4, np.float32)}, r"observation.state.*\(4,\)"),
        ({"phase": 1.5}, "phase.*float64"),
        ({"done": 1}, "done.*int64"),
        ({"reward": float("nan")}, "reward.*not finite"),
        ({"observation.state": [0, np.inf, 0]}, "observation.state.*not finite"),
        ({"note": 3}, "note.*text"),
        ({"front": np.zeros((8, 13, 3), np.uint8)}, r"front.*\(8, 13, 3\)"),
        ({"front": np.zeros((8, 12, 3), np.int32)}, "front.*int32"),
        ({"front": np.full((8, 12, 3), 1.5)}, r"front.*0\.\.1"),
        ({"deep": np.zeros((8, 12), np.uint8)}, "deep.*uint8"),
        ({"deep": np.zeros((9, 12), np.uint16)}, r"deep.*\(9, 12\)"),
        ({"reward": None}, "lacks 'reward'"),
        ({"task": None}, "no task"),
        ({"task": 3}, "no task"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(check, changes, says):
    with pytest.raises(ArgumentError, match=says):
        check(frame(**changes))


@pytest.mark.parametrize("key", ["fronts", "episode_index", "index"])
def test_unknown_keys_are_refused(check, key):
    with pytest.raises(UnknownKeyError, match=key):
        check(frame(**{key: 1}))


def test_nan_is_taken_where_it_is_allowed():
    check = FrameCheck(describe(FEATURES, fps=30), allow_nan=True)
    assert np.isnan(check(frame(reward=float("nan"))).numbers["reward"])


def test_a_task_may_come_with_the_call(check):
    assert check(frame(task=None), task="push").task == "push"


def test_images_may_come_channels_first_or_as_floats(check):
    first = np.arange(8 * 12 * 3, dtype=np.uint8).reshape(3, 8, 12)
    assert np.array_equal(check(frame(front=first)).images["front"], first.transpose(1, 2, 0))
    floats = np.full((8, 12, 3), 0.5, np.float32)
    assert (check(frame(front=floats)).images["front"] == 127).all()


@given(st.lists(st.integers(0, 65535), min_size=96, max_size=96))
def test_depth_becomes_the_codes_that_encoding_gives(values):
    check = FrameCheck(describe(FEATURES, fps=30))
    depth = np.array(values, np.uint16).reshape(8, 12)
    assert np.array_equal(check(frame(deep=depth)).images["deep"], encode_depth(depth, DepthCode()))


def test_rows_become_columns():
    info = describe(FEATURES, fps=30)
    check, rows = FrameCheck(info), EpisodeBuffer()
    for number in range(3):
        rows.add(check(frame(phase=number, task=f"task {number}")))
    rows.end({}, {})
    columns = rows.columns
    assert len(rows) == 3
    assert rows.tasks == ["task 0", "task 1", "task 2"]
    assert columns["phase"].tolist() == [0, 1, 2]
    assert columns["touch"].shape == (3, 2, 2)
    assert columns["note"] == ["über"] * 3
