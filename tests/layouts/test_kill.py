"""Writers that are killed at random instants, for real."""

from __future__ import annotations

import random

import pytest

from demoreel.errors import MetadataError
from demoreel.layouts.appending import create_appender, open_appender
from demoreel.testing.crash import (
    append_for_ever,
    check_whole,
    crash_info,
    killed,
    make_draft,
)

ROUNDS = 25


@pytest.fixture
def scratch(tmp_path):
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def episodes_in(root, **options):
    try:
        return check_whole(root, **options)
    except MetadataError as error:
        if error.what != "The dataset has no episodes yet.":
            raise
        return 0


def test_whatever_was_reported_is_there_after_a_kill(tmp_path, scratch):
    root = tmp_path / "dataset"
    create_appender(root, crash_info()).close()
    instant = random.Random(7)
    there = 0
    for _ in range(ROUNDS):
        reports = killed(
            append_for_ever,
            root,
            scratch,
            reports=instant.randrange(3),
            then=instant.uniform(0, 1.5),
        )
        assert reports == list(range(there, there + len(reports)))
        safe = there + len(reports)
        found = episodes_in(root, pictures_from=max(0, safe - 4))
        assert found in (safe, safe + 1)
        there = found
    assert there >= ROUNDS / 2
    with open_appender(root) as appender:
        appender.append(make_draft(appender, appender.episodes, scratch))
        while appender.compact(finish=True):
            pass
    assert check_whole(root) == there + 1
    assert not (root / ".demoreel").exists()
    assert len(list(root.rglob("*.mp4"))) == 2
    assert len(list(root.rglob("*.parquet"))) == 3
