"""Pushes that are interrupted, overtaken, throttled: nothing is lost; pushing again mends it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest

import demoreel
from demoreel.errors import DatasetBusyError, NewerRemoteError, StoreError
from demoreel.testing import make_dataset

pytestmark = pytest.mark.soak

REPO = "me/my_task"
LFS_ABOVE = 2000  # bytes, for the fixture


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("made") / "ds", episodes=[5, 4], layout="v2.1")


@pytest.fixture
def folder(made, tmp_path):
    shutil.copytree(made, tmp_path / "ds")
    return tmp_path / "ds"


def uploads(hub):
    return [entry for entry in hub.log if entry.route == "lfs-upload"]


def test_a_push_that_was_killed_goes_on(hub, folder):
    code = f"import demoreel; demoreel.push({str(folder)!r}, {REPO!r})"
    with hub.hold("commit") as held:
        process = subprocess.Popen([sys.executable, "-c", code], env=dict(os.environ))
        held.wait()
        process.send_signal(signal.SIGKILL)
        process.wait()
        sent = len(uploads(hub))
        assert sent > 1
        assert len(hub.commits(REPO)) == 1
        hub.reset_log()
        done = demoreel.push(folder, REPO)  # while the dead one's commit still waits
        assert uploads(hub) == []
    assert hub.refs(REPO)["tags"] == {"v2.1": done.commit}
    assert len(hub.commits(REPO)) == 2  # the late one names a parent that is no longer the head


def test_an_upload_that_breaks_off(hub, folder):
    hub.cut_upload(100, count=2)
    done = demoreel.push(folder, REPO)
    assert all(hub.files(REPO)[name].size == size for name, size in done.sent.items())


@pytest.mark.parametrize("on", ["commit", "tag", "create", "refs", "tree", "preupload"])
def test_the_hub_asks_to_wait(hub, folder, on):
    if on in ("refs", "tree"):
        hub.seed(REPO)
    hub.fail_next(1, status=429, retry_after=0, on=on)
    hub.fail_next(1, status=503, retry_after=0, on=on)
    done = demoreel.push(folder, REPO)
    assert len(hub.commits(REPO)) == 2
    assert hub.refs(REPO)["tags"] == {"v2.1": done.commit}


def test_a_commit_whose_answer_is_lost_is_not_made_twice(hub, folder):
    hub.cut_download(3, on="commit")
    done = demoreel.push(folder, REPO)
    assert [commit.oid for commit in hub.commits(REPO)][:-1] == [done.commit]
    assert "meta/info.json" in done.sent
    assert done.created
    assert hub.refs(REPO)["tags"] == {"v2.1": done.commit}


def test_it_does_not_wait_for_ever(hub, folder):
    hub.fail_next(50, status=503, retry_after=0, on="commit")
    with pytest.raises(StoreError, match="503"):
        demoreel.push(folder, REPO)
    hub.calm()
    assert len(hub.commits(REPO)) == 1
    demoreel.push(folder, REPO)
    assert len(hub.commits(REPO)) == 2


def test_a_failure_between_commit_and_tag_is_completed(hub, folder):
    hub.fail_next(50, status=500, retry_after=0, on="tag")
    with pytest.raises(StoreError, match="500"):
        demoreel.push(folder, REPO)
    hub.calm()
    assert len(hub.commits(REPO)) == 2
    assert hub.refs(REPO)["tags"] == {}
    done = demoreel.push(folder, REPO)
    assert not done.sent
    assert done.tag_moved
    assert hub.refs(REPO)["tags"] == {"v2.1": done.commit}
    assert len(hub.commits(REPO)) == 2


def test_an_old_tag_moves_only_after_the_commit(hub, folder):
    first = demoreel.push(folder, REPO)
    (folder / "meta" / "new.txt").write_text("1")
    hub.fail_next(50, status=500, retry_after=0, on="commit")
    with pytest.raises(StoreError):
        demoreel.push(folder, REPO)
    assert hub.refs(REPO)["tags"] == {"v2.1": first.commit}
    hub.calm()
    second = demoreel.push(folder, REPO)
    assert hub.refs(REPO)["tags"] == {"v2.1": second.commit} != {"v2.1": first.commit}


def test_overtaken_by_a_commit_to_other_files(hub, folder):
    hub.seed(REPO)
    hub.race(REPO)
    done = demoreel.push(folder, REPO)
    newest, raced, _ = hub.commits(REPO)
    assert newest.oid == done.commit
    assert "raced.txt" in raced.files
    assert "raced.txt" in hub.files(REPO)
    assert "meta/info.json" in hub.files(REPO)


def test_overtaken_by_another_dataset(hub, folder, tmp_path):
    other = make_dataset(tmp_path / "other", episodes=[7], layout="v2.1")
    hub.seed(REPO)
    hub.race(REPO, lambda: hub.seed(REPO, other))
    with pytest.raises(NewerRemoteError, match="another dataset"):
        demoreel.push(folder, REPO)
    assert hub.read(REPO, "meta/info.json") == (other / "meta" / "info.json").read_bytes()


def test_a_readme_that_was_edited_meanwhile(hub, folder):
    demoreel.push(folder, REPO)
    (folder / "meta" / "new.txt").write_text("1")
    hub.race(REPO, lambda: hub.commit(REPO, {"README.md": b"# Theirs\n\nBy hand.\n"}))
    demoreel.push(folder, REPO)
    assert "By hand." in hub.read(REPO, "README.md").decode()
    assert "meta/new.txt" in hub.files(REPO)


def test_a_file_that_changes_meanwhile(hub, folder):
    path = folder / "meta" / "episodes.jsonl"

    def change(share):
        path.write_text(path.read_text() + "\n")

    with pytest.raises(DatasetBusyError, match="changed while"):
        demoreel.push(folder, REPO, report=change)
    assert len(hub.commits(REPO)) == 1


def test_nothing_secret_is_said(hub, folder, caplog):
    """Addresses that the Hub signs are as good as passwords."""
    caplog.set_level("DEBUG")
    hub.fail_next(50, status=400, on="lfs-upload")
    with pytest.raises(StoreError, match="400") as caught:
        demoreel.push(folder, REPO)
    told = str(caught.value) + caplog.text
    assert caught.value.__cause__ is None
    assert "lfs-upload" in told
    assert "?..." in told
    assert "Signature=" not in told
    assert hub.token not in told


def test_the_hub_is_not_there(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(StoreError, match="cannot be reached") as caught:
        demoreel.push(folder, REPO)
    assert "hf_secret" not in str(caught.value)
