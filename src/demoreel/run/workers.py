"""Processes that run tasks: helpers (``storage/helper_process.py``), one task each at a time.

A worker imports the modules of its tasks and nothing of the script that began the work: it runs no
main module again, whether that has ``if __name__ == "__main__"`` or is a notebook.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from demoreel.run.task import Task
from demoreel.storage.helper_process import HelperProcess, HelperTraceback, answer_calls

_PROGRAM = "from demoreel.run.workers import serve; serve()"
_AGAIN_S = 0.1  # an interrupt that comes before a task has begun is not heard

Result = Future[dict[str, Any]]


class WorkerKilledError(Exception):
    """A worker ended before its task."""


class Workers:
    """Processes that run tasks; each is started when there is a task and all others are busy.

    A thread for each hands it tasks and waits for the results. The threads have no reference to
    this object: it may be let go of, and dismissed by a finalizer.

    Args:
        most: How many there may be.
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

    That cannot tell its workers. Without it the task would go on to write where the same command,
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
