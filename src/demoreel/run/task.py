"""A task: work that can run anywhere, twice, or after a crash, with the same result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Task:
    """One piece of work.

    It is named before anything runs, writes only what its name says, and overwrites what an earlier
    attempt has left. Both the function and what it is given can be pickled.

    Attributes:
        name: What tells it from the others of the same work.
        call: A function at the top of a module; its result is a dict, which JSON can hold where it
            is to be noted.
        arguments: What it is called with.
        weight: How much there is to do, in bytes; for sharing out and for progress.
        copies: Whether it only moves bytes, and leaves work to the disk.
        long: Whether it may take minutes, so that an engine leaves it to other processes.
    """

    name: str
    call: Callable[..., dict[str, Any]]
    arguments: tuple[Any, ...]
    weight: int = 1
    copies: bool = False
    long: bool = False

    def run(self) -> dict[str, Any]:
        """Do it, here and now."""
        return self.call(*self.arguments)


class Engine(Protocol):
    """Runs tasks."""

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, dict[str, Any]]]:
        """Yield each task and its result, in the order in which they end.

        The first task that fails ends it: its error is raised here.
        """
        ...


def share(tasks: Sequence[Task], number: int, of: int) -> list[Task]:
    """Return the tasks of shard ``number`` (from 0) of ``of``: all weigh about the same.

    Every machine that asks gets the same answer.
    """
    loads = [0] * of
    chosen = []
    for task in sorted(tasks, key=lambda task: (-task.weight, task.name)):
        lightest = loads.index(min(loads))
        loads[lightest] += max(1, task.weight)
        if lightest == number:
            chosen.append(task)
    return chosen
