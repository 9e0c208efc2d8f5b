"""`demoreel frame`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import demoreel
from demoreel.testing import read_stamp

FRONT, WRIST = "observation.images.front", "observation.images.wrist"
DEPTH = "observation.depth.front"


def picture(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.array(image)


def test_writes_the_very_image(run, dataset, tmp_path):
    target = tmp_path / "out.png"
    done = run("frame", dataset, 10, "--camera", FRONT, "-o", target)
    assert done.returncode == 0
    assert done.stdout == ""
    assert "frame 2 of episode 1" in done.stderr
    np.testing.assert_array_equal(
        picture(target), demoreel.open(dataset)[10][FRONT].transpose(1, 2, 0)
    )
    assert list(tmp_path.iterdir()) == [target]


def test_json_tells_what_was_written(run, dataset, tmp_path):
    target = tmp_path / "out.png"
    done = run("frame", dataset, 10, "--camera", WRIST, "-o", target, "--json")
    facts = json.loads(done.stdout)
    assert done.stderr == ""
    assert facts["file"] == str(target)
    assert facts["bytes"] == target.stat().st_size
    assert (facts["height"], facts["width"]) == (64, 64)
    assert (facts["camera"], facts["episode"], facts["frame"]) == (WRIST, 1, 2)


def test_jpeg(run, dataset, tmp_path):
    target = tmp_path / "out.JPG"
    assert run("frame", dataset, 3, "-c", FRONT, "-o", target, "-q").stderr == ""
    assert read_stamp(picture(target)) == (0, 3)
    assert target.read_bytes()[:2] == b"\xff\xd8"


def test_depth_is_16_bit_png_in_millimetres(run, dataset, tmp_path):
    target = tmp_path / "depth.png"
    assert run("frame", dataset, 9, "-c", DEPTH, "-o", target).returncode == 0
    with Image.open(target) as image:
        assert image.mode == "I;16"
    expected = demoreel.open(dataset)[9][DEPTH][0]
    np.testing.assert_array_equal(picture(target), expected.astype(np.uint16))
    refused = run("frame", dataset, 9, "-c", DEPTH, "-o", tmp_path / "depth.jpg")
    assert refused.returncode == 2
    assert ".png" in refused.stderr


def test_stdout(dataset, tmp_path):
    command = [sys.executable, "-m", "demoreel", "frame", dataset, "4", "-c", FRONT, "-o", "-"]
    done = subprocess.run(command, capture_output=True, check=True)
    (tmp_path / "out.png").write_bytes(done.stdout)
    assert read_stamp(picture(tmp_path / "out.png")) == (0, 4)


def test_stdout_is_not_for_json_nor_for_terminals(run, show, dataset):
    assert run("frame", dataset, 4, "-c", FRONT, "-o", "-", "--json").returncode == 2
    shown = show("frame", dataset, 4, "-c", FRONT, "-o", "-", NO_COLOR="1")
    assert "terminal" in shown
    assert "PNG" not in shown


def test_the_only_camera_needs_no_name(run, one_camera, tmp_path):
    assert run("frame", one_camera, 7, "-o", tmp_path / "out.png").returncode == 0
    assert read_stamp(picture(tmp_path / "out.png")) == (1, 1)


def test_several_cameras_are_listed(run, dataset, tmp_path):
    done = run("frame", dataset, 7, "-o", tmp_path / "out.png")
    assert done.returncode == 2
    for key in (FRONT, WRIST, DEPTH):
        assert key in done.stderr


def test_an_unknown_camera_gets_a_suggestion(run, dataset, tmp_path):
    done = run("frame", dataset, 7, "-c", "observation.images.wirst", "-o", tmp_path / "out.png")
    assert done.returncode == 2
    assert f"did you mean '{WRIST}'" in done.stderr


@pytest.mark.parametrize(
    ("options", "index", "expected"),
    [(["-e", "1"], "3", (1, 3)), (["-e", "0"], "-1", (0, 7)), ([], "-1", (2, 4))],
)
def test_frames_of_an_episode_and_from_the_end(run, dataset, tmp_path, options, index, expected):
    target = tmp_path / "out.png"
    done = run("frame", "-c", FRONT, "-o", target, *options, "--", dataset, index)
    assert done.returncode == 0
    assert read_stamp(picture(target)) == expected


@pytest.mark.parametrize("arguments", [["25"], ["12", "-e", "1"], ["0", "-e", "9"]])
def test_no_such_frame(run, dataset, tmp_path, arguments):
    done = run("frame", dataset, *arguments, "-c", FRONT, "-o", tmp_path / "out.png")
    assert done.returncode == 2
    assert done.stderr.startswith("error: There is no ")
    assert not (tmp_path / "out.png").exists()


def test_a_negative_number_needs_dashes_and_is_told(run, dataset, tmp_path):
    done = run("frame", dataset, "-1", "-c", FRONT, "-o", tmp_path / "out.png")
    assert done.returncode == 2
    assert "-- -1" in done.stderr


def test_existing_files_stay_unless_asked(run, dataset, tmp_path):
    target = tmp_path / "out.png"
    target.write_text("mine")
    done = run("frame", dataset, 3, "-c", FRONT, "-o", target)
    assert done.returncode == 2
    assert "--overwrite" in done.stderr
    assert target.read_text() == "mine"
    assert run("frame", dataset, 3, "-c", FRONT, "-o", target, "--overwrite").returncode == 0
    assert read_stamp(picture(target)) == (0, 3)


def test_what_is_not_a_file_is_never_replaced(run, dataset, tmp_path):
    (tmp_path / "folder.png").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    for name in ("folder.png", "pipe.png", "nowhere/out.png", "out", "out.tiff"):
        done = run("frame", dataset, 3, "-c", FRONT, "-o", tmp_path / name, "--overwrite")
        assert done.returncode == 2, name
        assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.png", "pipe.png"]


def test_dry_run_checks_and_writes_nothing(run, dataset, tmp_path):
    target = tmp_path / "out.png"
    done = run("frame", dataset, 3, "-c", FRONT, "-o", target, "--dry-run")
    assert done.returncode == 0
    assert "would write" in done.stderr
    facts = json.loads(
        run("frame", dataset, 3, "-c", FRONT, "-o", target, "--dry-run", "--json").stdout
    )
    assert facts["dry_run"] is True
    assert facts["bytes"] == 0
    assert run("frame", dataset, 99, "-c", FRONT, "-o", target, "--dry-run").returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to(run, dataset, tmp_path):
    # /proc takes no files, not even from root.
    done = run("frame", dataset, 3, "-c", FRONT, "-o", "/proc/out.png")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_a_missing_video_is_a_data_error(run, one_camera, tmp_path):
    root = tmp_path / "broken"
    shutil.copytree(one_camera, root)
    next(root.rglob("episode_000001.mp4")).unlink()
    done = run("frame", root, 7, "-o", tmp_path / "out.png")
    assert done.returncode == 1
    assert "episode_000001.mp4" in done.stderr
    assert not (tmp_path / "out.png").exists()
