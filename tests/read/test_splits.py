"""Held-out episodes: lerobot's split, and groups that stay together."""

from __future__ import annotations

import numpy as np
import pytest

import demoreel
from demoreel.errors import ArgumentError
from demoreel.read.splits import eval_split, split_episodes
from demoreel.testing import make_dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("splits")
    make_dataset(folder / "d", episodes=[10] * 9, cameras=0, tasks=("a", "b", "c"))
    return demoreel.open(folder / "d")


def test_lerobots_split_holds_out_the_last_of_each_task(dataset):
    assert eval_split(dataset, 0.4) == ([0, 1, 2], [3, 6, 4, 7, 5, 8])
    assert eval_split(dataset, 0.1) == ([0, 3, 1, 4, 2, 5], [6, 7, 8])
    assert eval_split(dataset, 0.5, episodes=[6, 3, 0, 1, 4]) == ([6, 1], [3, 0, 4])
    assert eval_split(dataset, 0) == (list(range(9)), [])
    with pytest.raises(ArgumentError, match="no episode"):
        eval_split(dataset, 0.5, episodes=[0])
    with pytest.raises(ArgumentError):
        eval_split(dataset, 1)


def test_by_episode_and_by_task(dataset):
    train, val = split_episodes(dataset, val=0.34, seed=1)
    assert sorted([*train, *val]) == list(range(9))
    assert len(val) == 3
    assert split_episodes(dataset, val=0.34, seed=1) == (train, val)
    assert any(split_episodes(dataset, val=0.34, seed=seed).val != val for seed in range(2, 6))
    train, val = split_episodes(dataset, val=0.4, by="task")
    assert {n % 3 for n in train} & {n % 3 for n in val} == set()
    assert len(val) == 3


def test_episodes_that_share_a_task_stay_together(tmp_path):
    root = make_dataset(
        tmp_path / "d", episodes=[10] * 6, cameras=0, tasks=("a", "b"), task_changes=True
    )
    with pytest.raises(ArgumentError, match="one task"):
        split_episodes(demoreel.open(root), by="task")


def test_by_session(dataset, monkeypatch):
    minute = 60 * 10**9
    begins = [0, 3, 5, 100, 104, 300, 302, 500, 8]
    times = {n: np.arange(10) * 10**9 + at * minute for n, at in enumerate(begins)}
    monkeypatch.setattr(dataset, "capture_times", times.get)
    train, val = split_episodes(dataset, val=0.3, by="session", seed=3)
    for session in ({0, 1, 2, 8}, {3, 4}, {5, 6}, {7}):
        assert session <= set(train) or session <= set(val)
    assert train
    assert val
    monkeypatch.undo()
    with pytest.raises(ArgumentError, match="not known"):
        split_episodes(dataset, by="session")
