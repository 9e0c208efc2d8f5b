"""`demoreel episodes`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demoreel.testing import make_dataset

FRONT = "observation.images.front"


def test_pipes_get_lines_of_tabs(run, dataset):
    done = run("episodes", dataset)
    assert done.returncode == 0
    assert done.stderr == ""
    head, *rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert head == ["episode", "frames", "seconds", "task", "files"]
    assert [row[:4] for row in rows] == [
        ["0", "8", "0.27", "pick it"],
        ["1", "12", "0.40", "放下"],
        ["2", "5", "0.17", "pick it"],
    ]
    files = rows[0][4].split(", ")
    assert files[0] == "data/chunk-000/file-000.parquet"
    assert len(files) == 4
    assert all((dataset / name).is_file() for name in files)


def test_json(run, dataset):
    done = run("episodes", dataset, "--json")
    facts = json.loads(done.stdout)
    assert facts["total"] == 3
    assert [episode["frames"] for episode in facts["episodes"]] == [8, 12, 5]
    assert [episode["first_frame"] for episode in facts["episodes"]] == [0, 8, 20]
    second = facts["episodes"][1]
    assert second["tasks"] == ["放下"]
    assert (dataset / second["video_files"][FRONT]).is_file()


def test_limit(run, dataset):
    done = run("episodes", dataset, "--limit", "2")
    assert len(done.stdout.splitlines()) == 3
    assert "1 more" in done.stderr
    assert run("episodes", dataset, "--limit", "2", "--quiet").stderr == ""
    assert len(run("episodes", dataset, "--limit", "0").stdout.splitlines()) == 4
    facts = json.loads(run("episodes", dataset, "--limit", "1", "--json").stdout)
    assert (facts["total"], len(facts["episodes"])) == (3, 1)
    assert run("episodes", dataset, "--limit", "-1").returncode == 2


def test_a_terminal_gets_the_first_ones(run, show, tmp_path):
    root = make_dataset(tmp_path / "many", episodes=[1] * 60, cameras=0)
    shown = show("episodes", root, NO_COLOR="1")
    assert "and 20 more" in shown
    assert len(shown.splitlines()) == 42
    every = show("episodes", root, "--limit", "0", NO_COLOR="1")
    assert len(every.splitlines()) == 61
    assert len(run("episodes", root).stdout.splitlines()) == 61


def test_tasks_that_look_like_dates_stay_texts(run, one_camera, tmp_path):
    root = tmp_path / "dates"
    shutil.copytree(one_camera, root)
    for name in ("tasks.jsonl", "episodes.jsonl"):
        path = root / "meta" / name
        path.write_text(path.read_text().replace("do it", "2024-05-01"))
    facts = json.loads(run("episodes", root, "--json").stdout)
    assert facts["episodes"][0]["tasks"] == ["2024-05-01"]


@pytest.fixture(scope="module")
def many_episodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Metadata of 200,000 episodes, and nothing else."""
    root = tmp_path_factory.mktemp("cli") / "many"
    make_dataset(root, episodes=[1], cameras=0)
    count = 200_000
    numbers = np.arange(count)
    columns = {
        "episode_index": numbers,
        "length": np.full(count, 7),
        "tasks": pa.array([["do it"]] * count),
        "data/chunk_index": numbers // 1000,
        "data/file_index": numbers % 1000,
    }
    pq.write_table(pa.table(columns), root / "meta/episodes/chunk-000/file-000.parquet")
    return root


def test_rows_are_printed_before_all_are_made(many_episodes):
    """The first lines of 200,000 come long before the last ones could."""
    process = subprocess.Popen(
        [sys.executable, "-m", "demoreel", "episodes", str(many_episodes), "--json"],
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    assert process.stdout is not None
    head = [process.stdout.readline() for _ in range(3)]
    assert '"total": 200000' in head[0]
    assert process.poll() is None, "a pipe holds a few hundred lines: it cannot have finished"
    process.stdout.close()
    assert process.wait(timeout=60) == 0
