"""Command lines that are read without typer mean what they mean to typer."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer

from demoreel.cli import app
from demoreel.cli.plain import NotPlain, arguments_of

LINES = [
    "info ds",
    "info ds --json -q",
    "info --debug ds/",
    "info ./ds --allow-external /a --allow-external=/b",
    "episodes ds -n 3",
    "episodes --limit=0 ds",
    "frame ds 3 -o - -c front --episode 2",
    "bench ds --seconds 0.5 -w 4 -c a --camera b",
    "sql ds select --csv",
    "stats ds --recompute --no-pictures --jobs 2",
    "convert a b --to v2.1 --no-picture-stats --verify none",
    "convert a --to v3.0 --in-place --video-file-size-in-mb 5",
    "record ds --robot toy --fps 10 --episode-time 0 --task x",
    "diff a b --match content --tolerance 1e-3",
    "check a b c --only metadata --only video --fail-on error",
    "repair a --in-place",
    "push ds me/x --public --tag a -m text",
    "push ds me/x --no-tag-version --private",
    "pull me/x there --episodes 0:3",
    "clean ds -y",
    "tag ds name --version 3",
    "checkout ds 4 --dry-run",
    "cut delete a b -e 1,2 --dry-run -j 2",
    "cut delete a --in-place -e 1",
    "cut trim a b --episode 0 --start 1.2s --vcodec h264 --crf 20 -g 4",
    "cut merge a b c --out d --features union",
    "cut split a b train=0.5 val=0.5 --seed 1",
    "cut split a b --by task",
    "cut tasks a b --set x --replace a=b --replace c=d",
    "cut commit out --verify full",
]
LEFT_TO_TYPER = [
    "",
    "--version",
    "nothing",
    "info",
    "info --help",
    "info a b",
    "info ds --jso",
    "info ds --json=yes",
    "info -qx ds",
    "info -- -ds",
    "episodes ds -n3",
    "episodes ds -n -1",
    "episodes ds -n x",
    "episodes ds -n",
    "bench ds --window 1",
    "convert a b --to v9",
    "cut",
    "cut --help",
    "cut nothing",
    "cut delete a b",
    "frame ds -1 -o x",
]


def by_typer(line):
    commands = typer.main.get_command(app.make_app(*line[:1]))
    context = commands.make_context("demoreel", list(line))
    while context.command.name != line[0 if line[0] != "cut" else 1]:
        name, command, rest = context.command.resolve_command(
            context, [*getattr(context, "_protected_args", []), *context.args]
        )
        context = command.make_context(name, rest, parent=context)
    # Typer passes a list that was not given on as None.
    return {name: None if value == () else value for name, value in context.params.items()}


@pytest.mark.parametrize("text", LINES)
def test_they_mean_the_same(text, monkeypatch):
    monkeypatch.setattr("demoreel.storage.external.allow_external", lambda *_: None)
    line = text.split()
    function, rest = app._function_named(line)
    assert arguments_of(function, rest) == by_typer(line)


@pytest.mark.parametrize("text", LEFT_TO_TYPER)
def test_what_is_left_to_typer(text):
    with pytest.raises(NotPlain):
        arguments_of(*app._function_named(text.split()))


def test_typers_validators_are_not_loaded(tmp_path):
    code = (
        "import sys; from demoreel.cli import main; main(['info', sys.argv[1]]); "
        "sys.exit(' '.join(name for name in sys.modules if name.startswith('pydantic')))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr.rstrip().endswith("meta/, data/ and videos/")
