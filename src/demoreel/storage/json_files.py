"""JSON and JSON-lines files, with errors that name the file and the line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from demoreel.errors import DatasetNotFoundError, MetadataError
from demoreel.storage.arrow import UNREADABLE
from demoreel.storage.local import refuse_special

_BLOCK = 1 << 22
_MOST_OPENED = 1000  # brackets in a line that Arrow may parse: its stack ends at ten thousand


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
        if not _is_plain(path):
            return None
        table = arrow_json.read_json(path)
        table.validate(full=True)  # texts and names may be no UTF-8
        return table if all(table.column_names) else None
    except UNREADABLE:
        return None


def _is_plain(path: Path) -> bool:
    """Whether every line is an object that nests little: Arrow recurses until it crashes."""
    rest = b""
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            lines, _, rest = (rest + block).rpartition(b"\n")
            if len(rest) > _BLOCK or not _are_plain(lines):
                return False
    return _are_plain(rest)


def _are_plain(lines: bytes) -> bool:
    """Whether lines begin and end as objects do, so that none goes on in the next, and are flat."""
    data = np.frombuffer(lines, np.uint8)
    ends = np.append(np.flatnonzero(data == ord("\n")), len(data))
    starts = np.append(0, ends[:-1] + 1)
    starts, ends = starts[ends > starts], ends[ends > starts]
    if not len(starts):
        return True
    if (data[starts] != ord("{")).any() or (data[ends - 1] != ord("}")).any():
        return False
    opened = np.cumsum((data == ord("[")) | (data == ord("{")))
    return int(np.diff(opened[ends - 1], prepend=0).max()) <= _MOST_OPENED


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
