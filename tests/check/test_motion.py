"""Movements: every defect is found, by numbers that can be set, and clean data raise no hint."""

from __future__ import annotations

import numpy as np
import pytest

import demoreel
from demoreel.check.motion_measure import (
    as_signal,
    longest_runs,
    measure_following,
    measure_steps,
    still_frames,
)
from demoreel.testing import make_dataset
from support.moving import make_moving, movements

from .conftest import defects_of

ONLY = ["motion"]


@pytest.mark.parametrize("name", defects_of("motion"))
def test_finds_and_hints_at_nothing_else(name, assert_found):
    report = assert_found(name)
    assert all(finding.severity == "hint" for finding in report.findings)
    assert len(report.counts) == 1, str(report)


@pytest.mark.parametrize(
    "name", ["g1_v21", "g1_lance_native", "kitchen_v30", "kitchen_lance_frames"]
)
def test_real_movements_raise_no_hint(name, fixtures):
    assert demoreel.check(fixtures / name, only=ONLY).counts == {}


@pytest.mark.parametrize("fps", [5, 10, 30, 60])
@pytest.mark.parametrize("seed", range(3))
def test_made_up_movements_raise_no_hint(fps, seed, tmp_path):
    root = make_moving(tmp_path / "arm", fps=fps, seed=seed)
    assert demoreel.check(root, only=ONLY).counts == {}


def test_stamps_instead_of_movements_raise_no_hint(tmp_path):
    root = make_dataset(tmp_path / "made", episodes=[80, 90, 70], cameras=0, fps=10)
    assert demoreel.check(root, only=ONLY).counts == {}


def test_a_gripper_may_snap(tmp_path):
    def snap(episode, columns):
        grip = np.arange(len(columns["action"])) // 20 % 2
        for key in ("action", "observation.state"):
            columns[key][:, 5] = grip
        return columns

    root = make_moving(tmp_path / "arm", change=snap)
    assert demoreel.check(root, only=ONLY).counts == {}


def test_commands_that_stay_until_the_next_are_no_dropout(tmp_path):
    def held(episode, columns):
        columns["action"] = columns["action"][np.arange(len(columns["action"])) // 12 * 12]
        return columns

    root = make_moving(tmp_path / "arm", change=held)
    assert "teleop-dropout" not in demoreel.check(root, only=ONLY).counts


def test_thresholds_are_said_and_can_be_set(base):
    root = base("v3-moves")
    report = demoreel.check(root, only=ONLY, thresholds={"state_lag": 0.05, "long_times": 1.01})
    assert "from 0.05 s on" in report.of("state-lag")[0].what
    assert report.thresholds["state_lag"] == 0.05


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the statistics that are written
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_numbers_that_are_none_do_no_harm(value, tmp_path):
    def break_some(episode, columns):
        columns["action"][5, 1] = columns["observation.state"][7, :] = value
        return columns

    root = make_moving(tmp_path / "arm", change=break_some)
    assert "check-failed" not in demoreel.check(root, only=ONLY).counts


@pytest.mark.parametrize("frames", [1, 2, 3])
def test_episodes_of_almost_nothing(frames, tmp_path):
    root = make_moving(tmp_path / "arm", lengths=[frames] * 3)
    assert demoreel.check(root, only=ONLY).counts == {}


def test_lengths_and_ranges_are_facts(base):
    root = base("v3-moves")
    facts = demoreel.check(root, only=ONLY).looked_at[str(root)]
    assert facts["lengths"]["shortest"] == 50
    assert facts["lengths"]["longest"] == 66
    assert sum(facts["lengths"]["counts"]) == 10
    assert [ranges["feature"] for ranges in facts["ranges"]] == ["action", "observation.state"]
    assert [d["name"] for d in facts["ranges"][0]["dimensions"]] == [f"joint_{n}" for n in range(6)]


def test_steps_are_measured_within_episodes():
    values = np.array([[0.0], [1.0], [5.0], [100.0], [100.0], [98.0]])
    steps = measure_steps(as_signal(values), np.array([0, 3, 6]), slice(None))
    assert steps.largest[:, 0].tolist() == [4.0, 2.0]
    assert steps.at[:, 0].tolist() == [2, 2]
    assert steps.low[:, 0].tolist() == [0.0, 98.0]
    assert steps.high[:, 0].tolist() == [5.0, 100.0]
    assert steps.repeats.tolist() == [False, False, False, False, True, False]


def test_the_longest_run_of_each_episode():
    repeats = np.array([0, 1, 1, 0, 1, 1, 1, 0, 0, 1], bool)
    assert longest_runs(repeats, np.array([0, 8, 10]), 2) == [(0, 4, 7)]
    assert longest_runs(repeats, np.array([0, 8, 10]), 1) == [(0, 4, 7), (1, 9, 10)]


def test_rest_at_both_ends():
    signal = np.array([[0, 0, 0, 0, 5, 9, 10, 10, 10]], np.float32)
    edges, reach = np.array([0, 9]), np.array([[0.2]])
    assert still_frames(signal, edges, reach, 3, at_end=False).tolist() == [4]
    assert still_frames(signal, edges, reach, 3, at_end=True).tolist() == [3]
    assert still_frames(signal, edges, reach, 5, at_end=False).tolist() == [0]


@pytest.mark.parametrize("lag", [-6, 0, 6])
def test_lag_is_measured(lag):
    action, _ = movements(0, 120)
    whole = as_signal(action)
    state = whole[:, 10 - lag : 110 - lag] + 2
    found = measure_following(state, whole[:, 10:110], 12)
    assert found.lag.tolist() == [lag] * 6
    assert np.allclose(found.offset, 2, atol=1e-4)
    assert (found.agreement > 0.9).all()
