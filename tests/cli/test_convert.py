from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

import demoreel
import demoreel.lance


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


@pytest.mark.parametrize("source", ["v2.1", "v3.0", "lance-video"])
def test_sizes_of_files(run, dataset, tmp_path, source):
    demoreel.convert(dataset, tmp_path / "source", to=source, exact=True)
    sizes = ["--data-file-size-in-mb", "0.0001", "--video-file-size-in-mb", "0.0001"]
    done = run("convert", tmp_path / "source", tmp_path / "out", "--to", "v3.0", *sizes)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "out" / "data").rglob("*.parquet"))) == 3  # one for each episode
    assert len(list((tmp_path / "out" / "videos").rglob("*.mp4"))) == 3 * 3
    assert demoreel.diff(tmp_path / "source", tmp_path / "out", pixels="all").columns == ()
    info = json.loads((tmp_path / "out" / "meta" / "info.json").read_text())
    assert info["video_files_size_in_mb"] == 0.0001


@pytest.mark.parametrize("arguments", [["--to", "v2.1"], ["--to", "lance-native"]])
def test_sizes_of_files_are_for_v3(run, dataset, tmp_path, arguments):
    size = ["--video-file-size-in-mb", "5"]
    done = run("convert", dataset, tmp_path / "out", *arguments, *size)
    assert done.returncode == 2
    assert "next: leave them out" in done.stderr
    done = run("convert", dataset, tmp_path / "out", "--to", "v3.0", size[0], "-1")
    assert done.returncode == 2
    assert not (tmp_path / "out").exists()


def test_a_terminal_shows_share_counts_and_time(show, dataset, tmp_path):
    shown = show("convert", dataset, tmp_path / "out", "--to", "lance-frames")
    assert "%" in shown
    assert "of 25 frames" in shown
    assert "%" not in show("convert", dataset, tmp_path / "quiet", "--to", "v2.1", "--quiet")


def test_a_cut_shows_its_share(show, dataset, tmp_path):
    shown = show("cut", "delete", dataset, tmp_path / "out", "--episodes", "0", "--exact")
    assert "100 %" in shown
    assert re.search(r"of [\d.]+ k?B", shown)


def test_lancedbs_functions_show_a_bar(dataset, tmp_path, capfd):
    demoreel.lance.convert_to_lance(str(dataset), tmp_path / "shown", progress=True)
    lines = capfd.readouterr().err.splitlines()
    assert "writing: 100 %, 25 of 25 frames" in "\n".join(lines)
    demoreel.lance.convert_to_lance_video(str(dataset), tmp_path / "silent", progress=False)
    assert capfd.readouterr().err == ""


def test_encoding_anew(run, dataset, tmp_path):
    options = ["--to", "v3.0", "--codec", "hevc", "--gop", "7", "--image-size", "48x64"]
    done = run("convert", dataset, tmp_path / "out", *options)
    assert done.returncode == 0, done.stderr
    assert "PSNR" in done.stderr
    made = demoreel.open(tmp_path / "out")
    feature = made.features[made.cameras[0]]
    assert (feature.image_shape, feature.info["video.codec"]) == ((48, 64, 3), "hevc")
    wide = run("convert", dataset, tmp_path / "other", "--to", "v3.0", "--image-size", "wide")
    assert wide.returncode == 2
    assert "HEIGHTxWIDTH" in wide.stderr


def test_a_layout_is_needed(run, dataset, tmp_path):
    done = run("convert", dataset, tmp_path / "out")
    assert done.returncode == 2
    assert "--to" in done.stderr
