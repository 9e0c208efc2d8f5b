"""Printing: results to stdout, everything else to stderr; plain text unless it is a terminal.

A terminal gets colours and columns that fit; a pipe gets neither, so that what is printed can be
cut, compared and parsed. Texts from a dataset are untrusted: control characters in them are
shown as escapes, and never reach the terminal.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from demoreel.errors import json_text, printable, redacted
from demoreel.run.bar import can_redraw, console, progress_bar
from demoreel.storage.amounts import duration, size

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Output", "TableColumn", "console", "duration", "paint_error", "plain_lines", "size"]

_ROWS_AT_ONCE = 200
_GAP = 2


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table.

    Attributes:
        name: Its heading.
        right: Whether numbers stand in it, flush right.
        width: Characters; None is as many as its cells need, or the rest of a line.
    """

    name: str
    right: bool = False
    width: int | None = None


log = logging.getLogger(__name__)


class Output:
    """Where a verb prints to.

    Args:
        json: Results are printed as JSON; notes and progress stay silent.
        quiet: Nothing but results and errors.
        debug: Log everything.
    """

    def __init__(self, *, json: bool, quiet: bool, debug: bool) -> None:
        self.json = json
        self.silent = quiet or json
        level = logging.DEBUG if debug else logging.ERROR if quiet else logging.WARNING
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_PlainFormatter("%(levelname)s: %(message)s"))
        logging.basicConfig(handlers=[handler], level=level)
        # A warning's place in the code means nothing at a terminal.
        warnings.showwarning = lambda message, *_, **__: log.warning("%s", message)

    @property
    def is_terminal(self) -> bool:
        """Whether results go to a terminal."""
        return sys.stdout.isatty()

    def result(self, value: Mapping[str, Any]) -> None:
        """Print a result as one JSON object."""
        print(json_text(value, indent=2))

    def line(self, text: str = "", *, style: str | None = None) -> None:
        """Print a line of a result."""
        if style is None or not self.is_terminal:
            print(printable(text))
        else:
            console(sys.stdout).print(printable(text), style=style)

    def table(self, columns: Sequence[TableColumn], rows: Sequence[Sequence[str]]) -> None:
        """Print a small table, its columns aligned; a terminal's edge cuts the last one."""
        if not self.is_terminal:
            _print_aligned(columns, rows)
            return
        from rich.cells import cell_len

        rows = [[*map(printable, row)] for row in rows]
        widths = [max(map(cell_len, cells)) for cells in zip(_names(columns), *rows, strict=True)]
        sized = [replace(c, width=width) for c, width in zip(columns, widths, strict=True)]
        self.stream(sized, rows)

    def stream(self, columns: Sequence[TableColumn], rows: Iterable[Sequence[str]]) -> None:
        """Print a table of any length while its rows are made.

        A pipe gets a line of names, then rows, their cells separated by tabs. For a terminal,
        columns need widths, as cells are still to come; the last one gets the rest of the line.
        """
        if not self.is_terminal:
            print("\t".join(_names(columns)))
            for row in rows:
                print("\t".join(map(printable, row)))
            return
        *first, last = columns
        rest = console(sys.stdout).width - sum((column.width or 0) + _GAP for column in first)
        sized = [*first, replace(last, width=max(_GAP, min(rest, last.width or rest)))]
        heading = True
        for portion in _portions(rows, _ROWS_AT_ONCE):
            self._print_rows(sized, portion, heading=heading)
            heading = False

    def _print_rows(
        self, columns: Sequence[TableColumn], rows: Iterable[Sequence[str]], *, heading: bool
    ) -> None:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), show_header=heading)
        table.header_style = "bold"
        for column in columns:
            table.add_column(
                printable(column.name),
                justify="right" if column.right else "left",
                width=column.width,
                no_wrap=True,
                overflow="ellipsis",
            )
        for row in rows:
            table.add_row(*map(printable, row))
        console(sys.stdout).print(table)

    def note(self, text: str) -> None:
        """Say something that is not a result."""
        if not self.silent:
            print(printable(text), file=sys.stderr)

    @property
    def can_redraw(self) -> bool:
        """Whether a line of what is not a result can be replaced."""
        return not self.silent and can_redraw(sys.stderr)

    @contextmanager
    def progress(self, what: str) -> Iterator[Callable[[float], None]]:
        """Yield a function that takes the share that is done, and shows it on a terminal."""
        if not self.can_redraw:
            yield lambda share: None
            return
        with progress_bar(what) as show:
            yield lambda share: show(what, share, getattr(share, "counts", ""))


def paint_error(text: str) -> None:
    """Begin a line on stderr, in red where that is a terminal."""
    if sys.stderr.isatty():
        console(sys.stderr).print(text, style="bold red", end="")
    else:
        print(text, end="", file=sys.stderr)


class _PlainFormatter(logging.Formatter):
    """Log lines that hold no credentials, and no character that a terminal would obey."""

    def format(self, record: logging.LogRecord) -> str:
        message = printable(redacted(record.getMessage()))
        shown = logging.makeLogRecord(
            {**vars(record), "msg": message, "args": (), "exc_text": None}
        )
        return plain_lines(super().format(shown))


def plain_lines(text: str) -> str:
    """Return lines, such as those of a traceback, without credentials and control characters."""
    return "\n".join(printable(redacted(line)) for line in text.split("\n"))


def _names(columns: Sequence[TableColumn]) -> list[str]:
    return [printable(column.name) for column in columns]


def _print_aligned(columns: Sequence[TableColumn], rows: Sequence[Sequence[str]]) -> None:
    cells = [_names(columns), *([*map(printable, row)] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = [
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ]
        print((" " * _GAP).join(padded).rstrip())


def _portions(rows: Iterable[Sequence[str]], size: int) -> Iterator[list[Sequence[str]]]:
    portion: list[Sequence[str]] = []
    for row in rows:
        portion.append(row)
        if len(portion) == size:
            yield portion
            portion = []
    if portion:
        yield portion
