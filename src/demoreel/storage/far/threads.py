"""Threads for transfers. Nobody waits for them: a process that ends, ends at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from demoreel.errors import StoreError
from demoreel.storage.far.wire import CONNECTIONS
from demoreel.storage.forks import renew_in_children

T = TypeVar("T")

_LOOK_UP_S = 0.2


class Threads:
    """Runs calls side by side, on threads that are started when they are needed.

    Unlike an executor's, these do not keep an interpreter from ending: after Ctrl-C, nothing waits
    for a server that does not answer.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Begin anew in a forked child, which has none of the threads."""
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        self._busy = 0

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Begin a call as soon as a thread is free."""
        future: Future[T] = Future()
        with self._lock:
            self._busy += 1
            if self._started < min(self._most, self._busy):
                self._start_another()
        self._calls.put((future, call))
        return future

    def _start_another(self) -> None:
        name = f"{self._name}-{self._started + 1}"
        try:
            threading.Thread(target=self._run, name=name, daemon=True).start()
            self._started += 1
        except RuntimeError:  # no more threads; those that there are will do
            if not self._started:
                self._busy -= 1
                raise

    def close(self) -> None:
        """Let the threads end when they have done what was begun."""
        for _ in range(self._started):
            self._calls.put(None)

    def _run(self) -> None:
        calls = self._calls
        while (item := calls.get()) is not None:
            future, call = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
            del item, future, call  # what they hold may be large
            with self._lock:
                self._busy -= 1


class Interrupted:
    """Lets threads that wait for transfers know that nobody waits for them any more."""

    def __init__(self) -> None:
        self._times = 0

    def now(self) -> None:
        """Let those go who wait for something that was begun before."""
        self._times += 1

    def mark(self) -> int:
        """Return what tells earlier transfers from later ones."""
        return self._times

    def wait_for(self, future: Future[T], mark: int) -> T:
        """Return what a transfer brings.

        Raises:
            StoreError: Somebody gave up, and it has not arrived.
        """
        while True:
            try:
                return future.result(_LOOK_UP_S)
            except TimeoutError:
                if future.done():
                    raise
                if mark != self._times:
                    raise StoreError("Reading was interrupted.") from None


interrupted = Interrupted()
_transfers = Threads(CONNECTIONS, "demoreel-transfer")
_plans = Threads(2, "demoreel-ahead")


def transfer(call: Callable[[], T]) -> Future[T]:
    """Run a transfer beside others; at most as many as there are connections."""
    return _transfers.submit(call)


def think_ahead(call: Callable[[], T]) -> Future[T]:
    """Run what only begins transfers, and may wait for some: never on their own threads."""
    return _plans.submit(call)
