"""The server's side of a connection: answers pass as they are, or as a fault makes them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from support.proxy.faults import Cut, ShortBody, Stall
from support.proxy.framing import END_OF_HEAD, read_answer, shortened
from support.proxy.traffic import BUFFERED, Exchange

if TYPE_CHECKING:
    from support.proxy.passing import ClientSide


class ServerSide(asyncio.Protocol):
    """The connection to the server that belongs to a client's."""

    def __init__(self, client: ClientSide) -> None:
        self._client = client
        self._pending = b""
        self._stalled = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the way back."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=BUFFERED)

    def data_received(self, data: bytes) -> None:
        """Pass an answer on, or more of one."""
        data = self._pending + data if self._pending else data
        self._pending = b""
        exchange = self._client.exchange
        if exchange is None:  # it answers what was not asked
            self.transport.abort()
        elif self._stalled:
            self._pending = data
        elif exchange.answer is None:
            self._read_head(exchange, data)
        else:
            self._pass_on(exchange, b"", data)

    def _read_head(self, exchange: Exchange, data: bytes) -> None:
        end = data.find(END_OF_HEAD) + 4
        if end < 4:
            self._pending = data
            return
        head, rest = data[:end], data[end:]
        answer = read_answer(head, exchange.request.method)
        if answer.status < 200:  # go on, it says
            self._client.transport.write(head)
            if rest:
                self._read_head(exchange, rest)
            return
        exchange.answer = answer
        fault, length = exchange.fault, answer.body.left
        if isinstance(fault, Cut):
            if length == 0:
                self._hang_up()
                return
            exchange.keep = fault.after if length is None else min(fault.after, length - 1)
        elif isinstance(fault, ShortBody) and length is not None and length > 1:
            by = min(fault.by, length - 1)
            exchange.keep = length - by
            head = shortened(head, length, by=by, content_range=fault.content_range)
        elif isinstance(fault, Stall):
            exchange.keep = fault.after
        self._pass_on(exchange, head, rest)

    def _pass_on(self, exchange: Exchange, head: bytes, data: bytes) -> None:
        assert exchange.answer is not None
        body = exchange.answer.body
        if exchange.keep is not None:
            self._pass_on_some(exchange, head, data)
            return
        taken = body.take(data)
        exchange.passed += taken
        self._client.transport.write(head + data[:taken] if head else data[:taken])
        if body.done:
            self._client.end()

    def _pass_on_some(self, exchange: Exchange, head: bytes, data: bytes) -> None:
        """Pass on what comes before the fault, and then do what the fault is."""
        assert exchange.answer is not None
        assert exchange.keep is not None
        body, fault = exchange.answer.body, exchange.fault
        now = data[: exchange.keep]
        exchange.keep -= len(now)
        exchange.passed += len(now)
        if head or now:
            self._client.transport.write(head + now)
        if isinstance(fault, Stall) and exchange.keep == 0 and not body.done:
            body.take(now)
            self._stall(exchange, fault.seconds, data[len(now) :])
            return
        body.take(data)
        if isinstance(fault, Cut) and (exchange.keep == 0 or body.done):
            self._hang_up()
        elif body.done:
            self._client.end()

    def _stall(self, exchange: Exchange, seconds: float, rest: bytes) -> None:
        exchange.keep = None
        if exchange.answer is not None and exchange.answer.body.done:
            self._client.end()
            return
        self._stalled = True
        self._pending = rest
        self.transport.pause_reading()
        asyncio.get_running_loop().call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        self._stalled = False
        if not self.transport.is_closing():
            self.transport.resume_reading()
        if self._pending:
            self.data_received(b"")

    def _hang_up(self) -> None:
        self._client.close()
        self.transport.abort()

    def pause_writing(self) -> None:
        """Read no more from one side while the other does not keep up."""
        self._client.transport.pause_reading()

    def resume_writing(self) -> None:
        """Read on."""
        self._client.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """Hang up on the client, too; that may be how the answer ends."""
        exchange = self._client.exchange
        answer = exchange.answer if exchange is not None else None
        if answer is not None and answer.body.until_close and not self._stalled:
            answer.body.done = True
            self._client.end()
        # A server that closes a connection takes the client's along: it would not be used again.
        self._client.close()
