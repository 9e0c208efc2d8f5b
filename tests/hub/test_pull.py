"""Pulling from a real server on loopback, with the real client: what arrives, and what does not."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import demoreel
from demoreel.errors import (
    AccessError,
    ArgumentError,
    DatasetBusyError,
    DatasetNotFoundError,
    DemoreelWarning,
    OutOfRangeError,
    StoreError,
    TargetExistsError,
    UnsafePathError,
    UnsupportedVersionError,
)
from demoreel.testing import make_dataset

LENGTHS = [8, 6, 7, 5]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Four episodes in four tables and four videos."""
    return make_dataset(
        tmp_path_factory.mktemp("source") / "task",
        episodes=LENGTHS,
        data_files_size_in_mb=0.0001,
        video_files_size_in_mb=0.0001,
    )


@pytest.fixture(scope="module")
def source_v21(tmp_path_factory):
    return make_dataset(
        tmp_path_factory.mktemp("v2") / "task", episodes=LENGTHS, layout="v2.1", seed=3
    )


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but hidden ones."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not str(path.relative_to(folder)).startswith(".")
    }


def fetched(hub) -> list[str]:
    """The bodies that were sent, by file."""
    return [
        entry.path
        for entry in hub.log
        if entry.route in ("cdn", "resolve-cache", "resolve") and entry.method == "GET"
    ]


def beside(target: Path) -> list[str]:
    """What is hidden beside a target."""
    return [path.name for path in target.parent.glob(f".{target.name}*")]


# Whole datasets


def test_a_folder_like_the_one_that_was_pushed(hub, source, tmp_path):
    commit = hub.seed("me/task", source, tag="v3.0")
    seen = []
    done = demoreel.pull("me/task", tmp_path / "deep" / "here", report=seen.append)
    here = tmp_path / "deep" / "here"
    assert contents(here) == contents(source)
    assert (done.revision, done.commit, done.episodes) == ("v3.0", commit, None)
    assert done.files == done.fetched_files == len(contents(source))
    assert done.bytes == sum(map(len, contents(source).values()))
    assert sorted(p.name for p in here.iterdir()) == [".demoreel", "data", "meta", "videos"]
    assert seen[-1] == 1.0
    assert seen == sorted(seen)
    assert beside(here) == []
    assert demoreel.check(here).is_sound


def test_every_layout(hub, source, source_v21, tmp_path):
    demoreel.convert(source, tmp_path / "lance", to="lance-video")
    for name, folder, tag in [("a", source_v21, "v2.1"), ("b", tmp_path / "lance", "v3.0")]:
        hub.seed(f"me/{name}", folder, tag=tag)
        demoreel.pull(f"me/{name}", tmp_path / name)
        assert demoreel.diff(folder, tmp_path / name).is_equal
        assert demoreel.open(tmp_path / name).layout == demoreel.open(folder).layout


def test_a_uri_names_the_same(hub, source, tmp_path):
    hub.seed("me/task", source, tag="v3.0")
    done = demoreel.pull("hf://datasets/me/task@v3.0", tmp_path / "here")
    assert (done.repo_id, done.revision) == ("me/task", "v3.0")
    with pytest.raises(ArgumentError, match="another"):
        demoreel.pull("hf://datasets/me/task@v3.0", tmp_path / "there", revision="main")
    with pytest.raises(ArgumentError, match="not read from"):
        demoreel.pull("ftp://host/task", tmp_path / "there")


def test_hidden_files_are_not_fetched(hub, source, tmp_path):
    hub.seed("me/task", source, tag="v3.0")
    hub.commit(
        "me/task",
        {".demoreel/journal.json": b"{}", "data/.hidden": b"x", "README.md": b"# task\n"},
    )
    demoreel.pull("me/task", tmp_path / "here", revision="main")
    assert (tmp_path / "here/README.md").read_bytes() == b"# task\n"
    assert not (tmp_path / "here/data/.hidden").exists()
    assert not (tmp_path / "here/.demoreel/journal.json").exists()


