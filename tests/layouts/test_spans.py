"""Seconds to frame numbers: right under drift, refused under contradiction."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demoreel.layouts.spans import resolve_spans

RATES = [10, 15, 24, 29.97, 30, 50, 60]
lengths_lists = st.lists(st.integers(1, 300), min_size=1, max_size=60)


def packed(lengths, fps, *, extra_frames=0):
    """Episodes one after the other in a regular video: metadata and the video's clock."""
    lengths = np.array(lengths)
    first = np.concatenate([[0], np.cumsum(lengths)])
    seconds = np.arange(int(first[-1]) + extra_frames) / fps
    return lengths, first[:-1], first / fps, seconds


def resolve(lengths, begin, end, seconds, fps):
    return resolve_spans(
        length=np.asarray(lengths),
        from_timestamp=np.asarray(begin, dtype=np.float64),
        to_timestamp=None if end is None else np.asarray(end, dtype=np.float64),
        seconds=np.asarray(seconds, dtype=np.float64),
        fps=fps,
    )


@given(lengths_lists, st.sampled_from(RATES), st.integers(0, 20))
def test_exact_metadata(lengths, fps, extra):
    lengths, first, edges, seconds = packed(lengths, fps, extra_frames=extra)
    spans = resolve(lengths, edges[:-1], edges[1:], seconds, fps)
    assert spans.problem == {}
    assert spans.first.tolist() == first.tolist()


@given(lengths_lists, st.sampled_from(RATES), st.floats(0, 1e-3))
def test_durations_rounded_up_at_every_episode_drift_and_still_resolve(lengths, fps, error):
    lengths, first, edges, seconds = packed(lengths, fps)
    drifted = edges + np.arange(len(edges)) * error
    spans = resolve(lengths, drifted[:-1], drifted[1:], seconds, fps)
    assert spans.problem == {}
    assert spans.first.tolist() == first.tolist()


@given(st.integers(0, 2**32 - 1), st.sampled_from(RATES))
@settings(max_examples=20, deadline=None)
def test_a_day_of_video_in_32_bit_floats(seed, fps):
    lengths = np.random.default_rng(seed).integers(1, 2 * round(60 * fps), 24 * 60)
    lengths, first, _, seconds = packed(lengths, fps)
    # A running sum in float32, the worst that a writer could do short of losing frames.
    single = np.cumsum(np.append(0, lengths / fps), dtype=np.float64).astype(np.float32)
    spans = resolve(lengths, single[:-1], single[1:], seconds, fps)
    assert spans.problem == {}
    assert spans.first.tolist() == first.tolist()


@given(lengths_lists, st.data())
def test_deleted_episodes_leave_gaps_that_do_no_harm(lengths, data):
    lengths, first, edges, seconds = packed(lengths, 30)
    keep = data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    kept = np.flatnonzero(keep)
    if len(kept) == 0:
        return
    spans = resolve(lengths[kept], edges[:-1][kept], edges[1:][kept], seconds, 30)
    assert spans.problem == {}
    assert spans.first.tolist() == first[kept].tolist()


@given(lengths_lists, st.randoms())
def test_order_in_the_metadata_does_not_matter(lengths, random):
    lengths, first, edges, seconds = packed(lengths, 30)
    order = list(range(len(lengths)))
    random.shuffle(order)
    spans = resolve(lengths[order], edges[:-1][order], edges[1:][order], seconds, 30)
    assert spans.problem == {}
    assert spans.first.tolist() == first[order].tolist()


@pytest.mark.parametrize("offset", [0.066, 5.0])
@pytest.mark.parametrize("counts_from_first_frame", [True, False])
def test_a_video_whose_clock_does_not_start_at_zero(offset, counts_from_first_frame):
    lengths, first, edges, seconds = packed([7, 9, 4], 30)
    shift = 0.0 if counts_from_first_frame else offset
    spans = resolve(lengths, edges[:-1] + shift, edges[1:] + shift, seconds + offset, 30)
    assert spans.problem == {}
    assert spans.first.tolist() == first.tolist()


def test_variable_frame_rate_by_the_videos_own_clock():
    rng = np.random.default_rng(0)
    seconds = np.cumsum(rng.uniform(0.02, 0.05, 60)) - 0.02
    seconds -= seconds[0]
    first = np.array([0, 20, 45])
    lengths = np.array([20, 25, 15])
    ends = np.append(seconds[first[1:]], seconds[-1] + 0.03)
    spans = resolve(lengths, seconds[first], ends, seconds, 30)
    assert spans.problem == {}
    assert spans.first.tolist() == first.tolist()


@pytest.mark.parametrize("shift", [1, -1, 3, 0.5])
def test_a_start_that_is_off_is_refused(shift):
    lengths, _, edges, seconds = packed([30, 30, 30], 30)
    begin = edges[:-1].copy()
    begin[1] += shift / 30
    spans = resolve(lengths, begin, edges[1:], seconds, 30)
    assert 1 in spans.problem
    assert spans.first[1] == -1


