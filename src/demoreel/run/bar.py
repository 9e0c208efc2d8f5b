"""A progress bar: the share that is done, what was counted, and the time left."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from demoreel.errors import printable
from demoreel.storage.amounts import time_left

if TYPE_CHECKING:
    from rich.console import Console

_LINES = 10  # where a terminal's line cannot be drawn again

Show = Callable[[str, float, str], None]
"""Shows what is done, its share from 0 to 1, and what was counted."""


def console(stream: TextIO) -> Console:
    """Return a rich console that decorates for terminals only, and never where NO_COLOR is set."""
    from rich.console import Console

    terminal = stream.isatty()
    decorate = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Console(
        file=stream,
        force_terminal=terminal,
        color_system="auto" if decorate else None,
        highlight=False,
        markup=False,
        emoji=False,
    )


def can_redraw(stream: TextIO) -> bool:
    """Whether a line that was written to a stream can be replaced."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


@contextmanager
def progress_bar(what: str) -> Iterator[Show]:
    """Yield a function that draws a bar on stderr; the bar is gone when the block ends.

    Before the first call, and for work that does not say how far it is, the bar moves without an
    end. Where stderr is no terminal, there is a line for each tenth.
    """
    if not can_redraw(sys.stderr):
        yield _Lines()
        return
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[rest]}", markup=False),
    )
    with Progress(*columns, console=console(sys.stderr), transient=True) as bar:
        task = bar.add_task(printable(what), total=None, rest="")
        stage = _Stage()

        def show(what: str, share: float, counts: str) -> None:
            rest = stage.told(what, share, counts)
            bar.update(task, description=printable(what), total=1.0, completed=share, rest=rest)

        yield show


class _Stage:
    """Tells the time left of what is being done, from when that began."""

    def __init__(self) -> None:
        self._what: str | None = None
        self._since = time.monotonic()

    def told(self, what: str, share: float, counts: str) -> str:
        """Return ``45 %, 120 of 400 frames, 12 s left``."""
        if what != self._what:
            if self._what is not None:
                self._since = time.monotonic()
            self._what = what
        left = time_left(share, time.monotonic() - self._since)
        return ", ".join(filter(None, (f"{100 * share:3.0f} %", printable(counts), left)))


class _Lines:
    """Writes a line for each tenth of what is being done."""

    def __init__(self) -> None:
        self._stage = _Stage()
        self._last: tuple[str, int] | None = None

    def __call__(self, what: str, share: float, counts: str) -> None:
        told = self._stage.told(what, share, counts)
        now = (what, int(share * _LINES))
        if now != self._last:
            self._last = now
            print(f"{printable(what)}: {told.strip()}", file=sys.stderr, flush=True)  # noqa: T201
