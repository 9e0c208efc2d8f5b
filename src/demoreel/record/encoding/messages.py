"""Small messages between the recording process and an encoder, over pipes.

Whoever sends from the recording process never waits: what the pipe does not take at once is kept
and sent on by the thread that keeps the encoders.
"""

from __future__ import annotations

import os
import pickle
import select
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

_LENGTH = struct.Struct("<I")
_MOST = 1 << 16

Message = tuple[Any, ...]


def packed(message: Message) -> bytes:
    """Return a message as it travels."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


class Outbox:
    """The sending end of a pipe, which takes every message at once.

    Args:
        handle: The pipe; it is made non-blocking.
        on_waiting: Called when something could not be sent at once; ``flush`` must then be called
            when the pipe is writable.
    """

    def __init__(self, handle: int, on_waiting: Callable[[], None]) -> None:
        os.set_blocking(handle, False)
        self.handle = handle
        self._on_waiting = on_waiting
        self._waiting: deque[bytes] = deque()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def is_waiting(self) -> bool:
        """Whether something is left to send."""
        return bool(self._waiting)

    def send(self, message: Message) -> None:
        """Send a message, now or later; one to an encoder that is gone goes nowhere."""
        data = packed(message)
        with self._lock:
            if self._closed:
                return
            was_empty = not self._waiting
            self._waiting.append(data)
            if was_empty:
                self._write()
            waiting = was_empty and bool(self._waiting)
        if waiting:
            self._on_waiting()

    def flush(self) -> None:
        """Send what the pipe takes of what is left."""
        with self._lock:
            self._write()

    def close(self) -> None:
        """Close the pipe: the other side sees its end."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._waiting.clear()
                os.close(self.handle)

    def _write(self) -> None:
        while self._waiting and not self._closed:
            data = self._waiting[0]
            try:
                written = os.write(self.handle, data)
            except BlockingIOError:
                return
            except OSError:  # the other side is gone; whoever keeps it finds that out
                self._waiting.clear()
                return
            if written == len(data):
                self._waiting.popleft()
            else:
                self._waiting[0] = data[written:]


class Inbox:
    """The receiving end of a pipe."""

    def __init__(self, handle: int) -> None:
        os.set_blocking(handle, False)
        self.handle = handle
        self._rest = bytearray()
        self._poll = select.poll()
        self._poll.register(handle, select.POLLIN | select.POLLHUP)

    def receive(self, timeout: float) -> list[Message]:
        """Return the messages that are there; wait up to ``timeout`` seconds for the first.

        Raises:
            EOFError: The other side is gone, and all it sent was received.
        """
        if not self._poll.poll(timeout * 1000):
            return []
        ended = False
        while True:
            try:
                data = os.read(self.handle, _MOST)
            except BlockingIOError:
                break
            if not data:
                ended = True
                break
            self._rest += data
        messages = self._complete()
        if ended and not messages:
            raise EOFError("the other side is gone")
        return messages

    def close(self) -> None:
        """Close the pipe."""
        os.close(self.handle)

    def _complete(self) -> list[Message]:
        messages, at = [], 0
        while len(self._rest) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._rest, at)
            stop = at + _LENGTH.size + length
            if len(self._rest) < stop:
                break
            messages.append(pickle.loads(self._rest[at + _LENGTH.size : stop]))
            at = stop
        del self._rest[:at]
        return messages


def send_all(handle: int, message: Message) -> None:
    """Send a message and wait until the pipe has taken it."""
    data = memoryview(packed(message))
    while data:
        data = data[os.write(handle, data) :]
