"""``demoreel check``: what is wrong with a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from demoreel.cli.options import DatasetPaths, Staging
from demoreel.cli.output import Output, size
from demoreel.errors import ArgumentError, count

if TYPE_CHECKING:
    from demoreel.check.report import Report

_STYLES = {"error": "bold red", "warning": "bold yellow", "hint": "bold"}


def check(
    out: Output,
    paths: DatasetPaths,
    deep: Annotated[bool, typer.Option("--deep", help="Also decode every frame.")] = False,
    leaks: Annotated[
        bool, typer.Option("--leaks", help="Also look for the same episodes in several datasets.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="FAMILY",
            help="Only these checks: metadata, table, video, lance, motion, duplicate. Repeatable.",
        ),
    ] = None,
    threshold: Annotated[
        list[str] | None,
        typer.Option(
            "--threshold",
            metavar="NAME=VALUE",
            help="Set a threshold (docs/checks.md). Repeatable.",
        ),
    ] = None,
    fail_on: Annotated[
        Literal["error", "warning", "hint"],
        typer.Option("--fail-on", help="The lowest severity that makes the command fail."),
    ] = "warning",
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Also write the report as an HTML page with plots."
        ),
    ] = None,
    staging: Staging = None,
) -> None:
    """Find what is wrong with datasets, before training.

    Only --html writes. The exit code is 0 if there are at most hints, 1 if there are warnings, 2 if
    there are errors; --fail-on sets what counts.
    """
    import demoreel

    options: dict[str, Any] = {"thresholds": _thresholds(threshold or [])}
    if only:
        options["only"] = only
    with out.progress("checking") as show:
        report = demoreel.check(*paths, deep=deep, leaks=leaks, report=show, **options)
    if html is not None:
        _write_page(report, html)
    if out.json:
        out.result(report.to_json())
    else:
        _show(out, report)
    raise typer.Exit(report.exit_code(fail_on))


def _thresholds(given: list[str]) -> dict[str, float]:
    values = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            values[name] = float(value)
        except ValueError:
            raise ArgumentError(
                f"--threshold {text!r} is not NAME=VALUE.", hint="e.g. --threshold fps_slack=0.05"
            ) from None
    return values


def _show(out: Output, report: Report) -> None:
    """Print the findings, what matters most first, and what to do; or that there are none."""
    for line in report.lines():
        severity = line.split(" ", 1)[0]
        out.line(line, style=_STYLES.get(severity))
    for path, facts in report.looked_at.items():
        out.note(f"{path}: {_looked_at(facts, deep=report.deep)}")


_CHECKED = {
    "metadata": "the metadata",
    "lance": "the Lance tables",
    "table": "every row of the tables",
    "video": "the packet table of every video",
    "deep": "every frame, decoded",
    "duplicate": "copies of episodes",
}


def _looked_at(facts: Any, *, deep: bool) -> str:
    """Return in plain words what was checked."""
    families = [name for name in facts.get("families", ()) if name in _CHECKED]
    if not str(facts.get("layout") or "").startswith("lance"):
        families = [name for name in families if name != "lance"]
    if not facts.get("rows"):
        families = [name for name in families if name not in ("table", "duplicate")]
    if not facts.get("videos"):
        families = [name for name in families if name != "video"]
    checked = ", ".join(_CHECKED[name] for name in families)
    cameras = bool(facts.get("videos")) and not deep
    parts = [
        f"{facts['layout']}" if facts.get("layout") else "",
        *(
            count(facts[name], thing)
            for name, thing in (("episodes", "episode"), ("rows", "row"), ("videos", "video"))
            if isinstance(facts.get(name), int)
        ),
        size(facts["bytes"]) if facts.get("bytes") else "",
    ]
    sentences = [
        ", ".join(part for part in parts if part),
        f"checked in {facts.get('seconds', 0):.1f} s: {checked}" if checked else "",
        "no frame was decoded (--deep decodes all)" if cameras else "",
        "it changed meanwhile: only what was found every time is listed"
        if facts.get("changing")
        else "",
    ]
    return "; ".join(part for part in sentences if part)


def _write_page(report: Report, path: Path) -> None:
    from demoreel.check.html import write_page

    write_page(report, path)
