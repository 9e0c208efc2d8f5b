"""Language columns as LeRobot's users get them: lists of dicts, tool calls parsed."""

from __future__ import annotations

import json
from typing import Any

from demoreel.errors import TableError


def parsed_rows(rows: list[dict[str, Any]] | None, *, key: str, where: str) -> list[dict[str, Any]]:
    """Return one frame's language rows; tool calls, stored as JSON text, become objects."""
    found = []
    if not isinstance(rows, list | None) or not all(isinstance(row, dict) for row in rows or []):
        raise TableError(
            f"The column {key!r} does not hold language rows.",
            hint="info.json and the table were not written together",
            file=where,
        )
    for row in rows or []:
        calls = row.get("tool_calls")
        found.append({**row, "tool_calls": calls and [_parsed(c, key, where) for c in calls]})
    return found


def _parsed(call: object, key: str, where: str) -> object:
    if not isinstance(call, (str, bytes)):
        return call
    try:
        return json.loads(call)
    except (ValueError, RecursionError) as error:
        raise TableError(f"A tool call in {key!r} is not JSON ({error}).", file=where) from error
