"""Arguments and options that several verbs share."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints
from urllib.parse import unquote, urlsplit

import typer

from demoreel.cli.output import Output
from demoreel.errors import ArgumentError, call_place
from demoreel.storage.store import is_uri

if TYPE_CHECKING:
    from demoreel.run.task import Engine


def place(text: str) -> str:
    """Return a path argument in normal form: a folder, or a URI, which a ``Path`` would change."""
    if text.startswith("file://"):
        return str(Path(unquote(urlsplit(text).path)))
    if "://" in text:
        return text.rstrip("/")
    given = Path(text)
    if not given.is_absolute() and given.name:
        for end in ("", "_old"):  # what is printed names them as they were given
            call_place(os.path.abspath(given) + end, str(given) + end)
    return str(given)


def name_of_place(place: str) -> str:
    """Return the name of a dataset: the last part of its path."""
    return Path(place).resolve().name


def only_here(place: str, what: str) -> None:
    """Refuse a remote dataset where only local files will do."""
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
        parser=place,
    ),
]
SourcePath = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE", help="The dataset's folder, or a URI: s3://bucket/name.", parser=place
    ),
]
DatasetPaths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH...", help="The datasets' folders or URIs: one, or several.", parser=place
    ),
]
Target = Annotated[
    str,
    typer.Argument(
        metavar="OUT", help="The folder to make, or a URI: s3://bucket/name.", parser=place
    ),
]
TargetOrNone = Annotated[
    str | None,
    typer.Argument(
        metavar="[OUT]",
        help="The folder to make, or a URI: s3://bucket/name; none with --in-place.",
        parser=place,
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the dataset at OUT, if that is a URI.")
]


def _use_staging(folder: Path | None) -> None:
    if folder is not None:
        os.environ["DEMOREEL_STAGING"] = str(folder.absolute())


# It acts before the command is called, as does --allow-external.
Staging = Annotated[
    Path | None,
    typer.Option(
        "--staging",
        metavar="FOLDER",
        help="Folder for temporary copies of remote data.",
        callback=_use_staging,
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done, and write nothing.")
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
        callback=_allow,
    ),
]


def _output(
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    allow_external: AllowExternal = None,
) -> Output:
    """Make the ``Output`` of a command; the parameters are the options that every command has."""
    return Output(json=json, quiet=quiet, debug=debug)


def command(work: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function whose first argument is an ``Output``.

    The options that every command has are added to its own; they make the ``Output``.
    """
    common = _common()

    @functools.wraps(work)
    def run(**given: Any) -> None:
        work(_output(**{option.name: given.pop(option.name) for option in common}), **given)

    return with_parameters(run, [*parameters_of(work)[1:], *common])


@functools.cache
def _common() -> list[inspect.Parameter]:
    return parameters_of(_output)


def parameters_of(source: Callable[..., Any], **names: Any) -> list[inspect.Parameter]:
    """Return the parameters of a function or a dataclass, with their types; all are given by name.

    Args:
        source: The function or the dataclass.
        **names: Types that its module has for type checkers only.
    """
    hints = get_type_hints(source, include_extras=True, localns=names)
    return [
        p.replace(annotation=hints[p.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for p in inspect.signature(source).parameters.values()
    ]


def with_parameters(
    run: Callable[..., None], parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """Let a function that takes any keywords be one of these parameters."""
    made: Any = run  # functions may carry a signature, though their type does not say so
    made.__signature__ = inspect.Signature(parameters)
    made.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


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


EngineName = Annotated[
    Literal["local", "ray"], typer.Option("--engine", help="Where the work is done.")
]
Address = Annotated[str | None, typer.Option("--address", help="Of a Ray cluster to join.")]


def engine_named(name: str, address: str | None) -> Engine | None:
    """Return the engine that a command names; None is this machine."""
    if name == "ray":
        from demoreel.run.ray import RayEngine

        return RayEngine(address=address)
    if address is not None:
        raise ArgumentError("--address is for --engine ray.")
    return None
