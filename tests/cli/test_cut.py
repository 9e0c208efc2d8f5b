"""``demoreel cut``: every verb, on real datasets."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import demoreel

from .conftest import FRONT, LENGTHS, WRIST

VERBS = ("delete", "select", "trim", "tasks", "features", "merge", "split", "apply", "commit")


def lengths(path) -> list[int]:
    return demoreel.open(path).episodes.length.tolist()


def test_help(run):
    shown = run("cut", "--help").stdout
    for verb in VERBS:
        assert f"  {verb} " in shown
    for option in ("--dry-run", "--jobs", "--engine", "--shard", "--layout", "--json", "--verify"):
        assert option in run("cut", "delete", "--help").stdout


def test_delete(run, dataset, tmp_path):
    done = run("cut", "delete", dataset, tmp_path / "out", "--episodes", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{tmp_path / 'out'}: 2 episodes, 13 frames, ")
    assert lengths(tmp_path / "out") == [8, 5]


def test_dry_run_writes_nothing(run, dataset, tmp_path):
    done = run("cut", "delete", dataset, tmp_path / "out", "-e", "0:2", "--dry-run", "--json")
    plan = json.loads(done.stdout)
    assert (plan["episodes"], plan["frames"]) == (1, 5)
    assert plan["clips"] == [{"source": 0, "episode": 2, "start": 0, "stop": 5}]
    assert len(plan["files"]) == 4  # a table and three cameras
    assert sum(file["bytes"] for file in plan["files"]) == plan["bytes"]
    assert (
        "data/chunk-000/file-000.parquet"
        in run("cut", "delete", dataset, tmp_path / "out", "-e", "0:2", "--dry-run").stdout
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("delete", "--episodes", "3"),
        ("delete", "--episodes", "0,1,2"),
        ("delete", "--episodes", "x"),
        ("trim", "--episode", "1", "--start", "12"),
        ("trim", "--episode", "1", "--stop", "5s"),
        ("trim", "--episode", "1"),
        ("trim", "--episode", "1", "--start", "soon"),
        ("tasks", "--replace", "no such task=x"),
        ("tasks", "--episode", "7=x"),
        ("tasks",),
        ("features", "--remove", "no.such.feature"),
        ("features", "--remove", "timestamp"),
        ("features", "--rename", "action=observation.state"),
        ("features", "--add", "nowhere.npy"),
        ("select", "--where", "lenght > 3"),
        ("select", "--where", "length > 1000"),
        ("split", "train=0.9", "val=0.2"),
        ("split", "train=0:2", "val=1:3"),
        ("split", "train=0:4"),
        ("split", "a=0.01", "b=0.99"),
        ("split",),
        ("delete", "--episodes", "1", "--shard", "2/2"),
        ("delete", "--episodes", "1", "--shard", "one"),
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_changes_nothing(run, dataset, tmp_path, arguments):
    verb, *rest = arguments
    done = run("cut", verb, dataset, tmp_path / "out", *rest)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_split_and_merge(run, dataset, tmp_path):
    parts = tmp_path / "parts"
    done = run("cut", "split", dataset, parts, "train=0.67", "val=0.33", "--json")
    assert done.returncode == 0, done.stderr
    assert [part["episodes"] for part in json.loads(done.stdout)["parts"]] == [2, 1]
    done = run("cut", "merge", parts / "train", parts / "val", "-o", tmp_path / "all")
    assert done.returncode == 0, done.stderr
    assert lengths(tmp_path / "all") == LENGTHS


def test_split_by_places_and_by_task(run, dataset, tmp_path):
    assert run("cut", "split", dataset, tmp_path / "a", "one=0:1", "two=1:3").returncode == 0
    assert lengths(tmp_path / "a" / "two") == LENGTHS[1:]
    assert run("cut", "split", dataset, tmp_path / "b", "--by", "task").returncode == 0
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == ["00-pick_it", "01-放下"]
    assert lengths(tmp_path / "b" / "00-pick_it") == [8, 5]


def test_trim(run, dataset, tmp_path):
    done = run("cut", "trim", dataset, tmp_path / "out", "-e", "1", "--start", "0.1s", "--stop", 9)
    assert done.returncode == 0, done.stderr
    assert lengths(tmp_path / "out") == [8, 6, 5]


def test_tasks(run, dataset, tmp_path):
    done = run("cut", "tasks", dataset, tmp_path / "out", "--replace", "pick it=take it")
    assert done.returncode == 0, done.stderr
    assert set(demoreel.open(tmp_path / "out").tasks.values()) == {"take it", "放下"}
    options = ("--set", "all the same", "--episode", "2=but this")
    assert run("cut", "tasks", dataset, tmp_path / "two", *options).returncode == 0
    found = [episode.tasks for episode in demoreel.open(tmp_path / "two").episodes]
    assert found == [("all the same",), ("all the same",), ("but this",)]


def test_features(run, dataset, tmp_path):
    np.save(tmp_path / "reward.npy", np.arange(sum(LENGTHS), dtype=np.float32))
    done = run(
        "cut", "features", dataset, tmp_path / "out",
        "--remove", WRIST, "--rename", "action=actions", "--add", tmp_path / "reward.npy",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = demoreel.open(tmp_path / "out")
    assert WRIST not in result.features
    assert FRONT in result.cameras
    assert result[9]["actions"].shape == (6,)
    assert [float(result[n]["reward"]) for n in (0, 9, 24)] == [0, 9, 24]


def test_select(run, dataset, tmp_path):
    options = ("--where", "length > 6", "--order-by", "length desc")
    assert run("cut", "select", dataset, tmp_path / "out", *options).returncode == 0
    assert lengths(tmp_path / "out") == [12, 8]
    options = ("--where", "task like '%pick%' and seconds > 0.2")
    assert run("cut", "select", dataset, tmp_path / "two", *options).returncode == 0
    assert lengths(tmp_path / "two") == [8]


def test_a_saved_list_is_applied(run, dataset, tmp_path):
    listed = tmp_path / "list.json"
    done = run("cut", "delete", dataset, tmp_path / "a", "-e", "0", "--save", listed, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert run("cut", "apply", listed, tmp_path / "out").returncode == 0
    assert lengths(tmp_path / "out") == LENGTHS[1:]


def test_shards_and_commit(run, dataset, tmp_path):
    out = tmp_path / "out"
    for shard in ("0/2", "1/2"):
        early = run("cut", "commit", out)
        assert early.returncode == 2
        done = run("cut", "delete", dataset, out, "-e", "1", "--shard", shard)
        assert done.returncode == 0, done.stderr
        assert not out.exists()
    done = run("cut", "commit", out, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["committed"] is True
    assert lengths(out) == [8, 5]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_jobs(run, dataset, tmp_path):
    assert run("cut", "delete", dataset, tmp_path / "out", "-e", "1", "-j", "2").returncode == 0
    assert lengths(tmp_path / "out") == [8, 5]


def test_a_full_disk_is_said_before_anything_is_written(run, dataset, tmp_path):
    """A cut of a dataset that claims to be larger than any disk."""
    root = tmp_path / "huge"
    shutil.copytree(dataset, root)
    table = next((root / "data").rglob("*.parquet"))
    with table.open("ab") as file:
        file.truncate(1 << 42)
    done = run("cut", "delete", root, tmp_path / "out", "-e", "1")
    assert done.returncode == 1
    assert "MB are needed" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["huge"]


def test_what_is_encoded_is_shown_and_done(run, dataset, tmp_path):
    out = tmp_path / "out"
    trim = ("cut", "trim", dataset, out, "--episode", "0", "--start", "1")
    shown = json.loads(run(*trim, "--exact", "--dry-run", "--json").stdout)
    assert {FRONT, WRIST} <= shown["encoded_frames"].keys()
    form = (
        "--vcodec",
        "h264",
        "--crf",
        "20",
        "-g",
        "3",
        "--preset",
        "ultrafast",
        "--camera",
        WRIST,
    )
    assert (
        f"{WRIST}: {sum(LENGTHS) - 1} frames to be encoded" in run(*trim, *form, "--dry-run").stdout
    )
    assert run(*trim, *form, "--fps", "15").returncode == 0
    result = demoreel.open(out)
    assert result.fps == 15
    said = result.features[WRIST].info
    assert (said["video.codec"], said["video.crf"], said["video.g"]) == ("h264", 20, 3)
    refused = run("cut", "trim", dataset, tmp_path / "no", "--idle", "--fps", "7")
    assert refused.returncode != 0
    assert "--vcodec" in refused.stderr
