"""Commits of many files: whole or absent, whatever stops them."""

from __future__ import annotations

import errno
import json
import operator
import os
import shutil
import subprocess
import sys
import zlib
from contextlib import suppress
from functools import partial
from itertools import count

import pytest

from demoreel.errors import DatasetBusyError, MetadataError, UnfinishedError, UnsafePathError
from demoreel.storage.commit import journal
from demoreel.storage.commit.consistent import consistent_read, finish_commit
from demoreel.storage.commit.journal import (
    carry_out,
    clear_staging,
    is_in_place,
    is_pending,
    roll_back,
    roll_forward,
    transaction,
)
from demoreel.storage.commit.writer_lock import WriterLock
from support.disk_faults import failing
from support.power_cut import watch


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "dataset"
    (folder / "meta").mkdir(parents=True)
    (folder / "meta" / "info.json").write_text("old")
    (folder / "meta" / "gone").write_text("goes")
    return folder


def change(root, *, record=True):
    with transaction(root) as changes:
        changes.new("data/chunk-000/a").write_text("new")
        changes.delete("meta/gone")
        changes.new("meta/info.json").write_text("fresh")
        if record:
            changes.record()
    return changes


def state(root):
    found = {
        path.relative_to(root).as_posix(): path.read_text()
        for path in root.rglob("*")
        if path.is_file() and ".demoreel" not in path.parts
    }
    return "old" if found == OLD else "new" if found == NEW else found


OLD = {"meta/info.json": "old", "meta/gone": "goes"}
NEW = {"meta/info.json": "fresh", "data/chunk-000/a": "new"}


def test_a_reader_is_not_misled_by_a_commit_that_follows(root, monkeypatch):
    """It has read the record of one commit when the writer makes the next."""
    with WriterLock(root):
        change(root)
        read = journal._read

        def overtaken(at):
            monkeypatch.setattr(journal, "_read", read)
            found = read(at)
            roll_forward(root)
            with transaction(root) as changes:
                changes.new("meta/info.json").write_text("fresher")
                changes.record()
            roll_forward(root)
            return found

        monkeypatch.setattr(journal, "_read", overtaken)
        assert is_in_place(root)
        change(root)
        (root / ".demoreel").joinpath(*_staged(root)).write_text("damaged")
        with pytest.raises(MetadataError, match="not as it was written"):
            is_in_place(root)


def _staged(root):
    (folder,) = (root / ".demoreel").glob("staging-*")
    return folder.name, sorted(os.listdir(folder))[0]


def test_a_commit_happens_wholly_or_not_at_all(root):
    with WriterLock(root):
        change(root, record=False)
        assert state(root) == "old"
        assert not any((root / ".demoreel").glob("staging-*"))
        change(root)
        assert is_pending(root)
        assert state(root) == "old"
        assert roll_forward(root)
        assert state(root) == "new"
        assert not is_pending(root)
        assert not roll_forward(root)


@pytest.mark.parametrize("taken", range(3))
def test_steps_that_were_taken_are_passed_over(root, taken):
    with WriterLock(root):
        changes = change(root)
        steps = [
            lambda: (
                (root / "data/chunk-000/a").write_bytes((changes.folder / "0000").read_bytes())
                and (changes.folder / "0000").unlink()
            ),
            lambda: (root / "meta/gone").unlink(),
            lambda: os.replace(changes.folder / "0002.json", root / "meta/info.json"),
        ]
        for step in steps[: taken + 1]:
            step()
        assert roll_forward(root)
        assert state(root) == "new"


def test_every_state_that_a_power_cut_may_leave_is_old_or_new(root, tmp_path):
    lock = WriterLock(root)
    with watch(root) as cuts:
        change(root)
        roll_forward(root)
        last = cuts.last
    lock.release()
    found = []
    for number, left in enumerate([*cuts.states, last]):
        folder = cuts.build(left, tmp_path / str(number))
        finish_commit(folder)
        found.append(consistent_read(folder, lambda folder=folder: state(folder)))
    assert set(found) == {"old", "new"}
    assert found[-1] == "new"


def test_putting_in_place_leaves_only_old_or_new_states(root, tmp_path):
    lock = WriterLock(root)
    durable = set()
    with watch(root) as cuts:
        changes = change(root)
        changes.put_in_place()
        assert state(root) == "new"
        early = cuts.last
        changes.settle(durable)
        last = cuts.last
    lock.release()
    assert state(root) == "new"
    assert not is_pending(root)
    assert not any((root / ".demoreel").glob("staging-*"))
    found = []
    for number, left in enumerate([*cuts.states, early, last]):
        folder = cuts.build(left, tmp_path / str(number))
        finish_commit(folder)
        found.append(consistent_read(folder, lambda folder=folder: state(folder)))
    assert set(found) == {"old", "new"}
    assert found[-2:] == ["new", "new"]


