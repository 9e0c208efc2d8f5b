"""Damage at random: whatever happens to a dataset's bytes, it is told, and nothing else happens.

A bounded share of what ``bench/fuzz.py`` does for hours; the seeds are fixed, so it is the same
damage every time.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from demoreel.testing.stamp import Stamp, stamp
from support.fuzz import BASES, Case, make_bases, run_cases
from support.fuzz.bases import LENGTHS
from support.fuzz.pool import run_each
from support.fuzz.trial import damage
from support.fuzz.witness import mixed_up, snapshot

pytestmark = pytest.mark.soak

SEEDS = range(9)


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_bases(tmp_path_factory.mktemp("fuzz") / "bases")


def test_no_damage_does_harm(bases, tmp_path):
    cases = [Case(base, seed) for seed in SEEDS for base in BASES]
    verdicts = list(run_cases(cases, bases, tmp_path / "work"))
    assert len(verdicts) == len(cases)
    bad = [str(verdict) for verdict in verdicts if verdict.faults or verdict.unforeseen]
    assert not bad, "\n".join(bad)


def test_a_seed_always_means_the_same_damage(bases, tmp_path):
    for number in range(2):
        (tmp_path / str(number)).mkdir()
    for seed in range(20):
        case = Case("v3", seed)
        first, second = (damage(case, bases, tmp_path / str(n) / f"{seed}") for n in range(2))
        assert first[1] == second[1]
        assert snapshot(first[0]) == snapshot(second[0])


def _go_wrong(case, bases, work):
    if case.seed == 0:
        os.kill(os.getpid(), signal.SIGSEGV)
    if case.seed == 1:
        _hoard.append(np.ones(1 << 27))  # 1 GiB
    time.sleep(600)


_hoard: list[np.ndarray] = []


def test_a_process_that_goes_wrong_is_told_on(bases, tmp_path):
    cases = [Case("v3", seed) for seed in range(3)]
    found = run_each(_go_wrong, cases, bases, tmp_path, processes=1, seconds=9, memory=600 << 20)
    assert [verdict.faults[0][0] for verdict in found] == ["crash", "memory", "endless"]


def _item(row: Stamp, shown: Stamp) -> dict[str, np.ndarray]:
    index = sum(LENGTHS[: row.episode]) + row.frame
    numbers = np.array([row.episode, row.frame, index, 0, 0, 1], np.float32)
    image = np.zeros((48, 64, 3), np.uint8)
    stamp(image, *shown)
    return {"observation.state": numbers, "action": -numbers, "camera": image}


def test_a_witness_tells_another_frame_from_a_damaged_one():
    asked, other = Stamp(0, 1), Stamp(1, 2)
    assert mixed_up(_item(asked, asked), ("camera",), asked) is None
    assert "row" in str(mixed_up(_item(other, other), ("camera",), asked))
    assert "camera" in str(mixed_up(_item(asked, other), ("camera",), asked))
    assert "camera" in str(mixed_up(_item(other, asked), ("camera",), None))
    damaged = _item(asked, asked)
    damaged["observation.state"][2] += 1  # one number, not a row
    damaged["camera"][:20] = 128  # an image that cannot be read says nothing
    assert mixed_up(damaged, ("camera",), asked) is None
