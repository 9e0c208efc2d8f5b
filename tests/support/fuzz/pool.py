"""Many cases in a few processes, each of which may crash, hang or take all memory."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

from demoreel.layouts.lance.calls import import_lance
from support.fuzz.trial import Case, Fault, Verdict, run_case

Run = Callable[[Case, dict[str, Path], Path], Verdict]

MEMORY = 2 << 30
"""Bytes that a process may have in memory, as the promise is."""

SECONDS = 60.0
"""How long a case may take; they take half a second."""

_GLANCE_S = 0.05
_USED = ("demoreel.check.run", "demoreel.read.dataset", "demoreel.repair.run")


def run_cases(
    cases: Iterable[Case],
    bases: dict[str, Path],
    work: Path,
    *,
    processes: int = 2,
    seconds: float = SECONDS,
    memory: int = MEMORY,
) -> Iterator[Verdict]:
    """Run cases and yield what came of each, in the order in which they end.

    Args:
        cases: The cases.
        bases: Where the bases are; see ``make_bases``.
        work: A folder to work in.
        processes: How many cases run at once.
        seconds: How long a case may take.
        memory: How many bytes its process may have in memory.
    """
    yield from run_each(
        run_case, cases, bases, work, processes=processes, seconds=seconds, memory=memory
    )


def run_each(
    run: Run,
    cases: Iterable[Case],
    bases: dict[str, Path],
    work: Path,
    *,
    processes: int,
    seconds: float,
    memory: int,
) -> Iterator[Verdict]:
    """Do with each case what ``run`` does; otherwise as ``run_cases``.

    Args:
        run: A function of a module, called with a case, the bases and a folder to work in.
        cases: The cases.
        bases: Where the bases are.
        work: A folder to work in.
        processes: How many cases run at once.
        seconds: How long a case may take.
        memory: How many bytes its process may have in memory.
    """
    work.mkdir(parents=True, exist_ok=True)
    waiting = iter(cases)
    workers = [_Worker(run, bases, work) for _ in range(processes)]
    try:
        for worker in workers:
            worker.start(next(waiting, None))
        while any(worker.case for worker in workers):
            busy = [worker for worker in workers if worker.case]
            wait([worker.pipe for worker in busy], timeout=_GLANCE_S)
            for worker in busy:
                verdict = worker.glance(seconds, memory)
                if verdict is not None:
                    yield verdict
                    worker.start(next(waiting, None))
    finally:
        for worker in workers:
            worker.end()


@dataclass
class _State:
    now: int
    most: int
    is_stopped: bool


class _Worker:
    """A process that runs one case after the other; another takes its place when it dies."""

    def __init__(self, run: Run, bases: dict[str, Path], work: Path) -> None:
        self._run, self._bases, self._work = run, bases, work
        self.case: Case | None = None
        self._spent = self._seen = 0.0
        self._begin()

    def _begin(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self._folder = tempfile.mkdtemp(prefix="worker-", dir=self._work)
        self._process = spawn.Process(
            target=_serve, args=(theirs, self._run, self._bases, self._folder), daemon=False
        )
        self._process.start()
        theirs.close()
        self.pipe.recv()  # until everything is imported, nothing counts

    def start(self, case: Case | None) -> None:
        self.case = case
        if case is not None:
            if not self._process.is_alive():  # another process has ended it
                self._begin()
            _forget_most(self._process.pid)
            self._spent, self._seen = 0.0, time.monotonic()
            self.pipe.send(case)

    def glance(self, seconds: float, memory: int) -> Verdict | None:
        """Return what came of the case, if it has ended or had to be."""
        assert self.case is not None
        used = _state(self._process.pid)
        try:
            if self.pipe.poll():
                verdict: Verdict = self.pipe.recv()
                if used.most > memory:
                    verdict.faults.append(("memory", f"{used.most >> 20} MB"))
                return verdict
        except (EOFError, OSError):
            self._process.join()
            return self._failed("crash", _how_it_ended(self._process.exitcode))
        if used.now > memory:
            return self._failed("memory", f"{used.now >> 20} MB")
        self._spend(used.is_stopped)
        if self._spent > seconds:
            return self._failed("endless", f"no end after {seconds:g} s")
        return None

    def _spend(self, is_stopped: bool) -> None:
        """Count the time that has passed, but not what this or that process was stopped for."""
        now = time.monotonic()
        if not is_stopped:
            self._spent += min(now - self._seen, 20 * _GLANCE_S)
        self._seen = now

    def _failed(self, fault: Fault, why: str) -> Verdict:
        assert self.case is not None
        verdict = Verdict(self.case, faults=[(fault, why)])
        self.end()
        self._begin()
        return verdict

    def end(self) -> None:
        self.pipe.close()
        if self._process.is_alive() and self.case is not None:
            self._process.kill()
        self._process.join()


def _serve(pipe: Connection, run: Run, bases: dict[str, Path], folder: str) -> None:
    for module in _USED:
        importlib.import_module(module)
    import_lance()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    work = Path(folder)
    (work / "tmp").mkdir()
    tempfile.tempdir = str(work / "tmp")
    pipe.send(os.getpid())
    while True:
        try:
            pipe.send(run(pipe.recv(), bases, work))
        except (EOFError, BrokenPipeError):
            return  # nothing waits for it any more


def _state(pid: int | None) -> _State:
    """Return what a process has in memory, the most it had, and whether it was stopped."""
    found = {"VmRSS": "0", "VmHWM": "0", "State": ""}
    with contextlib.suppress(OSError):  # it has ended, or this system does not tell
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in found:
                found[name] = value.split()[0]
    return _State(int(found["VmRSS"]) << 10, int(found["VmHWM"]) << 10, found["State"] in "Tt")


def _forget_most(pid: int | None) -> None:
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"ended with {code}"
