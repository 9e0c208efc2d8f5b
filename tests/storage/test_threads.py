"""Threads for transfers: as many as needed, gone with the process, let go by Ctrl-C."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import Future

import pytest

from demoreel.errors import StoreError
from demoreel.storage.threads import Interrupted, Threads, transfer


def test_results_and_errors():
    assert transfer(lambda: 3).result(20) == 3
    with pytest.raises(ZeroDivisionError):
        transfer(lambda: 1 / 0).result(20)


def test_no_more_threads_than_allowed_and_than_needed():
    threads = Threads(3, "some")
    names, go = set(), threading.Event()

    def work():
        names.add(threading.current_thread().name)
        go.wait(20)

    first = threads.submit(work)
    many = [threads.submit(work) for _ in range(20)]
    go.set()
    for future in (first, *many):
        future.result(20)
    assert names <= {"some-1", "some-2", "some-3"}
    quiet = Threads(3, "few")
    for _ in range(5):
        quiet.submit(lambda: None).result(20)
    assert quiet._started <= 2


def test_a_child_has_threads_of_its_own():
    blocked = threading.Event()
    futures = [transfer(lambda: blocked.wait(20)) for _ in range(40)]
    child = os.fork()
    if child == 0:
        threading.Timer(20, os._exit, [1]).start()
        os._exit(0 if transfer(lambda: 5).result(20) == 5 else 2)
    assert os.waitpid(child, 0)[1] == 0
    blocked.set()
    for future in futures:
        assert future.result(20)


def test_a_process_does_not_wait_for_them():
    program = (
        "import threading\n"
        "from demoreel.storage.threads import transfer\n"
        "transfer(threading.Event().wait)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_waiting_ends_when_somebody_gives_up():
    interrupted = Interrupted()
    mark = interrupted.mark()
    done: Future[int] = Future()
    done.set_result(1)
    interrupted.now()
    assert interrupted.wait_for(done, mark) == 1  # what is there is there
    with pytest.raises(StoreError, match="interrupted"):
        interrupted.wait_for(Future(), mark)
    later: Future[int] = Future()
    threading.Timer(0.3, later.set_result, [2]).start()
    assert interrupted.wait_for(later, interrupted.mark()) == 2


def test_a_transfer_that_itself_timed_out():
    failed: Future[int] = Future()
    failed.set_exception(TimeoutError("no answer"))
    with pytest.raises(TimeoutError, match="no answer"):
        Interrupted().wait_for(failed, 0)
