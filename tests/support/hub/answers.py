"""What the routes are given and what they give back: a request, an answer, a refusal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Headers = dict[str, str]


@dataclass(frozen=True)
class Slice:
    """Bytes of a file on disk, sent as a body."""

    path: Path
    start: int
    length: int


@dataclass
class Answer:
    """A status, headers and a body."""

    status: int = 200
    body: bytes | Slice = b""
    headers: Headers = field(default_factory=dict)

    @property
    def length(self) -> int:
        """The body's bytes."""
        return self.body.length if isinstance(self.body, Slice) else len(self.body)


def as_json(value: Any, *, status: int = 200, headers: Headers | None = None) -> Answer:
    """An answer whose body is JSON."""
    body = json.dumps(value).encode()
    return Answer(status, body, {"Content-Type": "application/json", **(headers or {})})


class Refusal(Exception):
    """An error answer, as the Hub words it: a status, a message and often an ``X-Error-Code``."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, headers: Headers | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.headers = headers or {}

    def answer(self) -> Answer:
        """The same as an answer: in the headers for HEAD, in the body for the others."""
        shown = "".join(c if c.isprintable() else " " for c in self.message)
        headers = {**self.headers, "X-Error-Message": shown.encode("ascii", "replace").decode()}
        if self.code:
            headers["X-Error-Code"] = self.code
        return as_json({"error": self.message}, status=self.status, headers=headers)


@dataclass
class Request:
    """One request, its path cut into decoded parts.

    ``chunks`` yields the body once; ``body()`` collects it.
    """

    method: str
    path: str
    parts: list[str]
    query: dict[str, list[str]]
    headers: Headers  # names in lower case
    chunks: Callable[[], Iterator[bytes]]

    def body(self) -> bytes:
        """The whole body."""
        return b"".join(self.chunks())

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; an empty body is an empty object."""
        try:
            value = json.loads(self.body() or b"{}")
        except ValueError:
            raise Refusal(400, "Invalid JSON in the request body") from None
        if not isinstance(value, dict):
            raise Refusal(400, "The request body is no JSON object")
        return value

    def flag(self, name: str) -> bool:
        """Whether a query parameter says yes."""
        return self.query.get(name, [""])[-1].lower() in ("1", "true")

    def values(self, name: str) -> list[str]:
        """A query parameter that may come several times, also as ``name[]``."""
        return [*self.query.get(name, []), *self.query.get(f"{name}[]", [])]

    @property
    def token(self) -> str | None:
        """The bearer token that came along."""
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        return token.strip() if scheme.lower() == "bearer" else None
