"""`demoreel stats`."""

from __future__ import annotations

import json
import shutil

import pytest

FRONT, WRIST = "observation.images.front", "observation.images.wrist"
DEPTH = "observation.depth.front"


@pytest.fixture
def copied(dataset, tmp_path):
    return shutil.copytree(dataset, tmp_path / "copied")


def test_a_table_of_features_and_dimensions(run, dataset):
    done = run("stats", dataset)
    assert (done.returncode, done.stderr) == (0, "")
    head, *rows = done.stdout.splitlines()
    assert head == "kitchen: 3 episodes, 25 frames"
    assert rows[0].split() == ["feature", "min", "max", "mean", "std", "q01", "q50", "q99"]
    cells = [row.split() for row in rows]
    state = next(row for row in cells if row[0] == "observation.state")
    assert state[1:4] == ["joint_0", "0", "2"]
    assert state[-1].startswith("~")  # not marked as exact
    front = next(row for row in cells if row[0] == FRONT)
    assert front[1] == "red"
    assert front[2].startswith("~")
    assert next(row for row in cells if row[0] == DEPTH)[1] == "depth"
    assert rows[-1].startswith("~ approximate")


def test_json(run, dataset):
    found = json.loads(run("stats", dataset, "--json").stdout)
    assert (found["episodes"], found["frames"], found["episode"]) == (3, 25, None)
    assert found["stats"]["index"]["max"] == [24]
    assert found["dimensions"][FRONT] == ["red", "green", "blue"]
    assert set(found["approximate"][FRONT]) == set(found["stats"][FRONT])
    assert found["approximate"]["action"] == ["q01", "q10", "q50", "q90", "q99"]


def test_one_episode(run, dataset, one_camera):
    for path, last in ((dataset, 24), (one_camera, 9)):
        found = json.loads(run("stats", path, "--episode", 1, "--json").stdout)
        assert found["stats"]["index"]["max"] == [19 if last == 24 else last]
    assert run("stats", dataset, "--episode", 9).returncode == 2


def test_recompute(run, copied):
    planned = run("stats", copied, "--recompute", "--dry-run")
    assert planned.returncode == 0
    assert f"{FRONT}: 25 frames would be decoded" in planned.stdout
    assert not (copied / "meta" / "demoreel").exists()
    done = json.loads(run("stats", copied, "--recompute", "--json", "--jobs", 2).stdout)
    assert done["committed"]
    assert done["cameras"] == {FRONT: 25, WRIST: 25, DEPTH: 25}
    shown = run("stats", copied)
    assert "~" not in shown.stdout
    again = json.loads(run("stats", copied, "--recompute", "--missing", "--json").stdout)
    assert again["cameras"] == {FRONT: 0, WRIST: 0, DEPTH: 0}


def test_numbers_alone(run, copied):
    done = json.loads(run("stats", copied, "--recompute", "--no-pictures", "--json").stdout)
    assert done["cameras"] == {}
    found = json.loads(run("stats", copied, "--json").stdout)
    assert found["approximate"].keys() == {FRONT, WRIST, DEPTH}


def test_options_that_need_another_are_refused(run, dataset):
    for option in ("--dry-run", "--no-pictures", "--missing"):
        done = run("stats", dataset, option)
        assert done.returncode == 2
        assert "--recompute" in done.stderr
