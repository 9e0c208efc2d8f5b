"""Runs tasks on this machine: one after the other, or in several processes.

The processes are helpers (``storage/helper_process.py``), one task each at a time. A worker imports
the modules of its tasks and nothing of the script that began the work: it runs no main module
again, whether that has ``if __name__ == "__main__"`` or is a notebook.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from demoreel.errors import ArgumentError, DemoreelError
from demoreel.run.task import Task
from demoreel.storage.helper_process import HelperProcess, HelperTraceback, answer_calls

_MOST_COPIES = 4  # at a time: more only make a disk seek
_PROGRAM = "from demoreel.run.local import serve; serve()"
_AGAIN_S = 0.1  # an interrupt that comes before a task has begun is not heard


class LocalEngine:
    """Runs tasks on this machine.

    Processes are new ones, never forked: threads and Lance do not survive a fork. They run nothing
    of the script that calls. Each costs about half a second to start, so few tasks, or small ones,
    are better done with one job. They stay for the next run, and go when the engine is released.

    This process is one of the jobs: it works while others start. Only tasks that may take minutes
    are left to others, so that what they have done, and Ctrl-C, is heard of at once.

    Args:
        jobs: How many at a time. One is this process itself, with threads for tasks that copy.
        threads: How many a task may use to encode images; of this process, also how many copy, up
            to four.
    """

    def __init__(self, jobs: int = 1, *, threads: int | None = None) -> None:
        if jobs < 1:
            raise ArgumentError(f"jobs must be at least 1, not {jobs}.")
        self.jobs = jobs
        self.threads = threads
        self._pool: Workers | None = None
        self._processes = 0
        self._runs: Counter[Workers] = Counter()

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, dict[str, Any]]]:
        """Yield each task and its result as they end; raise what the first to fail raises.

        Another run may begin before all results are drawn.
        """
        if min(self.jobs, len(tasks)) < 2:
            # One more than works: one of them always waits for the disk.
            yield from _here(tasks, min((self.threads or 0) + 1, _MOST_COPIES))
            return
        helps = not any(task.long for task in tasks)
        processes = self.jobs - helps
        pool = self._pool_of(processes)
        self._runs[pool] += 1
        handout = _Handout(tasks, pool)
        try:
            yield from handout.results(processes, helps=helps)
        except WorkerKilledError as error:
            raise DemoreelError(
                "A process that worked on the tasks was killed.",
                hint="if memory ran out, use fewer jobs; the same command continues from here",
            ) from error
        finally:
            if handout.stop():
                pool.stop()  # after an error no process writes any more
                if pool is self._pool:
                    self._pool = None
            self._runs[pool] -= 1
            self._let_go_of_unused(pool)

    def _let_go_of_unused(self, pool: Workers) -> None:
        """Let processes go that no run needs now, and no later one would get."""
        if pool is not self._pool and not self._runs[pool]:
            del self._runs[pool]
            pool.dismiss()

    def _pool_of(self, processes: int) -> Workers:
        """Return a pool of at least so many, and no more than were ever needed."""
        if self._pool is None or self._processes < processes:
            before = self._pool
            self._pool = Workers(processes)
            self._processes = processes
            if before is not None:  # another run may still be using it
                self._let_go_of_unused(before)
            # At once, and not when the last of its futures is released.
            weakref.finalize(self, self._pool.dismiss)
        return self._pool


def _here(tasks: Sequence[Task], copies_at_once: int) -> Iterator[tuple[Task, dict[str, Any]]]:
    """Calculate here, and let threads copy meanwhile: the kernel does that without Python."""
    copying = [task for task in tasks if task.copies]
    rest = [task for task in tasks if not task.copies]
    with ThreadPoolExecutor(copies_at_once, thread_name_prefix="demoreel-copy") as threads:
        copies = {threads.submit(task.run): task for task in copying}
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


class _Handout:
    """Hands tasks out, one to each process at a time, the heaviest first.

    The thread that hears of the end of a task hands out the next: this one may be busy.
    """

    def __init__(self, tasks: Sequence[Task], pool: Workers) -> None:
        self._waiting = deque(sorted(tasks, key=lambda task: -task.weight))
        self._undone = len(tasks)
        self._pool = pool
        self._ended: SimpleQueue[tuple[Task, Result]] = SimpleQueue()

    def results(self, processes: int, *, helps: bool) -> Iterator[tuple[Task, dict[str, Any]]]:
        for _ in range(processes):
            self._hand_out()
        while self._undone:
            own = self._lightest() if helps and self._ended.empty() else None
            if own is not None:
                task, result = own, own.run()
            else:
                task, future = self._ended.get()
                result = future.result()
            self._undone -= 1
            yield task, result

    def stop(self) -> bool:
        """Hand nothing out any more, and say whether there was more to do."""
        self._waiting.clear()
        return self._undone > 0

    def _lightest(self) -> Task | None:
        try:
            return self._waiting.pop()
        except IndexError:
            return None

    def _hand_out(self) -> None:
        try:
            task = self._waiting.popleft()
        except IndexError:
            return
        future = self._pool.submit(task)
        future.add_done_callback(lambda done: self._hear(task, done))

    def _hear(self, task: Task, done: Result) -> None:
        self._ended.put((task, done))
        if not done.cancelled() and done.exception() is None:
            self._hand_out()


Result = Future[dict[str, Any]]


class WorkerKilledError(Exception):
    """A worker ended before its task."""


class Workers:
    """Processes that run tasks; each is started when there is a task and all others are busy.

    A thread for each hands it tasks and waits for the results. The threads have no reference to
    this object: it may be released, and dismissed by a finalizer.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._tasks: SimpleQueue[tuple[Task, Result] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._helpers: set[HelperProcess] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._stopped = False

    @property
    def pids(self) -> set[int]:
        """The numbers of the processes that there are."""
        return {helper.pid for helper in self._helpers.copy()}

    def submit(self, task: Task) -> Result:
        """Have a task run; its result raises ``WorkerKilledError`` where the process was killed."""
        result: Result = Future()
        with self._lock:
            if self._stopped:
                result.set_exception(WorkerKilledError("the processes were stopped"))
                return result
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._most:
                # Daemons: an interpreter that ends waits for no task, and pipes that close end
                # the processes.
                thread = threading.Thread(
                    target=_hand_tasks,
                    args=(self._tasks, self._idle, self._helpers),
                    name="demoreel-worker",
                    daemon=True,
                )
                self._threads.append(thread)
                thread.start()
            self._tasks.put((task, result))
        return result

    def dismiss(self) -> None:
        """Let each process end after its task, and wait for none."""
        for _ in self._threads:
            self._tasks.put(None)

    def stop(self) -> None:
        """Interrupt every task and wait until no process is left: none writes any more."""
        with self._lock:
            self._stopped = True
        with suppress(Empty):
            while given := self._tasks.get_nowait():
                given[1].set_exception(WorkerKilledError("the processes were stopped"))
        self.dismiss()
        while any(thread.is_alive() for thread in self._threads):
            for helper in self._helpers.copy():
                helper.interrupt()
            for thread in self._threads:
                thread.join(_AGAIN_S / len(self._threads))


def _hand_tasks(
    tasks: SimpleQueue[tuple[Task, Result] | None],
    idle: threading.Semaphore,
    helpers: set[HelperProcess],
) -> None:
    helper: HelperProcess | None = None
    while (given := tasks.get()) is not None:
        task, result = given
        try:
            if helper is None:
                # Ctrl-C in a terminal is for this process, which interrupts its workers.
                helper = HelperProcess(_PROGRAM, detached=True)
                helpers.add(helper)
            found = helper.ask("run", (task,))
        except BaseException as error:
            is_pipe = isinstance(error, (EOFError, BrokenPipeError))
            if is_pipe and helper is not None and not isinstance(error.__cause__, HelperTraceback):
                helpers.discard(helper)
                helper.kill()
                helper = None
                error = WorkerKilledError(str(error))
            idle.release()  # before the result: the next task may follow it at once
            result.set_exception(error)
        else:
            idle.release()
            result.set_result(found)
        del task, result, given
    if helper is not None:
        helpers.discard(helper)
        helper.close()


def serve() -> None:
    """Run tasks until the pipe closes; a worker's main function."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    with suppress(KeyboardInterrupt):
        answer_calls(_answer)


def _end_with(parent: int) -> None:
    """End this process, and its task, when the one that began the work was killed.

    That cannot tell its workers. Without it the task would still write where the same command,
    given again, writes, too.
    """
    while os.getppid() == parent:
        time.sleep(_AGAIN_S)
    os._exit(1)


def _answer(call: str, arguments: tuple[Any, ...]) -> Any:
    (task,) = arguments
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return task.run()
    except Exception as error:
        return error
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
