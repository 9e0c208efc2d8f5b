"""Calls to a library that does not survive a fork: here, or in a helper.

Libraries that run on threads of their own lose them in a forked child, where they hang, crash or
refuse to work. So a child of a process that has imported such a library lets another program make
the calls: a helper that is started once, works for the child alone, and ends with it. That costs
half a second for its start and about 0.2 ms a call. Children of a process that has not imported it,
and spawned processes, make the calls themselves.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from demoreel.storage.forks import renew_in_children
from demoreel.storage.helper_process import HelperProcess, answer_calls

Calls = Mapping[str, Callable[..., Any]]


class SafeProcess:
    """Makes calls in a process where they are safe; one object for each library and program.

    Args:
        library: The module that must not be used after a fork.
        calls: The functions, by name; what goes in and comes out can be pickled.
        program: Python that calls ``serve`` of this object.
        failure: The exceptions that the calls raise; a helper's other errors become one, too.
    """

    def __init__(
        self, library: str, calls: Calls, *, program: str, failure: type[Exception]
    ) -> None:
        self._library = library
        self._calls = calls
        self._program = program
        self._failure = failure
        self._helper: HelperProcess | None = None
        self._lock = threading.Lock()
        self.is_here = True
        """Whether this process may use the library itself."""
        renew_in_children(self)

    def renew(self) -> None:
        """Begin anew in a forked child."""
        # The parent's helper is the parent's; its lock may be held by a thread that is not here.
        self.is_here = self.is_here and self._library not in sys.modules
        self._helper = None
        self._lock = threading.Lock()

    def ask(self, call: str, *arguments: Any) -> Any:
        """Make a call, here or in the helper.

        Raises:
            Exception: What the call raises; the failure also where the helper has ended.
        """
        if self.is_here:
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
