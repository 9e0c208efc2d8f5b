"""Calls to a library that does not survive a fork, by a helper of the child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from demoreel.storage.helper_process import SafeProcess

PROGRAM = """
import time
from demoreel.storage.helper_process import SafeProcess
calls = {"echo": lambda value: value, "slow": lambda value: time.sleep(1) or value}
SafeProcess("this", calls, program="", failure=RuntimeError).serve()
"""


@pytest.fixture
def helped():
    process = SafeProcess("this", {}, program=PROGRAM, failure=RuntimeError)
    process.is_here = False
    yield process
    if process._helper is not None:
        process._helper.kill()


def test_calls_are_made_by_the_helper(helped):
    assert helped.ask("echo", 5) == 5
    with pytest.raises(RuntimeError, match="KeyError"):
        helped.ask("nothing")
    assert helped.ask("echo", 6) == 6


def test_an_answer_that_nobody_heard_is_not_taken_for_the_next(helped):
    assert helped.ask("echo", 1) == 1

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGUSR1]).start()
        with pytest.raises(KeyboardInterrupt):
            helped.ask("slow", "old")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert helped.ask("echo", "new") == "new"


def test_a_helper_that_has_died(helped):
    helped.ask("echo", 1)
    os.kill(helped._helper.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="has ended"):
        helped.ask("echo", 2)
    assert helped.ask("echo", 3) == 3


def test_a_process_that_ends_waits_for_a_call_of_a_daemon_thread_and_begins_none():
    program = (
        "import atexit, threading, time\n"
        "from demoreel.storage.threads import transfer\n"
        "begun = threading.Event()\n"
        "def refused():\n"
        "    try:\n"
        "        process.ask('slow')\n"
        "    except RuntimeError as error:\n"
        "        print(error, flush=True)\n"
        "atexit.register(lambda: transfer(refused).result(20))\n"
        "from demoreel.storage.helper_process import SafeProcess\n"
        "def slow():\n"
        "    begun.set()\n"
        "    time.sleep(0.5)\n"
        "    print('returned', flush=True)\n"
        "calls = {'slow': slow}\n"
        "process = SafeProcess('this', calls, program='', failure=RuntimeError, aborts=True)\n"
        "transfer(lambda: process.ask('slow'))\n"
        "begun.wait()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "returned\nthe process is ending\n", done.stderr
    assert done.returncode == 0
