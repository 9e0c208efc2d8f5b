"""Recordings that are killed at random instants, for real, encoders and all."""

from __future__ import annotations

import pytest

import demoreel
from demoreel.testing.crash import check_whole, kill_again_and_again
from demoreel.testing.crash_recording import begin_crash_recording, record_for_ever

pytestmark = pytest.mark.soak

ROUNDS = 14  # tests/layouts/test_kill.py kills appenders, test_encoding_faults.py encoders


def test_whatever_save_episode_returned_from_is_there_after_a_kill(tmp_path):
    root = tmp_path / "dataset"
    begin_crash_recording(root)
    there = kill_again_and_again(record_for_ever, root, rounds=ROUNDS, seed=11)
    assert there >= ROUNDS / 2
    with demoreel.resume(root) as recorder:
        assert recorder.num_episodes == there
    assert check_whole(root) == there
