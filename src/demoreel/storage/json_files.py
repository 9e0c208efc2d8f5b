"""JSON and JSON-lines files, with errors that name the file and the line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from demoreel.errors import DatasetNotFoundError, MetadataError
from demoreel.storage.arrow import UNREADABLE
from demoreel.storage.local import refuse_special


def read_json(path: Path) -> Any:
    """Return a file's parsed JSON.

    Raises:
        DatasetNotFoundError: There is no such file.
        MetadataError: It is not JSON.
    """
    try:
        refuse_special(path)
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise DatasetNotFoundError(
            "A metadata file is missing.", hint="is this the dataset's folder?", file=path
        ) from error
    except (ValueError, OSError, RecursionError) as error:
        raise MetadataError(
            f"A metadata file is not readable JSON ({error}).",
            hint="restore the file from a copy",
            file=path,
        ) from error


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON-lines file; empty lines are skipped.

    Raises:
        MetadataError: The file is missing, or a line is not a JSON object.
    """
    rows = []
    try:
        refuse_special(path)
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    rows.append(_parsed(line, path, number))
    except OSError as error:
        raise MetadataError(
            f"A metadata file cannot be read ({error.strerror}).",
            hint="restore the file from a copy",
            file=path,
        ) from error
    return rows


def read_json_table(path: Path) -> pa.Table | None:
    """Return a JSON-lines file as a table: fast, for files of a million regular lines.

    None where the lines are irregular or broken: ``read_json_lines`` then says which one.
    """
    from pyarrow import json as arrow_json

    try:
        refuse_special(path)
        if _is_deep(path):
            return None
        table = arrow_json.read_json(path)
        table.validate(full=True)  # texts and names may be no UTF-8
        return table if all(table.column_names) else None
    except UNREADABLE:
        return None


def _is_deep(path: Path) -> bool:
    """Whether a file nests deeper than metadata do. Arrow's parser recurses until it crashes."""
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            if _DEEP[0] in block or _DEEP[1] in block:
                return True
            if max(block.count(b"["), block.count(b"{")) > 0 and _DEEPER.search(block):
                return True
    return False


def _parsed(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MetadataError(
            f"A line of a metadata file is not JSON ({error}).", file=path, line=number
        ) from error
    if not isinstance(value, dict):
        raise MetadataError("A line of a metadata file is not an object.", file=path, line=number)
    return value
