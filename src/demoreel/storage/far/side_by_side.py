"""Transfers of many things, some at a time; the first that fails ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from itertools import islice
from queue import SimpleQueue
from typing import TypeVar

from demoreel.storage.far.threads import transfer

T = TypeVar("T")


def side_by_side(work: Callable[[T], None], items: Iterable[T], *, most: int) -> Iterator[T]:
    """Yield items when their work is done, in any order.

    Nothing is begun any more once one has failed, or nobody wants the next: after Ctrl-C no thread
    goes on with what was waiting.

    Args:
        work: Called with each item, on a thread.
        items: The items.
        most: How many are under way at the same time.

    Raises:
        BaseException: What ``work`` raises, when all that was under way has ended.
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
