"""`demoreel diff`."""

from __future__ import annotations

import json
import shutil

import pytest

import demoreel
from demoreel.testing import make_dataset


@pytest.fixture(scope="module")
def other(dataset, tmp_path_factory):
    """The dataset without an episode, and with another task."""
    target = tmp_path_factory.mktemp("diff") / "other"
    demoreel.cut(dataset).delete(0).retask({"放下": "put it down"}).render(target)
    return target


def test_equal_ones(run, dataset):
    done = run("diff", dataset, dataset)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "3 episodes, 25 frames compared: no difference\n"
    assert json.loads(run("diff", dataset, dataset, "--json").stdout)["is_equal"] is True


def test_different_ones(run, dataset, other):
    done = run("diff", dataset, other)
    assert done.returncode == 1
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert {line[0] for line in lines[1:]} == {
        "tasks",
        "episodes",
        "rows",
        "statistics",
        "images",
    }
    assert "of 255 levels" in done.stdout
    assert "[" not in done.stdout
    assert "only in a" not in done.stdout
    assert "put it down" in done.stdout
    assert "bytes differ: different" in done.stderr


def test_by_content_as_json(run, dataset, other):
    done = run("diff", dataset, other, "--match", "content", "--pixels", "all", "--json")
    assert done.returncode == 1
    answer = json.loads(done.stdout)
    assert answer["only_in_a"] == [0]
    assert answer["moved"] == [[1, 0], [2, 1]]
    assert answer["pictures"] == []
    assert [column["key"] for column in answer["columns"]] == ["task"]


def test_tolerance(run, tmp_path):
    noise = {"noise": {"dtype": "float32", "shape": [2]}}
    for name, seed in (("a", 1), ("b", 2)):
        make_dataset(tmp_path / name, episodes=[4], cameras=0, features=noise, seed=seed)
    assert run("diff", tmp_path / "a", tmp_path / "b").returncode == 1
    assert run("diff", tmp_path / "a", tmp_path / "b", "--tolerance", "100").returncode == 0


def test_trouble_is_neither(run, dataset, tmp_path):
    done = run("diff", dataset, tmp_path)
    assert done.returncode == 2
    assert run("diff", dataset).returncode == 2
    assert run("diff", dataset, dataset, "--pixels", "some").returncode == 2
    broken = shutil.copytree(dataset, tmp_path / "broken")
    next(broken.glob("data/*/*.parquet")).write_bytes(b"no table")
    assert run("diff", dataset, broken, "--json").returncode == 2


def test_in_a_terminal(show, dataset, other):
    shown = show("diff", dataset, other, "--pixels", "none")
    assert "only in A" in shown
    assert "frames were not" in shown
