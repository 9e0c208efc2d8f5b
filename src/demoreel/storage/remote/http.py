"""A minimal HTTP client: GET requests over persistent connections, responses of known length.

Reading at random makes hundreds of small requests a second, on the cores that also decode. General
clients take half a millisecond of them for each; this takes a tenth of that. What is not plain (a
proxy, an answer without a length) is left to urllib3.

``EventLoop`` has many requests under way: one thread waits for all the answers. A thread for each
would take its turn at the interpreter with those that decode, three times as long as the request
itself. There only what goes well happens; whatever is unusual (no connection is open yet, a server
that is busy or closes) is handed back, to be done by a thread that may wait.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from demoreel.storage.threads import CONNECTIONS, renew_in_children

if TYPE_CHECKING:
    import ssl

_FIRST_READ = 1 << 16
_LARGEST_READ = 1 << 20
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


class StaleError(Exception):
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
    """
    address, request = question(url, headers)
    while True:
        kept = idle.take(address)
        connection = kept or Connection(address, connect_s)
        try:
            reply = connection.ask(request, most_bytes, read_s)
        except StaleError:
            connection.close()
            if kept is None:
                raise ConnectionResetError("the server closed the connection") from None
            continue  # another one, in the end a new one
        except BaseException:
            connection.close()
            raise
        idle.put(connection)
        return reply


def question(url: str, headers: Mapping[str, str]) -> tuple[Address, bytes]:
    """Return whom to ask, and what to send."""
    address, begin = _place(url)
    lines = [begin, *(f"{name}: {value}" for name, value in headers.items())]
    lines += ["Accept-Encoding: identity", "User-Agent: demoreel"]
    if not all(line.isprintable() and line.isascii() for line in lines[1:]):
        raise NotPlainError  # a line end in a value
    return address, "\r\n".join((*lines, "", "")).encode("ascii")


@lru_cache(1024)  # of an object, many ranges are read
def _place(url: str) -> tuple[Address, str]:
    parts = urlsplit(url)
    if parts.scheme not in _PLAIN or not parts.hostname:
        raise NotPlainError
    port = parts.port or (443 if parts.scheme == "https" else 80)
    target = parts.path or "/"
    target = f"{target}?{parts.query}" if parts.query else target
    begin = f"GET {target} HTTP/1.1", f"Host: {parts.netloc.rpartition('@')[2]}"
    if " " in target or not all(line.isprintable() and line.isascii() for line in begin):
        raise NotPlainError  # an address that must be quoted
    return (parts.scheme, parts.hostname, port), "\r\n".join(begin)


class Connection:
    """A connection to a server.

    Args:
        address: The server.
        connect_s: Seconds that a connection may take to be made.

    Attributes:
        address: The server.
        stays_open: Whether another request may follow.
    """

    def __init__(self, address: Address, connect_s: float) -> None:
        scheme, host, port = self.address = address
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
        """Close it."""
        self._socket.close()

    def fileno(self) -> int:
        """Return its number, for the system to watch."""
        number: int = self._socket.fileno()
        return number

    def ask(self, request: bytes, most_bytes: int, read_s: float) -> Reply:
        """Send a request, and wait for the answer."""
        self._socket.settimeout(read_s)
        self._send(request)
        parser = ResponseParser(most_bytes)
        while True:
            reply = self._take(parser)
            if reply is not None:
                return reply

    def begin(self, request: bytes) -> None:
        """Send a request; what comes back is for ``receive``."""
        self._socket.settimeout(0)
        self._send(request)

    def receive(self, parser: ResponseParser) -> Reply | None:
        """Take what has come, and return the answer if that was the last of it."""
        try:
            while True:
                reply = self._take(parser)
                if reply is not None:
                    return reply
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            if type(error).__name__ in ("SSLWantReadError", "SSLWantWriteError"):
                return None
            raise

    def _send(self, request: bytes) -> None:
        with _stale():
            self._socket.sendall(request)

    def _take(self, parser: ResponseParser) -> Reply | None:
        if parser.begun:
            data = self._socket.recv(parser.room)
            if not data:
                raise ConnectionError("the answer ended too early")
        else:
            with _stale():
                data = self._socket.recv(parser.room)
            if not data:
                raise StaleError
        reply = parser.take(data)
        if reply is not None:
            self.stays_open = reply.headers.get("connection", "").lower() != "close"
        return reply


