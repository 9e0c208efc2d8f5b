"""Arguments and options that several verbs share."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints
from urllib.parse import unquote, urlsplit

import typer

from demoreel.errors import ArgumentError
from demoreel.storage.store import is_uri


def place(text: str) -> str:
    """Return a path argument in normal form: a folder, or a URI, which a ``Path`` would change."""
    if text.startswith("file://"):
        return str(Path(unquote(urlsplit(text).path)))
    return text.rstrip("/") if "://" in text else str(Path(text))


def name_of_place(place: str) -> str:
    """Return the name of a dataset: the last part of its path."""
    return place.rsplit("/", 1)[-1] if is_uri(place) else Path(place).resolve().name


def only_here(place: str, what: str) -> None:
    """Refuse a remote dataset where only local files will do.

    Raises:
        ArgumentError: The dataset is remote.
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
        help="Folder for temporary copies of remote data.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only results and errors.")]
Debug = Annotated[
    bool, typer.Option("--debug", help="Log more, and show the traceback of an error.")
]


def _allow(prefixes: list[str] | None) -> None:
    if prefixes:
        from demoreel.storage.external import allow_external

        allow_external(None, prefixes)


AllowExternal = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-external",
        metavar="PREFIX",
        help="A folder or URI that Lance tables may point into; may be given several times.",
        show_default=False,
        callback=_allow,
    ),
]


def opens_datasets(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb the option ``--allow-external``, which acts before the verb is called."""

    @functools.wraps(verb)
    def run(*, allow_external: AllowExternal = None, **given: Any) -> None:
        verb(**given)

    hints = get_type_hints(verb, include_extras=True) | {"allow_external": AllowExternal}
    own = inspect.signature(verb)
    more = inspect.Parameter("allow_external", inspect.Parameter.KEYWORD_ONLY, default=None)
    every = [p.replace(annotation=hints[p.name]) for p in (*own.parameters.values(), more)]
    made: Any = run  # functions may carry a signature, though their type does not say so
    made.__signature__ = own.replace(parameters=every)
    made.__annotations__ = hints
    return run


def use_staging(folder: Path | None) -> None:
    """Set the folder for temporary copies of remote data."""
    if folder is not None:
        os.environ["DEMOREEL_STAGING"] = str(folder.absolute())


def episode_numbers(text: str) -> list[int]:
    """Read ``3,40,77`` and ``0:10,90``."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?::(\d+))?\s*", part)
        if match is None:
            raise ArgumentError(f"{part!r} is not an episode, nor a range like 0:10.")
        first = int(match[1])
        found += range(first, int(match[2])) if match[2] else [first]
    return found