def test_what_readers_see_of_a_commit_after_a_power_cut_is_old_or_new_or_an_error(root, tmp_path):
    lock = WriterLock(root)
    with watch(root) as cuts:
        change(root).put_in_place()
        last = cuts.last
    lock.release()
    found = []
    for number, left in enumerate([*cuts.states, last]):
        folder = cuts.build(left, tmp_path / str(number))
        before = sorted((p, p.lstat().st_mtime_ns) for p in folder.rglob("*"))
        try:
            found.append(consistent_read(folder, lambda folder=folder: state(folder)))
        except UnfinishedError:
            found.append("half")
        assert sorted((p, p.lstat().st_mtime_ns) for p in folder.rglob("*")) == before
    assert set(found) == {"old", "half", "new"}
    assert found[-1] == "half"  # renames were not forced to disk: what was saved is not hidden


def add_file(root, name, durable):
    """Commit one file; return the folders that were forced to disk when it was put in place."""
    with transaction(root) as changes:
        changes.new(name).write_text("new")
        changes.record()
    forced = []
    with watch(root) as cuts:
        original = os.fsync

        def note(handle):
            forced.append(os.readlink(f"/proc/self/fd/{handle}"))
            original(handle)

        os.fsync = note
        try:
            changes.put_in_place()
            changes.settle(durable)
        finally:
            os.fsync = original
        assert (cuts.last or {}).get(name) == b"new"
    return {os.path.relpath(path, root) for path in forced}


def test_folders_that_are_on_disk_are_not_forced_again(root):
    durable = set()
    with WriterLock(root):
        assert add_file(root, "data/chunk-000/a", durable) == {"data/chunk-000", "data", "."}
        assert add_file(root, "data/chunk-000/b", durable) == {"data/chunk-000"}
        assert add_file(root, "data/chunk-001/a", durable) == {"data/chunk-001", "data", "."}


def test_a_folder_of_a_commit_that_failed_is_forced_with_those_above_it(root):
    """It is unknown whether its entry is on disk."""
    (root / "data" / "chunk-000").mkdir(parents=True)
    with WriterLock(root):
        assert add_file(root, "data/chunk-000/a", set()) == {"data/chunk-000", "data", "."}


def test_a_folder_that_was_removed_and_made_again_is_forced(root):
    durable = set()
    with WriterLock(root):
        add_file(root, "data/chunk-000/a", durable)
        (root / "data/chunk-000/a").unlink()
        (root / "data/chunk-000").rmdir()
        assert add_file(root, "data/chunk-000/a", durable) == {"data/chunk-000", "data"}


def test_what_was_forced_before_is_not_forced_again(root):
    with WriterLock(root), transaction(root) as changes:
        changes.new("data/a").write_text("new")
        with watch(root) as cuts:
            changes.force()
            assert [event.split()[0] for event in cuts.events] == ["fsync"]
            changes.new("data/b").write_text("new")
            changes.record()
        # The other file, the staging folder, the record and its folder.
        assert [event.split()[0] for event in cuts.events].count("fsync") == 1 + 4
        roll_forward(root)


def test_a_forked_child_commits_too(root):
    """Its parent's threads are not there to force anything to disk."""
    with WriterLock(root):
        change(root)
        roll_forward(root)
    child = os.fork()
    if child == 0:
        with WriterLock(root), transaction(root) as changes:
            changes.new("data/b").write_text("of the child")
            changes.record()
            changes.put_in_place()
            changes.settle(set())
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (root / "data" / "b").read_text() == "of the child"


def test_contents_come_before_the_record_and_the_record_before_the_steps(root):
    with WriterLock(root), watch(root) as cuts:
        change(root)
        roll_forward(root)
    names = [event.split()[0] for event in cuts.events]
    commit = names.index("rename")
    # Two files and their folder, then the record itself; its folder after the rename.
    assert names[:commit].count("fsync") == 4
    assert names[commit + 1] == "fsync"
    assert not {"replace", "unlink"} & set(names[:commit])
    removal = next(n for n, e in enumerate(cuts.events) if "unlink" in e and "journal.json" in e)
    last_step = max(n for n, name in enumerate(names[:removal]) if name in ("replace", "unlink"))
    folders = {root, root / "meta", root / "data", root / "data/chunk-000"}
    assert names[last_step:removal].count("fsync") >= len(folders)


def test_a_commit_that_does_not_fit_is_undone(root):
    with WriterLock(root):
        with transaction(root) as changes:
            changes.new("data/chunk-000/a").write_text("new")
            changes.new("meta/info.json").write_text("fresh")
            changes.record()
        os.replace(changes.folder / "0000", root / "data/chunk-000/a")
        assert roll_back(root)
        assert state(root) == "old"
        assert not is_pending(root)


