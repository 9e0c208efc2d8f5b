"""What killed processes leave: recognised, listed, removed; and nothing else."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import pytest

import demoreel
from demoreel.cli.app import run
from demoreel.errors import DatasetNotFoundError, MetadataError, UnfinishedError, UnsafePathError
from demoreel.storage.commit import hidden_folder
from demoreel.storage.commit.hidden_folder import (
    lock_folder,
    remove_dead,
    remove_outdated,
    standing,
)
from demoreel.storage.commit.staging import staged, staging
from demoreel.storage.commit.writer_lock import WriterLock
from demoreel.storage.remote.fetch import working_folder
from demoreel.storage.scratch import Scratch, scratch_folder
from demoreel.testing import make_dataset

LETTERS = "0123456789ab"
PRINT = "f" * 64


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """Temporary files and caches of a test, so that what is left in them can be seen."""
    for name in ("DEMOREEL_SCRATCH", "DEMOREEL_CACHE", "DEMOREEL_STAGING", "TMPDIR"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    here = tmp_path / "here"
    here.mkdir()
    return here


def leave(folder: Path, **files: str) -> Path:
    """Make a hidden folder as a killed process leaves it."""
    os.close(lock_folder(folder, folder.with_name("target")))
    for name, text in {"file": "x", **files}.items():
        (folder / name).write_text(text)
    return folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_next_write_removes_what_nothing_goes_on_from(places):
    dead = [leave(places / f".a.{kind}-{LETTERS}") for kind in ("repair", "staging")]
    nested = leave(places / ".c.replace")
    dead.append(leave(nested / f".new.repair-{LETTERS}"))
    goes_on = [leave(places / name) for name in (f".a.cut-{LETTERS}", ".a.convert", ".b.convert")]
    goes_on.append(leave(places / f".a.pull-{LETTERS}"))
    with staged(places / "b"):
        assert [path for path in dead if path.exists()] == []
    assert [path for path in goes_on if not path.exists()] == []
    remove_outdated(places / "a")  # when something else has become the target
    assert names(places) == [".b.convert", ".c.replace", "b"]


def test_what_is_in_use_stays(places):
    folder = places / f".a.repair-{LETTERS}"
    lock = lock_folder(folder, places / "a")
    assert standing(folder) == "in use"
    remove_dead(places)
    (kept,) = demoreel.clean(places).kept
    assert kept.path == folder
    assert "living process" in kept.why
    os.close(lock)
    assert standing(folder) == "dead"
    remove_dead(places)
    assert names(places) == []


def test_what_another_machine_made_stays(places, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    monkeypatch.setattr(hidden_folder, "_boot", lambda: "of another")
    folder = leave(places / f".a.repair-{LETTERS}")
    monkeypatch.undo()
    assert standing(folder) == "elsewhere"
    remove_dead(places)
    assert [kept.path for kept in demoreel.clean(places / "a").kept] == [folder]
    assert folder.is_dir()


@pytest.mark.parametrize("boot", ["another", None])
def test_after_a_reboot_nothing_is_in_use(places, monkeypatch, boot):
    monkeypatch.setattr(hidden_folder, "_boot", lambda: boot or "unknown")
    folder = leave(places / f".a.repair-{LETTERS}")
    monkeypatch.undo()
    assert standing(folder) == "dead"


def test_what_is_not_ours_stays(places, tmp_path):
    precious = tmp_path / "precious"
    leave(precious)
    (places / f".a.repair-{LETTERS}").symlink_to(precious)
    (places / f".b.repair-{LETTERS}").mkdir()
    (places / f".b.repair-{LETTERS}" / "notes of mine").touch()
    leave(places / f".c.repair-{LETTERS}", lock="mine")
    leave(places / f".d.repair-{LETTERS}", lock='{"pid": 1}\n')
    leave(places / f".e.repair-{LETTERS}", lock="")
    leave(places / f".f.repair-{LETTERS}x")
    leave(places / "g.repair-0123456789ab")
    (places / f".h.repair-{LETTERS}").mkdir()
    os.mkfifo(places / f".h.repair-{LETTERS}" / "lock")
    before = names(places)
    remove_dead(places)
    assert not demoreel.clean(places).removed
    assert names(places) == before
    assert names(precious) == ["file", "lock"]


def test_a_kill_before_the_lock_was_signed(places):
    folder = places / f".a.repair-{LETTERS}"
    folder.mkdir()
    (folder / "lock").touch()
    remove_dead(places)
    assert names(places) == []


@pytest.mark.parametrize("kind", ["cut", "repair"])
def test_a_kill_while_a_staging_folder_is_removed(places, kind, monkeypatch):
    """Until its last entry is gone, what is left can be told from what is not demoreel's."""
    folder = places / f".a.{kind}-{LETTERS}"
    calls = [(os, "unlink"), (os, "rmdir"), (shutil, "rmtree")]
    for most in range(6):
        lock = lock_folder(folder, places / "a")
        (folder / "dataset").mkdir()
        for name in ("dataset/x", "order.json", "made.json", "parts"):
            (folder / name).touch()
        left = [most]

        def cut_short(function, left=left):
            def call(*arguments, **options):
                if not left[0]:
                    raise KeyboardInterrupt
                left[0] -= 1
                return function(*arguments, **options)

            return call

        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            for module, name in calls:
                patch.setattr(module, name, cut_short(getattr(module, name)))
            hidden_folder.remove_hidden(folder)
        os.close(lock)
        assert standing(folder) == "dead" or not folder.exists()
        demoreel.clean(places)
        assert names(places) == []