@pytest.mark.parametrize("name", ["../escaped", "data/../../escaped", "/tmp/escaped", "a\\..\\b"])
def test_names_that_lead_outside(hub, source, tmp_path, name):
    hub.seed("me/task", source)
    hub.commit("me/task", {name: b"caught"})
    hub.seed("me/task", tag="v3.0")
    before = sorted(tmp_path.rglob("*escaped*"))
    with pytest.raises(UnsafePathError, match="outside"):
        demoreel.pull("me/task", tmp_path / "here")
    assert not (tmp_path / "here").exists()
    assert beside(tmp_path / "here") == []
    assert sorted(tmp_path.rglob("*escaped*")) == before


def test_a_dry_run_writes_nothing(hub, source, tmp_path):
    hub.seed("me/task", source, tag="v3.0")
    hub.reset_log()
    done = demoreel.pull("me/task", tmp_path / "here", dry_run=True)
    assert (done.dry_run, done.fetched_files) == (True, len(contents(source)))
    assert hub.requests == 2
    some = demoreel.pull("me/task", tmp_path / "here", episodes=[1], dry_run=True)
    assert some.fetched_files == done.fetched_files - 6
    assert not (tmp_path / "here").exists()
    assert beside(tmp_path / "here") == []


# Interruptions


def test_what_had_arrived_is_not_fetched_again(hub, source, tmp_path):
    hub.seed("me/task", source, tag="v3.0")
    hub.fail_next(1, status=404, on=".mp4")
    with pytest.raises(StoreError, match="status 404"):
        demoreel.pull("me/task", tmp_path / "here")
    assert not (tmp_path / "here").exists()
    assert len(beside(tmp_path / "here")) == 1
    hub.reset_log()
    demoreel.pull("me/task", tmp_path / "here")
    assert contents(tmp_path / "here") == contents(source)
    assert 1 <= len(fetched(hub)) < len(contents(source))
    assert beside(tmp_path / "here") == []


@pytest.mark.soak
def test_killed_while_a_file_comes(hub, source, tmp_path):
    hub.seed("me/task", source, tag="v3.0")
    code = f"import demoreel; demoreel.pull('me/task', {str(tmp_path / 'here')!r})"
    with hub.hold("cdn") as held:
        child = subprocess.Popen([sys.executable, "-c", code], env=dict(os.environ))
        held.wait()
        child.kill()
        child.wait()
    assert not (tmp_path / "here").exists()
    demoreel.pull("me/task", tmp_path / "here")
    assert contents(tmp_path / "here") == contents(source)
    assert beside(tmp_path / "here") == []


def test_killed_after_the_target_had_appeared(hub, source, tmp_path, monkeypatch):
    hub.seed("me/task", source, tag="v3.0")
    with monkeypatch.context() as killed:
        killed.setattr("demoreel.storage.commit.staging.remove_hidden", lambda folder: None)
        demoreel.pull("me/task", tmp_path / "here")
    assert len(beside(tmp_path / "here")) == 1
    hub.reset_log()
    assert demoreel.pull("me/task", tmp_path / "here", overwrite=True).was_up_to_date
    assert fetched(hub) == []
    assert contents(tmp_path / "here") == contents(source)
    assert beside(tmp_path / "here") == []


def test_ctrl_c_ends_it_at_once(hub, source, tmp_path):
    hub.seed("me/task", source, tag="v3.0")
    code = (
        "import sys, demoreel\n"
        f"try: demoreel.pull('me/task', {str(tmp_path / 'here')!r})\n"
        "except KeyboardInterrupt: sys.exit(130)"
    )
    with hub.hold("cdn") as held:
        child = subprocess.Popen([sys.executable, "-c", code], env=dict(os.environ))
        held.wait()
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=60) == 130  # although the file has not come
    assert len(beside(tmp_path / "here")) == 1
    demoreel.pull("me/task", tmp_path / "here")
    assert beside(tmp_path / "here") == []


@pytest.mark.soak
def test_connections_that_break_and_a_busy_hub(hub, source, tmp_path, capfd):
    hub.seed("me/task", source, tag="v3.0")
    hub.cut_download(100, count=2)
    hub.fail_next(2, status=429, retry_after=0, on="refs")
    hub.fail_next(1, status=503, retry_after=0, on="tree")
    hub.fail_next(1, status=500, retry_after=0, on="cdn")
    code = f"import demoreel; demoreel.pull('me/task', {str(tmp_path / 'here')!r})"
    subprocess.run([sys.executable, "-c", code], env=dict(os.environ), check=True)
    assert contents(tmp_path / "here") == contents(source)
    assert "Signature" not in capfd.readouterr().err  # clients warn, and show addresses


