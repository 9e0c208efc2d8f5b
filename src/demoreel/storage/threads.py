"""Threads for transfers, which do not delay the end of the process, and renewal after a fork.

A forked child has none of its parent's threads, and locks that one of them may have held: what
registers with ``renew_in_children`` starts again there.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from itertools import islice
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from demoreel.errors import StoreError


class Renewable(Protocol):
    """An object with state that only its own process can use."""

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


T = TypeVar("T")

CONNECTIONS = 32
"""Requests that a process has under way: by threads that wait for one each, and as many by the one
that waits for all of them."""

_LOOK_UP_S = 0.2


class Threads:
    """Runs calls in parallel, on threads that are started when they are needed.

    Unlike an executor's, these do not keep an interpreter from ending: after Ctrl-C, nothing waits
    for a server that does not answer.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Start again in a forked child, which has none of the threads."""
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
        """End the threads when their calls are done."""
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
    """Wakes threads that wait for transfers when their caller has given up."""

    def __init__(self) -> None:
        self._times = 0

    def now(self) -> None:
        """End the wait for transfers that were begun before."""
        self._times += 1

    def mark(self) -> int:
        """Return a mark that separates earlier transfers from later ones."""
        return self._times

    def wait_for(self, future: Future[T], mark: int) -> T:
        """Return the result of a transfer."""
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
    """Run a transfer on a thread; at most ``CONNECTIONS`` at the same time."""
    return _transfers.submit(call)


def think_ahead(call: Callable[[], T]) -> Future[T]:
    """Run work that starts transfers and may wait for them; never on the transfers' threads."""
    return _plans.submit(call)


def parallel_map(work: Callable[[T], None], items: Iterable[T], *, most: int) -> Iterator[T]:
    """Yield items when their work is done, in any order.

    Nothing is begun any more once one has failed, or the caller stops: after Ctrl-C no
    thread begins what was waiting.

    Args:
        work: Called with each item, on a thread.
        items: The items.
        most: How many are under way at the same time.
    """
    over = threading.Event()
    done: SimpleQueue[tuple[T, Future[None]]] = SimpleQueue()
    waiting = iter(items)

    def unless_over(item: T) -> None:
        if not over.is_set():
            work(item)

    def begin(item: T) -> None:
        future = transfer(lambda: unless_over(item))
        future.add_done_callback(lambda ended: done.put((item, ended)))

    under_way = 0
    try:
        for item in islice(waiting, most):
            begin(item)
            under_way += 1
        while under_way:
            item, ended = done.get()
            under_way -= 1
            ended.result()
            yield item
            for following in islice(waiting, 1):
                begin(following)
                under_way += 1
    except Exception:
        over.set()
        for _ in range(under_way):  # nothing is written any more when the caller hears of it
            done.get()
        raise
    finally:
        over.set()
