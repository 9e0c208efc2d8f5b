"""``demoreel push``."""

from __future__ import annotations

import json
import shutil

import pytest

from support.hub_server import HubServer

REPO = "me/my_task"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with HubServer(tmp_path / "hub") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        # Another test may have imported the client before.
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        yield server


@pytest.fixture
def folder(one_camera, tmp_path):
    return shutil.copytree(one_camera, tmp_path / "ds")


def test_a_plan_then_a_push(run, hub, folder):
    planned = run("push", folder, REPO, "--dry-run")
    assert planned.returncode == 0
    lines = planned.stdout.splitlines()
    assert [line for line in lines if line.startswith("send ") and "meta/info.json" in line]
    assert lines[-1].split() == ["tag", "v2.1"]
    assert "would make" in planned.stderr
    assert "would send" in planned.stderr
    assert not hub.exists(REPO)

    done = run("push", folder, REPO, "--private", "--tag", "a", "--tag", "b", "--license", "mit")
    assert done.returncode == 0
    assert done.stdout == ""
    assert f"made {hub.endpoint}/datasets/{REPO}" in done.stderr
    assert "v2.1" in done.stderr
    card = hub.read(REPO, "README.md").decode()
    assert "- a\n- b\n" in card
    assert "license: mit" in card

    hub.commit(REPO, {"meta/old.txt": b"x"})
    (folder / "meta" / "more.txt").write_text("x")
    pushed = run("push", folder, REPO, "--json", "-m", "More")
    report = json.loads(pushed.stdout)
    assert set(report["sent"]) == {"meta/more.txt"}
    assert report["deleted"] == ["meta/old.txt"]
    assert pushed.stderr == ""
    assert hub.commits(REPO)[0].title == "More"

    again = run("push", folder, REPO, "--quiet")
    assert (again.stdout, again.stderr) == ("", "")


def test_refusals(run, hub, folder, dataset):
    wrong = run("push", folder, "no name")
    assert wrong.returncode == 2
    assert "name of a repository" in wrong.stderr
    hub.seed(REPO, folder)
    newer = run("push", dataset, REPO)
    assert newer.returncode == 1
    assert "another dataset" in newer.stderr
    assert "lost: episode 0, episode 1" in newer.stderr
    assert "force" in newer.stderr
    refused = run("push", dataset, REPO, "--force", "--debug", HF_TOKEN="hf_nobody")
    assert refused.returncode == 1
    assert "does not accept" in refused.stderr
    assert "HF_TOKEN" in refused.stderr
    assert "hf_nobody" not in refused.stderr


def test_a_terminal_sees_no_other_programs_bars(show, hub, folder):
    shown = show("push", folder, REPO, HF_HUB_DISABLE_PROGRESS_BARS="")
    assert "v2.1" in shown
    assert "%|" not in shown


def test_a_conversion_is_pushed(run, hub, folder, tmp_path):
    out = tmp_path / "new"
    planned = run("convert", folder, out, "--to", "v3.0", "--push", REPO, "--dry-run")
    assert f"would push it to {REPO}" in planned.stderr
    assert not hub.exists(REPO)
    done = run("convert", folder, out, "--to", "v3.0", "--push", REPO, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["to"] == "v3.0"
    assert told["pushed"]["tag"] == "v3.0"
    assert "meta/info.json" in hub.files(REPO)


@pytest.mark.parametrize("repo", ["nowhere", "me/my_task"])
def test_what_cannot_be_pushed_is_not_converted(run, hub, folder, tmp_path, monkeypatch, repo):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    done = run("convert", folder, tmp_path / "new", "--to", "v3.0", "--push", repo)
    assert done.returncode in (1, 2)
    assert not (tmp_path / "new").exists()


def test_a_dry_run_without_the_hub(run, folder, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    done = run("push", folder, REPO, "--dry-run")
    assert done.returncode == 1
    assert "then push again" in done.stderr
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "next: unset it" in run("push", folder, REPO, "--dry-run").stderr
