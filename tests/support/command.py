"""The command, run in the process of a test as if it had one of its own."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import warnings
from collections.abc import Iterator
from subprocess import CompletedProcess
from unittest.mock import patch

from demoreel.cli import main


def environment(**changes: str) -> dict[str, str]:
    ours = ("NO_COLOR", "FORCE_COLOR", "DEMOREEL_DEBUG", "TERM", "COLUMNS")
    return {name: value for name, value in os.environ.items() if name not in ours} | changes


class _Screen(io.TextIOWrapper):
    """What a command prints into, and whether it takes that for a terminal."""

    def __init__(self, *, is_terminal: bool = False) -> None:
        self._bytes = io.BytesIO()
        super().__init__(self._bytes, encoding="utf-8", write_through=True)
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    @property
    def shown(self) -> str:
        return self._bytes.getvalue().decode()


@contextlib.contextmanager
def _as_a_new_process(out: _Screen, err: _Screen, **variables: str) -> Iterator[None]:
    """Give a command streams, variables, log and warnings of its own; what was there comes back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    try:
        with (
            warnings.catch_warnings(),
            patch.dict(os.environ, environment(**variables), clear=True),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def run_here(*arguments: object, **variables: str) -> CompletedProcess[str]:
    """Run a command; return what it printed and how it ended."""
    out, err = _Screen(), _Screen()
    with _as_a_new_process(out, err, **variables):
        code = main(given := [str(argument) for argument in arguments])
    return CompletedProcess(given, code, out.shown, err.shown)


def show_here(*arguments: object, **variables: str) -> str:
    """Run a command; return what a terminal of 80 columns would show."""
    screen = _Screen(is_terminal=True)
    settings = {"TERM": "xterm-256color", "COLUMNS": "80", **variables}
    with _as_a_new_process(screen, screen, **settings):
        main([str(argument) for argument in arguments])
    return screen.shown
