"""Writers that are killed at random instants, for real."""

from __future__ import annotations

import pytest

from demoreel.layouts.appending import create_appender, open_appender
from support.crash import (
    append_for_ever,
    check_whole,
    crash_info,
    kill_again_and_again,
    make_draft,
)

pytestmark = pytest.mark.soak

ROUNDS = 16


@pytest.fixture
def scratch(tmp_path):
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def test_whatever_was_reported_is_there_after_a_kill(tmp_path, scratch):
    root = tmp_path / "dataset"
    create_appender(root, crash_info()).close()
    there = kill_again_and_again(append_for_ever, root, scratch, rounds=ROUNDS, seed=7)
    assert there >= ROUNDS / 2
    with open_appender(root) as appender:
        appender.append(make_draft(appender, appender.episodes, scratch))
        while appender.compact(finish=True):
            pass
    assert check_whole(root) == there + 1
    assert not (root / ".demoreel").exists()
    assert len(list(root.rglob("*.mp4"))) == 2
    assert len(list(root.rglob("*.parquet"))) == 4  # rows, episodes, tasks, histograms