@contextmanager
def _stale() -> Iterator[None]:
    """Tell a connection that had been closed before from one that fails."""
    try:
        yield
    except (ConnectionResetError, BrokenPipeError) as error:
        raise StaleError from error
    except OSError as error:
        if type(error).__name__ == "SSLEOFError":
            raise StaleError from error
        raise


class ResponseParser:
    """An answer that comes in pieces.

    Args:
        most_bytes: How long a part of an object may be.

    Attributes:
        begun: Whether anything has come.
        room: How many bytes to take next.
    """

    __slots__ = ("_head", "_left", "_most", "_parts", "_status", "begun", "room")

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._head: dict[str, str] | None = None
        self._status = 0
        self._left = 0
        self._parts: list[bytes] = []
        self.begun = False
        self.room = _FIRST_READ

    def take(self, data: bytes) -> Reply | None:
        """Take the next piece; return the answer if it is whole."""
        self.begun = True
        if self._head is None:
            data = b"".join((*self._parts, data))
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > _LONGEST_HEAD:
                    raise NotPlainError
                self._parts = [data]
                return None
            self._status, self._head = _head(data[:end])
            self._left = self._length()
            self._parts, data = [], data[end + 4 :]
        self._left -= len(data)
        if self._left < 0:
            raise ConnectionError("the server sends more than it announced")
        self._parts.append(data)
        self.room = min(self._left, _LARGEST_READ)
        return None if self._left else Reply(self._status, self._head, b"".join(self._parts))

    def _length(self) -> int:
        assert self._head is not None
        length = self._head.get("content-length", "0" if self._status in (204, 304) else "")
        if not length.isdigit() or "transfer-encoding" in self._head:
            raise NotPlainError
        wanted = int(length)
        if self._status == 206 and wanted > self._most:
            raise ConnectionError("the server sends more than was asked for")
        if self._status != 206 and wanted > _LONGEST_OTHER:
            raise NotPlainError  # all of an object of which a part was wanted
        return wanted


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
    import ssl  # heavy, and only needed for https

    return ssl.create_default_context()


