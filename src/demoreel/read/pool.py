"""Decoding on several threads.

Codecs and swscale release the GIL, so threads scale. Each thread has its own decoder. A forked
worker inherits no threads: the pool notices and starts its own.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial

from demoreel.media.decode import Decoder
from demoreel.storage.threads import Threads, interrupted

Job = Callable[[Decoder], None]


class DecodePool:
    """Runs jobs, each with the decoder of the thread that runs it.

    Args:
        threads: How many at once; None is every core in a main process, one in a DataLoader worker.
    """

    def __init__(self, threads: int | None) -> None:
        self._wanted = threads
        self._process: int | None = None
        self._renew()

    def _renew(self) -> None:
        self._process = os.getpid()
        self.threads = self._wanted or default_threads()
        self._local = threading.local()
        self._helpers: Threads | None = None

    def run(self, jobs: Iterable[Job], *, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Run all jobs; the calling thread helps. The first error is raised, after all stopped.

        Args:
            jobs: What to do; drawn one by one, so that making jobs and doing them overlap.
            meanwhile: What the calling thread does first, while others have already begun.
        """
        if self._process != os.getpid():
            self._renew()
        queue = iter(jobs)
        first = list(itertools.islice(queue, self.threads))
        if self.threads == 1 or len(first) < 2:
            meanwhile()
            self._drain(itertools.chain(first, queue))
            return
        shared = _Shared(itertools.chain(first, queue))
        if self._helpers is None:
            self._helpers = Threads(self.threads - 1, "demoreel")
            weakref.finalize(self, self._helpers.close)
        futures: list[Future[None]] = []
        try:
            for _ in first[1:]:
                try:
                    futures.append(self._helpers.submit(partial(self._drain, shared)))
                except RuntimeError:  # not one more thread: this one does all
                    break
            meanwhile()
            self._drain(shared)
        except BaseException as problem:
            if not isinstance(problem, Exception):  # Ctrl-C: helpers may wait for a silent server
                interrupted.now()
            raise
        finally:
            shared.stop()
            # Helpers write into the caller's arrays: never return while one still does.
            errors = [future.exception() for future in futures]
        for error in errors:
            if error is not None:
                raise error

    def _drain(self, jobs: Iterator[Job]) -> None:
        decoder = self.decoder
        for job in jobs:
            job(decoder)

    @property
    def decoder(self) -> Decoder:
        """The calling thread's decoder."""
        decoder = getattr(self._local, "decoder", None)
        if decoder is None:
            decoder = self._local.decoder = Decoder()
        assert isinstance(decoder, Decoder)
        return decoder


class _Shared(Iterator[Job]):
    """An iterator that several threads draw from."""

    def __init__(self, jobs: Iterator[Job]) -> None:
        self._jobs = jobs
        self._lock = threading.Lock()
        self._stopped = False

    def __next__(self) -> Job:
        with self._lock:
            if self._stopped:
                raise StopIteration
            return next(self._jobs)

    def stop(self) -> None:
        self._stopped = True


def default_threads() -> int:
    """Return every usable core in a main process, one in a DataLoader worker."""
    data = sys.modules.get("torch.utils.data")
    if data is not None and data.get_worker_info() is not None:
        return 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
