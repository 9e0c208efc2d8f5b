"""``demoreel clean``: remove what killed commands left."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from demoreel.cli.options import DatasetPath
from demoreel.cli.output import Output, TableColumn, size
from demoreel.errors import ArgumentError, called, count

if TYPE_CHECKING:
    from demoreel.run.clean import Cleaned, Leftover


def clean(
    out: Output,
    path: DatasetPath,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be removed, and remove nothing.")
    ] = False,
) -> None:
    """Remove temporary files that killed commands left.

    Looks beside PATH, in it, and in the temporary folder. Lists what it finds first, and asks;
    without a terminal, --yes is needed. PATH is a dataset, a folder of datasets, or a target that
    was never finished. Never removed: saved episodes, NAME_old, and what a running process uses.
    """
    import demoreel

    found = demoreel.clean(path, dry_run=True)
    if not out.json:
        _show(out, found)
    if found.removed and not dry_run:
        if not yes:
            _ask(found, can_ask=not out.json and sys.stdin.isatty())
        found = demoreel.clean(path)
    if out.json:
        out.result(found.to_json())
    elif found.removed and not dry_run:
        out.line(f"removed {count(len(found.removed), 'leftover')}, {size(found.bytes)}")


def _ask(found: Cleaned, *, can_ask: bool) -> None:
    if not can_ask:
        raise ArgumentError(
            "Nothing was removed: there is no terminal to ask at.",
            hint="pass --yes to remove what --dry-run lists",
            path=found.path,
        )
    question = f"Remove {count(len(found.removed), 'leftover')}, {size(found.bytes)}?"
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)


def _show(out: Output, found: Cleaned) -> None:
    if not found.removed and not found.kept:
        out.line(f"{called(found.path)}: nothing to remove")
        return
    columns = (
        TableColumn("what"),
        TableColumn("kind"),
        TableColumn("size", right=True),
        TableColumn("path, why"),
    )
    rows = [_row("remove", leftover) for leftover in found.removed]
    out.table(columns, rows + [_row("keep", leftover) for leftover in found.kept])


def _row(what: str, leftover: Leftover) -> list[str]:
    kind = f"{leftover.kind}, resumable" if leftover.resumable else leftover.kind
    return [what, kind, size(leftover.bytes), f"{called(leftover.path)}: {leftover.why}"]
