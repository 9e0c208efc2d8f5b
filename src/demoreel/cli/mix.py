"""``demoreel mix``: what a mixture of datasets will be, checked before it trains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from demoreel.cli.output import Output, TableColumn
from demoreel.errors import DemoreelError, count, first_line

if TYPE_CHECKING:
    from demoreel.read.mixture import MixtureReader
    from demoreel.read.part import Part


def mix(
    out: Output,
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="A YAML or JSON file with the parts.")
    ],
    no_read: Annotated[
        bool, typer.Option("--no-read", help="Do not read samples; look at metadata only.")
    ] = False,
) -> None:
    """Show the table of a mixture, and check that every part can be read and fits the others.

    Of each part, the first, the middle and the last sample are read. The exit code is 0 if all is
    well, 1 if a part cannot be opened or read, and 2 if parts cannot be reconciled.
    """
    from demoreel.read.mixture import MixtureReader
    from demoreel.read.mixture_file import mixture_arguments, reader_arguments

    arguments = mixture_arguments(config)
    problems = _that_do_not_open(arguments["parts"])
    if problems:
        _report(out, config, None, problems)
        raise typer.Exit(1)
    mixture = MixtureReader(**reader_arguments(arguments))
    if not no_read:
        with out.progress("reading samples of every part") as report:
            problems = _that_do_not_read(mixture, report)
    _report(out, config, mixture, problems)
    if problems:
        raise typer.Exit(1)


def _that_do_not_open(parts: list[Part]) -> dict[int, str]:
    from demoreel.read.part import OpenPart

    problems = {}
    for number, part in enumerate(parts):
        try:
            OpenPart(part, number)
        except (DemoreelError, OSError) as error:
            problems[number] = _told(error)
    return problems


def _that_do_not_read(mixture: MixtureReader, report: Any) -> dict[int, str]:
    import numpy as np

    problems = {}
    for number, size in enumerate(mixture.sizes):
        samples = np.unique([0, size // 2, size - 1])
        try:
            mixture.batch(np.full(len(samples), number), samples)
        except (DemoreelError, OSError) as error:
            problems[number] = _told(error)
        report((number + 1) / len(mixture.sizes))
    return problems


def _told(error: Exception) -> str:
    if not isinstance(error, DemoreelError):
        return first_line(error)
    where = "; ".join(f"{name} {value}" for name, value in error.where.items())
    return f"{error.what} ({where})" if where else error.what


def _report(
    out: Output, config: Path, mixture: MixtureReader | None, problems: dict[int, str]
) -> None:
    rows = [] if mixture is None else mixture.table()
    if out.json:
        out.result(
            {
                "path": str(config),
                "parts": [{**row, "problem": problems.get(row["part"])} for row in rows],
                "problems": [{"part": n, "problem": text} for n, text in problems.items()],
                "epoch_samples": None if mixture is None else mixture.epoch_samples,
                "dropped": [] if mixture is None else list(mixture.dropped),
                "notes": [] if mixture is None else mixture.notes,
            }
        )
        return
    if mixture is not None:
        sizes = f"{count(len(rows), 'part')}, {count(sum(mixture.sizes), 'frame')}"
        out.line(f"{config.name}: {sizes}", style="bold")
        heads = ("episodes", "frames", "probability", "epochs")
        out.table(
            [
                TableColumn("part"),
                *(TableColumn(name, right=True) for name in heads),
                TableColumn("changes"),
            ],
            [
                [
                    row["name"],
                    f"{row['episodes']:,}",
                    f"{row['frames']:,}",
                    f"{row['probability']:.6g}",
                    f"{row['epochs']:.4g}",
                    mixture.changes(row),
                ]
                for row in rows
            ],
        )
        out.line(f"an epoch is {count(mixture.epoch_samples, 'sample')}")
        for key in mixture.dropped:
            out.line(f"dropped: {key}")
        for note in mixture.notes:
            out.note(note)
    for number, problem in problems.items():
        out.line(f"part {number}: {problem}")