def test_staging_folders_are_no_links(places, tmp_path):
    """A stranger's folder with a link of this name: what is written, and removed, is elsewhere."""
    precious = tmp_path / "precious"
    (precious / "dataset").mkdir(parents=True)
    (precious / "dataset" / "file").write_text("x")
    folder = places / ".out.convert"
    for target in (folder, folder / "dataset", folder / "lock"):
        if target != folder:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        target.symlink_to(precious)
        with pytest.raises(UnsafePathError, match="link"):
            lock_folder(folder, places / "out")
        target.unlink()
    assert (precious / "dataset" / "file").read_text() == "x"


@pytest.mark.parametrize(
    "note", ["", "[]", "{}", '{"new": [1, 2], "keep": "../x"}', '{"new": "x", "keep": null}', None]
)
def test_a_strangers_note_of_a_replacement(places, note):
    folder = places / ".ds.replace"
    (folder / "old").mkdir(parents=True)
    (folder / "new").mkdir()
    os.mkfifo(folder / "begun.json") if note is None else (folder / "begun.json").write_text(note)
    before = names(folder)
    with pytest.raises(UnfinishedError, match="demoreel finish"):
        demoreel.open(places / "ds")
    assert names(folder) == before
    with pytest.raises(MetadataError, match="cannot be used"):
        demoreel.finish(places / "ds")
    assert names(places) == [".ds.replace"]
    assert set(names(folder)) - {"lock"} == set(before)


def test_a_made_target_outdates_other_work(places):
    other = leave(places / f".out.cut-{LETTERS}")
    elsewhere = leave(places / f".out2.cut-{LETTERS}")
    with staging(places / "out", kind="cut", fingerprint=PRINT) as stage:
        (stage.dataset / "file").write_text("x")
        assert other.exists()
        stage.commit()
    assert names(places) == [elsewhere.name, "out"]


def test_clean_lists_first_and_keeps_data(places):
    root = make_dataset(places / "ds", episodes=[2], cameras=0)
    shutil.copytree(root, places / "ds_old")
    hidden = root / ".demoreel"
    for name in ("encoding/episode-000001", "encoding/episode-000002", f"staging-{LETTERS}"):
        (hidden / name).mkdir(parents=True)
        (hidden / name / "packets").write_text("12345")
    (hidden / "encoding/episode-000001/sealed.json").write_text("{}")
    (hidden / "encoding/notes of mine").mkdir()
    (hidden / "lock").write_text("process 1 on a machine that is gone")
    old = leave(places / ".ds.convert", before="a dataset that --overwrite had moved away")
    cut = leave(places / f".ds.cut-{LETTERS}")
    before = sorted(places.rglob("*"))
    found = demoreel.clean(root, dry_run=True)
    assert sorted(places.rglob("*")) == before
    removed = {hidden / "encoding/episode-000002", hidden / f"staging-{LETTERS}", cut}
    kept = {hidden / "encoding/episode-000001", places / "ds_old", old}
    assert {one.path for one in found.removed} == removed
    assert {one.path for one in found.kept} == kept
    assert [one.resumable for one in found.removed if one.path == cut] == [True]
    done = demoreel.clean(root)
    assert {one.path for one in done.removed} == removed
    assert done.bytes == found.bytes > 10
    assert [path for path in removed if path.exists()] == []
    assert [path for path in kept if not path.exists()] == []
    assert not demoreel.clean(places).removed


