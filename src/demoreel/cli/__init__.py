"""The ``demoreel`` command: one module per verb, one way to print, one way to fail.

Results go to stdout, everything else to stderr. Starting up imports neither numpy nor Arrow nor
PyAV: a verb imports what it needs when it runs.

    0    it worked
    1    the dataset, its files or the disk are at fault
    2    the command was: an unknown option, camera or frame, a file that would be overwritten
    130  Ctrl-C
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

__all__ = ["main"]

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Nothing is raised.

    Args:
        arguments: What stands behind ``demoreel``; by default, the process's own.
    """
    if arguments is not None or threading.current_thread() is not threading.main_thread():
        return _run(sys.argv[1:] if arguments is None else list(arguments))
    ended: list[int] = []
    atexit.register(_end_for_certain, ended)  # before all others: it runs after them
    ended.append(_run(sys.argv[1:]))
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # What is left to do may wait for threads; Ctrl-C ends that without a traceback.
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    return ended[0]


def _run(given: list[str]) -> int:
    try:
        _never_fail_to_print()
        from demoreel.cli.app import run

        code = run(given)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of our output, `head` say, has seen enough. Python flushes stdout once more
        # on its way out, which must not fail a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        # An interrupt inside `exec` of a string (each dataclass of a module being imported runs
        # one) leaves a mark in the interpreter, which then ends by SIGINT whatever code is
        # returned. The next `exec` of a string clears it.
        exec("")
        return INTERRUPTED


def _end_for_certain(ended: list[int]) -> None:
    """Let neither Ctrl-C nor a call to Lance that returns just then change how the process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the interpreter that ends would die of it
    used = sys.modules.get("demoreel.storage.helper_process")
    if ended and used is not None and used.daemon_calls.under_way:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(ended[0])


def _never_fail_to_print() -> None:
    """Show characters that the terminal's encoding lacks as escapes, rather than fail."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
