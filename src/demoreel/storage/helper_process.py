"""A helper process that answers calls over its pipes, one after the other.

For what this process must not do itself: use Lance after a fork, or keep the interpreter busy. A
message is its length and then a pickle. The helper ends when its pipe closes.

``start_python`` starts every process of demoreel's own. ``multiprocessing`` is not used for that:
where it does not fork, it runs the main module of its caller again in each process, with all that a
script does outside of ``if __name__ == "__main__"``.

Libraries that run on threads of their own lose them in a forked child, where they hang, crash or
refuse to work. So a child of a process that has imported such a library lets another program make
the calls: a helper that is started once, works for the child alone, and ends with it. That costs
half a second for its start and about 0.2 ms a call. Children of a process that has not imported it,
and spawned processes, make the calls themselves.

Before Python 3.14, the interpreter that ends lets ``pthread_exit`` end each daemon thread that
needs the GIL. The process aborts (SIGABRT) if that thread is importing a library that is written in
Rust, or returns from a call to it (PyO3 issue 6084; pylance 14.0 has it, obstore 0.12 has not). So
the process waits a moment for such calls before its interpreter ends.
"""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import IO, Any

from demoreel.storage.secrets import hand_over
from demoreel.storage.threads import renew_in_children

_LENGTH = struct.Struct("<Q")

Answer = Callable[[str, tuple[Any, ...]], Any]
"""Returns what a call is answered with: a value, or an exception for the caller to raise."""


