"""The verbs, put together; and what a failure looks like."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer

import demoreel
from demoreel.cli.bench import bench
from demoreel.cli.check import check
from demoreel.cli.convert import convert
from demoreel.cli.cut import app as cut_verbs
from demoreel.cli.diff import diff
from demoreel.cli.episodes import episodes
from demoreel.cli.frame import frame
from demoreel.cli.info import info
from demoreel.cli.output import paint_error, printable
from demoreel.cli.pull import pull
from demoreel.cli.push import push
from demoreel.cli.record import record
from demoreel.cli.repair import repair
from demoreel.cli.sql import sql
from demoreel.cli.stats import stats
from demoreel.cli.versions import checkout, tag, versions
from demoreel.errors import ArgumentError, DemoreelError, OutOfRangeError, TargetExistsError

# Plain help starts three times faster than a decorated one, and reads the same when piped.
app = typer.Typer(
    name="demoreel",
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _verb in (info, episodes, frame, bench, sql, stats, convert, record, diff, check, repair, push):
    app.command()(_verb)
for _command in (pull, versions, tag, checkout):
    app.command()(_command)
app.add_typer(cut_verbs)

# Typer releases carry click's exceptions with them or import them; either way this is their base.
_CommandLineError: Any = typer.BadParameter.__mro__[2]

_CALLERS_FAULT = (ArgumentError, OutOfRangeError, TargetExistsError)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"demoreel {demoreel.__version__}")
        raise typer.Exit


@app.callback()
def _demoreel(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Robot demonstrations as they lie on disk: LeRobot v2.0, v2.1, v3.0 and Lance.

    Every command reads in place; those that write do so only where you say.
    """


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; errors are printed, not raised.

    Raises:
        KeyboardInterrupt: Ctrl-C.
        BrokenPipeError: Nobody reads our output any more.
    """
    # Which way to fail must be known even where the arguments do not parse.
    as_json = "--json" in arguments
    debug = "--debug" in arguments or os.environ.get("DEMOREEL_DEBUG", "0") not in ("", "0")
    try:
        # Not `app()`: that would print errors and end the process by itself.
        command = typer.main.get_command(app)
        with command.make_context("demoreel", list(arguments) or ["--help"]) as context:
            command.invoke(context)
        return 0
    except typer.Exit as stop:
        return int(stop.exit_code)
    except BrokenPipeError:
        raise
    except _CommandLineError as error:
        return _fail(_usage_report(error), as_json, int(error.exit_code))
    except (DemoreelError, OSError) as error:
        if debug:
            traceback.print_exc()
        fault = isinstance(error, _CALLERS_FAULT) or list(arguments[:1]) in (["diff"], ["check"])
        return _fail(_report(error), as_json, 2 if fault else 1)  # of those, 1 is an answer


def _usage_report(error: Any) -> dict[str, Any]:
    command = error.ctx.command_path if getattr(error, "ctx", None) else "demoreel"
    hint = f"{command} --help"
    option = str(getattr(error, "option_name", ""))
    if option.lstrip("-").isdigit():
        hint = f"put -- before a negative number: {command} ... -- {option}"
    return {"error": "UsageError", "message": error.format_message(), "where": {}, "hint": hint}


def _report(error: DemoreelError | OSError) -> dict[str, Any]:
    if isinstance(error, DemoreelError):
        where = {name: str(value) for name, value in error.where.items()}
        what, hint = error.what, error.hint
    else:
        where = {} if error.filename is None else {"file": str(error.filename)}
        what, hint = f"{error.strerror or error}.", None
    return {"error": type(error).__name__, "message": what, "where": where, "hint": hint}


def _fail(report: dict[str, Any], as_json: bool, code: int) -> int:
    if as_json:
        print(json.dumps(report, ensure_ascii=False), file=sys.stderr)
        return code
    lines = [report["message"]]
    lines += [f"  {name}: {value}" for name, value in report["where"].items()]
    lines += [f"  next: {report['hint']}"] if report["hint"] else []
    paint_error("error: ")
    print("\n".join(map(printable, lines)), file=sys.stderr)
    return code
