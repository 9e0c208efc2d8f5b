"""How handlers answer: JSON, errors that are answers, and what a request sends."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from demoreel.errors import (
    ArgumentError,
    DatasetBusyError,
    DatasetNotFoundError,
    DemoreelError,
    OutOfRangeError,
    TargetExistsError,
    UnknownKeyError,
    json_text,
)

_NOT_FOUND = (DatasetNotFoundError, OutOfRangeError, UnknownKeyError)
MOST_SENT = 32 << 20  # bytes of a draft: a change of each of some 100,000 episodes


def answering(handle: Callable[[Request], Response]) -> Callable[[Request], Response]:
    """Return a handler that runs in a thread, and whose errors are answers."""

    def answered(request: Request) -> Response:
        try:
            return handle(request)
        except DemoreelError as error:
            status = 404 if isinstance(error, _NOT_FOUND) else 400
            if isinstance(error, DatasetBusyError | TargetExistsError):
                status = 409
            elif not isinstance(error, (*_NOT_FOUND, ArgumentError)):
                status = 422  # the dataset's fault
            return json_answer(report_of(error), status)
        except Exception as error:  # a hostile dataset ends a request, never the server
            what = f"{type(error).__name__}: {error}"[:500]
            return json_answer({"message": f"This could not be shown ({what}).", "where": {}}, 500)

    return answered


def taking(
    handle: Callable[[Request, Any], Response],
) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler of a request with a JSON object in it, which is not read beyond a limit."""

    async def taken(request: Request) -> Response:
        data = await _sent(request, MOST_SENT)
        try:
            sent = json.loads(data or b"")
        except (ValueError, RecursionError):
            sent = None
        if data is None:
            return _too_much()
        if not isinstance(sent, dict):
            return json_answer({"message": "A JSON object is expected.", "where": {}}, 400)
        return await run_in_threadpool(answering(lambda request: handle(request, sent)), request)

    return taken


def taking_bytes(
    handle: Callable[[Request, bytes], Response], most: int
) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler of a request with a file in it, which is not read beyond a limit."""

    async def taken(request: Request) -> Response:
        data = await _sent(request, most)
        if data is None:
            return _too_much()
        return await run_in_threadpool(answering(lambda request: handle(request, data)), request)

    return taken


async def _sent(request: Request, most: int) -> bytes | None:
    """Return what a request sends; None where it is more than a limit."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > most:
            return None
    return bytes(data)


def _too_much() -> Response:
    return json_answer({"message": "That is too much at once.", "where": {}}, 413)


def kept_answer(data: bytes, kind: str) -> Response:
    """Answer with what stays the same while the dataset does: its address has the revision."""
    return Response(data, media_type=kind, headers={"Cache-Control": "private, max-age=600"})


def columns_answer(facts: dict[str, Any], data: bytes) -> Response:
    """Answer with columns of numbers: the length of a head in JSON, the head, the values."""
    head = json_text(facts).encode()
    head += b" " * (-len(head) % 8)
    return Response(
        len(head).to_bytes(8, "little") + head + data, media_type="application/octet-stream"
    )


def report_of(error: DemoreelError) -> dict[str, Any]:
    """Return what a page shows of an error: what, where and what to do."""
    where = {name: str(value) for name, value in error.where.items()}
    return {"message": error.what, "where": where, "hint": error.hint}


def json_answer(value: Any, status: int = 200) -> Response:
    """Answer with JSON that is not kept."""
    headers = {"Cache-Control": "no-store"}
    return Response(json_text(value), status, media_type="application/json", headers=headers)


def plain_values(values: Any) -> list[Any]:
    """Return text and language as JSON has them: language as a line that people read."""
    return [
        value if isinstance(value, str | int | float | None) else _language_line(value)
        for value in values
    ]


def _language_line(rows: Any) -> str:
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        return str(rows)
    lines = []
    for row in rows:
        content = row.get("content") or row.get("tool_calls") or ""
        line = f"{row.get('style') or row.get('role') or 'text'}: {content}"
        notes = [str(row[name]) for name in ("role", "camera") if row.get(name)]
        if isinstance(row.get("timestamp"), int | float):
            notes.append(f"{row['timestamp']:.2f} s")
        lines.append(f"{line} ({', '.join(notes)})" if notes else line)
    return "; ".join(lines)


def number_of(text: str | None, default: int) -> int:
    """Return a number of a request."""
    if text is None:
        return default
    try:
        number = int(text)
    except ValueError:
        raise ArgumentError(f"{text[:40]!r} is not a number.") from None
    if not 0 <= number < 1 << 40:
        raise ArgumentError(f"{text[:40]!r} is not a number that is possible here.")
    return number