def start_python(program: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start Python on a program of demoreel's own, which imports nothing of the caller's script.

    Modules are found where this process finds them. Ctrl-C does nothing before the program says so.
    """
    begin = "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    # Not by PYTHONPATH: there, a module beside the script could hide one that Python starts with.
    # -P: nor does the current folder come first.
    path = f"sys.path[:] = {[place for place in sys.path if isinstance(place, str)]!a}; "
    command = [sys.executable, "-P", "-c", begin + path + program, *arguments]
    return subprocess.Popen(command, **options)


class HelperProcess:
    """A helper, as its caller sees it; for one thread at a time.

    Args:
        program: Python that ends up in ``answer_calls``.
        detached: Whether Ctrl-C in a terminal passes it by.
    """

    def __init__(self, program: str, *, detached: bool = False) -> None:
        self._process = start_python(
            program,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
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
        """Return the answer to a call, or raise it."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        self.is_waited_for = True
        _send(process.stdin, (call, arguments))
        answer = _receive(process.stdout)
        self.is_waited_for = False
        if isinstance(answer, _Raised):
            raise answer.error from HelperTraceback(answer.traceback)
        return answer

    def interrupt(self) -> None:
        """Send it what Ctrl-C sends."""
        self._process.send_signal(signal.SIGINT)

    def close(self) -> None:
        """Let it end, and wait until it has."""
        with suppress(OSError):  # what it was sent last may be in the buffer
            self._process.communicate()
        self._process.wait()

    def kill(self) -> None:
        """End it, whatever it is doing."""
        self._process.kill()
        self._process.communicate()


class _Raised:
    """An exception on its way to the caller; what the pipe itself raises is not one of these."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.traceback = "".join(traceback.format_exception(error))


class HelperTraceback(Exception):
    """The traceback of an error in a helper, which no pickle holds; shown as the error's cause."""

    def __str__(self) -> str:
        return f"\n\nin a process of demoreel:\n{self.args[0]}"


def answer_calls(answer: Answer) -> None:
    """Answer calls until the pipe closes; the helper's main loop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that uses the helper
    # What others print must not get between the answers, whether Python or a library does.
    calls, answers = (os.fdopen(os.dup(handle), mode) for handle, mode in ((0, "rb"), (1, "wb")))
    os.dup2(2, 1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    while True:
        try:
            data = _received(calls)
            try:
                call, arguments = pickle.loads(data)
            except Exception as error:  # a module that is not here
                found: Any = error
            else:
                found = answer(call, arguments)
            _send(answers, _Raised(found) if isinstance(found, BaseException) else found)
        except (EOFError, BrokenPipeError):
            return


def _send(pipe: IO[bytes], message: object) -> None:
    with hand_over():  # a helper works for this process alone, and has no other way to know
        try:
            data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
            if isinstance(message, _Raised):
                pickle.loads(data)  # some can be written and not read: those with more arguments
        except Exception as error:
            if not isinstance(message, _Raised):
                raise
            message.error = RuntimeError(f"{message.error!r} (which cannot be pickled: {error})")
            data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.write(_LENGTH.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> Any:
    return pickle.loads(_received(pipe))


def _received(pipe: IO[bytes]) -> bytes:
    header = pipe.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        raise EOFError("the other side is gone")
    data = pipe.read(_LENGTH.unpack(header)[0])
    if len(data) < _LENGTH.unpack(header)[0]:
        raise EOFError("the other side was gone before it had sent all")
    return data


Calls = Mapping[str, Callable[..., Any]]

_LAST_CALLS_S = 2.0  # how long a process that ends waits for them


class _DaemonCalls:
    """The calls that daemon threads have under way; the interpreter waits for other threads."""

    def __init__(self) -> None:
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Start again in a forked child, which has none of the threads."""
        self._changed = threading.Condition()
        self._threads: set[int] = set()
        self._over = False

    @contextmanager
    def one(self, failure: type[Exception]) -> Iterator[None]:
        """Make a call that a process waits for when it ends; from then on, the call fails."""
        me = threading.get_ident()
        if not threading.current_thread().daemon or me in self._threads:
            yield
            return
        with self._changed:
            if self._over:
                raise failure("the process is ending")
            self._threads.add(me)
        try:
            yield
        finally:
            with self._changed:
                self._threads.discard(me)
                self._changed.notify_all()

    def finish(self) -> None:
        """Begin no more calls, and wait for those under way, until Ctrl-C at most."""
        try:
            with self._changed:
                self._over = True
                self._changed.wait_for(lambda: not self._threads, _LAST_CALLS_S)
        except KeyboardInterrupt:
            pass

    @property
    def under_way(self) -> bool:
        """Whether a thread is inside a call."""
        return bool(self._threads)


daemon_calls = _DaemonCalls()

if sys.version_info < (3, 14):
    atexit.register(daemon_calls.finish)


class SafeProcess:
    """Makes calls in a process where they are safe; one object for each library and program.

    Args:
        library: The module that must not be used after a fork.
        calls: The functions, by name; what goes in and comes out can be pickled.
        program: Python that calls ``serve`` of this object.
        failure: The exceptions that the calls raise; a helper's other errors become one, too.
        aborts: Whether a call that returns while the interpreter ends aborts the process.
    """

    def __init__(
        self,
        library: str,
        calls: Calls,
        *,
        program: str,
        failure: type[Exception],
        aborts: bool = False,
    ) -> None:
        self._library = library
        self._calls = calls
        self._program = program
        self._failure = failure
        self._aborts = aborts
        self._helper: HelperProcess | None = None
        self._lock = threading.Lock()
        self.is_here = True
        """Whether this process may use the library itself."""
        renew_in_children(self)

    def renew(self) -> None:
        """Start again in a forked child."""
        # The parent's helper is the parent's; its lock may be held by a thread that is not here.
        self.is_here = self.is_here and self._library not in sys.modules
        self._helper = None
        self._lock = threading.Lock()

    def ask(self, call: str, *arguments: Any) -> Any:
        """Make a call, here or in the helper."""
        if self.is_here:
            with daemon_calls.one(self._failure) if self._aborts else nullcontext():
                return self._calls[call](*arguments)
        with self._lock:
            if self._helper is not None and self._helper.is_waited_for:  # Ctrl-C came between
                self._helper.kill()
                self._helper = None
            if self._helper is None:
                self._helper = HelperProcess(self._program)
            try:
                return self._helper.ask(call, arguments)
            except (OSError, EOFError) as error:
                raise self._failure(
                    f"the process that uses {self._library} has ended ({error})"
                ) from error

    def serve(self) -> None:
        """Answer calls until the pipe closes; the helper's main function."""
        answer_calls(self._answer)

    def _answer(self, call: str, arguments: tuple[Any, ...]) -> Any:
        try:
            return self._calls[call](*arguments)
        except Exception as error:
            return error if isinstance(error, self._failure) else self._failure(repr(error))
