"""Objects that a forked child must begin anew with: their threads and locks are the parent's."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Renewable(Protocol):
    """Something that can forget what only its own process can go on with."""

    def renew(self) -> None:
        """Forget locks that may be held, and work that is under way, in another process."""
        ...


_every: weakref.WeakSet[Renewable] = weakref.WeakSet()


def renew_in_children(thing: Renewable) -> None:
    """Let ``thing.renew()`` be called in every child that is forked from this process."""
    _every.add(thing)


def _renew_all() -> None:
    for thing in list(_every):
        thing.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
