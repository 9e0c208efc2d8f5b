"""What capture times say of a loop."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from demoreel.record.clock import CaptureClock, Gap, timing

MS = 1_000_000


def test_an_even_loop_has_no_gaps():
    told = timing(np.arange(31) * 20 * MS, fps=50)
    assert told["fps"] == 50
    assert told["jitter_ms_p99"] == 0
    assert told["gaps"] == []
    assert told["late_frames"] == 0


def test_a_stall_is_a_gap_at_its_frame():
    times = np.arange(30) * 20 * MS
    times[12:] += 50 * MS
    told = timing(times, fps=50)
    assert told["gaps"] == [Gap(12, 0.07)]
    assert told["late_frames"] == 1
    assert told["fps"] < 50


def test_one_frame_has_no_rate():
    assert timing(np.array([5]), fps=50)["fps"] is None


def test_the_clock_never_steps_back():
    clock = CaptureClock()
    times = [clock.now() for _ in range(1000)]
    assert times == sorted(times)


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=50))
def test_frames_and_seconds_give_the_rate(steps):
    times = np.concatenate([[0], np.cumsum(steps)])
    told = timing(times, fps=30)
    assert np.isclose(told["fps"] * told["seconds"], len(steps))
    assert told["jitter_ms_p50"] <= told["jitter_ms_p99"]
