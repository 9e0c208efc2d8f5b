"""Where an HTTP/1.1 message ends: heads are kept as they came, and only looked into."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote_to_bytes

END_OF_HEAD = b"\r\n\r\n"


class RequestHead(NamedTuple):
    """What a proxy must know of a request.

    Attributes:
        path: Without the query, percent signs decoded.
        range: The value of ``Range``, empty without one.
    """

    method: str
    path: str
    range: str
    body: Body


class AnswerHead(NamedTuple):
    """What a proxy must know of an answer.

    Attributes:
        closes: Whether the server closes the connection after it.
    """

    status: int
    body: Body
    closes: bool


class Body:
    """The rest of a message: so many bytes, or chunks, or everything until the connection closes.

    Attributes:
        left: Bytes still to come; none where the length is not known.
        done: Whether the message is complete.
    """

    __slots__ = ("_chunk", "_line", "_trailer", "done", "left", "until_close")

    def __init__(self, length: int | None, *, until_close: bool = False) -> None:
        self.left = length
        self.until_close = until_close
        self.done = length == 0
        self._chunk = 0  # bytes left of a chunk, with its line end
        self._line = b""  # the beginning of a line that says how long the next one is
        self._trailer = False

    def take(self, data: bytes | memoryview) -> int:
        """Return how many of the bytes belong to this message, and remember that they came."""
        if self.left is not None:
            taken = min(self.left, len(data))
            self.left -= taken
            self.done = self.left == 0
            return taken
        return len(data) if self.until_close else self._take_chunks(bytes(data))

    def _take_chunks(self, data: bytes) -> int:
        at = 0
        while at < len(data) and not self.done:
            if self._chunk:
                step = min(self._chunk, len(data) - at)
                self._chunk -= step
                at += step
                continue
            end = data.find(b"\n", at) + 1
            self._line += data[at : end or len(data)]
            at = end or len(data)
            if end:
                self._understand(self._line.strip())
                self._line = b""
        return at

    def _understand(self, line: bytes) -> None:
        if self._trailer:
            self.done = not line
            return
        size = int(line.split(b";")[0], 16)
        self._trailer = size == 0
        self._chunk = size + 2 if size else 0


def read_request(head: bytes) -> RequestHead:
    """Look into a request's head, which ends with an empty line."""
    method, target, _ = head[: head.index(b"\r\n")].split(b" ", 2)
    path = target.partition(b"?")[0]
    if b"%" in path:
        path = unquote_to_bytes(path)
    lower = head.lower()
    if b"chunked" in value_of(lower, b"transfer-encoding"):
        body = Body(None)
    else:
        body = Body(int(value_of(lower, b"content-length") or 0))
    asked = value_of(lower, b"range").decode("latin-1")
    return RequestHead(method.decode(), path.decode(errors="replace"), asked, body)


def read_answer(head: bytes, method: str) -> AnswerHead:
    """Look into an answer's head, which ends with an empty line; the method was the request's."""
    status = int(head[9:12])
    lower = head.lower()
    closes = b"close" in value_of(lower, b"connection") or head.startswith(b"HTTP/1.0")
    if method == "HEAD" or status in (204, 304) or status < 200:
        return AnswerHead(status, Body(0), closes)
    if b"chunked" in value_of(lower, b"transfer-encoding"):
        return AnswerHead(status, Body(None), closes)
    length = value_of(lower, b"content-length")
    if length:
        return AnswerHead(status, Body(int(length)), closes)
    return AnswerHead(status, Body(None, until_close=True), True)


def value_of(lower: bytes, name: bytes) -> bytes:
    """Return the value of a header in a head in lower case, empty without one."""
    at = lower.find(b"\r\n" + name + b":")
    if at < 0:
        return b""
    start = at + len(name) + 3
    return lower[start : lower.index(b"\r\n", start)].strip()


def replaced(head: bytes, name: bytes, value: bytes) -> bytes:
    """Return a head with another value for a header that it has."""
    at = head.lower().find(b"\r\n" + name + b":")
    if at < 0:
        return head
    start = at + len(name) + 3
    return head[:start] + b" " + value + head[head.index(b"\r\n", start) :]


def shortened(head: bytes, length: int, *, by: int, content_range: str) -> bytes:
    """Return an answer's head that promises fewer bytes than ``length``."""
    head = replaced(head, b"content-length", str(length - by).encode())
    given = value_of(head.lower(), b"content-range")
    if given and content_range == "shorter":
        span, _, total = given.removeprefix(b"bytes ").partition(b"/")
        first, _, last = span.partition(b"-")
        told = b"bytes %s-%d/%s" % (first, int(last) - by, total)
        head = replaced(head, b"content-range", told)
    return head