def test_a_hub_that_stays_busy(hub, source, tmp_path):
    hub.seed("me/task", source, tag="v3.0")
    hub.fail_next(99, status=429, retry_after=0, on="refs")
    with pytest.raises(StoreError, match=r"asks to wait \(status 429\)") as raised:
        demoreel.pull("me/task", tmp_path / "here")
    assert hub.token not in str(raised.value)
    assert not (tmp_path / "here").exists()


def test_content_that_is_not_what_the_hub_says(hub, source, tmp_path):
    hub.seed("me/task", source, tag="v3.0")
    wrong = next(file for name, file in hub.files("me/task").items() if name.endswith(".mp4"))
    stored = next(path for path in hub.folder.rglob(f"*{wrong.sha256}*") if path.is_file())
    stored.chmod(0o644)
    stored.write_bytes(b"\0" * wrong.size)
    with pytest.raises(StoreError, match="arrived damaged 2 times"):
        demoreel.pull("me/task", tmp_path / "here")
    assert not (tmp_path / "here").exists()


@pytest.mark.soak
def test_several_processes_fill_the_cache_at_once(hub, source, tmp_path):
    """As the ranks of a training do."""
    commit = hub.seed("me/task", source, tag="v3.0")
    code = """
from demoreel.hub.snapshot import cached_dataset
from demoreel.layouts.detect import open_reader
dataset = cached_dataset("me/task")
reader = open_reader(dataset.folder)
dataset.fetch_episodes(reader, range(4), cameras=reader.info.video_keys)
"""
    command = [sys.executable, "-c", code]
    children = [subprocess.Popen(command, env=dict(os.environ)) for _ in range(3)]
    assert [child.wait() for child in children] == [0, 0, 0]
    snapshot = tmp_path / "home/hub/datasets--me--task/snapshots" / commit
    assert contents(snapshot) == contents(source)


@pytest.mark.soak
def test_two_pulls_to_one_folder(hub, source, tmp_path):
    hub.seed("me/task", source, tag="v3.0")
    code = f"import demoreel; demoreel.pull('me/task', {str(tmp_path / 'here')!r})"
    with hub.hold("cdn") as held:
        child = subprocess.Popen([sys.executable, "-c", code], env=dict(os.environ))
        held.wait()
        with pytest.raises(DatasetBusyError, match="Another process"):
            demoreel.pull("me/task", tmp_path / "here")
    assert child.wait() == 0
    assert contents(tmp_path / "here") == contents(source)


# Folders that are there


def test_only_what_has_changed_comes(hub, source, tmp_path):
    here = tmp_path / "here"
    hub.seed("me/task", source, tag="v3.0")
    demoreel.pull("me/task", here)
    hub.reset_log()
    assert demoreel.pull("me/task", here).was_up_to_date
    assert hub.requests == 1
    hub.commit("me/task", {"README.md": b"# new\n", "notes.txt": b"x"})
    hub.seed("me/task", tag="v3.0")
    old = (here / "meta/info.json").stat().st_ino
    dry = demoreel.pull("me/task", here, dry_run=True)
    done = demoreel.pull("me/task", here)
    assert (dry.fetched_files, done.fetched_files, done.was_up_to_date) == (2, 2, False)
    assert (here / "README.md").read_bytes() == b"# new\n"
    assert (here / "meta/info.json").stat().st_ino == old
    hub.commit("me/task", {"notes.txt": None})
    hub.seed("me/task", tag="v3.0")
    assert demoreel.pull("me/task", here).fetched_files == 0
    assert not (here / "notes.txt").exists()
    assert beside(here) == []


