"""Problems of metadata: one parser finds them, its caller decides what they mean.

A parser takes a ``Note`` and returns what can be used. ``refuse``, the note of readers, raises the
first problem that keeps them from working; ``check`` makes a finding of every one; ``repair``
continues with the values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from demoreel.errors import DemoreelError, refuse_shortage


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with metadata.

    Attributes:
        code: The code in the catalogue of ``demoreel.check``; one about a limit is
            ``limit-exceeded`` there, whatever this says.
        error: What a reader raises: what is wrong, where, and what to do.
        is_fatal: Whether it keeps a reader from working.
        count: How many places it stands for.
        where: What ``error`` does not say of the place: ``feature=``.
    """

    code: str
    error: DemoreelError
    is_fatal: bool = True
    count: int = 1
    where: Mapping[str, object] = field(default_factory=dict)


_NEXT = "demoreel check lists all that is wrong; demoreel repair writes a dataset without it"

Note = Callable[[Problem], None]
"""Takes each problem in the order in which a parser meets it."""


def refuse(problem: Problem) -> None:
    """Raise a problem that keeps a reader from working; the others are passed over."""
    if problem.is_fatal:
        problem.error.hint = problem.error.hint or _NEXT
        raise problem.error


def ignore(problem: Problem) -> None:
    """Pass over a problem of the data: for values that are taken as far as they go."""
    refuse_shortage(problem.error)
