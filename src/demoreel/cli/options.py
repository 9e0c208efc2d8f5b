"""Arguments and options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DatasetPath = Annotated[
    Path,
    typer.Argument(
        metavar="PATH",
        help="The dataset's folder, the one with meta/ in it.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but results and errors.")]
Debug = Annotated[
    bool, typer.Option("--debug", help="Log more, and show where an error was raised.")
]
