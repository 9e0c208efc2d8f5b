"""What `make demo` runs, in small."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import numpy as np
import pytest

import demoreel
from demoreel.testing import demo
from demoreel.testing.toy_arm import PICK, PUSH


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(demo, "EPISODES", ((PICK, 24), (PUSH, 12), (PICK, 20)))
    monkeypatch.setattr(demo, "LOADING_SECONDS", 0.01)
    monkeypatch.setattr(demo, "FLOOR_SECONDS", 0.01)


def test_writes_a_dataset_and_shows_it(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "demo" / "toy_arm"
    folder.mkdir(parents=True)  # an empty folder is as good as none
    assert demo.main([str(folder)]) == 0
    shown = capsys.readouterr().out
    for part in ("3 episodes", PICK, PUSH, "samples/s", "% of it", f"frame {folder} 100"):
        assert part in shown
    assert "\x1b" not in shown
    ds = demoreel.open(folder)
    assert (ds.layout, len(ds), len(ds.episodes)) == ("v3.0", 56, 3)
    assert [episode.tasks for episode in ds.episodes] == [(PICK,), (PUSH,), (PICK,)]
    sizes = {key: ds[0][key].shape for key in ds.cameras}
    assert sizes == {demo.FRONT: (3, 240, 320), demo.WRIST: (3, 120, 160)}
    assert ds.stats is not None
    np.testing.assert_allclose(
        ds.stats["action"]["mean"], ds[:]["action"].mean(axis=0), rtol=1e-4, atol=1e-4
    )
    # A second run reads what is there; without torch, as arrays.
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else pytest.fail(name)
    )
    assert demo.main([str(folder)]) == 0
    shown = capsys.readouterr().out
    for part in ("is there already", "numpy arrays", "samples/s"):
        assert part in shown
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_what_is_something_else_is_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("mine")
    (tmp_path / "file").write_text("mine too")
    for place in (tmp_path, tmp_path / "file"):
        assert demo.main([str(place)]) == 1
    assert "FOLDER" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "thesis.txt"]


def test_is_a_command(tmp_path):
    (tmp_path / "file").write_text("mine")
    done = subprocess.run(
        [sys.executable, "-m", "demoreel.testing.demo", tmp_path / "file"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