class _Idle:
    """Connections that are open and not in use; every process has its own."""

    def __init__(self) -> None:
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Start again in a forked child: two readers of one connection mix up its answers."""
        self._lock = threading.Lock()
        self._idle: dict[Address, list[Connection]] = {}

    def take(self, address: Address) -> Connection | None:
        """Return a connection to a server; None if all are in use."""
        with self._lock:
            kept = self._idle.get(address)
            return kept.pop() if kept else None

    def put(self, connection: Connection) -> None:
        """Keep a connection whose answer has come, if another may follow."""
        if connection.stays_open:
            with self._lock:
                kept = self._idle.setdefault(connection.address, [])
                if len(kept) < _MOST_IDLE:
                    kept.append(connection)
                    return
        connection.close()


idle = _Idle()


_LOOK_S = 1.0

_log = logging.getLogger(__name__)

Outcome = Reply | Exception | None
"""An answer; what went wrong; or None where the server had closed the connection long ago."""


@dataclass(slots=True)
class _Exchange:
    """A request, and as much of its answer as has come."""

    address: Address
    request: bytes
    most_bytes: int
    read_s: float
    done: Callable[[Outcome], None]
    connection: Connection | None = None
    parser: ResponseParser | None = None
    heard_of: float = 0.0


class EventLoop:
    """Requests that are under way. Safe for threads; a forked child has none of them."""

    def __init__(self) -> None:
        self._poll: Any = None
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Start again in a forked child: its answers come to its parent."""
        self._poll = None
        self._lock = threading.Lock()
        self._under_way: dict[int, _Exchange] = {}
        self._waiting: deque[_Exchange] = deque()
        self._resting: dict[Address, float] = {}
        self._some = threading.Event()
        self._looked = time.monotonic()

    def ask(
        self,
        address: Address,
        request: bytes,
        *,
        most_bytes: int,
        read_s: float,
        done: Callable[[Outcome], None],
    ) -> bool:
        """Begin a request, if a connection is open.

        Args:
            address: The server.
            request: What to send.
            most_bytes: How long the part of an object may be that comes.
            read_s: Seconds without a byte.
            done: Called by another thread with what came of it; it must not wait for anything.

        Returns:
            Whether it has begun; if not, ``done`` is never called.
        """
        exchange = _Exchange(address, request, most_bytes, read_s, done)
        with self._lock:
            if self._rests(address) or not self._watches():
                return False
            if len(self._under_way) >= CONNECTIONS:
                self._waiting.append(exchange)
                return True
        connection = idle.take(address)
        return connection is not None and self._begin(exchange, connection)

    def let_rest(self, address: Address, seconds: float) -> None:
        """Begin nothing with a server that is busy, for so long.

        Fewer requests are made meanwhile: by threads, one at a time each.
        """
        with self._lock:
            until = time.monotonic() + seconds
            self._resting[address] = max(until, self._resting.get(address, 0.0))

    def _rests(self, address: Address) -> bool:
        until = self._resting.get(address)
        if until is not None and until <= time.monotonic():
            del self._resting[address]
            return False
        return until is not None

    def _watches(self) -> bool:
        """Start the thread, if that has not happened; False where that cannot be."""
        if self._poll is None and hasattr(select, "epoll"):
            try:
                poll = select.epoll()
                run = partial(self._run, poll, self._some)
                threading.Thread(target=run, name="demoreel-answers", daemon=True).start()
            except (RuntimeError, OSError):  # no more threads, or no more files
                return False
            self._poll = poll
        return self._poll is not None

    def _begin(self, exchange: _Exchange, connection: Connection) -> bool:
        exchange.connection, exchange.parser = connection, ResponseParser(exchange.most_bytes)
        exchange.heard_of = time.monotonic()
        try:
            connection.begin(exchange.request)
        except (StaleError, OSError):  # it was closed long ago, or takes nothing more
            connection.close()
            return False
        with self._lock:
            try:
                self._poll.register(connection.fileno(), select.EPOLLIN)
            except OSError:
                connection.close()
                return False
            self._under_way[connection.fileno()] = exchange
            self._some.set()
        return True

    def _run(self, poll: Any, some: threading.Event) -> None:
        while True:
            some.wait()
            try:
                self._take_turn(poll)
            except Exception as error:  # without this thread, all would wait for ever
                for exchange in list(self._under_way.values()):
                    self._end(exchange, error)
            with self._lock:
                if not self._under_way:
                    some.clear()

    def _take_turn(self, poll: Any) -> None:
        for number, _ in poll.poll(_LOOK_S):
            exchange = self._under_way.get(number)
            if exchange is not None:
                self._receive(exchange)
        if time.monotonic() - self._looked > _LOOK_S:
            self._give_up_on_the_silent()

    def _receive(self, exchange: _Exchange) -> None:
        assert exchange.connection is not None
        assert exchange.parser is not None
        exchange.heard_of = time.monotonic()
        try:
            reply = exchange.connection.receive(exchange.parser)
        except (StaleError, NotPlainError):  # another client, or another try, will do
            self._end(exchange, None)
        except Exception as error:
            self._end(exchange, error)
        else:
            if reply is not None:
                self._end(exchange, reply)

    def _give_up_on_the_silent(self) -> None:
        now = self._looked = time.monotonic()
        for exchange in list(self._under_way.values()):
            if now - exchange.heard_of > exchange.read_s:
                self._end(exchange, TimeoutError("the server says nothing"))

    def _end(self, exchange: _Exchange, outcome: Outcome) -> None:
        connection = exchange.connection
        assert connection is not None
        with self._lock:
            self._under_way.pop(connection.fileno(), None)
            with suppress(OSError, ValueError):
                self._poll.unregister(connection.fileno())
        if isinstance(outcome, Reply):
            idle.put(connection)
        else:
            connection.close()
        _tell(exchange, outcome)
        self._begin_another()

    def _begin_another(self) -> None:
        """Begin one of those that wait; one without a connection is handed back."""
        while True:
            with self._lock:
                if not self._waiting:
                    return
                exchange = self._waiting.popleft()
                rests = self._rests(exchange.address)
            connection = None if rests else idle.take(exchange.address)
            if connection is not None and self._begin(exchange, connection):
                return
            _tell(exchange, None)


def _tell(exchange: _Exchange, outcome: Outcome) -> None:
    try:
        exchange.done(outcome)
    except Exception as error:  # by its kind only: what it says may hold a link
        _log.warning("an answer could not be used (%s)", type(error).__name__)


event_loop = EventLoop()
