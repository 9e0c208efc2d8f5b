"""HTTP: one thread per connection, every request logged, faults where they are planned."""

from __future__ import annotations

import math
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from support.hub.answers import Answer, Refusal, Request, Slice
from support.hub.core import Hub
from support.hub.faults import Cut, Faults, until
from support.hub.routes import ROUTES, Route, route_of
from support.hub.sending import Parts

_PIECE = 1 << 18


@dataclass
class LoggedRequest:
    """One request as the server saw it. Paths carry no query, so no signature.

    Status 0: the connection died before an answer.
    """

    route: str
    method: str
    path: str
    status: int
    request_bytes: int
    response_bytes: int
    range: str | None = None
    authorized: bool = False


class HttpServer(ThreadingHTTPServer):
    """The listening socket, the log, and the open connections."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, hub: Hub, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.hub = hub
        self.faults = Faults(ROUTES)
        self.parts = Parts()
        self.log: list[LoggedRequest] = []
        self.unexpected: list[BaseException] = []
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    def opened(self, connection: socket.socket) -> None:
        """Remember a connection, to close it with the server."""
        with self._lock:
            self._open.add(connection)

    def closed(self, connection: socket.socket) -> None:
        """Forget a connection."""
        with self._lock:
            self._open.discard(connection)

    def stop(self) -> None:
        """Stop listening, and hang up on everybody."""
        self.shutdown()
        self.server_close()
        self.faults.clear(drop=True)
        with self._lock:
            for connection in self._open:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue  # the other side was quicker

    def handle_error(self, *_: Any) -> None:
        """Clients that are killed leave broken connections; they are not reported."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: HttpServer

    def setup(self) -> None:
        """Begin a connection."""
        super().setup()
        self._received = 0
        self.server.opened(self.connection)

    def finish(self) -> None:
        """End a connection."""
        self.server.closed(self.connection)
        super().finish()

    def log_message(self, *_: Any) -> None:
        """The log is a list, not a text on stderr."""

    def serve(self) -> None:
        """Answer one request."""
        self._received = 0
        request = self._request()
        route = route_of(self.server.hub, request, self.server.parts)
        chunked = self.headers.get("Transfer-Encoding", "").lower() == "chunked"
        length = math.inf if chunked else int(self.headers.get("Content-Length") or 0)
        body = self._body(length, self.server.faults.cut_after("up", route.name, request, length))
        request.chunks = lambda: body
        try:
            answer = self._answer(route, request)
            for _ in body:  # what was not read would be taken for the next request
                pass
        except (Cut, ConnectionError):
            self._log(route, request, 0, 0)
            self._reset()
            return
        try:
            self._send(route, request, answer)
        except (Cut, ConnectionError):
            self.close_connection = True  # in the middle of the body, as proxies do

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = serve  # noqa: N815

    def _request(self) -> Request:
        url = urlsplit(self.path)
        return Request(
            method=self.command,
            path=url.path,
            parts=[unquote(part) for part in url.path.strip("/").split("/")],
            query=parse_qs(url.query, keep_blank_values=True),
            headers={name.lower(): value for name, value in self.headers.items()},
            chunks=lambda: iter(()),
        )

    def _body(self, length: float, limit: int | None) -> Iterator[bytes]:
        """The body, and ``Cut`` when ``limit`` bytes of it have come."""
        if length == math.inf:
            yield from until(self._chunked_body(), limit)
            return
        end = int(length) if limit is None else limit
        while self._received < end:
            yield self._piece(min(_PIECE, end - self._received))
        if limit is not None:
            raise Cut

    def _chunked_body(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline().split(b";")[0] or b"0", 16):
            yield self._piece(size)
            self.rfile.readline()
        self.rfile.readline()

    def _piece(self, size: int) -> bytes:
        piece = self.rfile.read(size)
        if len(piece) < size:
            raise ConnectionError("the client hung up in the middle of its body")
        self._received += size
        return piece

    def _answer(self, route: Route, request: Request) -> Answer:
        try:
            self.server.faults.meet(route.name, request, route.repo_id)
            failure = self.server.faults.failure(route.name, request)
            return failure if failure is not None else route.answer()
        except Refusal as refusal:
            return refusal.answer()
        except (Cut, ConnectionError):
            raise
        except Exception as error:
            self.server.unexpected.append(error)  # raised again when the server is closed
            return Refusal(500, f"{type(error).__name__} in the test server").answer()

    def _send(self, route: Route, request: Request, answer: Answer) -> None:
        length = 0 if request.method == "HEAD" else answer.length
        limit = self.server.faults.cut_after("down", route.name, request, length)
        self._log(route, request, answer.status, length if limit is None else limit)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(answer.length))
        self.send_header("X-Request-Id", f"test-{len(self.server.log)}")
        self.end_headers()
        if request.method != "HEAD":
            for piece in until(_pieces(answer.body), limit):
                self.wfile.write(piece)

    def _log(self, route: Route, request: Request, status: int, sent: int) -> None:
        self.server.log.append(
            LoggedRequest(
                route=route.name,
                method=request.method,
                path=request.path,
                status=status,
                request_bytes=self._received,
                response_bytes=sent,
                range=request.headers.get("range"),
                authorized=request.token is not None,
            )
        )

    def _reset(self) -> None:
        """Reset the connection, as a crash or a cut cable does."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True


def _pieces(body: bytes | Slice) -> Iterator[bytes]:
    if isinstance(body, bytes):
        yield body
        return
    with body.path.open("rb") as file:
        file.seek(body.start)
        left = body.length
        while left:
            piece = file.read(min(_PIECE, left))
            left -= len(piece)
            yield piece
