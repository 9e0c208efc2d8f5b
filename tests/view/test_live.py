"""Beside a recorder in another process: episodes appear, and are flagged to be recorded again."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

import demoreel
from demoreel.cli import main
from demoreel.view.datasets import ShownDataset

RECORDER = """
import sys
import numpy as np
import demoreel

features = {
    "action": {"dtype": "float32", "shape": (1,), "names": None},
    "observation.images.cam": {"dtype": "video", "shape": (48, 64, 3), "names": None},
}
recorder = demoreel.create(sys.argv[1], fps=20, features=features, vcodec="h264")
for number, _ in enumerate(sys.stdin):
    for frame in range(8):
        image = np.full((48, 64, 3), 20 * number + frame, np.uint8)
        action = np.array([frame], np.float32)
        recorder.add_frame(
            {"action": action, "observation.images.cam": image, "task": f"task {number}"}
        )
    recorder.save_episode()
    print("saved", number, flush=True)
recorder.finalize()
"""


@pytest.fixture
def recorder(tmp_path, monkeypatch):
    """A recorder in a process of its own: a function that has it record an episode."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    process = subprocess.Popen(
        [sys.executable, "-c", RECORDER, str(tmp_path / "ds")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def record() -> None:
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline().startswith("saved")

    yield record
    process.stdin.close()
    assert process.wait() == 0
    process.stdout.close()


def test_a_saved_episode_appears_and_is_flagged(page, serve, recorder, tmp_path, capsys):
    recorder()
    page.goto(serve(tmp_path / "ds").address)
    page.wait_for_selector("[data-episode='0']")
    assert page.locator("[data-episode]").count() == 1
    for number in (1, 2):
        recorder()
        page.wait_for_selector(f"[data-episode='{number}']:has-text('task {number}')")
    page.click("[data-episode='1']")
    page.wait_for_selector("main[data-shown='0']")
    page.wait_for_selector("canvas[data-frame='0']")
    page.keyboard.press("r")
    page.wait_for_selector("[data-mark='redo true'][aria-pressed='true']")
    page.wait_for_function("() => sessionStorage.length === 0")
    recorder()  # the draft stays of the episodes that were there
    assert main(["episodes", str(tmp_path / "ds"), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["episodes"]
    assert [each["record_again"] for each in listed] == [False, True, False, False]
    page.keyboard.press("Escape")
    page.wait_for_selector("[data-episode='3']:has-text('task 3')")


def test_an_episode_appears_though_a_read_has_followed_the_recorder(recorder, tmp_path):
    recorder()
    shown = ShownDataset("ds", str(tmp_path / "ds"), {})
    before, revision = shown.open(), shown.revision
    recorder()
    before[0]  # opens its video: the metadata are newer by now
    assert len(before.reader.episodes) == 2
    assert len(before.episodes) == 1
    assert len(shown.open().episodes) == 2
    assert shown.revision > revision


def test_an_answer_that_comes_late_does_not_hide_a_newer_one(page, serve, recorder, tmp_path):
    recorder()
    page.goto(serve(tmp_path / "ds").address)
    page.wait_for_selector("[data-episode='0']")
    held = []

    def hold(route):
        held.append((route, route.fetch()))

    page.route("**/episodes?*", hold, times=1)
    recorder()
    while not held:
        page.wait_for_timeout(50)
    assert held[0][1].json()["total"] == 2
    recorder()
    page.wait_for_selector("[data-episode='2']:has-text('task 2')")
    held[0][0].fulfill(response=held[0][1])
    page.wait_for_timeout(200)
    assert page.locator("[data-episode]").count() == 3


def test_the_page_of_a_dataset_without_episodes_waits_for_the_first(page, serve, tmp_path):
    features = {"action": {"dtype": "float32", "shape": (2,), "names": None}}
    recorder = demoreel.create(tmp_path / "ds", fps=10, features=features)
    page.goto(serve(tmp_path / "ds").address)
    page.wait_for_selector(".error:has-text('no episodes yet')")
    for _ in range(4):
        recorder.add_frame({"action": np.ones(2, np.float32), "task": "go"})
    recorder.save_episode()
    page.wait_for_selector("[data-episode='0']")
    assert page.locator(".error").count() == 0
    recorder.finalize()


@pytest.mark.soak
def test_record_names_what_is_flagged_between_episodes_and_at_the_end(ask, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    command = [sys.executable, "-m", "demoreel", "record", str(tmp_path / "toy")]
    options = ["--robot", "toy", "--vcodec", "h264", "--episode-time", "0.3"]
    first = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    assert "recorded again" not in first.stderr
    client = ask(tmp_path / "toy")
    process = subprocess.Popen(
        [*command, *options, "--resume", "--episodes", "3", "--reset-time", "1"],
        stderr=subprocess.PIPE,
        text=True,
    )
    line = process.stderr.readline()
    while "episode 1 saved" not in line:
        assert line, "the recorder ended"
        line = process.stderr.readline()
    assert client.put(0, {"0": {"redo": True}})[0] == 200
    _, rest = process.communicate()
    assert process.returncode == 0
    assert rest.count("to be recorded again, by the viewer: 0") == 2  # when it changed, at the end
    more = subprocess.run(
        [*command, *options, "--resume", "--json"], capture_output=True, text=True, check=True
    )
    assert json.loads(more.stdout)["record_again"] == [0]
    assert client.put(1, {})[0] == 200
    last = subprocess.run(
        [*command, *options, "--resume"], capture_output=True, text=True, check=True
    )
    assert "recorded again" not in last.stderr
