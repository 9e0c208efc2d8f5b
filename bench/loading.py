"""How a benchmark times a dataset: the same function on both sides of a comparison."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader


class Batches:
    """A batch sampler whose batches are given, and can be exchanged between two passes."""

    def __init__(self, batches: Sequence[Sequence[int]]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return (list(batch) for batch in self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def samples_per_second(
    dataset: Any,
    batches: Sequence[Sequence[int]],
    *,
    workers: int,
    warmup: int,
    context: str | None = None,
    announced: Callable[[Batches], Iterable[list[int]]] = lambda batches: batches,
) -> dict[str, float]:
    """Load the batches through a DataLoader and time all but the first `warmup` of them.

    The workers and their open files live through both passes, but nothing is prefetched across the
    line: the clock starts before the first timed batch is asked for. `context` is how workers are
    started, for libraries that do not survive torch's default; `announced` makes the batch sampler
    of the batches.
    """
    if not 0 < warmup < len(batches):
        raise ValueError(f"{len(batches)} batches leave none to time after {warmup} for warming up")
    sampler = Batches(batches[:warmup])
    loader = DataLoader(
        dataset,
        batch_sampler=announced(sampler),
        num_workers=workers,
        persistent_workers=workers > 0,
        multiprocessing_context=context if workers else None,
    )
    for _ in loader:
        pass
    sampler.batches = batches[warmup:]
    started, worked = time.perf_counter(), cpu_seconds()
    for _ in loader:
        pass
    seconds = time.perf_counter() - started
    samples = sum(map(len, sampler.batches))
    found = {"samples": samples, "seconds": seconds, "samples_per_s": samples / seconds}
    if not workers:
        found["cpu_ms"] = (cpu_seconds() - worked) / samples * 1e3
    return found


def cpu_seconds() -> float:
    """Return what this process and its threads have computed: other programs hardly change it."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
