"""Tasks on this machine: one after the other, or in several processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from demoreel.errors import ArgumentError, DemoreelError
from demoreel.run.task import Task


class LocalEngine:
    """Runs tasks on this machine.

    Processes are spawned, never forked: threads and Lance do not survive a fork. Each costs about
    half a second to start, so few tasks, or small ones, are better done with one job.

    Args:
        jobs: How many at a time. One is this process itself, with a thread for tasks that copy.

    Raises:
        ArgumentError: ``jobs`` is not positive.
    """

    def __init__(self, jobs: int = 1) -> None:
        if jobs < 1:
            raise ArgumentError(f"jobs must be at least 1, not {jobs}.")
        self.jobs = jobs

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, dict[str, Any]]]:
        """Yield each task and its result as they end; raise what the first to fail raises.

        Raises:
            DemoreelError: A process was killed from outside.
        """
        jobs = min(self.jobs, len(tasks))
        yield from _in_processes(tasks, jobs) if jobs > 1 else _here(tasks)


def _here(tasks: Sequence[Task]) -> Iterator[tuple[Task, dict[str, Any]]]:
    """Calculate here, and let a thread copy meanwhile: the kernel does that without Python."""
    copying = [task for task in tasks if task.copies]
    rest = [task for task in tasks if not task.copies]
    with ThreadPoolExecutor(1, thread_name_prefix="demoreel-copy") as thread:
        copies = {thread.submit(task.run): task for task in copying}
        try:
            for task in rest:
                yield task, task.run()
                for future in [future for future in copies if future.done()]:
                    yield copies.pop(future), future.result()
            for future, task in copies.items():
                yield task, future.result()
        finally:
            for future in copies:
                future.cancel()


def _in_processes(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[Task, dict[str, Any]]]:
    context = multiprocessing.get_context("spawn")
    # The heaviest first, so that no process ends up with a long one alone.
    waiting = sorted(tasks, key=lambda task: -task.weight)
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        running: dict[Future[dict[str, Any]], Task] = {}
        try:
            while waiting or running:
                while waiting and len(running) < 2 * jobs:
                    task = waiting.pop(0)
                    running[pool.submit(task.run)] = task
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield running.pop(future), future.result()
        except BrokenProcessPool as error:
            raise DemoreelError(
                "A process that worked on the tasks was killed.",
                hint="if memory ran out, use fewer jobs; the same command goes on from here",
            ) from error
        finally:
            for future in running:
                future.cancel()
