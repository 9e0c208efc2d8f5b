"""The versions of a Lance table and their names, as a user asks for them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from demoreel.errors import ArgumentError
from demoreel.storage.lance_calls import import_lance
from demoreel.storage.lance_write import writing

_DONE = {
    "Append": "appended rows",
    "CreateIndex": "indexed",
    "Overwrite": "wrote all rows",
    "Rewrite": "merged files",
    "Restore": "went back",
}


@dataclass(frozen=True, slots=True)
class TableVersion:
    """One version of a table.

    Attributes:
        number: Its number.
        time: When it was made.
        rows: How many rows it has.
        done: What Lance did to make it; empty where that is not known.
    """

    number: int
    time: datetime
    rows: int
    done: str


def list_versions(table: Path) -> list[TableVersion]:
    """Return all versions that are still there, oldest first.

    Cost: a read of every manifest.

    Raises:
        TableError: The table does not open.
    """
    with writing(table):
        opened = _open(table)
        listed = opened.versions()
        done = {entry["version"]: _done(opened, entry["version"]) for entry in listed}
    return [
        TableVersion(
            number=entry["version"],
            time=entry["timestamp"].astimezone(),
            rows=int(entry["metadata"].get("total_rows", 0)),
            done=done[entry["version"]],
        )
        for entry in listed
    ]


def _done(table: Any, version: int) -> str:
    """Return what Lance noted of a version; it may not be there any more."""
    try:
        noted = table.read_transaction(version)
    except (OSError, ValueError):
        return ""
    return "" if noted is None else _DONE.get(type(noted.operation).__name__, "")


def list_tags(table: Path) -> dict[str, int]:
    """Return the version of each tag.

    Raises:
        TableError: The table does not open.
    """
    with writing(table):
        tags = _open(table).tags.list()
    return {name: int(tag["version"]) for name, tag in tags.items()}


def add_tag(table: Path, name: str, version: int) -> None:
    """Give a version a name.

    Raises:
        ArgumentError: Another version has that name, it cannot be one, or there is no such version.
        TableError: The table does not open.
    """
    refuse_odd_name(name)
    taken = list_tags(table).get(name)
    if taken is not None:
        raise ArgumentError(
            f"Version {taken} has the tag {name!r} already.",
            hint="delete it first, or choose another name",
            table=table,
        )
    with writing(table):
        _open(table).tags.create(name, version)


def remove_tag(table: Path, name: str) -> int:
    """Take a name away, and return the version that had it.

    Raises:
        ArgumentError: No version has it.
        TableError: The table does not open.
    """
    tags = list_tags(table)
    if name not in tags:
        known = f"there are: {', '.join(sorted(tags))}" if tags else "it has none"
        raise ArgumentError(f"The dataset has no tag {name!r}.", hint=known, table=table)
    with writing(table):
        _open(table).tags.delete(name)
    return tags[name]


def refuse_odd_name(name: str) -> None:
    """Refuse what cannot be the name of a version.

    Raises:
        ArgumentError: It is empty, a number, or has characters that Lance does not take.
    """
    plain = name.replace("-", "").replace("_", "").replace(".", "")
    if not plain.isalnum() or not name.isascii() or name.isdigit() or ".." in name:
        raise ArgumentError(
            f"A tag cannot be called {name!r}.",
            hint="letters, digits, '-', '_' and '.'; not a number alone",
        )


def _open(table: Path) -> Any:
    return import_lance().dataset(os.fspath(table))
