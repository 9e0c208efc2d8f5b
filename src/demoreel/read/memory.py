"""Memory for batches, used again when nobody looks at a batch any more.

Fresh memory costs a page fault per 4 KiB: for windows of video that is more than reading the rows.
A training loop drops a batch every step, so its memory can serve the next one.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import Any

import numpy as np

_WORTH_KEEPING = 1 << 20
_MOST_KEPT = 1 << 30
_MOST_BLOCKS = 8
_ALIGNMENT = 64


class Recycler:
    """Hands out uninitialised arrays, and takes their memory back when they are gone.

    An array's memory returns only when the array, every view of it and every tensor made from
    it have been freed, because each of them keeps the array object alive.
    """

    def __init__(self) -> None:
        self._free: deque[np.ndarray] = deque()
        self._lock = threading.RLock()  # a finalizer may run while this thread holds it

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Return an uninitialised array."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if size < _WORTH_KEEPING:
            return np.empty(shape, dtype)
        block = self._take(size)
        # Through ``data``, a memoryview: numpy lets views of views point at the first array in a
        # chain of arrays, and that must be the one whose end is watched, not the block.
        array = np.frombuffer(block.data, dtype, size // dtype.itemsize)
        weakref.finalize(array, self._give_back, block).atexit = False
        return array.reshape(shape)

    def _take(self, size: int) -> np.ndarray:
        with self._lock:
            for block in self._free:
                if block.nbytes == size:
                    self._remove(block)
                    return block
        return _fresh(size)

    def _remove(self, block: np.ndarray) -> None:
        self._free = deque(other for other in self._free if other is not block)

    def _give_back(self, block: np.ndarray) -> None:
        with self._lock:
            self._free.append(block)
            while (
                len(self._free) > _MOST_BLOCKS
                or sum(kept.nbytes for kept in self._free) > _MOST_KEPT
            ):
                self._free.popleft()


def _fresh(size: int) -> np.ndarray:
    """Return bytes that begin where processors like rows of pixels to begin."""
    block = np.empty(size + _ALIGNMENT, np.uint8)
    skipped = -int(block.__array_interface__["data"][0]) % _ALIGNMENT
    return block[skipped : skipped + size]
