"""Scratch folders are shared by processes, and removed by the last one, or by the next one."""

from __future__ import annotations

import errno
import gc
import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from demoreel.edit.features import kept
from demoreel.errors import DiskFullError
from demoreel.storage import scratch
from demoreel.storage.scratch import Scratch, scratch_folder, scratch_home

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give folders away")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DEMOREEL_SCRATCH", str(tmp_path))
    return tmp_path / f"demoreel-{os.getuid()}"


class Process:
    """Another process with a scratch folder; tells when it has it, ends when told."""

    def __init__(self, script="", identity="data"):
        code = f"""
            import os, sys
            from demoreel.storage.scratch import Scratch
            scratch = Scratch({identity!r})
            {script}
            print(scratch.folder, flush=True)
            sys.stdin.readline()
        """
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        line = self.process.stdout.readline().strip()
        assert line, "the process did not get its folder"
        self.folder = Path(line)

    def end(self):
        self.process.communicate("\n", timeout=60)
        assert self.process.returncode == 0

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=60)


def test_the_place(home, monkeypatch):
    assert scratch_home() == home
    monkeypatch.delenv("DEMOREEL_SCRATCH")
    assert scratch_home().name == home.name


def test_equal_identities_share_a_folder():
    one, two, other = Scratch("a", 1), Scratch("a", 1), Scratch("a", 2)
    assert one.folder == two.folder != other.folder
    (one.folder / "file").write_text("x")
    one.close()
    assert (two.folder / "file").read_text() == "x"
    two.close()
    assert not two.folder.exists()
    assert other.folder.is_dir()
    other.close()
    other.close()


def test_only_the_user_may_look_inside(home):
    mine = Scratch("a")
    assert home.stat().st_mode & 0o777 == 0o700
    assert mine.folder.stat().st_mode & 0o777 == 0o700


def test_forgetting_the_object_is_leaving(home):
    mine = Scratch("a")
    folder = mine.folder
    del mine
    gc.collect()
    assert not folder.exists()
    assert list(home.iterdir()) == []


def test_two_processes_share_and_the_last_one_removes(home):
    first = Process("(scratch.folder / 'file').write_text('from the first')")
    second = Process()
    mine = Scratch("data")
    assert first.folder == second.folder == mine.folder
    assert (mine.folder / "file").read_text() == "from the first"
    first.end()
    mine.close()
    assert (second.folder / "file").exists()
    second.end()
    assert list(home.iterdir()) == []


def test_what_a_killed_process_left_is_swept_by_the_next(home):
    killed = Process("(scratch.folder / 'file').write_text('x')")
    killed.kill()
    assert (killed.folder / "file").exists()
    other = Scratch("other data")
    assert not killed.folder.exists()
    assert list(home.iterdir()) == [other.folder]


def test_the_next_one_with_the_same_data_starts_anew():
    """What a killed process had half written must not be taken for whole."""
    killed = Process("(scratch.folder / 'filled').write_text('half')")
    killed.kill()
    mine = Scratch("data")
    assert mine.folder == killed.folder
    assert not (mine.folder / "filled").exists()


def test_folders_in_use_are_not_swept():
    other = Process("(scratch.folder / 'file').write_text('x')", identity="theirs")
    for _ in range(3):
        Scratch("mine").close()
    assert (other.folder / "file").exists()
    other.end()


def test_a_forked_child_that_ends_does_not_remove_it():
    mine = Scratch("a")
    child = os.fork()
    if child == 0:
        mine.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert mine.folder.is_dir()
    # The lock still holds too: a new one does not sweep it away.
    Scratch("b").close()
    assert mine.folder.is_dir()
    mine.close()
    assert not mine.folder.exists()


def test_a_forked_child_that_ends_the_usual_way(home):
    """With exit handlers and finalizers, as a multiprocessing worker does."""
    script = """
            import multiprocessing
            worker = multiprocessing.get_context("fork").Process(target=lambda: scratch.folder)
            worker.start(); worker.join()
            assert worker.exitcode == 0 and scratch.folder.is_dir()
    """
    process = Process(script.strip())
    assert process.folder.is_dir()
    process.end()
    assert list(home.iterdir()) == []


