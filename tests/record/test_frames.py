"""A frame is checked against the features, key by key, and taken as it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demoreel.errors import ArgumentError, UnknownKeyError
from demoreel.media.depth import encode_depth
from demoreel.model import DepthCode
from demoreel.record.frames import EpisodeRows, FrameCheck
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
    assert set(checked.pictures) == {"front", "deep"}


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
        ({"task": "  "}, "no task"),
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


def test_pictures_may_come_channels_first_or_as_floats(check):
    first = np.arange(8 * 12 * 3, dtype=np.uint8).reshape(3, 8, 12)
    assert np.array_equal(check(frame(front=first)).pictures["front"], first.transpose(1, 2, 0))
    floats = np.full((8, 12, 3), 0.5, np.float32)
    assert (check(frame(front=floats)).pictures["front"] == 127).all()


@given(st.lists(st.integers(0, 65535), min_size=96, max_size=96))
def test_depth_becomes_the_codes_that_encoding_gives(values):
    check = FrameCheck(describe(FEATURES, fps=30))
    depth = np.array(values, np.uint16).reshape(8, 12)
    assert np.array_equal(
        check(frame(deep=depth)).pictures["deep"], encode_depth(depth, DepthCode())
    )


def test_rows_become_columns():
    info = describe(FEATURES, fps=30)
    check, rows = FrameCheck(info), EpisodeRows()
    for number in range(3):
        rows.add(check(frame(phase=number, task=f"task {number}")))
    columns = rows.finished()
    assert len(rows) == 3
    assert rows.tasks == ["task 0", "task 1", "task 2"]
    assert columns["phase"].tolist() == [0, 1, 2]
    assert columns["touch"].shape == (3, 2, 2)
    assert columns["note"] == ["über"] * 3
