"""``demoreel repair`` from the command line."""

from __future__ import annotations

import json

import pyarrow.parquet as pq

import demoreel
from demoreel.cli.app import run
from demoreel.testing import make_dataset


def test_repair(tmp_path, capsys):
    root = make_dataset(tmp_path / "ds", episodes=[4, 5])
    (root / "meta" / "stats.json").unlink()
    out = tmp_path / "out"
    assert run(["repair", str(root), "--dry-run"]) == 0
    assert "2 episodes, 9 frames can be kept" in capsys.readouterr().out
    assert not out.exists()
    assert run(["repair", str(root), str(out)]) == 0
    assert "statistics of images were recomputed" in capsys.readouterr().out
    assert len(demoreel.open(out)) == 9


def test_a_lost_episode_shows_in_the_exit_code(tmp_path, capsys):
    root = make_dataset(tmp_path / "ds", episodes=[4, 5, 6])
    table = root / "data/chunk-000/file-000.parquet"
    rows = pq.read_table(table)
    pq.write_table(rows.slice(0, 9), table)
    out = tmp_path / "out"
    assert run(["repair", str(root), str(out)]) == 1
    assert "--drop-episodes" in capsys.readouterr().err
    assert not out.exists()
    assert run(["repair", str(root), str(out), "--drop-episodes", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert [lost["episode"] for lost in said["lost"]] == [2]
    assert said["episodes"] == 2
    assert said["clean"] is True


def test_errors(tmp_path, capsys):
    root = make_dataset(tmp_path / "ds", episodes=[4])
    assert run(["repair", str(root)]) == 2
    assert "target" in capsys.readouterr().err