def test_a_folder_that_was_changed_is_left_alone(hub, source, tmp_path):
    here = tmp_path / "here"
    hub.seed("me/task", source, tag="v3.0")
    demoreel.pull("me/task", here)
    (here / "meta/stats.json").write_text("{}")
    (here / "mine.txt").write_text("mine")
    shutil.rmtree(here / "videos")
    hub.commit("me/task", {"README.md": b"# new\n"})
    hub.seed("me/task", tag="v3.0")
    with pytest.raises(TargetExistsError, match="changed since") as raised:
        demoreel.pull("me/task", here)
    where = raised.value.where
    assert (where["changed"], where["added"]) == ("meta/stats.json", "mine.txt")
    assert where["missing"].count(".mp4") == 4
    assert (here / "mine.txt").read_text() == "mine"
    demoreel.pull("me/task", here, overwrite=True)
    assert contents(here) == contents(source) | {"README.md": b"# new\n"}


def test_a_touched_file_is_not_a_changed_one(hub, source, tmp_path):
    here = tmp_path / "here"
    hub.seed("me/task", source, tag="v3.0")
    demoreel.pull("me/task", here)
    os.utime(here / "meta/info.json", (1, 1))
    assert demoreel.pull("me/task", here).was_up_to_date


def test_a_folder_that_was_pushed_from_here(hub, source, tmp_path):
    """It was never pulled, but loses nothing."""
    here = tmp_path / "here"
    shutil.copytree(source, here)
    hub.seed("me/task", source, tag="v3.0")
    hub.commit("me/task", {"README.md": b"# card\n"})
    hub.seed("me/task", tag="v3.0")
    assert demoreel.pull("me/task", here).fetched_files == 1
    assert demoreel.pull("me/task", here).was_up_to_date


def test_what_is_not_ours_is_left_alone(hub, source, source_v21, tmp_path):
    hub.seed("me/task", source, tag="v3.0")
    hub.seed("me/other", source_v21, tag="v2.1")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/letter.txt").write_text("dear")
    (tmp_path / "file").write_text("x")
    for name in ("full", "file"):
        for overwrite in (False, True):
            with pytest.raises(TargetExistsError):
                demoreel.pull("me/task", tmp_path / name, overwrite=overwrite)
    (tmp_path / "empty").mkdir()
    demoreel.pull("me/task", tmp_path / "empty")
    with pytest.raises(TargetExistsError, match="another repository, 'me/task'"):
        demoreel.pull("me/other", tmp_path / "empty")
    shutil.copytree(source_v21, tmp_path / "recorded")
    with pytest.raises(TargetExistsError, match="already something"):
        demoreel.pull("me/task", tmp_path / "recorded")
    assert contents(tmp_path / "recorded") == contents(source_v21)


def test_episodes_that_wait_to_be_finished_are_not_lost(hub, source, tmp_path):
    here = tmp_path / "here"
    hub.seed("me/task", source, tag="v3.0")
    demoreel.pull("me/task", here)
    (here / ".demoreel/encoding/0003").mkdir(parents=True)
    (here / ".demoreel/encoding/0003/sealed.json").write_text("{}")
    with pytest.raises(TargetExistsError, match="changed since"):
        demoreel.pull("me/task", here)


# Some episodes


@pytest.mark.parametrize("layout", ["v3.0", "v2.1"])
def test_episodes_as_a_dataset_of_their_own(hub, source, source_v21, tmp_path, layout):
    folder = source if layout == "v3.0" else source_v21
    here = tmp_path / "here"
    hub.seed("me/task", folder, tag=layout)
    hub.reset_log()
    done = demoreel.pull("me/task", here, episodes=[3, 1])
    assert done.episodes == (1, 3)
    assert not any("000000" in path or "file-000.mp4" in path for path in fetched(hub))
    ours = demoreel.open(here)
    assert (ours.layout, ours.episodes.length.tolist()) == (layout, [6, 5])
    assert (
        demoreel.diff(demoreel.open(folder, episodes=[1, 3]), here, match="content").columns == ()
    )
    assert demoreel.check(here).is_sound
    assert demoreel.pull("me/task", here, episodes=[1, 3]).was_up_to_date
    assert demoreel.pull("me/task", here, episodes=[0]).fetched_files > 0
    assert len(demoreel.open(here)) == 8
    demoreel.pull("me/task", here)
    assert contents(here) == contents(folder)


