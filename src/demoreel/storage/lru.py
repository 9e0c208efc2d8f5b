"""A cache bounded by the bytes it holds, safe for threads and forks."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from demoreel.storage.forks import renew_in_children

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteCache(Generic[K, V]):
    """Keeps the most recently used values until their sizes add up to ``most_bytes``.

    Two threads that miss the same key at once may both make the value; the last one is kept.
    That costs a little work and saves a lock around slow reads.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._held = 0
        self._lock = threading.Lock()
        renew_in_children(self)

    def get(self, key: K, make: Callable[[], tuple[V, int]]) -> V:
        """Return the value, or ``make()`` it; ``make`` returns the value and its size."""
        found = self._found(key)
        if found is not None:
            return found[0]
        value, size = make()
        self.put(key, value, size)
        return value

    def peek(self, key: K) -> V | None:
        """Return the value if it is here."""
        found = self._found(key)
        return None if found is None else found[0]

    def _found(self, key: K) -> tuple[V, int] | None:
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
            return found

    def put(self, key: K, value: V, size: int) -> None:
        """Keep a value of this size."""
        with self._lock:
            before = self._values.pop(key, None)
            self._held += size - (before[1] if before else 0)
            self._values[key] = (value, size)
            # The newest value stays even if it alone is over the bound: it is in use.
            while self._held > self.most_bytes and len(self._values) > 1:
                _, (_, dropped) = self._values.popitem(last=False)
                self._held -= dropped

    @property
    def held_bytes(self) -> int:
        """Bytes held now."""
        return self._held

    def renew(self) -> None:
        """Begin with a lock of its own in a forked child."""
        self._lock = threading.Lock()
        # Another thread may have been between the two steps of keeping a value.
        self._held = sum(size for _, size in self._values.values())