@pytest.mark.parametrize("taken", range(4))
def test_what_was_replaced_or_deleted_is_undone(root, taken):
    with WriterLock(root):
        changes = change(root)
        changes._steps = changes._steps[:taken]
        changes.put_in_place()
        assert roll_back(root)
        assert state(root) == "old"
        assert not any((root / ".demoreel").glob("staging-*"))


def test_without_second_names_a_commit_can_only_be_completed(root, monkeypatch):
    monkeypatch.setattr(os, "link", no_links)
    with WriterLock(root):
        change(root).put_in_place()
        assert not roll_back(root)
        assert roll_forward(root)
        assert state(root) == "new"


def no_links(*_):
    raise PermissionError(errno.EPERM, "no links here")


@pytest.mark.parametrize("healed", ["undone", "completed"])
def test_a_disk_that_fails_anywhere_leaves_a_commit_that_can_be_resolved(root, healed):
    """Whatever fails, for once or for good: the commit is undone, done, or either can be had."""
    with WriterLock(root):
        for number in count():
            for lasting in (False, True):
                fails = partial(operator.le if lasting else operator.eq, number)
                with failing(root, lambda place, *_, f=fails: f(place)) as disk:
                    done = False
                    with suppress(OSError):
                        change(root)
                        carry_out(root)
                        done = True
                if not is_pending(root):
                    assert state(root) == ("new" if done else "old"), disk.failed
                elif healed == "undone":
                    assert roll_back(root)
                    assert state(root) == "old"
                else:
                    assert roll_forward(root)
                    assert state(root) == "new"
                clear_staging(root)
                if not disk.failed:
                    return
                start_over(root)


def start_over(root):
    shutil.rmtree(root / "data", ignore_errors=True)
    for name, text in OLD.items():
        (root / name).write_text(text)


def test_a_file_that_the_disk_lost_is_an_error(root):
    with WriterLock(root):
        changes = change(root)
        (changes.folder / "0000").write_text("else")
        with pytest.raises(MetadataError, match="not as it was written"):
            roll_forward(root)
        assert state(root) == "old"


@pytest.mark.parametrize("final", ["/etc/passwd", "../outside", "data/../../outside", ""])
def test_a_strangers_record_stays_inside_the_dataset(root, final):
    (root / ".demoreel").mkdir()
    content = json.dumps({"staging": "staging-0123456789ab", "steps": [[final, None, 0, 0, False]]})
    record = {"format": 1, "check": zlib.crc32(content.encode()), "content": content}
    (root / ".demoreel" / "journal.json").write_text(json.dumps(record))
    (root.parent / "outside").write_text("precious")
    with pytest.raises(MetadataError, match="cannot be used"):
        consistent_read(root, lambda: None)
    assert (root.parent / "outside").exists()


@pytest.mark.parametrize("staged", [None, "0000.txt"])
def test_a_strangers_record_does_not_follow_links_out(root, staged):
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "precious").write_text("mine")
    (root / "away").symlink_to(outside)
    staging = root / ".demoreel" / "staging-0123456789ab"
    staging.mkdir(parents=True)
    (staging / "0000.txt").write_text("evil")
    steps = [["away/precious", staged, 4, zlib.crc32(b"evil"), True]]
    content = json.dumps({"staging": staging.name, "steps": steps})
    record = {"format": 1, "check": zlib.crc32(content.encode()), "content": content}
    (root / ".demoreel" / "journal.json").write_text(json.dumps(record))
    with pytest.raises(MetadataError, match="leads out of the dataset"):
        consistent_read(root, lambda: None)
    assert (outside / "precious").read_text() == "mine"


def test_a_lock_does_not_follow_links_out(root):
    outside = root.parent / "outside"
    outside.write_text("precious")
    (root / ".demoreel").mkdir()
    (root / ".demoreel" / "lock").symlink_to(outside)
    with pytest.raises(UnsafePathError, match="no file"):
        WriterLock(root)
    assert outside.read_text() == "precious"
    (root / ".demoreel" / "lock").unlink()
    (root / ".demoreel").rmdir()
    folder = root.parent / "folder"
    folder.mkdir()
    (root / ".demoreel").symlink_to(folder)
    with pytest.raises(UnsafePathError):
        WriterLock(root)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 1, "check": 0, "content": "{}"}'])
def test_a_damaged_record_is_an_error(root, text):
    (root / ".demoreel").mkdir()
    (root / ".demoreel" / "journal.json").write_text(text)
    with pytest.raises(MetadataError, match="cannot be used"):
        consistent_read(root, lambda: None)


