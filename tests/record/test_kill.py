"""Recordings that are killed at random instants, for real, encoders and all."""

from __future__ import annotations

import pytest

import demoreel
from demoreel.errors import UnfinishedError
from support.crash import check_rows, check_whole, kill_again_and_again
from support.crash_recording import (
    begin_crash_recording,
    record_behind_for_ever,
    record_for_ever,
)

pytestmark = pytest.mark.soak

# With 16 of tests/layouts/test_kill.py, 202; test_encoding_faults.py kills encoders, too.
ROUNDS = 14
WITHOUT_CAMERAS = {"v3.0": 156, "lance-video": 8, "lance-native": 8}


def test_whatever_save_episode_returned_from_is_there_after_a_kill(tmp_path):
    root = tmp_path / "dataset"
    begin_crash_recording(root).finalize()
    there = kill_again_and_again(record_for_ever, root, rounds=ROUNDS, seed=11)
    assert there >= ROUNDS / 2
    with demoreel.resume(root) as recorder:
        assert recorder.num_episodes == there
    assert check_whole(root) == there


@pytest.mark.parametrize(("layout", "rounds"), WITHOUT_CAMERAS.items())
def test_the_same_without_encoders_and_more_often(tmp_path, layout, rounds):
    """Recordings of numbers begin in milliseconds, so that most kills hit a commit."""
    there, folder = 0, tmp_path
    for part in range(rounds // 4):  # few rounds each: all of a dataset is looked at each time
        folder = tmp_path / f"dataset-{part}"
        begin_crash_recording(folder, cameras=0, layout=layout).finalize()
        there += kill_again_and_again(
            record_for_ever, folder, rounds=4, seed=part, check=check_rows
        )
    assert there >= rounds / 2
    with demoreel.resume(folder) as recorder:
        count = recorder.num_episodes
    assert check_rows(folder) == count


def test_what_was_saved_before_it_was_encoded_is_there_once_after_a_kill(tmp_path):
    root = tmp_path / "dataset"
    begin_crash_recording(root, cameras=1, fps=1).finalize()

    def check(root, *, images_from):
        try:
            seen = len(demoreel.open(root).episodes)  # as it is, before anything is finished
        except UnfinishedError:
            seen = None
        there = check_whole(root, images_from=images_from)
        assert seen in (None, there)
        return there

    there = kill_again_and_again(record_behind_for_ever, root, rounds=2, seed=5, check=check)
    assert there >= 1
