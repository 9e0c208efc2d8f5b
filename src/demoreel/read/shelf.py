"""Where threads put finished pictures, and one caller takes them in the order of rows."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence


class Stopped(Exception):
    """Nobody will take any more pictures."""


class Shelf:
    """Encoded pictures of several cameras, waiting for their turn; bounded in bytes.

    A full shelf takes only the one picture of each camera that the caller waits for. So if the
    threads begin their work in the order of rows, whatever the camera, and there are as many
    threads as cameras, somebody always gets on.

    Args:
        cameras: Their keys.
        first: The first row.
        stop: One past the last row.
        most_bytes: When the shelf is full. It may hold one picture of each thread and camera more.
    """

    def __init__(self, cameras: Sequence[str], first: int, stop: int, *, most_bytes: int) -> None:
        self._lines = {key: _Line(first) for key in cameras}
        self._next = first  # the row that the caller takes next
        self._stop = stop
        self._room = most_bytes
        self._waiting = 0
        self._error: BaseException | None = None
        self._stopped = False
        self._changed = threading.Condition()
        self.most_waiting = 0
        """The most bytes that ever waited."""

    def put(self, camera: str, row: int, picture: bytes) -> None:
        """Add a picture; waits while there is no room.

        Raises:
            Stopped: Nobody will take it.
        """
        with self._changed:
            while self._waiting >= self._room and row != self._next and not self._stopped:
                self._changed.wait()
            if self._stopped:
                raise Stopped
            self._waiting += len(picture)
            self.most_waiting = max(self.most_waiting, self._waiting)
            self._lines[camera].add(row, picture)
            self._changed.notify_all()

    def portions(self, most_rows: int) -> Iterator[dict[str, list[bytes]]]:
        """Yield consecutive rows' pictures, at most so many rows at a time.

        Raises:
            BaseException: What ``fail`` was told, as soon as it was.
        """
        while self._next < self._stop:
            yield self._take(min(most_rows, self._stop - self._next))

    def _take(self, wanted: int) -> dict[str, list[bytes]]:
        with self._changed:
            while True:
                if self._error is not None:
                    raise self._error
                ready = min((len(line.ready) for line in self._lines.values()), default=wanted)
                if ready >= wanted or (ready and self._waiting >= self._room):
                    break
                self._changed.wait()
            count = min(ready, wanted)
            portion = {key: line.take(count) for key, line in self._lines.items()}
            self._next += count
            self._waiting -= sum(len(data) for line in portion.values() for data in line)
            self._changed.notify_all()
            return portion

    def fail(self, error: BaseException) -> None:
        """Let the caller have an error in place of pictures; the first one counts."""
        with self._changed:
            self._error = self._error or error
            self._stopped = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Turn everybody away who still wants to put something."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


class _Line:
    """One camera's pictures: those whose turn has come, and those that are early."""

    def __init__(self, first: int) -> None:
        self.ready: deque[bytes] = deque()
        self._early: dict[int, bytes] = {}
        self._next = first

    def add(self, row: int, picture: bytes) -> None:
        self._early[row] = picture
        while self._next in self._early:
            self.ready.append(self._early.pop(self._next))
            self._next += 1

    def take(self, count: int) -> list[bytes]:
        return [self.ready.popleft() for _ in range(count)]
