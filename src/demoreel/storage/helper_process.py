"""A program of our own that answers calls over its pipes, one after the other.

For what this process must not do itself: use Lance after a fork, or keep the interpreter busy. A
message is its length and then a pickle. The helper ends when its pipe closes.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import IO, Any

from demoreel.storage.secrets import hand_over

_LENGTH = struct.Struct("<Q")

Answer = Callable[[str, tuple[Any, ...]], Any]
"""Returns what a call is answered with: a value, or an exception for the caller to raise."""


class HelperProcess:
    """A helper, as its caller sees it; for one thread at a time.

    Args:
        program: Python that ends up in ``answer_calls``.
        detached: Whether Ctrl-C in a terminal passes it by.
    """

    def __init__(self, program: str, *, detached: bool = False) -> None:
        # With this process's own path: demoreel may lie where only its caller looks for it.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=detached,
        )
        self.is_waited_for = False
        """Whether an answer has not come, or was not taken: the next one would be mixed up
        with it."""

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def ask(self, call: str, arguments: tuple[Any, ...]) -> Any:
        """Return the answer to a call, or raise it.

        Raises:
            EOFError: The helper has ended.
            OSError: Likewise.
        """
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        self.is_waited_for = True
        _send(process.stdin, (call, arguments))
        answer = _receive(process.stdout)
        self.is_waited_for = False
        if isinstance(answer, _Raised):
            raise answer.error
        return answer

    def kill(self) -> None:
        """End it, whatever it is doing."""
        self._process.kill()
        self._process.communicate()


class _Raised:
    """An exception on its way to the caller; what the pipe itself raises is not one of these."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def answer_calls(answer: Answer) -> None:
    """Answer calls until the pipe closes; the helper's main loop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that uses the helper
    calls, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # what others print must not get between the answers
    while True:
        try:
            call, arguments = _receive(calls)
            found = answer(call, arguments)
            _send(answers, _Raised(found) if isinstance(found, BaseException) else found)
        except (EOFError, BrokenPipeError):
            return


def _send(pipe: IO[bytes], message: object) -> None:
    with hand_over():  # a helper works for this process alone, and has no other way to know
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.write(_LENGTH.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> Any:
    header = pipe.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        raise EOFError("the other side is gone")
    return pickle.loads(pipe.read(_LENGTH.unpack(header)[0]))
