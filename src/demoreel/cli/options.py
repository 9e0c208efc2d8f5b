"""Arguments and options that several verbs share."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer

from demoreel.errors import ArgumentError


def place(text: str) -> str:
    """Read where a dataset lies: a folder, or a URI, which a ``Path`` would make another of."""
    if text.startswith("file://"):
        return str(Path(unquote(urlsplit(text).path)))
    return text.rstrip("/") if "://" in text else str(Path(text))


def name_of_place(place: str) -> str:
    """Return the name of a dataset: the last part of where it lies."""
    return place.rsplit("/", 1)[-1] if is_uri(place) else Path(place).resolve().name


def is_uri(place: str) -> bool:
    """Whether a dataset lies in an object store or on the Hub."""
    return "://" in place


def only_here(place: str, what: str) -> None:
    """Refuse to do in an object store what is done to files.

    Raises:
        ArgumentError: The dataset lies far away.
    """
    if is_uri(place):
        raise ArgumentError(
            f"{what} needs the dataset on this machine.",
            hint=f"fetch it first: demoreel pull {place} ./{name_of_place(place)}",
            uri=place,
        )


DatasetPath = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="The dataset's folder, the one with meta/ in it; or a URI: s3://bucket/name.",
        show_default=False,
        parser=place,
    ),
]
SourcePath = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="The dataset's folder, or a URI: s3://bucket/name.",
        show_default=False,
        parser=place,
    ),
]
DatasetPaths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH...",
        help="The datasets' folders or URIs: one, or several.",
        show_default=False,
        parser=place,
    ),
]
Target = Annotated[
    str,
    typer.Argument(
        metavar="OUT",
        help="The folder to make, or a URI: s3://bucket/name.",
        show_default=False,
        parser=place,
    ),
]
TargetOrNone = Annotated[
    str | None,
    typer.Argument(
        metavar="[OUT]",
        help="The folder to make, or a URI: s3://bucket/name; none with --in-place.",
        show_default=False,
        parser=place,
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the dataset at OUT, if that is a URI.")
]
Staging = Annotated[
    Path | None,
    typer.Option(
        "--staging",
        metavar="FOLDER",
        help="Where copies of what lies far away are while they are needed.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but results and errors.")]
Debug = Annotated[
    bool, typer.Option("--debug", help="Log more, and show where an error was raised.")
]


def use_staging(folder: Path | None) -> None:
    """Let this process put what it needs of datasets that lie far away into a folder."""
    if folder is not None:
        os.environ["DEMOREEL_STAGING"] = str(folder.absolute())


def episode_numbers(text: str) -> list[int]:
    """Read ``3,40,77`` and ``0:10,90``."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?::(\d+))?\s*", part)
        if match is None:
            raise ArgumentError(f"{part!r} is no episode, and no range like 0:10.")
        first = int(match[1])
        found += range(first, int(match[2])) if match[2] else [first]
    return found
