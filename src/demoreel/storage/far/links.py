"""Links to objects, kept as long as they live; every one of them is a secret."""

from __future__ import annotations

import time

from demoreel.storage.far.transfer import Link
from demoreel.storage.lru import ByteCache

_MOST = 1 << 14


class Links:
    """The links that were found last, by the names of objects.

    Args:
        young_s: Seconds after which one is not trusted any more.
    """

    def __init__(self, young_s: float) -> None:
        self._young_s = young_s
        self._kept: ByteCache[str, tuple[float, Link]] = ByteCache(_MOST)

    def get(self, name: str) -> Link | None:
        """Return the link of an object; None if there is none, or only an old one."""
        found = self._kept.peek(name)
        if found is None or time.monotonic() - found[0] >= self._young_s:
            return None
        return found[1]

    def put(self, name: str, link: Link) -> None:
        """Keep a link that was found just now."""
        self._kept.put(name, (time.monotonic(), link), 1)
