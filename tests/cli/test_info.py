"""`demoreel info`."""

from __future__ import annotations

import json
import shutil

import numpy as np

from demoreel.testing import make_dataset
from support.defects.tools import lfs_pointer

FRONT, WRIST = "observation.images.front", "observation.images.wrist"
DEPTH = "observation.depth.front"


def test_json_says_what_the_dataset_is(run, dataset):
    done = run("info", dataset, "--json")
    assert done.returncode == 0
    assert done.stderr == ""
    facts = json.loads(done.stdout)
    assert facts["layout"] == "v3.0"
    assert facts["robot_type"] == "made_up"
    assert (facts["episodes"], facts["frames"], facts["fps"]) == (3, 25, 30)
    assert np.isclose(facts["seconds"], 25 / 30)
    assert facts["tasks"] == [
        {"task_index": 0, "task": "pick it"},
        {"task_index": 1, "task": "放下"},
    ]
    assert facts["features"]["action"]["dtype"] == "float32"
    assert facts["features"]["action"]["shape"] == [6]
    assert set(facts["cameras"]) == {FRONT, WRIST, DEPTH}
    front = facts["cameras"][FRONT]
    assert (front["height"], front["width"], front["codec"], front["fps"]) == (96, 128, "h264", 30)
    assert facts["cameras"][DEPTH]["is_depth"]
    assert facts["has_stats"] is True
    files = [path for path in dataset.rglob("*") if path.is_file()]
    assert facts["disk"]["total"] == {
        "files": len(files),
        "bytes": sum(path.stat().st_size for path in files),
    }
    assert {"data", "meta", "videos"} < set(facts["disk"])


def test_text_has_the_same(run, dataset):
    shown = run("info", dataset).stdout
    for part in ("kitchen: LeRobot v3.0", "made_up", "25 at 30 fps", "放下", "joint_0, joint_1"):
        assert part in shown
    assert "96 x 128" in shown
    assert "video hevc gray12le depth" in shown


def test_a_dataset_without_cameras(run, tmp_path):
    root = make_dataset(tmp_path / "blind", episodes=[3], cameras=0, layout="v2.0")
    facts = json.loads(run("info", root, "--json").stdout)
    assert facts["cameras"] == {}
    assert "height x width" not in run("info", root).stdout


def test_names_of_any_form(run, one_camera, tmp_path):
    """Recorders write names as lists, as lists of lists, and as dicts."""
    shutil.copytree(one_camera, tmp_path / "names")
    path = tmp_path / "names" / "meta" / "info.json"
    info = json.loads(path.read_text())
    info["features"]["action"]["names"] = {"motors": ["left", "right"]}
    info["features"]["observation.state"]["names"] = [["up", "down"]]
    path.write_text(json.dumps(info))
    shown = run("info", tmp_path / "names").stdout
    assert "left, right" in shown
    assert "up, down" in shown


def test_what_is_not_here_is_said(run, tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=[4] * 3, cameras=1, layout="v2.1")
    assert json.loads(run("info", root, "--json").stdout)["absent"] == {
        "missing": 0,
        "not_fetched": 0,
    }
    for path in root.glob("data/*/*.parquet"):
        lfs_pointer(path)
    next(root.glob("videos/*/*/*.mp4")).unlink()
    (root / "videos" / "nowhere").symlink_to(tmp_path / "nothing")
    done = run("info", root)
    assert done.returncode == 0
    assert "3 files not fetched, Git LFS pointers instead: git lfs pull" in done.stdout
    assert "1 table or video not there; fetch it: demoreel pull" in done.stdout
    assert json.loads(run("info", root, "--json").stdout)["absent"] == {
        "missing": 1,
        "not_fetched": 3,
    }