def test_a_dataset_that_is_recorded_is_left_alone(places):
    root = make_dataset(places / "ds", episodes=[2], cameras=0)
    with WriterLock(root):
        (root / f".demoreel/staging-{LETTERS}").mkdir()
        assert [kept.kind for kept in demoreel.clean(root).kept] == ["recording"]
        assert (root / f".demoreel/staging-{LETTERS}").is_dir()
    assert len(demoreel.clean(root).removed) == 1
    assert not (root / ".demoreel").exists()


def test_a_strangers_dataset_does_not_keep_the_others_from_being_cleaned(places, tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    for name, link in {"a": "lock", "b": f"staging-{LETTERS}"}.items():
        root = make_dataset(places / name, episodes=[2], cameras=0)
        (root / ".demoreel").mkdir()
        (root / ".demoreel" / link).symlink_to(secret)
    good = make_dataset(places / "good", episodes=[2], cameras=0)
    (good / f".demoreel/staging-{LETTERS}").mkdir(parents=True)
    done = demoreel.clean(places)
    assert [removed.path.parent.parent for removed in done.removed] == [good]
    assert [kept.path.parent for kept in done.kept] == [places / "a"]
    assert secret.is_dir()


def test_a_commit_that_is_not_in_place_is_data(places):
    root = make_dataset(places / "ds", episodes=[2], cameras=0)
    (root / f".demoreel/staging-{LETTERS}").mkdir(parents=True)
    (root / ".demoreel/journal.json").write_text("{}")
    done = demoreel.clean(root)
    assert not done.removed
    assert [kept.path.name for kept in done.kept] == ["journal.json"]


def test_scratch_files_and_what_was_to_be_sent(places):
    alive = Scratch("alive")
    child = "import os, signal, sys; from demoreel.storage.scratch import Scratch; "
    child += "from demoreel.storage.remote.fetch import working_folder; held = Scratch('x'); "
    child += "work = working_folder('send', 's3://bucket/ds', 1, alone=True); work.__enter__(); "
    subprocess.run([sys.executable, "-c", child + "os.kill(os.getpid(), 9)"], check=False)
    (dead,) = demoreel.clean(places).removed
    assert dead.kind == "scratch"
    assert alive.folder.is_dir()
    assert not demoreel.clean("s3://bucket/other").removed
    with working_folder("send", "s3://bucket/ds", 2, alone=True):
        done = demoreel.clean("s3://bucket/ds/")
    assert [(one.kind, one.resumable) for one in done.removed] == [("send", True)]
    assert [one.why for one in done.kept] == ["a living process works there"]
    with scratch_folder() as folder:
        assert folder.is_dir()
    assert not folder.exists()
    alive.close()


def test_nothing_there(places):
    with pytest.raises(DatasetNotFoundError):
        demoreel.clean(places / "nothing")
    leave(places / f".nothing.cut-{LETTERS}")
    assert len(demoreel.clean(places / "nothing").removed) == 1


def test_the_command(places, capsys, monkeypatch):
    leave(places / f".out.cut-{LETTERS}")
    place = str(places / "out")
    monkeypatch.setattr("sys.stdin", open(os.devnull))  # noqa: SIM115
    assert run(["clean", place, "--dry-run"]) == 0
    assert f"{places}/.out.cut-{LETTERS}" in capsys.readouterr().out
    assert run(["clean", place]) == 2
    assert "--yes" in capsys.readouterr().err
    assert run(["clean", place, "--json"]) == 2
    capsys.readouterr()
    assert len(names(places)) == 1
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    assert run(["clean", place, "--yes", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [one["kind"] for one in said["removed"]] == ["cut"]
    assert names(places) == []
    assert run(["clean", str(places)]) == 0
    assert "nothing to remove" in capsys.readouterr().out


WORK = {
    "repair": "demoreel.repair(root, out)",
    "repair in place": "demoreel.repair(root, in_place=True)",
    "convert": "demoreel.convert(root, out, to='v2.1', exact=True)",
    "convert to lance": "demoreel.convert(root, out, to='lance-video')",
    "cut": "demoreel.cut(root).keep([0, 2]).render(out)",
    "record": """
        r = demoreel.create(out, fps=30, features={
            "state": {"dtype": "float32", "shape": [2]},
            "observation.images.a": {"dtype": "video", "shape": [48, 64, 3]}}, vcodec="h264")
        while True:
            for _ in range(5):
                r.add_frame({"state": np.zeros(2, "f4"), "observation.images.a":
                    np.zeros((48, 64, 3), "u1")}, task="x")
            r.save_episode()
    """,
}


def start(work, root, out):
    """Begin work in a process of its own; it says when it begins."""
    code = "import sys, numpy as np, demoreel\nfrom demoreel.layouts.detect import open_reader\n"
    code += "import demoreel.repair.run, demoreel.convert.run, demoreel.record\n"
    code += "root, out = sys.argv[1:]\nprint('begins', flush=True)\n" + textwrap.dedent(WORK[work])
    command = [sys.executable, "-c", code, str(root), str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == b"begins\n"
    return process


def kill(process):
    """Kill a process, and wait until the workers that it started have noticed."""
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(0.01)


def everything_left(tmp_path):
    """Return all that is in the parent folder, the temporary folder and the cache."""
    left = [path for path in (tmp_path / "here").iterdir() if path.name != "ds"]
    for name in ("DEMOREEL_SCRATCH", "DEMOREEL_STAGING", "TMPDIR"):
        left += [path for path in (tmp_path / name).rglob("*") if path.name.find("demoreel-") != 0]
    return left


def test_a_killed_repair_is_removed_by_the_next(places, tmp_path):
    root = make_dataset(places / "ds", episodes=[3, 2])
    (root / "meta" / "stats.json").unlink()
    child = f"""
        import os, demoreel, demoreel.repair.work as work
        work.put_in_place = lambda *_: os.kill(os.getpid(), 9)
        demoreel.repair({str(root)!r}, {str(places / "out")!r})
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(child)], check=False)
    (left,) = [path for path in places.iterdir() if path.name != "ds"]
    assert left.name.startswith(".out.repair-")
    assert left.joinpath("repaired", "meta", "info.json").is_file()
    demoreel.repair(root, places / "other")
    assert names(places) == ["ds", "other"]


def has_begun(places):
    """Whether something is being written in a hidden folder, or an episode recorded."""
    return any(places.glob(".*/*")) or any(places.glob("out/.demoreel/encoding/*"))


@pytest.mark.soak
@pytest.mark.parametrize("work", WORK)
def test_after_kills_nothing_is_left_but_user_data(places, tmp_path, work):
    chance = random.Random(work)
    root = make_dataset(places / "ds", episodes=[30, 20, 40], cameras={"a": (240, 320)}, gop=10)
    (root / "meta" / "stats.json").unlink()
    for _ in range(2):
        process = start(work, root, places / "out")
        while process.poll() is None and not has_begun(places):
            time.sleep(0.001)
        time.sleep(chance.uniform(0.0, 0.2))
        kill(process)
        cleaned = demoreel.clean(places)
        left = [path for path in everything_left(tmp_path) if path.name not in ("out", "ds_old")]
        assert left == [], cleaned.kept
        for dataset in [path for path in (places / "out", root) if path.exists()]:
            assert not [p for p in dataset.rglob(".demoreel/*") if p.name != "encoding"]
        shutil.rmtree(places / "out", ignore_errors=True)
        shutil.rmtree(places / "ds_old", ignore_errors=True)
