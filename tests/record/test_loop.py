"""The recording loop: robots of lerobot's kind, events, and the grid of time."""

from __future__ import annotations

import time

import numpy as np
import pytest

import demoreel
from demoreel.errors import ArgumentError
from demoreel.record import create, features_of, record_episodes, run_loop
from demoreel.record.loop import EXIT_EARLY, RERECORD, STOP
from demoreel.testing.toy_robot import ToyLeader, ToyRobot


class Bench:
    """A robot of two joints and no camera."""

    name = "bench"

    def __init__(self, stall_at=None, stall_s=0.05):
        self.observation_features = {"x.pos": float, "y.pos": float}
        self.action_features = dict(self.observation_features)
        self.step = 0
        self.sent = []
        self._stall = (stall_at, stall_s)

    def get_observation(self):
        self.step += 1
        if self.step == self._stall[0]:
            time.sleep(self._stall[1])
        return {"x.pos": float(self.step), "y.pos": -1.0}

    def send_action(self, action):
        self.sent.append(action)
        return {name: value / 2 for name, value in action.items()}  # clipped by its driver


class Leader:
    def get_action(self):
        return {"x.pos": 4.0, "y.pos": 8.0}


def until(turns):
    """Return what ends a loop after so many turns, however slow the machine is."""
    events = {EXIT_EARLY: False}

    def count(done):
        events[EXIT_EARLY] = done == turns

    return {"events": events, "on_frame": count}


@pytest.fixture
def recorder(tmp_path):
    with create(tmp_path / "ds", fps=100, features=features_of(Bench()), task="t") as made:
        yield made


def test_a_robot_describes_its_features():
    features = features_of(ToyRobot())
    assert features["observation.state"]["shape"] == (6,)
    assert features["observation.state"]["names"][0] == "shoulder_pan.pos"
    assert features["observation.images.front"]["shape"] == (240, 320, 3)
    with pytest.raises(ArgumentError, match="observation_features"):
        features_of(object())


def test_observations_and_what_was_really_done_are_recorded(recorder):
    robot = Bench()
    told = run_loop(robot, Leader(), recorder, **until(5))
    assert told.ended_by == EXIT_EARLY
    assert told.frames == 5
    recorder.save_episode()
    ds = demoreel.open(recorder.root)
    assert ds[0:5]["observation.state"].tolist() == [[float(n), -1.0] for n in range(1, 6)]
    assert ds[0:5]["action"].tolist() == [[2.0, 4.0]] * 5
    assert robot.sent[0] == {"x.pos": 4.0, "y.pos": 8.0}


def test_a_policy_may_take_the_teleoperators_place(recorder):
    def policy(seen):
        return {"x.pos": seen["x.pos"] * 2, "y.pos": 0.0}

    run_loop(Bench(), policy, recorder, **until(3))
    recorder.save_episode()
    assert demoreel.open(recorder.root)[0:3]["action"][:, 0].tolist() == [1, 2, 3]


def test_a_stall_shows_in_the_data_and_in_the_report(recorder):
    run_loop(Bench(stall_at=10), Leader(), recorder, **until(30))
    report = recorder.save_episode()
    assert any(gap.seconds >= 0.05 for gap in report.gaps)
    times = demoreel.open(recorder.root).capture_times(0)
    assert np.diff(times).max() >= 50_000_000


@pytest.mark.parametrize("event", [EXIT_EARLY, RERECORD, STOP])
def test_events_end_the_episode(recorder, event):
    events = {EXIT_EARLY: False, RERECORD: False, STOP: False}

    def press(turns):
        events[event] = turns == 4

    told = run_loop(Bench(), Leader(), recorder, control_time_s=30, events=events, on_frame=press)
    assert (told.ended_by, told.frames) == (event, 4)
    assert events[EXIT_EARLY] is False
    assert events[RERECORD] is (event == RERECORD)
    assert events[STOP] is (event == STOP)


def test_a_session_records_again_and_stops(recorder):
    events = {EXIT_EARLY: False, RERECORD: False, STOP: False}
    seen, discarded = [], []

    def press(turns):
        seen.append(turns)
        events[EXIT_EARLY] = turns == 3
        if len(seen) == 5:
            events[RERECORD] = True
        if len(seen) == 10:
            events[STOP] = True

    reports = record_episodes(
        Bench(), Leader(), recorder, episodes=9, episode_time_s=30, task="push",
        events=events, on_frame=press, on_discarded=discarded.append,
    )  # fmt: skip
    assert [report.frames for report in reports] == [3, 3, 2]
    assert discarded == [2]
    assert demoreel.open(recorder.root)[0]["task"] == "push"


def test_time_ends_the_episode_on_the_grid(recorder):
    told = run_loop(Bench(), Leader(), recorder, control_time_s=0.1)
    assert told.ended_by == "time"
    assert 1 <= told.frames <= 10


def test_a_loop_that_would_never_end_is_refused(recorder):
    with pytest.raises(ArgumentError, match="never end"):
        run_loop(Bench(), Leader(), recorder)


def test_the_toy_robot_records(tmp_path):
    robot = ToyRobot(length=20)
    options = {"fps": 30, "features": features_of(robot), "task": robot.task, "vcodec": "h264"}
    with create(tmp_path / "toy", **options) as recorder:
        reports = record_episodes(robot, ToyLeader(robot), recorder, episodes=2, episode_time_s=0.5)
    assert all(1 <= report.frames <= 15 for report in reports)  # fewer where the machine is busy
    ds = demoreel.open(tmp_path / "toy")
    assert ds[-1]["observation.images.wrist"].shape == (3, 120, 160)
    assert not np.array_equal(ds[0]["observation.state"], ds[-1]["observation.state"])
