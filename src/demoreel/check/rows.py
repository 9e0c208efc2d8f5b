"""One pass over all numbers of a dataset, shared by the checks of rows.

Files are decoded in threads, as Arrow and numpy let go of the GIL. What is decoded comes in
portions of whole episodes, a few megabytes each, so memory does not grow with the dataset.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from demoreel.check.report import Findings
from demoreel.errors import refuse_shortage
from demoreel.media.decode import default_threads

log = logging.getLogger(__name__)

_AHEAD = 4  # files a thread that may wait to be decoded


@dataclass(frozen=True, slots=True)
class Portion:
    """Rows that stand side by side in a table: whole episodes, as long as those are not huge.

    Attributes:
        file: The table.
        first_row: Where the portion begins in it.
        columns: Numbers by feature, in their declared shape: ``(rows, *item_shape)``. Columns that
            cannot be read as declared are left out (and are findings).
        episode: ``episode_index`` of each row.
        continues: Whether its first rows go on with the last episode of the portion before, as that
            one is huge.
        edges: Where runs of rows of one episode begin, and the number of rows at the end.
    """

    file: str
    first_row: int
    columns: dict[str, np.ndarray]
    episode: np.ndarray
    continues: bool = False
    edges: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        changes = np.flatnonzero(np.diff(self.episode)) + 1
        edges = np.concatenate([[0], changes, [len(self.episode)]])
        object.__setattr__(self, "edges", edges[: len(edges) if len(self.episode) else 1])

    @property
    def run_episodes(self) -> np.ndarray:
        """``episode_index`` of each run."""
        return np.asarray(self.episode[self.edges[:-1]])

    @property
    def run_lengths(self) -> np.ndarray:
        """Rows of each run."""
        return np.diff(self.edges)


class RowCheck(Protocol):
    """A check that sees all rows."""

    def take(self, portion: Portion) -> Any:
        """Look at a portion and return what ``finish`` needs of it: small, or memory grows.

        Called from several threads at once: nothing may be changed but through ``look.found``.
        """
        ...

    def finish(self, parts: list[Any]) -> None:
        """Report on what ``take`` returned for every portion, in the order of files and rows."""
        ...


Portions = Callable[[], Iterator[Portion]]
"""Decodes one file."""


def scan_rows(
    files: Iterator[Portions], checks: Sequence[RowCheck], threads: int, findings: Findings
) -> None:
    """Show every portion of every file to every check, then let the checks report.

    A check that raises is a finding, and sees no more rows; the others go on.
    """
    watched = [_Watched(check, findings) for check in checks]

    def decode(portions: Portions) -> list[list[Any]]:
        taken: list[list[Any]] = [[] for _ in watched]
        for portion in portions():
            for found, check in zip(taken, watched, strict=True):
                found.append(check.take(portion))
        return taken

    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[list[list[Any]]]] = deque()
        for portions in files:
            waiting.append(pool.submit(decode, portions))
            if len(waiting) >= threads * _AHEAD:
                _gather(waiting.popleft(), watched)
        while waiting:
            _gather(waiting.popleft(), watched)
    for check in watched:
        check.finish()


def _gather(future: Future[list[list[Any]]], watched: list[_Watched]) -> None:
    for check, found in zip(watched, future.result(), strict=True):
        check.parts.extend(found)


class _Watched:
    """A check that cannot stop the others."""

    def __init__(self, check: RowCheck, findings: Findings) -> None:
        self._check, self._findings = check, findings
        self._has_stopped = False
        self.parts: list[Any] = []

    def take(self, portion: Portion) -> Any:
        return None if self._has_stopped else self._guarded(lambda: self._check.take(portion))

    def finish(self) -> None:
        if not self._has_stopped:
            self._guarded(lambda: self._check.finish(self.parts))

    def _guarded(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except Exception as error:
            refuse_shortage(error)
            name = type(self._check).__name__
            log.debug("the check %s stopped", name, exc_info=True)
            self._has_stopped = True
            said = f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}"
            self._findings.add("check-failed", f"The check {name} of rows stopped: {said}.")
            return None


def cores() -> int:
    """Return how many threads may run at once."""
    return min(default_threads(), 16)


def whole_episodes(
    batches: Iterator[dict[str, np.ndarray]], file: str, *, most_rows: int
) -> Iterator[Portion]:
    """Cut batches of columns into portions that end where an episode does.

    Args:
        batches: Columns of rows that follow one another; each has ``episode_index``.
        file: The table.
        most_rows: An episode of more rows than these is cut all the same.
    """
    kept: dict[str, np.ndarray] = {}
    row, continues = 0, False
    for batch in batches:
        columns = _joined(kept, batch) if kept else batch
        episode = columns["episode_index"]
        changes = np.flatnonzero(np.diff(episode))
        cut = int(changes[-1]) + 1 if len(changes) else 0
        if cut == 0 and len(episode) < most_rows:
            kept = columns
            continue
        is_huge, cut = cut == 0, cut or len(episode)
        yield _portion(columns, file, row, cut, continues)
        row, continues = row + cut, is_huge
        kept = {name: values[cut:] for name, values in columns.items()} if not is_huge else {}
    if kept:
        yield _portion(kept, file, row, len(kept["episode_index"]), continues)


def _joined(before: dict[str, np.ndarray], batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    shared = [name for name in batch if name in before]
    return {name: np.concatenate([before[name], batch[name]]) for name in shared}


def _portion(
    columns: dict[str, np.ndarray], file: str, row: int, stop: int, continues: bool
) -> Portion:
    cut = {name: values[:stop] for name, values in columns.items()}
    return Portion(file, row, cut, cut["episode_index"], continues)
