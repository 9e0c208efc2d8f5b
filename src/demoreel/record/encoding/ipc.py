"""Pipes for messages and memory for frames, between the recording process and an encoder.

The recording process never waits when it sends: what the pipe does not take at once is kept and
sent on by the thread that keeps the encoders.

The memory is a file without a name, so that nothing is left behind however a process ends. It
holds places for frames, and two records of progress that the encoder writes in turn: which frame
of which episode is the first whose packet is not safe, and the counts of the frames before it. A
record becomes the current one by a single store of its number, so that an encoder may die at any
instant: the last record is whole, and says from where another is to continue.
"""

from __future__ import annotations

import mmap
import os
import pickle
import select
import struct
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from demoreel.record.encoding.plan import CameraPlan
from demoreel.stats.running import LevelCounts

_LENGTH = struct.Struct("<I")
_MOST = 1 << 16
_NUMBER = np.dtype(np.int64)
_FRAME_BITS = 32
_HEADER = 3  # position, frames counted, unused

Message = tuple[Any, ...]


def _packed(message: Message) -> bytes:
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
        data = _packed(message)
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
            except OSError:  # the other side is gone; its owner finds that out
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
        """Return the messages that are there; wait up to ``timeout`` seconds for the first."""
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
    data = memoryview(_packed(message))
    while data:
        data = data[os.write(handle, data) :]


@dataclass(frozen=True, slots=True)
class EncodingProgress:
    """How far encoding is.

    Attributes:
        episode: The episode that is being encoded; those before it are done with.
        frames: How many of its frames have their packets in a file.
        stats: Counts of those frames.
    """

    episode: int
    frames: int
    stats: LevelCounts


class SharedFrames:
    """Places for frames of one camera, and the progress of its encoder.

    Args:
        plan: The camera.
        places: How many frames there is room for.
        handle: The file, if another process made it; None makes one.
    """

    def __init__(self, plan: CameraPlan, places: int, *, handle: int | None = None) -> None:
        levels = int(np.prod(plan.levels))
        record = (_HEADER + levels) * _NUMBER.itemsize
        first = _whole_pages(mmap.PAGESIZE + 2 * record)
        step = _whole_pages(plan.nbytes)
        size = first + places * step
        self.handle = _nameless_file(size) if handle is None else handle
        self._plan = plan
        self._pages = mmap.mmap(self.handle, size)
        self._turn = np.frombuffer(self._pages, _NUMBER, 1)
        self._records = np.frombuffer(
            self._pages, _NUMBER, 2 * (_HEADER + levels), mmap.PAGESIZE
        ).reshape(2, -1)
        # One array, each frame on pages of its own: small cameras have ten thousands of places.
        inner = np.empty(plan.shape, plan.dtype).strides
        self.images = np.ndarray(
            (places, *plan.shape), plan.dtype, self._pages, first, (step, *inner)
        )

    @property
    def position(self) -> tuple[int, int]:
        """Episode and number of its frames that are safe. Costs a microsecond."""
        position = int(self._records[int(self._turn[0]) & 1, 0])  # one load: never half of each
        return position >> _FRAME_BITS, position & ((1 << _FRAME_BITS) - 1)

    def progress(self) -> EncodingProgress:
        """Return the last record, whole even while the encoder continues."""
        while True:
            turn = int(self._turn[0])
            record = self._records[turn & 1].copy()
            if int(self._turn[0]) == turn:
                break
        position, counted = int(record[0]), int(record[1])
        stats = LevelCounts.counted(record[_HEADER:].reshape(self._plan.levels), counted)
        return EncodingProgress(position >> _FRAME_BITS, position & ((1 << _FRAME_BITS) - 1), stats)

    def advance(self, episode: int, frames: int, stats: LevelCounts) -> None:
        """Note, in one step, that these frames are safe. Only the encoder does."""
        turn = int(self._turn[0]) + 1
        record = self._records[turn & 1]
        record[0] = episode << _FRAME_BITS | frames
        record[1] = stats.count
        record[_HEADER:] = stats.histogram().reshape(-1) if stats.count else 0
        self._turn[0] = turn

    def touch(self, places: int) -> None:
        """Have the system give memory to the first places, so that the first frames cost less."""
        for image in self.images[:places]:
            image.reshape(-1)[:: mmap.PAGESIZE // image.itemsize] = 0

    def close(self) -> None:
        """Let go of the file; the memory goes with its last view."""
        os.close(self.handle)


def _whole_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _nameless_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("demoreel-frames", os.MFD_CLOEXEC)
    else:
        handle, name = tempfile.mkstemp(prefix="demoreel-frames-")
        os.unlink(name)
    os.ftruncate(handle, size)
    return handle
