"""``demoreel record``: the toy robot, from a shell."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest

import demoreel
from demoreel.record.clock import EpisodeReport

COMMAND = [sys.executable, "-m", "demoreel", "record"]
FAST = ["--robot", "toy", "--vcodec", "h264"]


def test_the_toy_robot_is_recorded_and_goes_on(run, tmp_path):
    root = tmp_path / "toy"
    done = run(
        "record", root, *FAST, "--episodes", 2, "--episode-time", 0.4, "--reset-time", 0.1, "--json"
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    lengths = [saved["frames"] for saved in told["saved"]]
    assert told["episodes"] == 2
    assert told["frames"] == sum(lengths)
    assert all(1 <= length <= 12 for length in lengths)  # fewer where the machine is busy
    more = run("record", root, *FAST, "--episode-time", 0.2, "--resume", "--task", "something else")
    assert more.returncode == 0, more.stderr
    assert more.stdout.startswith("1 episode, ")
    assert more.stdout.endswith(f"saved in {root}\n")
    assert "episode 2 saved: " in more.stderr
    ds = demoreel.open(root)
    assert ds.episodes.length.tolist()[:2] == lengths
    assert len(ds.episodes) == 3
    assert ds[-1]["task"] == "something else"


def test_a_dry_run_writes_nothing(run, tmp_path):
    done = run("record", tmp_path / "toy", *FAST, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "observation.images.front: video [240, 320, 3]" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_is_refused(run, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    assert run("record", tmp_path, *FAST).returncode == 2
    for arguments in (["--robot", "tractor"], ["--robot", "os:getcwd"], ["--episode-time", "0"]):
        done = run("record", tmp_path / "ds", *arguments)
        assert done.returncode == 2, (arguments, done.stderr)
        assert "next:" in done.stderr or "terminal" in done.stderr
    assert not (tmp_path / "ds").exists()


@pytest.mark.parametrize("arguments", [["s3://bucket/ds"], ["there"], ["nowhere", "--resume"]])
def test_places_are_refused_before_the_robot_is_imported(tmp_path, arguments):
    (tmp_path / "there" / "data").mkdir(parents=True)
    (tmp_path / "moving.py").write_text("open('moved', 'w').close()\n")
    command = [*COMMAND, *arguments, "--robot", "moving:arm"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode in (1, 2)
    assert "next: " in done.stderr
    assert "demoreel." not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["moving.py", "there"]


@pytest.mark.parametrize(
    ("robot", "said"),
    [
        ("no_such_robots:arm", "There is no module 'no_such_robots'"),
        ("faulty_robots:leg", "has no 'leg'"),
        ("faulty_robots:arm", "returned int"),
        ("faulty_robots:broken", "KeyError: 'port'"),
        ("missing_robots:arm", "ModuleNotFoundError: No module named 'no_such_driver'"),
    ],
)
def test_what_is_wrong_with_a_robot(run, tmp_path, monkeypatch, robot, said):
    (tmp_path / "faulty_robots.py").write_text(
        "def arm():\n    return 3\ndef broken():\n    raise KeyError('port')\n"
    )
    (tmp_path / "missing_robots.py").write_text("import no_such_driver\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    done = run("record", "ds", "--robot", robot)
    assert done.returncode == 2
    assert said in done.stderr
    assert "next: " in done.stderr
    assert not (tmp_path / "ds").exists()


def test_another_layout_is_not_appended(run, dataset):
    done = run("record", dataset, "--resume", "--layout", "lance-video")
    assert done.returncode == 2
    assert "layout v3.0, not lance-video" in done.stderr


def test_a_report_reads_as_a_sentence():
    report = EpisodeReport(3, 150, 4.9667, 30.0012345, 0.123456, 1.5, late_frames=2)
    assert str(report) == (
        "episode 3 saved: 150 frames in 5.0 s, 30.00 fps, jitter 0.1 ms (99 %: 1.5 ms), 2 late; "
        "saving took 0 ms"
    )


def test_a_robot_of_ones_own_is_found_by_its_module(tmp_path):
    (tmp_path / "my_robots.py").write_text(
        "from demoreel.testing.toy_robot import ToyLeader, ToyRobot\n"
        "def arm():\n    robot = ToyRobot(seed=3)\n    return robot, ToyLeader(robot)\n"
    )
    command = [*COMMAND, "ds", "--robot", "my_robots:arm", "--vcodec", "h264"]
    command = [str(tmp_path / "bin" / "demoreel"), *command[3:]]  # as it is installed
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "demoreel").write_text(
        f"#!{sys.executable}\nimport sys\nfrom demoreel.cli import main\nsys.exit(main())\n"
    )
    (tmp_path / "bin" / "demoreel").chmod(0o755)
    done = subprocess.run(
        [*command, "--episode-time", "0.2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert len(demoreel.open(tmp_path / "ds").episodes) == 1


def test_a_robot_that_cannot_be_reached_leaves_no_dataset(run, tmp_path, monkeypatch):
    (tmp_path / "unreachable_robots.py").write_text(
        "from demoreel.testing.toy_robot import ToyLeader, ToyRobot\n"
        "class Leader(ToyLeader):\n"
        "    def connect(self):\n        raise OSError('no such port')\n"
        "class Robot(ToyRobot):\n"
        "    def connect(self):\n        print('connected')\n"
        "    def disconnect(self):\n        print('disconnected')\n"
        "def arm():\n    robot = Robot()\n    return robot, Leader(robot)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    done = run("record", "ds", "--robot", "unreachable_robots:arm")
    assert done.returncode == 1
    assert "no such port" in done.stderr
    assert done.stdout.split() == ["connected", "disconnected"]
    assert not (tmp_path / "ds").exists()


def wait_for(condition, process):
    until = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, "the command has ended"
        assert time.monotonic() < until
        time.sleep(0.02)


def saved_episodes(root):
    try:
        return len(demoreel.open(root).episodes)
    except demoreel.errors.DemoreelError:
        return 0


def test_ctrl_c_keeps_what_was_saved(tmp_path):
    root = tmp_path / "toy"
    command = [*COMMAND, str(root), *FAST, "--episodes", "99", "--episode-time", "0.2"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: saved_episodes(root) >= 2, process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    ds = demoreel.open(root)
    assert len(ds.episodes) >= 2
    assert len(ds[0 : len(ds)]["index"]) == ds.episodes.length.sum()
    assert not (root / ".demoreel").exists()


def test_keys_save_discard_and_stop(tmp_path):
    root = tmp_path / "toy"
    leader, follower = pty.openpty()
    command = [*COMMAND, str(root), *FAST, "--episodes", "9", "--episode-time", "0", "--quiet"]
    process = subprocess.Popen(command, stdin=follower, stdout=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: (root / "meta" / "info.json").exists(), process)
        presses = 0
        while saved_episodes(root) < 2:  # a key that comes before the loop hears it is lost
            os.write(leader, b"\x1b[C" if presses % 2 else b"s")
            presses += 1
            time.sleep(0.3)
        os.write(leader, b"r")
        time.sleep(0.3)
        os.write(leader, b"q")
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        os.close(leader)
        os.close(follower)
    assert process.returncode == 0
    assert "saved in" in out
    assert 2 <= saved_episodes(root) <= presses + 1