def test_a_video_that_is_too_short_is_refused_where_frames_lack():
    lengths, first, edges, seconds = packed([30, 30, 30], 30)
    spans = resolve(lengths, edges[:-1], edges[1:], seconds[:-1], 30)
    assert set(spans.problem) == {2}
    assert "89" in spans.problem[2]
    assert spans.first[:2].tolist() == first[:2].tolist()


def test_more_video_than_rows_inside_an_episode_is_refused():
    # Frames of a discarded take: the episode's video is longer than its table.
    lengths = np.array([30, 30, 30])
    edges = np.array([0, 30, 72, 102]) / 30
    spans = resolve(lengths, edges[:-1], edges[1:], np.arange(102) / 30, 30)
    assert set(spans.problem) == {1}
    assert spans.first.tolist() == [0, -1, 72]


def test_less_video_than_rows_inside_an_episode_is_refused():
    # The encoder dropped two frames of the second episode.
    lengths = np.array([30, 30, 30])
    edges = np.array([0, 30, 58, 88]) / 30
    spans = resolve(lengths, edges[:-1], edges[1:], np.arange(88) / 30, 30)
    assert 1 in spans.problem
    assert spans.first[0] == 0


def test_an_end_that_is_one_frame_off_is_tolerated():
    lengths, first, edges, seconds = packed([30, 30, 30], 30)
    spans = resolve(lengths, edges[:-1], edges[1:] - 1 / 30, seconds, 30)
    assert spans.problem == {}
    assert spans.first.tolist() == first.tolist()


@given(lengths_lists, st.data())
def test_whatever_is_answered_is_inside_the_video_and_disjoint(lengths, data):
    """Random metadata: an answer may be refused, never overlapping and never out of the video."""
    total = data.draw(st.integers(0, 400))
    begin = data.draw(
        st.lists(st.floats(-1, 30, allow_nan=False), min_size=len(lengths), max_size=len(lengths))
    )
    lengths = np.array(lengths)
    spans = resolve(lengths, begin, None, np.arange(total) / 30, 30)
    placed = sorted(
        (int(first), int(first + length))
        for place, (first, length) in enumerate(zip(spans.first, lengths, strict=True))
        if place not in spans.problem
    )
    assert all(first >= 0 and stop <= total for first, stop in placed)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(placed))


def test_an_empty_video():
    spans = resolve([3, 4], [0.0, 0.1], None, [], 30)
    assert set(spans.problem) == {0, 1}


# ── Videos filmed at a multiple of the dataset's rate ─────────────────────────────────────────────


@given(lengths_lists, st.sampled_from([10, 15, 29.97, 30]), st.integers(2, 6), st.data())
def test_every_so_many_frames(lengths, fps, step, data):
    """Episodes are one behind the other, with frames between them that are no one's."""
    first, at = [], 0
    for length in lengths:
        at += data.draw(st.integers(0, 3))
        first.append(at)
        at += step * (length - 1) + 1
    seconds = np.arange(at + data.draw(st.integers(0, 3))) / (fps * step)
    begin = np.array(first) / (fps * step)
    spans = resolve(lengths, begin, begin + np.array(lengths) / fps, seconds, fps)
    assert spans.problem == {}
    assert spans.first.tolist() == first
    assert spans.step == step or sum(lengths) == len(seconds) or len(seconds) == 1


def test_a_frame_for_every_row_is_read_by_counting_whatever_the_clock_says():
    lengths, first, edges, _ = packed([7, 9, 4], 15)
    spans = resolve(lengths, edges[:-1], edges[1:], np.arange(20) / 30, 15)
    assert spans.step == 1
    assert spans.first.tolist() == first.tolist()


@pytest.mark.parametrize("shift", [0.5, 0.4])
def test_a_start_between_frames_of_a_faster_video_is_refused(shift):
    seconds = np.arange(60) / 30
    spans = resolve([10, 10], [0, (20 + shift) / 30], None, seconds, 15)
    assert set(spans.problem) == {1}
    assert spans.first.tolist() == [0, -1]


def test_a_faster_video_that_ends_too_soon_or_loses_frames_is_refused():
    seconds = np.arange(60) / 30
    assert set(resolve([10, 21], [0, 20 / 30], None, seconds, 15).problem) == {1}
    lost = np.delete(np.arange(70) / 30, 27)
    spans = resolve([10, 10, 10], [0, 20 / 30, 42 / 30], None, lost, 15)
    assert set(spans.problem) == {1}
    assert spans.first.tolist() == [0, -1, 41]


def test_episodes_of_a_faster_video_that_overlap_are_refused():
    seconds = np.arange(60) / 30
    assert set(resolve([10, 10], [0, 10 / 30], None, seconds, 15).problem) == {0, 1}
    assert set(resolve([10, 10], [0, 19 / 30], None, seconds, 15).problem) == set()


def test_an_end_that_says_something_else_is_refused():
    seconds = np.arange(60) / 30
    assert set(resolve([10], [0.0], [1.5], seconds, 15).problem) == {0}
