"""Lance in a process where it is safe: this one, or a helper.

Lance runs on threads of its own, and a fork copies none of them. Children of a process that has
used Lance may crash or hang when they use it too, even on tables that they open anew: 1 to 8 of a
hundred did (pylance 14; lancedb issue 3350 is about the same). Processes that only carry Lance's
memory along, and those that run another program, never did.

So a child of a process that has imported Lance lets another program do it: a helper that is started
once, reads for the child alone, and ends with it. That costs half a second for its start and about
0.2 ms a call. Children of a process that has not imported Lance, and spawned processes, have Lance
themselves.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from demoreel.storage.helper_process import HelperProcess, answer_calls
from demoreel.storage.lance_calls import CALLS, LanceFailure

_PROGRAM = "from demoreel.storage.lance_process import serve; serve()"


class _Here:
    """This process's place in the family."""

    def __init__(self) -> None:
        self.may_use_lance = True
        self.helper: HelperProcess | None = None
        self.lock = threading.Lock()

    def after_fork(self) -> None:
        # The parent's helper is the parent's; its lock may be held by a thread that is not here.
        self.may_use_lance = self.may_use_lance and "lance" not in sys.modules
        self.helper = None
        self.lock = threading.Lock()


_here = _Here()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_here.after_fork)


def may_use_lance() -> bool:
    """Whether this process may use Lance itself."""
    return _here.may_use_lance


def ask(call: str, *arguments: Any) -> Any:
    """Call a function of ``lance_calls``, here or in the helper.

    Raises:
        LanceFailure: Lance raised an error, or the helper ended.
    """
    if _here.may_use_lance:
        return CALLS[call](*arguments)
    with _here.lock:
        if _here.helper is None:
            _here.helper = HelperProcess(_PROGRAM)
        return _ask_helper(_here.helper, call, arguments)


def _ask_helper(helper: HelperProcess, call: str, arguments: tuple[Any, ...]) -> Any:
    try:
        return helper.ask(call, arguments)
    except (OSError, EOFError) as error:
        raise LanceFailure(f"the process that reads Lance tables has ended ({error})") from error


def serve() -> None:
    """Answer calls until nobody can make any more; the helper's main function."""
    answer_calls(_answer)


def _answer(call: str, arguments: tuple[Any, ...]) -> Any:
    try:
        return CALLS[call](*arguments)
    except Exception as error:
        return error if isinstance(error, LanceFailure) else LanceFailure(repr(error))
