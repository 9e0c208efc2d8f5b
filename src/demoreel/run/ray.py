"""Runs tasks on a Ray cluster whose nodes share a disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from demoreel.errors import DemoreelError, MissingExtraError
from demoreel.run.task import Task

_AT_ONCE = 4  # tasks that wait for each processor
_ATTEMPTS = 10


class RayEngine:
    """Runs tasks on Ray.

    A node that is lost takes its tasks with it; they are done again elsewhere, which does no harm.

    Args:
        address: Of a cluster to join (``auto``, ``ray://...``); None takes the one that this
            process is in, or starts one on this machine.
    """

    def __init__(self, *, address: str | None = None) -> None:
        self._address = address
        _import_ray()

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, dict[str, Any]]]:
        """Yield each task and its result as they end."""
        ray = _import_ray()
        if not ray.is_initialized():
            ray.init(address=self._address, log_to_driver=False, include_dashboard=False)
        remote = ray.remote(max_retries=_ATTEMPTS)(_run)
        most = _AT_ONCE * max(1, int(ray.cluster_resources().get("CPU", 1)))
        waiting = sorted(tasks, key=lambda task: -task.weight)
        running: dict[Any, Task] = {}
        while waiting or running:
            while waiting and len(running) < most:
                task = waiting.pop(0)
                running[remote.remote(task)] = task
            done, _ = ray.wait(list(running), num_returns=1)
            for reference in done:
                task = running.pop(reference)
                yield task, _result(ray, reference, task)


def _run(task: Task) -> dict[str, Any]:
    return task.run()


def _result(ray: Any, reference: Any, task: Task) -> dict[str, Any]:
    try:
        found: dict[str, Any] = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from error
    except ray.exceptions.RayError as error:
        raise DemoreelError(
            f"The task {task.name} could not be done on Ray ({type(error).__name__}).",
            hint="the same command continues from what was finished",
        ) from error
    return found


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError(
            "Ray is not installed.", hint="pip install 'demoreel[ray]'"
        ) from error
    return ray