def test_a_child_that_outlives_its_parent_keeps_the_folder():
    script = """
            child = os.fork()
            if child == 0:
                os.close(1); sys.stdin.readline(); os._exit(0)
    """
    process = Process(script.strip())
    os.kill(process.process.pid, signal.SIGKILL)
    process.process.wait(timeout=60)
    (process.folder / "file").touch()
    Scratch("other").close()
    assert (process.folder / "file").exists()
    process.process.stdin.close()  # the child ends


def test_leftovers_of_an_interrupted_removal(home):
    """Killed between the renaming and the deleting, or before the lock was made."""
    Scratch("a").close()
    (home / "gone-1234").mkdir()
    (home / "gone-1234" / "0.column").write_text("x")
    Scratch("b").close()
    assert list(home.iterdir()) == []


def test_what_is_not_ours_by_name_is_left_alone(home):
    Scratch("a").close()
    (home / "precious").mkdir()
    (home / "precious" / "lock").touch()
    (home / "file").write_text("x")
    Scratch("a").close()
    assert (home / "precious" / "lock").exists()
    assert (home / "file").exists()


@as_root
def test_another_users_folder_is_refused(home):
    home.mkdir()
    os.chown(home, 12345, 12345)
    with pytest.raises(PermissionError, match="not a folder of this user"):
        Scratch("a")


def test_a_link_to_somewhere_else_is_refused(home, tmp_path):
    """Someone might point us at a folder of our own, to have us sweep in it."""
    precious = tmp_path / "precious"
    (precious / ("0" * 24)).mkdir(parents=True)
    (precious / ("0" * 24) / "lock").touch()
    home.symlink_to(precious)
    with pytest.raises(PermissionError, match="not a folder of this user"):
        Scratch("a")
    assert (precious / ("0" * 24) / "lock").exists()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_folder_that_others_may_write_to_is_refused(home, mode):
    home.mkdir()
    home.chmod(mode)
    with pytest.raises(PermissionError, match="other users"):
        Scratch("a")


def test_an_old_lock_says_nothing_about_a_new_folder():
    """A sweep that opened a lock just before the folder was removed, and made again by another."""
    first = Scratch("a")
    stale = os.open(first.folder / "lock", os.O_RDWR)
    first.close()
    second = Scratch("a")
    assert second.folder == first.folder
    scratch._remove_if_unused(second.folder, stale)
    os.close(stale)
    assert (second.folder / "lock").exists()


def test_coming_and_going_at_once():
    """Four processes come and go; the one that holds the folder finds it whole, or empty.

    A flag speaks of data. If one process removed the folder file by file while another moved in,
    the new one would find a flag without its data, or lose what it had just written.
    """
    script = """
        import sys
        from demoreel.storage.scratch import Scratch
        for round in range(400):
            scratch = Scratch("shared")
            flag = scratch.folder / "flag"
            data = [scratch.folder / f"data-{number}" for number in range(20)]
            if flag.exists():
                assert all(path.exists() for path in data), "a flag without its data"
            else:
                for path in data:
                    path.write_text("x")
                flag.write_text("x")
            own = scratch.folder / f"{sys.argv[1]}-{round}"
            own.touch()
            assert own.exists() and flag.exists(), "removed while in use"
            assert (scratch.folder / "lock").exists()
            scratch.close()
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    workers = [subprocess.Popen([*command, str(number)]) for number in range(4)]
    assert [worker.wait(timeout=120) for worker in workers] == [0, 0, 0, 0]


@pytest.fixture
def small_files():
    """A disk for files of 8 KiB: larger ones fail as on one that is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_temporary_disk_is_named(small_files):
    with pytest.raises(DiskFullError, match="DEMOREEL_SCRATCH"):
        kept(np.zeros(50_000))
    with pytest.raises(DiskFullError, match="temporary files"), scratch_folder() as folder:
        (folder / "large").write_bytes(bytes(100_000))
    assert not folder.exists()


def test_a_full_disk_elsewhere_is_not_blamed_on_temporary_files(tmp_path, monkeypatch):
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("DEMOREEL_SCRATCH", str(tmp_path / "scratch"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    with pytest.raises(OSError, match="elsewhere") as caught, scratch_folder():
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "elsewhere"))
    assert not isinstance(caught.value, DiskFullError)