def test_episodes_of_a_lance_dataset(hub, source, tmp_path):
    demoreel.convert(source, tmp_path / "lance", to="lance-video")
    hub.seed("me/task", tmp_path / "lance", tag="v3.0")
    demoreel.pull("me/task", tmp_path / "here", episodes=[2])
    ours = demoreel.open(tmp_path / "here")
    assert (ours.layout, len(ours)) == ("lance-video", 7)


def test_episodes_that_do_not_exist(hub, source, tmp_path):
    hub.seed("me/task", source, tag="v3.0")
    with pytest.raises(OutOfRangeError):
        demoreel.pull("me/task", tmp_path / "here", episodes=[4])
    for none in ([], [-1]):
        with pytest.raises(ArgumentError):
            demoreel.pull("me/task", tmp_path / "here", episodes=none)
    assert not (tmp_path / "here").exists()
    assert beside(tmp_path / "here") == []


# Which revision, and whose


def test_the_newest_version_that_is_read(hub, source, source_v21, tmp_path):
    old = hub.seed("me/task", source_v21, tag="v2.1")
    hub.seed("me/task", source_v21, tag="v1.6")
    assert demoreel.pull("me/task", tmp_path / "a").revision == "v2.1"
    hub.seed("me/task", source, tag="v3.0")
    hub.commit("me/task", {"later.txt": b""})
    assert demoreel.pull("me/task", tmp_path / "b").revision == "v3.0"
    assert not (tmp_path / "b/later.txt").exists()
    assert demoreel.pull("me/task", tmp_path / "c", revision=old).revision == old
    assert demoreel.open(tmp_path / "c").layout == "v2.1"
    assert demoreel.pull("me/task", tmp_path / "d", revision="main").commit != old
    assert (tmp_path / "d/later.txt").exists()
    short = demoreel.pull("me/task", tmp_path / "e", revision=old[:10])
    assert short.commit == old


def test_a_repository_without_tags(hub, source, tmp_path):
    hub.seed("me/task", source)
    with pytest.warns(DemoreelWarning, match="no tag .* branch main is read, which is v3.0"):
        assert demoreel.pull("me/task", tmp_path / "here").revision == "main"
    with pytest.raises(DatasetNotFoundError, match=r"no revision 'v3\.0'.*no tags.*main"):
        demoreel.pull("me/task", tmp_path / "there", revision="v3.0")


def test_no_version_that_is_read(hub, source, tmp_path):
    hub.seed("me/task", source, tag="v1.6")
    info = (source / "meta/info.json").read_text().replace('"v3.0"', '"v9.1"')
    hub.commit("me/task", {"meta/info.json": info.encode()})
    with pytest.raises(UnsupportedVersionError, match=r"v1\.6.*main is v9\.1"):
        demoreel.pull("me/task", tmp_path / "here")
    assert not (tmp_path / "here").exists()


def test_what_is_no_dataset(hub, tmp_path):
    hub.seed("me/task")
    hub.commit("me/task", {"model.bin": b"x"})
    with pytest.raises(DatasetNotFoundError, match="no LeRobot dataset"):
        demoreel.pull("me/task", tmp_path / "here")


def test_private_and_missing_repositories(hub, source, tmp_path, monkeypatch):
    hub.seed("me/secret", source, tag="v3.0", private=True)
    demoreel.pull("me/secret", tmp_path / "mine")
    monkeypatch.setenv("HF_TOKEN", hub.stranger_token)
    with pytest.raises(DatasetNotFoundError, match="private") as raised:
        demoreel.pull("me/secret", tmp_path / "here")
    assert "hf auth login" in str(raised.value)
    assert hub.stranger_token not in str(raised.value)
    demoreel.pull("me/secret", tmp_path / "here", token=hub.token)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(DatasetNotFoundError, match="HF_TOKEN"):
        demoreel.pull("me/nothing", tmp_path / "there")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises((AccessError, DatasetNotFoundError)) as raised:
        demoreel.pull("me/secret", tmp_path / "there")
    assert "hf_wrong" not in str(raised.value)


def test_offline(hub, source, tmp_path, monkeypatch):
    hub.seed("me/task", source, tag="v3.0")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.reset_log()
    with pytest.raises(StoreError, match="HF_HUB_OFFLINE is set"):
        demoreel.pull("me/task", tmp_path / "here")
    assert hub.requests == 0
