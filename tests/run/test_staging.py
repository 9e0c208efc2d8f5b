"""The hidden folder: notes that count only with their files, one commit, locks."""

from __future__ import annotations

import errno
import shutil

import pytest

import demoreel.storage.commit.staging as staging_module
from demoreel.errors import DatasetBusyError, DiskFullError, TargetExistsError
from demoreel.storage.commit.files import write_whole
from demoreel.storage.commit.staging import Staging, forget, refuse_small_disk, staging, was_made

PRINT = "0123456789abcdef"


def write_info(stage: Staging, text: str) -> None:
    (stage.dataset / "meta").mkdir()
    (stage.dataset / "meta" / "info.json").write_text(text)


def test_a_commit_is_a_rename(tmp_path):
    with staging(tmp_path / "a" / "out", kind="cut", fingerprint=PRINT) as stage:
        assert stage.folder.name == ".out.cut-0123456789ab"
        write_info(stage, "x")
        assert not (tmp_path / "a" / "out").exists()
        stage.commit()
    assert (tmp_path / "a" / "out" / "meta" / "info.json").read_text() == "x"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["out"]


def test_what_is_made_is_remembered_until_it_is_forgotten(tmp_path):
    out, work = tmp_path / "out", {"kind": "cut", "fingerprint": PRINT}
    with staging(out, **work, remember=True) as stage:
        stage.note("one", {"files": {}})
        write_info(stage, "x")
        stage.commit()
    for _ in range(2):
        assert was_made(out, **work)
        with staging(out, **work, remember=True) as stage:
            assert stage.committed
    assert not was_made(out, kind="cut", fingerprint="another")
    with pytest.raises(TargetExistsError), staging(out, kind="cut", fingerprint="another"):
        pass
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(
        ["out", "meta", "info.json", ".out.cut-0123456789ab", "lock", "made.json"]
    )
    forget(out, **work)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert not was_made(out, **work)


def test_nothing_is_forgotten_that_another_is_at(tmp_path):
    out, work = tmp_path / "out", {"kind": "cut", "fingerprint": PRINT}
    with staging(out, **work, remember=True) as stage:
        write_info(stage, "x")
        stage.commit()
    with staging(out, **work, remember=True):
        forget(out, **work)
        assert stage.folder.is_dir()
    shutil.rmtree(out)
    with staging(out, **work) as stage:
        stage.note("one", {"files": {}})
        stage.settle()
        forget(out, **work)
        assert stage.done("one") == {"files": {}}
        write_info(stage, "y")
        stage.commit()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_someone_was_faster(tmp_path, monkeypatch):
    """Between a look at the target and the lock, another has committed, or has begun again."""
    out, work = tmp_path / "out", {"kind": "cut", "fingerprint": PRINT}
    lock = staging_module.lock_folder

    def after(change):
        def change_and_lock(folder, target, **options):
            change()
            return lock(folder, target, **options)

        monkeypatch.setattr(staging_module, "lock_folder", change_and_lock)

    def write_other() -> None:
        out.mkdir()
        (out / "other").write_text("")

    after(write_other)
    with pytest.raises(TargetExistsError), staging(out, **work, shared=True):
        raise AssertionError("not to be reached")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    monkeypatch.undo()
    shutil.rmtree(out)
    with staging(out, **work, remember=True) as stage:
        write_info(stage, "x")
        stage.commit()
    after(lambda: shutil.rmtree(out))
    forget(out, **work)
    assert stage.folder.is_dir()


def test_of_other_work_the_result_is_not_taken(tmp_path):
    out, work = tmp_path / "out", {"kind": "cut", "fingerprint": PRINT}
    with staging(out, **work, work="this", remember=True) as stage:
        write_info(stage, "x")
        stage.commit()
    assert was_made(out, **work, work="this")
    assert not was_made(out, **work, work="that")
    with pytest.raises(TargetExistsError), staging(out, **work, work="that"):
        pass
    assert was_made(out, **work, work="this")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full")])
def test_what_cannot_go_on_does_not_stay(tmp_path, error):
    out, work = tmp_path / "out", {"kind": "cut", "fingerprint": PRINT}
    with (
        pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else DiskFullError),
        staging(out, **work, resumable=False),
    ):
        raise error
    assert list(tmp_path.iterdir()) == []


def test_what_was_changed_is_not_what_was_made(tmp_path):
    out, work = tmp_path / "out", {"kind": "cut", "fingerprint": PRINT}
    with staging(out, **work, remember=True) as stage:
        write_info(stage, "x")
        stage.commit()
    (out / "meta" / "info.json").write_text("y")
    assert not was_made(out, **work)
    with pytest.raises(TargetExistsError), staging(out, **work):
        pass
    (out / "meta" / "info.json").unlink()
    assert not was_made(out, **work)


def test_without_a_commit_nothing_stays(tmp_path):
    with staging(tmp_path / "a" / "out", kind="cut", fingerprint=PRINT):
        pass
    with pytest.raises(ZeroDivisionError), staging(tmp_path / "b", kind="x", fingerprint=PRINT):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full")])
def test_what_can_go_on_stays(tmp_path, error):
    def work() -> None:
        with staging(tmp_path / "out", kind="cut", fingerprint=PRINT) as stage:
            stage.note("one", {"files": {}})
            raise error

    with pytest.raises((KeyboardInterrupt, DiskFullError)):
        work()
    with staging(tmp_path / "out", kind="cut", fingerprint=PRINT) as stage:
        assert stage.done("one") == {"files": {}}
        assert stage.done("two") is None


def test_a_note_counts_with_its_files_only(tmp_path):
    with staging(tmp_path / "out", kind="cut", fingerprint=PRINT) as stage:
        (stage.dataset / "data").write_bytes(b"1234")
        stage.note("task", {"files": {"dataset/data": 4}})
        stage.settle()
        assert stage.done("task")
        (stage.dataset / "data").write_bytes(b"123")
        assert stage.done("task") is None
        (stage.dataset / "data").unlink()
        assert stage.done("task") is None
        (stage.folder / "notes" / "task.json").write_text("{")
        assert stage.done("task") is None


def test_alone_or_together(tmp_path):
    with staging(tmp_path / "out", kind="cut", fingerprint=PRINT, shared=True):
        with staging(tmp_path / "out", kind="cut", fingerprint=PRINT, shared=True):
            pass
        with (
            pytest.raises(DatasetBusyError),
            staging(tmp_path / "out", kind="cut", fingerprint=PRINT),
        ):
            pass
    with staging(tmp_path / "out", kind="cut", fingerprint=PRINT) as stage:
        assert stage.folder.is_dir()


def test_a_target_that_appears_meanwhile(tmp_path):
    def work() -> None:
        with staging(tmp_path / "out", kind="cut", fingerprint=PRINT) as stage:
            (tmp_path / "out").mkdir()
            (tmp_path / "out" / "mine").write_text("x")
            stage.commit()

    with pytest.raises(TargetExistsError):
        work()
    assert (tmp_path / "out" / "mine").read_text() == "x"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_small_disk(tmp_path):
    refuse_small_disk(tmp_path / "a" / "b", 1)
    with pytest.raises(DiskFullError, match="are needed"):
        refuse_small_disk(tmp_path / "a" / "b", 1 << 60)


def test_a_file_is_whole_or_absent(tmp_path):
    write_whole(tmp_path / "a" / "file", lambda path: path.write_text("x") and None)
    assert (tmp_path / "a" / "file").read_text() == "x"

    def fail(path):
        path.write_text("half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_whole(tmp_path / "a" / "other", fail)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["file"]
