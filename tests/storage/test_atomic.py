import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from demoreel.errors import TargetExistsError
from demoreel.storage.commit import files as atomic
from demoreel.storage.commit.files import write_file
from demoreel.storage.commit.staging import staged


def test_the_target_appears_whole_and_only_at_the_end(tmp_path):
    target = tmp_path / "deep" / "dataset"
    with staged(target) as folder:
        (folder / "meta").mkdir()
        (folder / "meta" / "info.json").write_text("{}")
        assert not target.exists()
        assert folder.parent.parent == target.parent
        assert folder.parent.name.startswith(".")
    assert (target / "meta" / "info.json").read_text() == "{}"
    assert list(target.parent.iterdir()) == [target]


def test_a_failure_leaves_nothing(tmp_path):
    def write_half():
        with staged(tmp_path / "dataset") as folder:
            (folder / "file").write_text("x")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        write_half()
    assert list(tmp_path.iterdir()) == []


def test_something_at_the_target_is_never_touched(tmp_path):
    target = tmp_path / "dataset"
    target.mkdir()
    (target / "mine").write_text("keep")
    with pytest.raises(TargetExistsError, match="already something"), staged(target):
        pytest.fail("the block must not run")
    assert (target / "mine").read_text() == "keep"
    (tmp_path / "file").write_text("keep")
    with pytest.raises(TargetExistsError, match="a file"), staged(tmp_path / "file"):
        pytest.fail("the block must not run")


def test_a_target_that_appears_meanwhile_wins(tmp_path):
    target = tmp_path / "dataset"

    def write_slowly():
        with staged(target) as folder:
            (folder / "ours").write_text("x")
            target.mkdir()
            (target / "theirs").write_text("x")

    with pytest.raises(TargetExistsError):
        write_slowly()
    assert [path.name for path in tmp_path.rglob("*")] == ["dataset", "theirs"]


def test_an_empty_folder_may_be_the_target(tmp_path):
    target = tmp_path / "dataset"
    target.mkdir()
    with staged(target) as folder:
        (folder / "file").write_text("x")
    assert (target / "file").exists()


def test_two_writers_to_one_target_do_not_mix(tmp_path):
    target = tmp_path / "dataset"

    def write_both():
        with staged(target) as first, staged(target) as second:
            (first / "a").write_text("1")
            (second / "b").write_text("2")

    with pytest.raises(TargetExistsError):
        write_both()
    assert [path.name for path in target.iterdir()] == ["b"]
    assert list(tmp_path.iterdir()) == [target]


def test_every_file_and_folder_is_synced_before_the_rename(tmp_path, monkeypatch):
    events = []
    monkeypatch.setattr(atomic, "sync_path", lambda path: events.append(Path(path).name))
    rename = os.rename
    monkeypatch.setattr(os, "rename", lambda a, b: (events.append("RENAME"), rename(a, b)))
    with staged(tmp_path / "dataset") as folder:
        (folder / "data").mkdir()
        (folder / "data" / "file").write_text("x")
    before = events[: events.index("RENAME")]
    assert before == ["file", "data", folder.name]
    assert events[-1] == tmp_path.name


def test_the_result_has_the_usual_permissions(tmp_path):
    with staged(tmp_path / "dataset") as folder:
        pass
    write_file(tmp_path / "file", b"")
    plain = tmp_path / "plain"
    plain.mkdir()
    (tmp_path / "plainfile").touch()
    assert (tmp_path / "dataset").stat().st_mode == plain.stat().st_mode
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plainfile").stat().st_mode
    assert not folder.exists()


def test_a_killed_writer_leaves_no_target(tmp_path):
    script = """
        import sys, time
        from demoreel.storage.commit.staging import staged
        with staged(sys.argv[1]) as folder:
            (folder / "file").write_text("x")
            print("ready", flush=True)
            time.sleep(60)
    """
    target = tmp_path / "dataset"
    command = [sys.executable, "-c", textwrap.dedent(script), str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout.readline() == "ready\n"
        writer.send_signal(signal.SIGKILL)
    assert not target.exists()
    assert all(path.name.startswith(".") for path in tmp_path.iterdir())


def test_write_file_replaces_at_once(tmp_path):
    path = tmp_path / "info.json"
    write_file(path, b"old")
    inode = path.stat().st_ino
    write_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_ino != inode  # a new file under the old name, not the old one rewritten
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_file_keeps_the_old_bytes(tmp_path, monkeypatch):
    path = tmp_path / "info.json"
    write_file(path, b"old")

    def full(handle):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_readers_never_see_half_a_file(tmp_path):
    path = tmp_path / "numbers"
    contents = [bytes([number]) * 50_000 for number in range(20)]
    write_file(path, contents[0])
    script = """
        import sys, time
        print("ready", flush=True)
        while True:
            time.sleep(0.0005)  # leave the writer a core
            data = open(sys.argv[1], "rb").read()
            assert len(data) == 50000 and len(set(data)) == 1, "half a file"
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout.readline() == "ready\n"
        for content in contents:
            write_file(path, content)
            time.sleep(0.005)
        still_content = reader.poll() is None
        reader.kill()
    assert still_content
