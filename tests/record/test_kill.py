"""Recordings that are killed at random instants, for real, encoders and all."""

from __future__ import annotations

import random

import demoreel
from demoreel.errors import MetadataError
from demoreel.testing.crash import check_whole, killed
from demoreel.testing.crash_recording import begin_crash_recording, record_for_ever

ROUNDS = 20  # tests/layouts/test_kill.py kills appenders, test_encoding_faults.py encoders


def episodes_in(root, **options):
    try:
        return check_whole(root, **options)
    except MetadataError as error:
        if error.what != "The dataset has no episodes yet.":
            raise
        return 0


def test_whatever_save_episode_returned_from_is_there_after_a_kill(tmp_path):
    root = tmp_path / "dataset"
    begin_crash_recording(root)
    instant = random.Random(11)
    there = 0
    for number in range(ROUNDS):
        reports = killed(
            record_for_ever,
            root,
            number,
            reports=instant.randrange(4),
            then=instant.uniform(0, 2),
        )
        assert reports == list(range(there, there + len(reports)))
        safe = there + len(reports)
        there = episodes_in(root, pictures_from=max(0, safe - 4))
        assert there in (safe, safe + 1)
    assert there >= ROUNDS / 2
    with demoreel.resume(root) as recorder:
        assert recorder.num_episodes == there
    assert check_whole(root) == there
