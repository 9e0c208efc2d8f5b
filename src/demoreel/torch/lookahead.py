"""What a DataLoader worker will be asked for next.

A DataLoader hands its workers the indices of several batches ahead (``prefetch_factor``), in a
queue that a worker looks into when it has finished the last one. Whoever knows them earlier can
fetch the next batch's bytes while this one is decoded. torch has no way to ask, so the queue is
looked into here: only by the worker itself, between two batches, and everything is handed on in its
order. Where torch's inner workings are not as expected, nothing is known ahead, and all goes on as
ever.
"""

from __future__ import annotations

import os
import queue
import sys
from collections import deque
from collections.abc import Sequence
from types import FrameType
from typing import Any

_LOOP = ("torch.utils.data._utils.worker", "_worker_loop")


class _Peeked:
    """A worker's queue of indices, with what was taken from it ahead."""

    def __init__(self, indices: Any) -> None:
        self._get = indices.get
        self._waiting: deque[Any] = deque()
        indices.get = self._take  # of this object alone; the class stays as it is

    def _take(self, block: bool = True, timeout: float | None = None) -> Any:
        if self._waiting:
            return self._waiting.popleft()
        return self._get(block, timeout)

    def upcoming(self) -> list[Sequence[int]]:
        found = []
        try:
            while True:
                found.append(self._get(False))
        except queue.Empty:
            pass
        self._waiting += found
        return [
            item[1]
            for item in found
            if isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], list)
            if None not in item[1]  # a stream is asked for so many samples, and not for which
        ]


_found: tuple[int, _Peeked | None] = (0, None)


def upcoming_batches() -> list[Sequence[int]]:
    """Return the batches that this worker will be asked for next, each one once.

    To be called by the worker while it reads a batch, and more than once: the training process
    hands out another batch when it has got one, and by then the worker has begun the next.
    """
    global _found
    process, peeked = _found
    if process != os.getpid():
        indices = _queue_of_this_worker()
        peeked = None if indices is None else _Peeked(indices)
        _found = (os.getpid(), peeked)
    return [] if peeked is None else peeked.upcoming()


def _queue_of_this_worker() -> Any:
    data = sys.modules.get("torch.utils.data")
    if data is None or data.get_worker_info() is None:
        return None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) == _LOOP:
            found = frame.f_locals.get("index_queue")
            return found if hasattr(found, "get") else None
        frame = frame.f_back
    return None