@pytest.mark.parametrize("kind", ["pipe", "huge", "deep"])
def test_a_record_that_has_no_end_is_an_error(root, kind):
    """For readers and for the next writer alike."""
    (root / ".demoreel").mkdir()
    path = root / ".demoreel" / "journal.json"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b"[" * 200_000)
    if kind == "huge":
        os.truncate(path, 1 << 33)  # of which the disk holds little
    for use in (lambda: consistent_read(root, lambda: None), lambda: finish_commit(root)):
        with pytest.raises(MetadataError, match="cannot be used"):
            use()


def test_readers_do_not_finish_what_a_dead_writer_began(root):
    with WriterLock(root):
        change(root)
    with pytest.raises(UnfinishedError, match="demoreel finish"):
        consistent_read(root, lambda: state(root))
    assert state(root) == "old"
    assert finish_commit(root)
    assert consistent_read(root, lambda: state(root)) == "new"
    assert not finish_commit(root)


def test_a_record_that_names_a_pipe_keeps_nobody(root):
    os.mkfifo(root / "meta" / "pipe")
    content = json.dumps(
        {"staging": "staging-0123456789ab", "steps": [["meta/pipe", "0000", 1, 1]]}
    )
    record = {"format": 1, "check": zlib.crc32(content.encode()), "content": content}
    (root / ".demoreel").mkdir()
    (root / ".demoreel" / "journal.json").write_text(json.dumps(record))
    with pytest.raises(MetadataError, match="not as it was written"):
        consistent_read(root, lambda: None)


def test_readers_wait_for_a_living_writer(root):
    with WriterLock(root):
        change(root)
        with pytest.raises(DatasetBusyError, match="stands still"):
            consistent_read(root, lambda: state(root), patience_s=0.05)
        assert state(root) == "old"


def test_a_commit_in_the_middle_of_reading_is_noticed(root):
    (root / ".demoreel").mkdir()
    seen = []

    def read():
        seen.append((root / "meta" / "info.json").read_text())
        if len(seen) == 1:
            with WriterLock(root):
                change(root)
                roll_forward(root)
            raise FileNotFoundError("half of it was gone")
        return seen[-1]

    assert consistent_read(root, read) == "fresh"
    assert seen == ["old", "fresh"]


def test_errors_in_reading_are_those_of_the_dataset(root):
    with pytest.raises(KeyError):
        consistent_read(root, lambda: {}["missing"])


def test_one_writer_at_a_time(root):
    with WriterLock(root) as lock:
        lock.sign()
        with pytest.raises(DatasetBusyError, match=f"process {os.getpid()} on "):
            WriterLock(root, patience_s=0)
    with WriterLock(root):
        pass


def test_a_lock_ends_with_its_process(root):
    code = (
        "import sys, pathlib; from demoreel.storage.commit.writer_lock import WriterLock;"
        "lock = WriterLock(pathlib.Path(sys.argv[1])); print('held', flush=True); input()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(root)], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    assert process.stdout.readline() == b"held\n"
    with pytest.raises(DatasetBusyError):
        WriterLock(root, patience_s=0)
    process.kill()
    process.wait()
    WriterLock(root).release()


def test_a_forked_child_does_not_keep_the_lock(root):
    lock = WriterLock(root)
    handle = lock._handle
    child = os.fork()
    if child == 0:
        try:
            os.fstat(handle)
        except OSError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with pytest.raises(DatasetBusyError):
        WriterLock(root, patience_s=0)
    lock.release()
    WriterLock(root, patience_s=0).release()


def test_the_last_one_takes_the_folder_away(root):
    lock = WriterLock(root)
    (root / ".demoreel" / "other").write_text("somebody's")
    lock.release(remove=True)
    assert (root / ".demoreel" / "other").exists()
    (root / ".demoreel" / "other").unlink()
    WriterLock(root).release(remove=True)
    assert not (root / ".demoreel").exists()


def test_staging_that_was_never_recorded_is_cleared(root):
    with WriterLock(root):
        (root / ".demoreel" / "staging-0123456789ab").mkdir()
        (root / ".demoreel" / "staging-of-someone-else").mkdir()
        clear_staging(root)
    left = {path.name for path in (root / ".demoreel").glob("staging-*")}
    assert left == {"staging-of-someone-else"}


def test_files_are_taken_without_copying_where_the_disk_can(root, tmp_path):
    source = tmp_path / "video.mp4"
    source.write_bytes(b"packets")
    with WriterLock(root):
        with transaction(root) as changes:
            changes.take(source, "videos/a.mp4")
            changes.record()
        roll_forward(root)
    assert (root / "videos" / "a.mp4").samefile(source)


def test_large_files_are_checked_at_both_ends(tmp_path):
    path = tmp_path / "large"
    path.write_bytes(bytes(300_000))
    before = journal._check_sum(path)
    for place in (0, 299_999):
        changed = bytearray(300_000)
        changed[place] = 1
        path.write_bytes(changed)
        assert journal._check_sum(path) != before
