"""Keys pressed while something runs, without Enter; where there is no terminal, none are."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

_ARROWS = {b"\x1b[C": "right", b"\x1b[D": "left", b"\x1b": "escape"}
_WAIT_S = 0.1


@contextmanager
def pressed_keys(actions: Mapping[str, Callable[[], None]]) -> Iterator[bool]:
    """Call an action when its key is pressed, until the block ends; yield whether keys are heard.

    The terminal is as before when the block ends, however it ends. Ctrl-C stays Ctrl-C.

    Args:
        actions: By key: a letter, ``left``, ``right`` or ``escape``.
    """
    if not sys.stdin.isatty():
        yield False
        return
    try:
        import termios
        import tty
    except ImportError:  # not a POSIX system
        yield False
        return
    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    over = threading.Event()
    listener = threading.Thread(target=_listen, args=(handle, actions, over), daemon=True)
    tty.setcbreak(handle)
    try:
        listener.start()
        yield True
    finally:
        over.set()
        listener.join()
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


def _listen(handle: int, actions: Mapping[str, Callable[[], None]], over: threading.Event) -> None:
    while not over.is_set():
        ready, _, _ = select.select([handle], [], [], _WAIT_S)
        if not ready:
            continue
        data = os.read(handle, 8)
        if not data:
            return
        key = _ARROWS.get(data) or data[:1].decode("ascii", "replace").lower()
        if key in actions:
            actions[key]()
