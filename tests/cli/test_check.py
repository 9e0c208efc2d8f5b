"""`demoreel check`."""

from __future__ import annotations

import json
import shutil

import pytest


@pytest.fixture
def damaged(dataset, tmp_path):
    """A copy without statistics, and with an empty video: a warning and an error."""
    root = tmp_path / "damaged"
    shutil.copytree(dataset, root)
    (root / "meta" / "stats.json").unlink()
    next(root.glob("videos/observation.images.front/*/*.mp4")).write_bytes(b"")
    return root


def test_a_sound_dataset(run, dataset):
    done = run("check", dataset)
    assert done.returncode == 0, done.stdout
    assert "error" not in done.stdout
    assert "3 episodes, 25 rows, 3 videos" in done.stderr
    assert "the metadata, every row of the tables, the packet table of every video" in done.stderr
    assert "no frame was decoded" in done.stderr
    assert "no frame was decoded" not in run("check", dataset, "--deep").stderr


def test_says_what_where_why_and_what_to_do(run, damaged):
    done = run("check", damaged)
    assert done.returncode == 2
    first, *_ = done.stdout.splitlines()
    assert first.startswith("error    video-empty: A video has no bytes")
    assert "camera observation.images.front" in done.stdout
    assert "Training stops when a frame of it is drawn" in done.stdout
    repair = f"next: demoreel repair {damaged} {damaged}-repaired  (video-empty, stats-missing)"
    assert done.stdout.splitlines()[-1] == repair
    assert done.stdout.index("video-empty") < done.stdout.index("stats-missing")
    assert "1 error, 1 warning" in done.stdout


def test_json(run, damaged):
    done = run("check", damaged, "--json")
    assert done.returncode == 2
    assert done.stderr == ""
    report = json.loads(done.stdout)
    assert report["worst"] == "error"
    assert report["by_severity"]["error"] == 1
    assert {f["code"] for f in report["findings"]} >= {"video-empty", "stats-missing"}
    assert report["looked_at"][str(damaged)]["episodes"] == 3


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--only", "metadata"], 1),
        (["--only", "metadata", "--fail-on", "error"], 0),
        (["--only", "metadata", "--fail-on", "hint"], 1),
        (["--only", "video", "--fail-on", "error"], 2),
    ],
)
def test_exit_codes(options, code, run, damaged):
    assert run("check", damaged, *options).returncode == code


def test_wrong_use_ends_with_2(run, dataset, tmp_path):
    for arguments in (
        [],
        [tmp_path / "none"],
        [dataset, "--only", "everything"],
        [dataset, "--threshold", "fps_slack"],
        [dataset, "--threshold", "no_such=1"],
        [dataset, "--fail-on", "never"],
        [dataset, "--leaks"],
    ):
        done = run("check", *arguments)
        assert done.returncode == 2, arguments
        assert "error" in done.stderr
        assert done.stdout == ""


def test_quiet(run, dataset):
    done = run("check", dataset, "-q", "--only", "metadata")
    assert (done.returncode, done.stdout, done.stderr) == (0, "nothing found\n", "")


def test_a_terminal(show, damaged):
    shown = show("check", damaged)
    assert "video-empty" in shown
    assert "next:" in shown


def test_texts_of_strangers_cannot_move_the_cursor(run, damaged):
    path = damaged / "meta" / "info.json"
    info = json.loads(path.read_text())
    info["features"]["\x1b[2Jaction"] = {"dtype": "nonsense", "shape": [1]}
    path.write_text(json.dumps(info))
    done = run("check", damaged, "--only", "metadata")
    assert "\x1b" not in done.stdout
    assert "feature-unreadable" in done.stdout
