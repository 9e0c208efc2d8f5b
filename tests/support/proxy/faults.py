"""What can go wrong between a client and a server, and when."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Status:
    """The proxy answers with an error itself; the server never hears of the request.

    Attributes:
        code: The status, such as 429, 500 or 503.
        retry_after: Seconds for a ``Retry-After`` header; none for no such header.
    """

    code: int
    retry_after: int | None = None


@dataclass(frozen=True)
class Cut:
    """The connection is closed in the middle of a body of which more was promised.

    An answer without a body is not sent at all: the server did its work, the client cannot know.

    Attributes:
        after: How many bytes of the body arrive; of a shorter body, all but the last one.
    """

    after: int = 0


@dataclass(frozen=True)
class ShortBody:
    """A server that lies: it answers with fewer bytes than were asked for, as if that were all.

    Bodies without a ``Content-Length``, or of one byte, pass unchanged.

    Attributes:
        by: How many bytes are left out at the end; one byte always arrives.
        content_range: What ``Content-Range`` says: the ``"shorter"`` range, which fits the body,
            or still the range that was ``"asked"`` for.
    """

    by: int = 1
    content_range: Literal["shorter", "asked"] = "shorter"


@dataclass(frozen=True)
class Stall:
    """The answer is right, but late.

    Attributes:
        seconds: For how long no byte comes.
        after: How many bytes of the body come before; none for an answer that begins late.
    """

    seconds: float
    after: int | None = None


@dataclass(frozen=True)
class Reset:
    """The connection is reset before an answer; the server never hears of the request."""


Fault = Status | Cut | ShortBody | Stall | Reset
_KINDS: dict[str, type[Fault]] = {
    kind.__name__: kind for kind in (Status, Cut, ShortBody, Stall, Reset)
}


def as_words(fault: Fault) -> dict[str, Any]:
    """Return a fault as JSON can hold it."""
    return {"kind": type(fault).__name__, **asdict(fault)}


def from_words(words: dict[str, Any]) -> Fault:
    """Return the fault that ``as_words`` described."""
    return _KINDS[words["kind"]](**{key: words[key] for key in words if key != "kind"})


@dataclass
class FaultPlan:
    """Which requests fail, and how.

    Attributes:
        chance: The generator that decides; the same seed and order of requests, the same faults.
    """

    rate: float = 0.0
    kinds: Sequence[Fault] = ()
    where: str = ""
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    next: list[tuple[Fault, str]] = field(default_factory=list)

    def choose(self, path: str) -> Fault | None:
        """Return what happens to a request for a path; those asked for by number come first."""
        for number, (fault, where) in enumerate(self.next):
            if where in path:
                del self.next[number]
                return fault
        if self.rate and self.where in path and self.chance.random() < self.rate:
            return self.chance.choice(self.kinds)
        return None
