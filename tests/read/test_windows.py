"""Windows: translation to frames, clamping, masks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demoreel.errors import ArgumentError, UnknownKeyError
from demoreel.read.batch import expand, frame_offsets


def offsets_of(values, fps=30, tolerance_s=1e-4):
    return frame_offsets({"x": values}, known=["x"], fps=fps, tolerance_s=tolerance_s)["x"].tolist()


@given(st.lists(st.integers(-500, 500), min_size=1), st.sampled_from([10, 15, 29.97, 30, 50, 60]))
def test_frames_and_seconds_say_the_same(frames, fps):
    assert offsets_of(frames, fps) == frames
    assert offsets_of([frame / fps for frame in frames], fps) == frames


def test_what_counts_as_frames_and_as_seconds():
    assert offsets_of(range(-2, 2)) == [-2, -1, 0, 1]
    assert offsets_of([np.int64(3), 0.1, np.float32(-0.1), 1]) == [3, 3, -3, 1]


def test_every_offender_is_listed():
    with pytest.raises(ArgumentError, match=r"a: \[0.01, 0.05\]; b: \[0.99\]") as caught:
        frame_offsets(
            {"a": [0.01, 0.0, 0.05], "b": [0.99], "c": [0.1]},
            known=["a", "b", "c"],
            fps=10,
            tolerance_s=1e-4,
        )
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("bad", [[True], ["0"], [None], [float("nan")], [float("inf")]])
def test_offsets_that_are_no_numbers(bad):
    with pytest.raises(ArgumentError):
        offsets_of(bad)


def test_empty_and_unknown():
    with pytest.raises(ArgumentError, match="empty"):
        offsets_of([])
    with pytest.raises(UnknownKeyError, match="did you mean 'action'"):
        frame_offsets({"acton": [0]}, known=["action", "state"], fps=30, tolerance_s=1e-4)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=20),
    st.lists(st.integers(-50, 50), min_size=1, max_size=8),
    st.data(),
)
def test_expansion_against_the_naive_one(lengths, offsets, data):
    edges = np.concatenate([[0], np.cumsum(lengths)])
    rows = data.draw(st.lists(st.integers(0, int(edges[-1]) - 1), min_size=1, max_size=20))
    episode = [int(np.searchsorted(edges, row, side="right")) - 1 for row in rows]
    start, stop = edges[episode], edges[np.array(episode) + 1]
    found = expand(np.array(rows), np.array(offsets), start, stop)
    for row, e, got, pad in zip(rows, episode, found.rows, found.is_pad, strict=True):
        wanted = [row + offset for offset in offsets]
        low, high = int(edges[e]), int(edges[e + 1]) - 1
        assert got.tolist() == [min(max(w, low), high) for w in wanted]
        assert pad.tolist() == [not low <= w <= high for w in wanted]
