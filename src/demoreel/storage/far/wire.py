"""The plainest HTTP there is: a GET over a connection that stays open, its answer of known length.

Reading at random makes hundreds of small requests a second, on the cores that also decode. General
clients take half a millisecond of them for each; this takes a tenth of that. What is not plain (a
proxy, an answer without a length) is left to urllib3.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from demoreel.storage.forks import renew_in_children

if TYPE_CHECKING:
    import ssl

_FIRST_READ = 1 << 16
_LONGEST_HEAD = 1 << 16
_MOST_IDLE = 64  # connections to one server
_LONGEST_OTHER = 1 << 20  # bytes of an answer that is not the range that was asked for
_PLAIN = ("http", "https")

Address = tuple[str, str, int]


class Reply:
    """An answer.

    Attributes:
        status: Its number.
        headers: By name, in small letters.
    """

    __slots__ = ("_at", "_data", "headers", "status")

    def __init__(self, status: int, headers: Mapping[str, str], data: bytes) -> None:
        self.status = status
        self.headers = headers
        self._data = data
        self._at = 0

    def read(self, size: int, decode_content: bool = False) -> bytes:
        """Return the next bytes of the body, at most so many."""
        begin, self._at = self._at, min(self._at + size, len(self._data))
        if begin == 0 and self._at == len(self._data):
            return self._data
        return self._data[begin : self._at]


class NotPlainError(Exception):
    """The answer is of a kind that another client understands."""


class _Stale(Exception):
    """A connection that was kept open had been closed by the server."""


def get(
    url: str, headers: Mapping[str, str], *, most_bytes: int, connect_s: float, read_s: float
) -> Reply:
    """Return the answer to a GET.

    Args:
        url: What to ask for.
        headers: What to say beside it.
        most_bytes: How long a part of an object may be.
        connect_s: Seconds that a connection may take to be made.
        read_s: Seconds without a byte.

    Raises:
        OSError: The connection failed, or ended before the answer did.
        ValueError: The address, or the answer, is not of this world.
        NotPlainError: The answer has no length, or the address is of another kind.
    """
    parts = urlsplit(url)
    if parts.scheme not in _PLAIN or not parts.hostname:
        raise NotPlainError
    address = (parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
    target = parts.path or "/"
    request = _request(f"{target}?{parts.query}" if parts.query else target, parts.netloc, headers)
    while True:
        kept = _idle.take(address)
        line = kept or _Line(address, connect_s)
        try:
            reply = line.ask(request, most_bytes, read_s)
        except _Stale:
            line.close()
            if kept is None:
                raise ConnectionResetError("the server closed the connection") from None
            continue  # another one, in the end a new one
        except BaseException:
            line.close()
            raise
        if line.stays_open:
            _idle.put(address, line)
        else:
            line.close()
        return reply


def _request(target: str, host: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"GET {target} HTTP/1.1", f"Host: {host.rpartition('@')[2]}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += ["Accept-Encoding: identity", "User-Agent: demoreel"]
    if " " in target or not all(line.isprintable() and line.isascii() for line in lines):
        raise NotPlainError  # an address that must be quoted, a line end in a value
    return "\r\n".join((*lines, "", "")).encode("ascii")


class _Line:
    """A connection to a server."""

    def __init__(self, address: Address, connect_s: float) -> None:
        scheme, host, port = address
        plain = socket.create_connection((host, port), connect_s)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket: Any = plain
        if scheme == "https":
            try:
                self._socket = _trust().wrap_socket(plain, server_hostname=host)
            except BaseException:
                plain.close()
                raise
        self.stays_open = True

    def close(self) -> None:
        self._socket.close()

    def ask(self, request: bytes, most_bytes: int, read_s: float) -> Reply:
        self._socket.settimeout(read_s)
        try:
            self._socket.sendall(request)
            data = self._socket.recv(_FIRST_READ)
        except (ConnectionResetError, BrokenPipeError) as error:
            raise _Stale from error
        except OSError as error:
            if type(error).__name__ == "SSLEOFError":
                raise _Stale from error
            raise
        if not data:
            raise _Stale
        end = data.find(b"\r\n\r\n")
        while end < 0:
            if len(data) > _LONGEST_HEAD:
                raise NotPlainError
            data += self._more()
            end = data.find(b"\r\n\r\n")
        status, headers = _head(data[:end])
        self.stays_open = headers.get("connection", "").lower() != "close"
        return self._whole(status, headers, data[end + 4 :], most_bytes)

    def _whole(
        self, status: int, headers: Mapping[str, str], begun: bytes, most_bytes: int
    ) -> Reply:
        length = headers.get("content-length", "0" if status in (204, 304) else "")
        if not length.isdigit() or "transfer-encoding" in headers:
            raise NotPlainError
        wanted = int(length)
        if len(begun) > wanted:
            raise ConnectionError("the server sends more than it said")
        if status == 206 and wanted > most_bytes:
            raise ConnectionError("the server sends more than was asked for")
        if status != 206 and wanted > _LONGEST_OTHER:
            raise NotPlainError  # all of an object of which a part was wanted
        if len(begun) == wanted:
            return Reply(status, headers, begun)
        body = bytearray(wanted)
        body[: len(begun)] = begun
        rest = memoryview(body)[len(begun) :]
        while rest:
            count = self._socket.recv_into(rest)
            if not count:
                raise ConnectionError("the answer ended too early")
            rest = rest[count:]
        return Reply(status, headers, bytes(body))

    def _more(self) -> bytes:
        data: bytes = self._socket.recv(_FIRST_READ)
        if not data:
            raise ConnectionError("the answer ended too early")
        return data


def _head(data: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = data.decode("latin-1").split("\r\n")
    protocol, _, rest = first.partition(" ")
    if not protocol.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise NotPlainError
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    if protocol == "HTTP/1.0":
        headers.setdefault("connection", "close")
    return int(rest[:3]), headers


@cache
def _trust() -> ssl.SSLContext:
    import ssl  # heavy, and of no use to those who read from their own disk

    return ssl.create_default_context()


class _Idle:
    """Connections that nobody uses now; every process has its own."""

    def __init__(self) -> None:
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Begin anew in a forked child: two readers of one connection mix up its answers."""
        self._lock = threading.Lock()
        self._lines: dict[Address, list[_Line]] = {}

    def take(self, address: Address) -> _Line | None:
        with self._lock:
            lines = self._lines.get(address)
            return lines.pop() if lines else None

    def put(self, address: Address, line: _Line) -> None:
        with self._lock:
            lines = self._lines.setdefault(address, [])
            if len(lines) < _MOST_IDLE:
                lines.append(line)
                return
        line.close()


_idle = _Idle()
