"""JSON and JSON-lines files, with errors that name the file and the line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from demoreel.errors import DatasetNotFoundError, MetadataError, refuse_shortage
from demoreel.model.limits import limit, refuse_above
from demoreel.storage.arrow import UNREADABLE
from demoreel.storage.local import is_pointer, not_fetched, refuse_special

_BLOCK = 1 << 22
_MOST_OPENED = 1000  # brackets in a line that Arrow may parse: its stack ends at ten thousand
_HALF = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")  # of a character, escaped or not

_WEIGHS = "Metadata would take more memory than a dataset needs once parsed: about"

Pairs = Callable[[list[tuple[str, Any]]], Any]


def read_json(path: Path, *, pairs: Pairs | None = None, copies: int = 1) -> Any:
    """Return a file's parsed JSON.

    Args:
        path: The file.
        pairs: Makes an object of its keys and values, which may come twice.
        copies: How often what was parsed is in memory.
    """
    try:
        refuse_special(path)
        # A byte of JSON never takes less memory than two bytes once parsed: not even read.
        refuse_above("JSON_BYTES", 2 * copies * path.stat().st_size, _WEIGHS, file=path)
        data = path.read_bytes()
        if is_pointer(data):
            raise not_fetched(MetadataError, path)
        return parse_json(data, pairs=pairs, where=path, copies=copies)
    except FileNotFoundError as error:
        raise DatasetNotFoundError(
            "A metadata file is missing.", hint="is this the dataset's folder?", file=path
        ) from error
    except MetadataError:
        raise
    except (ValueError, OSError, RecursionError) as error:
        raise MetadataError(
            f"A metadata file is not readable JSON ({error}).",
            hint="restore the file from a copy",
            file=path,
        ) from error


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON-lines file; empty lines are skipped."""
    return [value for _, value in json_lines(path, _raise)]


def _raise(error: MetadataError) -> None:
    raise error


def json_lines(
    path: Path, refuse: Callable[[MetadataError], None], *, most_bytes: int | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the object of each line of a JSON-lines file that has one.

    Args:
        path: The file.
        refuse: Takes what is wrong with a line, or with the file; as for ``read_json_lines``.
        most_bytes: How much of the file is read; None is all of it.
    """
    read = weight = 0
    try:
        refuse_special(path)
        with path.open("rb") as file:
            for number, line in enumerate(lines_of(file, path), 1):
                if number == 1 and is_pointer(line):
                    raise not_fetched(MetadataError, path)
                read += len(line)
                if most_bytes is not None and read > most_bytes:
                    return
                if not line.strip():
                    continue
                weight += parsed_size(line)
                refuse_above("JSON_LINES_BYTES", weight, _WEIGHS, file=path)
                value = _parsed(line, path, number, refuse)
                if value is not None:
                    yield number, value
    except OSError as error:
        cause = error.strerror or type(error).__name__
        what, hint = f"A metadata file cannot be read ({cause}).", "restore the file from a copy"
        refuse(MetadataError(what, hint=hint, file=path))
    except MetadataError as error:
        refuse(error)


def parse_json(data: bytes, *, where: object, pairs: Pairs | None = None, copies: int = 1) -> Any:
    """Return parsed JSON."""
    refuse_above("JSON_BYTES", copies * parsed_size(data), _WEIGHS, file=where)
    return json.loads(data, object_pairs_hook=pairs)


def parse_line(line: bytes, *, where: object) -> Any:
    """Return a parsed line of JSON lines, whose texts go into tables; errors as ``parse_json``."""
    value = parse_json(line, where=where)
    if _HALF.search(line):
        # Half of a surrogate pair fits into no table: it would fail much later, and elsewhere.
        json.dumps(value, ensure_ascii=False).encode()
    return value


def parsed_size(data: bytes) -> int:
    """Return about how many bytes JSON takes once parsed, from what it is made of."""
    objects, lists, values = (data.count(sign) for sign in (b"{", b"[", b","))
    return 2 * len(data) + 240 * objects + 64 * lists + 64 * values


def lines_of(file: BinaryIO, where: object) -> Iterator[bytes]:
    """Yield the lines of a file, none longer than ``JSON_BYTES`` allows."""
    most = limit("JSON_BYTES") // 2 + 1
    while line := file.readline(most):
        refuse_above("JSON_BYTES", 2 * len(line), _WEIGHS, file=where)
        yield line


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
    except UNREADABLE as error:
        refuse_shortage(error)
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
    """Whether lines begin and end as objects do, so none extends into the next, and are flat."""
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


def _parsed(
    line: bytes, path: Path, number: int, refuse: Callable[[MetadataError], None]
) -> dict[str, Any] | None:
    try:
        value = parse_line(line, where=path)
    except MetadataError as error:
        refuse(error)
        return None
    except (ValueError, RecursionError) as error:
        what = f"A line of a metadata file is not JSON ({error})."
        refuse(MetadataError(what, file=path, line=number))
        return None
    if not isinstance(value, dict):
        what = "A line of a metadata file is not an object."
        refuse(MetadataError(what, file=path, line=number))
        return None
    return value
