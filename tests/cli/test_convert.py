from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time

import demoreel


def test_converts_and_says_so(run, dataset, tmp_path):
    done = run("convert", dataset, tmp_path / "out", "--to", "lance-video")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "wrote" in done.stderr
    assert "verified" in done.stderr
    assert demoreel.open(tmp_path / "out").layout == "lance-video"
    again = run("convert", dataset, tmp_path / "out", "--to", "lance-video")
    assert again.returncode == 2
    assert "--overwrite" in again.stderr


def test_json(run, dataset, tmp_path):
    options = ["--to", "lance-frames", "--image-codec", "png", "--table-name", "arm", "--json"]
    done = run("convert", dataset, tmp_path / "out", *options, "--no-verify")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["frames"] == 25
    assert report["verified"] is None
    assert report["image_codec"] == "png"
    assert (tmp_path / "out" / "arm.lance").is_dir()


def test_in_place(run, dataset, tmp_path):
    shutil.copytree(dataset, tmp_path / "arm")
    done = run("convert", tmp_path / "arm", "--to", "v2.1", "--in-place")
    assert done.returncode == 0, done.stderr
    assert f"is kept at {tmp_path / 'arm_old'}" in done.stderr
    assert demoreel.open(tmp_path / "arm").layout == "v2.1"
    assert demoreel.open(tmp_path / "arm_old").layout == "v3.0"


def test_how_much_is_verified(run, dataset, tmp_path):
    done = run("convert", dataset, tmp_path / "a", "--to", "v2.1", "--verify", "sample", "--json")
    assert json.loads(done.stdout)["verified"]["rows"] > 0
    done = run("convert", dataset, tmp_path / "b", "--to", "v2.1", "--verify", "none", "--json")
    assert json.loads(done.stdout)["verified"] is None
    assert run("convert", dataset, tmp_path / "c", "--to", "v2.1", "--verify", "x").returncode == 2


def test_dry_run(run, dataset, tmp_path):
    done = run("convert", dataset, tmp_path / "out", "--to", "lance-native", "--dry-run", "--link")
    assert done.returncode == 0, done.stderr
    assert "would write" in done.stderr
    assert "keep that folder" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_refusals_are_the_callers_fault(run, dataset, tmp_path):
    for options in (
        ("--to", "v2.0"),
        ("--to", "v3.0", "--in-place"),
        ("--to", "lance-frames", "--image-codec", "source"),
        ("--to", "lance-frames", "--jpeg-quality", "0"),
        ("--to", "v3.0", "--link"),
    ):
        done = run("convert", dataset, tmp_path / "out", *options)
        assert done.returncode == 2, options
    assert run("convert", tmp_path / "none", tmp_path / "out", "--to", "v3.0").returncode == 1
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_sees_how_far_it_is(show, dataset, tmp_path):
    shown = show("convert", dataset, tmp_path / "out", "--to", "lance-video")
    assert "ing" in shown
    assert "25 frames" in shown


def test_quiet(run, dataset, tmp_path):
    done = run("convert", dataset, tmp_path / "out", "--to", "lance-video", "-q")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_ctrl_c_leaves_nothing(fixtures, tmp_path):
    """Seconds of work, interrupted as soon as there is something to see of it."""
    source, target = str(fixtures / "g1_v30"), str(tmp_path / "out")
    options = ["--to", "lance-frames", "--image-codec", "jpeg"]
    process = subprocess.Popen(
        [sys.executable, "-m", "demoreel", "convert", source, target, *options],
        stderr=subprocess.PIPE,
    )
    while not list(tmp_path.glob(".out.cut-*/order.json")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert list(tmp_path.iterdir()) == []
