"""Work that takes longer than a request: rendering, checking, measuring. A thread each."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

from demoreel.errors import ArgumentError, DemoreelError, redacted

Report = Callable[[float], None]


class CancelledWork(KeyboardInterrupt):
    """Ends work at its next report as Ctrl-C does: what is done stays to be gone on with."""


_MOST_RUNNING = 2
_KEPT = 50


class Job:
    """One piece of work.

    Args:
        number: What to ask for it by.
        what: What it does, for the page.
        work: Does it; returns what to tell, as JSON.
        cancels: Whether it may be ended at any report: it writes nothing, or can be gone on with.
    """

    def __init__(
        self, number: int, what: str, work: Callable[[Report], Any], *, cancels: bool
    ) -> None:
        self.number = number
        self.what = what
        self.cancels = cancels
        self._work = work
        self._is_cancelled = False
        self._share = 0.0
        self._state = "running"
        self._result: Any = None
        self._thread = threading.Thread(target=self._run, name=f"demoreel-{what}", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether it goes on."""
        return self._state == "running"

    def wait(self) -> None:
        """Wait until it has ended."""
        self._thread.join()

    def cancel(self) -> None:
        """Have it end at its next report."""
        if not self.cancels:
            raise ArgumentError(f"The {self.what} cannot be cancelled.", hint="wait until it ends")
        self._is_cancelled = True

    def _run(self) -> None:
        try:
            result = self._work(self._report)
            self._share, self._result, self._state = 1.0, result, "done"
        except CancelledWork:
            self._state = "cancelled"
        except BaseException as error:  # libraries in Rust raise what is no Exception
            hint = error.hint if isinstance(error, DemoreelError) else None
            what = error.what if isinstance(error, DemoreelError) else redacted(str(error))
            self._result = {"message": what, "hint": hint, "where": {}}
            self._state = "failed"

    def _report(self, share: float) -> None:
        self._share = float(share)
        if self._is_cancelled:
            raise CancelledWork

    def to_json(self) -> dict[str, Any]:
        """Return how far it is."""
        return {
            "id": self.number,
            "what": self.what,
            "cancels": self.cancels,
            "state": self._state,
            "share": round(self._share, 4),
            "result": self._result,
        }


class Jobs:
    """The work of a viewer."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._known: dict[int, Job] = {}
        self._lock = threading.Lock()

    def start(self, what: str, work: Callable[[Report], Any], *, cancels: bool = False) -> Job:
        """Begin a piece of work.

        Args:
            what: What it does, for the page.
            work: Does it.
            cancels: Whether it may be ended at any report: it writes nothing, or can be gone on
                with.
        """
        with self._lock:
            same = (job for job in self._known.values() if job.what == what)
            if sum(job.is_running for job in same) >= _MOST_RUNNING:
                raise ArgumentError("Other work is running.", hint="wait until it has ended")
            job = Job(next(self._numbers), what, work, cancels=cancels)
            self._known[job.number] = job
            for number in [n for n, each in self._known.items() if not each.is_running][:-_KEPT]:
                del self._known[number]
            return job

    def get(self, number: int) -> Job:
        """Return a piece of work."""
        if number not in self._known:
            raise ArgumentError(f"There is no job {number}.")
        return self._known[number]

    def wait(self) -> None:
        """Wait until all work has ended: what is rendered is committed, or can be continued."""
        for job in list(self._known.values()):
            if job.cancels:
                job.cancel()
            job.wait()
