"""The verbs, put together; and what a failure looks like."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any

import typer

import demoreel
from demoreel.cli.options import command
from demoreel.cli.output import paint_error, plain_lines
from demoreel.cli.plain import NotPlain, arguments_of
from demoreel.errors import (
    ArgumentError,
    DemoreelError,
    OutOfRangeError,
    TargetExistsError,
    json_text,
    printable,
    redacted,
    shortage,
)

_MODULES = {
    **{name: name for name in ("info", "episodes", "frame", "bench", "sql", "stats", "convert")},
    **{name: name for name in ("record", "diff", "check", "repair", "push", "pull", "finish")},
    **dict.fromkeys(("versions", "tag", "checkout"), "versions"),
    **{name: name for name in ("clean", "cut", "mix", "view")},
}
"""The module of each verb, in the order of the help."""

# Typer releases carry click's exceptions with them or import them; either way this is their base.
_CommandLineError: Any = typer.BadParameter.__mro__[2]

_CALLERS_FAULT = (ArgumentError, OutOfRangeError, TargetExistsError)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"demoreel {demoreel.__version__}")
        raise typer.Exit


def make_app(verb: str | None = None) -> typer.Typer:
    """Return the command with all verbs; with this one alone, if there is such a verb.

    A command that is run needs no other verb: importing all of them takes longer than many do.
    """
    # Plain help starts three times faster than a decorated one, and reads the same when piped.
    app = typer.Typer(
        name="demoreel",
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_demoreel)
    for name in [verb] if verb in _MODULES else _MODULES:
        module = importlib.import_module(f"demoreel.cli.{_MODULES[name]}")
        if name == "cut":
            app.add_typer(module.app)
        else:
            verb_function = getattr(module, name)
            # Given, and not left to typer, which cuts it off where the line ends.
            first = inspect.cleandoc(verb_function.__doc__).split("\n\n")[0].replace("\n", " ")
            app.command(short_help=first)(command(verb_function))
    return app


def _demoreel(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Record, read, cut, convert and check robot datasets: LeRobot v2.0, v2.1, v3.0 and Lance.

    Datasets are read in place. Commands that write do so only at the path they are given.
    """


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; errors are printed, not raised."""
    # Which way to fail must be known even where the arguments do not parse.
    as_json = "--json" in arguments
    debug = "--debug" in arguments or os.environ.get("DEMOREEL_DEBUG", "0") not in ("", "0")
    try:
        with _allowed_for_one_command(arguments):
            _call(arguments)
        return 0
    except typer.Exit as stop:
        return int(stop.exit_code)
    except BrokenPipeError:
        raise
    except _CommandLineError as error:
        return _fail(_usage_report(error), as_json, int(error.exit_code))
    except (DemoreelError, OSError, RuntimeError) as caught:
        problem = caught if isinstance(caught, DemoreelError) else shortage(caught) or caught
        if not isinstance(problem, (DemoreelError, OSError)):
            raise
        if debug:
            print(plain_lines(traceback.format_exc()), end="", file=sys.stderr)
        fault = isinstance(problem, _CALLERS_FAULT) or list(arguments[:1]) in (["diff"], ["check"])
        return _fail(_report(problem), as_json, 2 if fault else 1)  # of those, 1 is an answer


def _call(arguments: Sequence[str]) -> None:
    try:
        function, line = _function_named(arguments)
        given = arguments_of(function, line)
    except NotPlain:
        # Not `app()`: that would print errors and end the process by itself.
        commands = typer.main.get_command(make_app(*arguments[:1]))
        with commands.make_context("demoreel", list(arguments) or ["--help"]) as context:
            commands.invoke(context)
        return
    function(**given)


def _function_named(arguments: Sequence[str]) -> tuple[Callable[..., Any], Sequence[str]]:
    """Return the function of a verb, and what it is to read."""
    verb = arguments[0] if arguments else ""
    if verb not in _MODULES:
        raise NotPlain
    module = importlib.import_module(f"demoreel.cli.{_MODULES[verb]}")
    if verb != "cut":
        return command(getattr(module, verb)), arguments[1:]
    for known in module.app.registered_commands:
        if known.callback is not None and known.callback.__name__ == (arguments[1:2] or [""])[0]:
            return known.callback, arguments[2:]
    raise NotPlain


def _allowed_for_one_command(arguments: Sequence[str]) -> AbstractContextManager[None]:
    """Let ``--allow-external`` hold for this command only."""
    if not any(text.startswith("--allow-external") for text in arguments):
        return nullcontext()
    from demoreel.storage.external import for_one_command

    return for_one_command()


def _usage_report(error: Any) -> dict[str, Any]:
    command = error.ctx.command_path if getattr(error, "ctx", None) else "demoreel"
    hint = f"{command} --help"
    option = str(getattr(error, "option_name", ""))
    if option.lstrip("-").isdigit():
        hint = f"put -- before a negative number: {command} ... -- {option}"
    message = redacted(error.format_message()).replace(": Value error, ", ": ")  # pydantic's
    return {"error": "UsageError", "message": message, "where": {}, "hint": hint}


def _report(error: DemoreelError | OSError) -> dict[str, Any]:
    if isinstance(error, DemoreelError):
        where = {name: str(value) for name, value in error.where.items()}
        what = in_command_words(error.what)
        hint = None if error.hint is None else in_command_words(error.hint)
    else:
        where = {} if error.filename is None else {"file": redacted(str(error.filename))}
        what, hint = redacted(f"{error.strerror or error}."), None
    return {"error": type(error).__name__, "message": what, "where": where, "hint": hint}


def _fail(report: dict[str, Any], as_json: bool, code: int) -> int:
    if as_json:
        print(json_text(report), file=sys.stderr)
        return code
    lines = [report["message"]]
    lines += [f"  {name}: {value}" for name, value in report["where"].items()]
    lines += [f"  next: {report['hint']}"] if report["hint"] else []
    paint_error("error: ")
    print("\n".join(map(printable, lines)), file=sys.stderr)
    return code


# Messages are written for the library and the command. Where the two differ, a message says
# ``exact=True (--exact)``, of which the command shows the second; the rest is translated here.

_VERBS = "check checkout clean convert cut diff finish pull push repair tag versions"

_OPTIONS = {
    "cameras": "--camera",
    "episodes": "--episodes",
    "filter": "--where",
    "fps": "--fps",
    "link": "--link",
    "overwrite": "--overwrite",
    "revision": "--revision",
    "tag": "--tag",
    "task": "--task",
    "token": "HF_TOKEN",
    "version": "--version",
}

_RULES = [
    # overwrite (--overwrite), fps=30 (--fps 30)
    (re.compile(r"""\b\w+(?:=(?:"[^"]*"|'[^']*'|\S+))? \((--[^)]+)\)"""), r"\1"),
    (re.compile(r"begin one with demoreel\.create"), "begin one: leave --resume out"),
    (re.compile(r"\bdemoreel\.resume\b"), "--resume"),
    (re.compile(rf"\bdemoreel\.({_VERBS.replace(' ', '|')})\b(?:\(\))?"), r"demoreel \1"),
    (re.compile(r"(episodes? out) with episodes="), r"\1 with demoreel cut delete"),
    (re.compile(r",? or (?:in )?storage_options=(?:\{[^}]*\})?"), ""),
]
_ARGUMENT = re.compile(r"\b([a-z]+(?:_[a-z]+)*)=(?=[\s,.;:)]|$)")


def in_command_words(text: str) -> str:
    """Return a message of the library as the command says it."""
    for pattern, words in _RULES:
        text = pattern.sub(words, text)
    return _ARGUMENT.sub(lambda found: _OPTIONS.get(found[1], found[1]), text)
