"""``demoreel sql``: a question in SQL to a dataset's tables."""

from __future__ import annotations

import csv as csv_module
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from demoreel.cli.options import DatasetPath
from demoreel.cli.output import Output, TableColumn
from demoreel.errors import ArgumentError, count, json_text, printable

if TYPE_CHECKING:
    import pyarrow as pa

_SHOWN_IN_A_TERMINAL = 200
_WIDEST = 40
_ROWS_AT_ONCE = 1000
_FORMULA = ("=", "+", "-", "@")


def sql(
    out: Output,
    path: DatasetPath,
    query: Annotated[
        str,
        typer.Argument(
            metavar="QUERY",
            help="One SELECT over frames, episodes, tasks and videos, in DuckDB's SQL.",
        ),
    ],
    csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
    version: Annotated[
        int | None,
        typer.Option("--version", metavar="N", help="Of a Lance dataset: this version of it."),
    ] = None,
    tag: Annotated[
        str | None, typer.Option("--tag", help="Of a Lance dataset: the version with this name.")
    ] = None,
) -> None:
    """Query the dataset's tables with SQL.

    Nothing is written, and no other file can be read. Needs the extra `sql` (DuckDB).
    `describe frames` lists the columns of a table; arrays count from 1: action[1].
    """
    import demoreel

    if csv and out.json:
        raise ArgumentError("--csv and --json are two ways to print.", hint="give one of them")
    answer = demoreel.open(path, version=version, tag=tag).sql(query)
    if out.json:
        _print_json(answer)
    elif csv:
        writer = csv_module.writer(sys.stdout, lineterminator="\n")
        writer.writerow(_cell(name) for name in answer.column_names)
        writer.writerows([_cell(value) for value in row] for row in _rows(answer))
    else:
        _print_table(out, answer)


def _rows(answer: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Yield the rows as Python values, a portion at a time; columns may share a name."""
    for batch in answer.to_batches(max_chunksize=_ROWS_AT_ONCE):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _print_json(answer: pa.Table) -> None:
    """Print one object: the columns' names, and the rows as lists."""
    head = json_text({"columns": answer.column_names})
    print(head[:-1] + ', "rows": [', end="")
    separator = "\n  "
    for row in _rows(answer):
        values = json_text([_plain(value) for value in row])
        print(separator, values, end="", sep="")
        separator = ",\n  "
    print("\n]}")


def _print_table(out: Output, answer: pa.Table) -> None:
    shown = answer.slice(0, _SHOWN_IN_A_TERMINAL) if out.is_terminal else answer
    columns = [TableColumn(name, right=_is_number(kind)) for name, kind in _fields(answer)]
    if not out.is_terminal:
        out.stream(columns, ([_text(value) for value in row] for row in _rows(answer)))
        return
    out.table(columns, [[_short(value) for value in row] for row in _rows(shown)])
    if len(answer) > len(shown):
        more = count(len(answer) - len(shown), "more row")
        out.note(f"and {more}; `limit`, --csv or a pipe shows all")


def _fields(answer: pa.Table) -> list[tuple[str, pa.DataType]]:
    return [(field.name, field.type) for field in answer.schema]


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list | dict):
        return json_text(_plain(value))
    return str(value)


def _cell(value: Any) -> str:
    """Return a value for a spreadsheet, which must not read an untrusted text as a formula."""
    text = printable(_text(value))
    return f"'{text}" if isinstance(value, str) and text.startswith(_FORMULA) else text


def _short(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else _text(value)
    return text if len(text) <= _WIDEST else f"{text[:_WIDEST]}…"


def _plain(value: Any) -> Any:
    """Return a value that JSON has; what it has not becomes text, and NaN null."""
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, float):
        return value if abs(value) != float("inf") and value == value else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)
