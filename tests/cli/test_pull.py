"""``demoreel pull`` as it is typed, against a Hub on loopback."""

from __future__ import annotations

import json

import pytest

import demoreel
from support.hub_server import HubServer


@pytest.fixture
def hub(dataset, tmp_path, monkeypatch):
    with HubServer(tmp_path / "hub server") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        server.seed("me/task", dataset, tag="v3.0")
        yield server


def test_pull(hub, run, dataset, tmp_path):
    done = run("pull", "me/task", tmp_path / "here")
    assert (done.returncode, done.stdout) == (0, "")
    assert f"pulled me/task at v3.0 ({hub.commits('me/task')[0].oid[:7]}) to" in done.stderr
    assert " were fetched" in done.stderr
    assert demoreel.diff(dataset, tmp_path / "here").is_equal
    again = run("pull", "me/task", tmp_path / "here")
    assert again.returncode == 0
    assert "already" in again.stderr


def test_in_a_process_of_its_own(hub, run_process, tmp_path):
    done = run_process("pull", "me/task", tmp_path / "here", "--revision", "main", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(demoreel.open(tmp_path / "here")) == 25


def test_json_and_a_dry_run(hub, run, tmp_path):
    done = run("pull", "me/task", tmp_path / "here", "-e", "0:2", "--dry-run", "--json")
    said = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert (said["episodes"], said["dry_run"], said["repo_id"]) == ([0, 1], True, "me/task")
    assert said["fetched_bytes"] > 0
    assert not (tmp_path / "here").exists()


def test_some_episodes(hub, run, tmp_path):
    done = run("pull", "me/task", tmp_path / "here", "--episodes", "0,2")
    assert "pulled 2 episodes of me/task" in done.stderr
    assert demoreel.open(tmp_path / "here").episodes.length.tolist() == [8, 5]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["me/nothing", "here"], 1, "hf auth login"),
        (["me/task", "here", "--revision", "v9"], 1, "its tags are v3.0"),
        (["me/task", "here", "--episodes", "7"], 2, "episode"),
        (["me/task", "here", "--episodes", "a"], 2, "nor a range"),
        (["me/task", "full"], 2, "already something"),
        (["ftp://bucket/task", "here"], 2, "not read from ftp://"),
    ],
)
def test_failures(hub, run, tmp_path, monkeypatch, arguments, code, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/letter.txt").write_text("dear")
    done = run("pull", *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert not (tmp_path / "here").exists()
