"""Objects that lerobot takes for its own, while nothing here imports lerobot.

lerobot and the code around it ask ``isinstance(ds, LeRobotDataset)`` and mean their class. It
cannot be a base class here: demoreel works without lerobot, and importing lerobot takes seconds.
But ``isinstance`` also asks an object for its ``__class__``. Once lerobot's class is imported,
objects of a ``LooksLikeLeRobot`` answer with a class derived from both. Their type stays
what it is, and so do their methods.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

_THEIR_MODULE = "lerobot.datasets.lerobot_dataset"


class LooksLikeLeRobot:
    """Makes ``isinstance(ds, lerobot's LeRobotDataset)`` true, once lerobot is imported."""

    @property  # type: ignore[misc]  # object's can be set too
    def __class__(self) -> Any:
        """The class that this object is taken for; ``type(ds)`` is the one it has."""
        ours: Any = type(self)
        theirs = getattr(sys.modules.get(_THEIR_MODULE), "LeRobotDataset", None)
        return _child_of_both(ours, theirs) if isinstance(theirs, type) else ours

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # The ordinary way compares __class__ with the type, and then refuses. Workers need not
        # have lerobot: only the type travels.
        return (_without_init, (type(self),), self.__getstate__())


def _without_init(kind: type[Any]) -> Any:
    return object.__new__(kind)


@lru_cache(maxsize=64)
def _child_of_both(ours: type[Any], theirs: type[Any]) -> type[Any]:
    if issubclass(ours, theirs):
        return ours
    names = {name: getattr(ours, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(ours.__name__, (ours, theirs), names)
