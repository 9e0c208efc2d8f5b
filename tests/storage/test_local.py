"""Files are read by position, by many threads and processes, through few handles."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from demoreel.storage import local
from demoreel.storage.local import LocalFile, let_go_of, open_file

DATA = random.Random(0).randbytes(10_000)

needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts /proc/self/fd")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return path


def open_handles():
    return len(os.listdir("/proc/self/fd"))


def in_child(work):
    """Run ``work`` in a forked child; return whether it ended well within a minute."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(60)
            work()
            status = 0
        finally:
            os._exit(status)
    return child


def ended_well(child):
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(-5, 12_000), st.integers(-5, 12_000))
def test_any_position_and_length(path, offset, length):
    file = open_file(path)
    expected = DATA[offset : offset + length] if offset >= 0 and length > 0 else b""
    assert file.read(offset, length) == expected


def test_what_is_known_of_a_file(path):
    file = open_file(path)
    assert file.size == len(DATA)
    assert file.path == str(path)
    assert open_file(path) is file
    assert open_file(str(path)) is file
    assert not os.get_inheritable(file._handle)


@needs_proc
def test_three_hundred_files_through_few_handles(tmp_path, request):
    """A quarter of those that the process may have, and 256 at most."""
    import resource

    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    request.addfinalizer(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, allowed))
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, allowed[1]))
    for number in range(300):
        (tmp_path / str(number)).write_bytes(b"%d" % number * 10)
    before = open_handles()
    order = random.Random(1).choices(range(300), k=1500)
    for number in [*range(300), *order]:
        assert open_file(tmp_path / str(number)).read(0, 1000) == b"%d" % number * 10
        assert open_handles() <= before + 128
    # The most recent ones are the ones that stay.
    recent = open_file(tmp_path / str(order[-1]))
    assert open_file(tmp_path / str(order[-1])) is recent


def test_a_file_in_use_survives_being_forgotten(tmp_path):
    for number in range(300):
        (tmp_path / str(number)).write_bytes(b"%d" % number)
    held = open_file(tmp_path / "0")
    for number in range(1, 300):
        open_file(tmp_path / str(number))
    assert held.read(0, 10) == b"0"
    assert open_file(tmp_path / "0") is not held


@needs_proc
def test_handles_close_with_their_last_reader(path):
    before = open_handles()
    file = LocalFile(str(path))
    assert open_handles() == before + 1
    del file
    assert open_handles() == before


def test_a_replaced_file_is_another_file(path, tmp_path):
    old = open_file(path)
    (tmp_path / "new").write_bytes(b"new")
    os.replace(tmp_path / "new", path)
    assert open_file(path).read(0, 10) == b"new"
    assert old.read(0, 10) == DATA[:10]
    path.unlink()
    with pytest.raises(FileNotFoundError):
        open_file(path)
    assert old.read(0, 10) == DATA[:10]


def test_a_file_that_shrinks_gives_fewer_bytes(path):
    file = open_file(path)
    os.truncate(path, 100)
    assert file.read(0, 10_000) == DATA[:100]
    assert file.read(5_000, 100) == b""
    assert open_file(path).size == 100


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / "none")


def check_reads(file, seed, rounds=2_000):
    rng = random.Random(seed)
    for _ in range(rounds):
        offset, length = rng.randrange(10_000), rng.randrange(1, 500)
        assert file.read(offset, length) == DATA[offset : offset + length]


def test_threads_share_a_file(path):
    failures = []

    def work(seed):
        try:
            check_reads(open_file(path), seed)
        except BaseException as error:  # a thread's assertion is otherwise lost
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@needs_fork
def test_a_forked_child_reads_while_its_parent_does(path):
    """They share the handle, so a read that moved its position would disturb the other."""
    file = open_file(path)
    children = [
        in_child(lambda seed=seed: (check_reads(file, seed), check_reads(open_file(path), seed)))
        for seed in range(3)
    ]
    check_reads(file, 99, rounds=6_000)
    assert [ended_well(child) for child in children] == [True, True, True]


@needs_fork
def test_a_lock_that_was_held_at_the_fork_does_not_stop_the_child(path):
    open_file(path)
    with local._pool._lock:
        child = in_child(lambda: check_reads(open_file(path), 0, rounds=10))
    assert ended_well(child)


@needs_fork
@needs_proc
def test_a_forked_child_begins_with_no_files_of_its_parent(tmp_path):
    for number in range(60):
        (tmp_path / str(number)).write_bytes(b"x")
        open_file(tmp_path / str(number))

    def work():
        inherited = open_handles()
        assert not local._pool._files
        for number in range(60):
            open_file(tmp_path / str(number)).read(0, 1)
        assert open_handles() <= inherited + 60

    assert ended_well(in_child(work))


@needs_proc
def test_a_folder_is_let_go_of(path, tmp_path):
    beside = tmp_path.with_name(f"{tmp_path.name}-more") / "file"
    beside.parent.mkdir()
    beside.write_bytes(DATA)
    held = open_file(path)
    open_file(beside)
    let_go_of(tmp_path)
    assert held.read(0, 10) == DATA[:10]  # who still reads goes on
    del held
    handles = {os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()}
    assert os.path.realpath(path) not in handles
    assert os.path.realpath(beside) in handles


def test_a_pipe_in_a_files_place_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    before = open_handles()
    with pytest.raises(OSError, match="no regular file"):
        open_file(tmp_path / "pipe")
    with pytest.raises(OSError, match="no regular file"):
        local.refuse_special("/dev/zero")
    assert open_handles() == before
