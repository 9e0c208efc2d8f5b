"""Many requests at once over connections that are open: one thread waits for all the answers.

A thread for each request would take its turn at the interpreter with those that decode, three times
as long as the request itself. Here only what goes well happens; whatever is unusual (no connection
is open yet, a server that is busy or closes) is handed back, to be done by a thread that may wait.
"""

from __future__ import annotations

import logging
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from demoreel.storage.forks import renew_in_children
from demoreel.storage.remote.wire import (
    Address,
    Connection,
    NotPlainError,
    Reply,
    ResponseParser,
    StaleError,
    idle,
)
from demoreel.storage.threads import CONNECTIONS

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
        """Begin anew in a forked child: its answers come to its parent."""
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
