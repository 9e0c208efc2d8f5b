"""Connections passed on: each client's has one of its own to the server, and both stay open.

Heads and bodies go through as they came. One request is under way at a time; what a client sends
after it waits. Flags say what waits for what; where reading is paused, that only bounds memory.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import cast

from support.proxy.answering import ServerSide
from support.proxy.faults import Reset, Stall, Status
from support.proxy.framing import END_OF_HEAD, read_request
from support.proxy.traffic import BUFFERED, Exchange, Traffic

_NO_TIME_TO_LINGER = struct.pack("ii", 1, 0)  # closing then sends a reset


async def listen(traffic: Traffic, port: int) -> asyncio.Server:
    """Pass on what comes to a port of this machine; 0 takes any that is free."""
    return await asyncio.get_running_loop().create_server(
        lambda: ClientSide(traffic), "127.0.0.1", port, backlog=1024
    )


class ClientSide(asyncio.Protocol):
    """A client's connection."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._pending = b""
        self._waiting = False
        self._server: ServerSide | None = None
        self._connecting: asyncio.Task[None] | None = None
        self.exchange: Exchange | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the way back."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=BUFFERED)

    def data_received(self, data: bytes) -> None:
        """Take a request, or more of one."""
        self._pending = self._pending + data if self._pending else data
        if self._waiting and len(self._pending) > BUFFERED:
            self.transport.pause_reading()
        self._go_on()

    def _go_on(self) -> None:
        if self._waiting or not self._pending:
            return
        if self.exchange is None:
            self._begin()
        else:
            self._pass_on_body()

    def _begin(self) -> None:
        end = self._pending.find(END_OF_HEAD)
        if end < 0:
            return
        raw, self._pending = self._pending[: end + 4], self._pending[end + 4 :]
        request = read_request(raw)
        traffic = self._traffic
        traffic.requests += 1
        fault = traffic.plan.choose(request.path)
        self.exchange = Exchange(raw, fault, request)
        delay = traffic.latency_s
        if isinstance(fault, Stall) and fault.after is None:
            delay += fault.seconds
        if delay:
            self._waiting = True
            asyncio.get_running_loop().call_later(delay, self._ask)
        else:
            self._ask()

    def _ask(self) -> None:
        """Do with the request what is to be done: refuse it, or pass it on."""
        exchange = self.exchange
        if exchange is None:  # the client went away
            return
        if isinstance(exchange.fault, Reset):
            self.abort()
        elif isinstance(exchange.fault, Status):
            exchange.refused = True
            self._stop_waiting()
            self._pass_on_body()
        elif self._server is None:
            self._waiting = True
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
        else:
            self._send()

    async def _connect(self) -> None:
        loop, traffic = asyncio.get_running_loop(), self._traffic
        try:
            _, self._server = await loop.create_connection(
                lambda: ServerSide(self), traffic.host, traffic.port
            )
        except OSError:
            if self.exchange is not None:
                self.exchange.fault = Status(502)
        if self.exchange is None and self._server is not None:
            self._server.transport.abort()
        self._ask()

    def _send(self) -> None:
        assert self.exchange is not None
        assert self._server is not None
        self._server.transport.write(self.exchange.raw)
        self._stop_waiting()
        if self._pending:
            self._pass_on_body()

    def _pass_on_body(self) -> None:
        exchange, data = self.exchange, self._pending
        assert exchange is not None
        body = exchange.request.body
        taken = body.take(data)
        self._pending = data[taken:]
        if exchange.refused:
            if body.done:
                self._refuse()
        elif taken and self._server is not None:
            self._server.transport.write(data[:taken])
        if body.done and exchange.answer is not None and exchange.answer.body.done:
            self.end()

    def _refuse(self) -> None:
        exchange = self.exchange
        assert exchange is not None
        assert isinstance(exchange.fault, Status)
        fault = exchange.fault
        body = b"<?xml version='1.0'?><Error><Code>Fault</Code><Message>A test</Message></Error>"
        head = f"HTTP/1.1 {fault.code} Fault\r\nContent-Type: application/xml\r\n"
        if fault.retry_after is not None:
            head += f"Retry-After: {fault.retry_after}\r\n"
        head += f"Content-Length: {len(body)}{END_OF_HEAD.decode()}"
        exchange.passed = 0 if exchange.request.method == "HEAD" else len(body)
        self.transport.write(head.encode() + body[: exchange.passed])
        self._note(fault.code)
        self._go_on()

    def end(self) -> None:
        """Take note of an exchange whose answer has been passed on; begin with the next one."""
        exchange = self.exchange
        if exchange is None or exchange.answer is None or not exchange.request.body.done:
            return  # the rest of a request that was answered early
        self._note(exchange.answer.status)
        if exchange.answer.closes:
            self.transport.close()
        else:
            self._go_on()

    def close(self) -> None:
        """Hang up on the client, after what was written; a request under way has no more answer."""
        self._note_unfinished()
        self.transport.close()

    def abort(self) -> None:
        """Reset the client's connection."""
        self._note_unfinished()
        connection = self.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_TIME_TO_LINGER)
        self.transport.abort()

    def _note_unfinished(self) -> None:
        if self.exchange is not None:
            answer = self.exchange.answer
            self._note(answer.status if answer is not None else 0)

    def _note(self, status: int) -> None:
        exchange, traffic = self.exchange, self._traffic
        assert exchange is not None
        method, path, asked, _ = exchange.request
        traffic.bytes += exchange.passed
        traffic.log.append((method, path, asked, status, exchange.passed))
        self.exchange = None

    def _stop_waiting(self) -> None:
        if self._waiting:
            self._waiting = False
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        """Read no more from one side while the other does not keep up."""
        if self._server is not None:
            self._server.transport.pause_reading()

    def resume_writing(self) -> None:
        """Read on."""
        if self._server is not None:
            self._server.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """Hang up on the server, too."""
        self._note_unfinished()
        if self._server is not None:
            self._server.transport.abort()
