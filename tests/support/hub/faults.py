"""What goes wrong on purpose: refused requests, cut connections, races, requests held back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from support.hub.answers import Answer, Request, as_json

FAMILIES = ("lfs", "bucket")
"""Names that stand for all routes that begin so."""


class Cut(Exception):
    """The connection is to die here."""


@dataclass
class _Planned:
    """Something that happens to the next ``left`` requests of a kind."""

    on: str | None
    left: int
    status: int = 0
    retry_after: float | None = None
    after_bytes: int = 0


class Held:
    """A request that waits inside the server until it is released.

    A context manager: leaving it releases the request.
    """

    def __init__(self, on: str) -> None:
        self.on = on
        self._reached = threading.Event()
        self._released = threading.Event()
        self._dropped = False
        self.taken = False  # by a request

    def wait(self, timeout: float = 60) -> None:
        """Until such a request has arrived. ``TimeoutError`` if none does."""
        if not self._reached.wait(timeout):
            raise TimeoutError(f"no request to {self.on!r} within {timeout} s")

    def release(self) -> None:
        """Let it go on."""
        self._released.set()

    def drop(self) -> None:
        """Reset its connection, as if it had never arrived."""
        self._dropped = True
        self._released.set()

    def pass_through(self) -> None:
        """Called by the server: say that a request is here, and wait."""
        self._reached.set()
        self._released.wait()
        if self._dropped:
            raise Cut

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Faults:
    """The plan of what goes wrong; every entry is used up by the requests it meets."""

    def __init__(self, routes: frozenset[str]) -> None:
        self._routes = routes
        self._lock = threading.Lock()
        self._failures: list[_Planned] = []
        self._cuts: dict[str, list[_Planned]] = {"up": [], "down": []}
        self._races: list[tuple[str, Callable[[], object]]] = []
        self._held: list[Held] = []

    def fail_next(
        self, count: int, *, status: int, retry_after: float | None, on: str | None
    ) -> None:
        """Answer the next requests with an error."""
        with self._lock:
            self._failures.append(_Planned(on, count, status, retry_after))

    def cut(self, direction: str, count: int, *, after_bytes: int, on: str) -> None:
        """Let connections die in the middle of a body."""
        with self._lock:
            self._cuts[direction].append(_Planned(on, count, after_bytes=after_bytes))

    def race(self, repo_id: str, callback: Callable[[], object]) -> None:
        """Run something when the next commit to a repository arrives, before it is looked at."""
        with self._lock:
            self._races.append((repo_id, callback))

    def hold(self, on: str) -> Held:
        """Keep the next request of a kind waiting."""
        held = Held(on)
        with self._lock:
            self._held.append(held)
        return held

    def clear(self, *, drop: bool = False) -> None:
        """Nothing goes wrong any more; what is held goes on, or never happened."""
        with self._lock:
            self._failures.clear()
            self._races.clear()
            for planned in self._cuts.values():
                planned.clear()
            for held in self._held:
                held.drop() if drop else held.release()
            self._held.clear()

    # Asked by the server

    def failure(self, name: str, request: Request) -> Answer | None:
        """The error that this request is to get."""
        planned = self._take(self._failures, name, request)
        if planned is None:
            return None
        headers = {}
        if planned.retry_after is not None:
            headers["Retry-After"] = f"{planned.retry_after:g}"
        answer = {"error": f"{planned.status}, as the test asked for"}
        return as_json(answer, status=planned.status, headers=headers)

    def cut_after(self, direction: str, name: str, request: Request, length: float) -> int | None:
        """After how many bytes of a body of ``length`` this request's connection dies."""
        with self._lock:
            long_enough = [cut for cut in self._cuts[direction] if cut.after_bytes < length]
        planned = self._take(long_enough, name, request)
        return None if planned is None else planned.after_bytes

    def meet(self, name: str, request: Request, repo_id: str) -> None:
        """Wait, or be overtaken, where that is planned."""
        with self._lock:
            free = [held for held in self._held if not held.taken]
            met = [held for held in free if self._means(held.on, name, request)][:1]
            for held in met:
                held.taken = True
            races = [race for race in self._races if name == "commit" and race[0] == repo_id][:1]
            self._races = [race for race in self._races if race not in races]
        for held in met:
            held.pass_through()
        for _, callback in races:
            callback()

    def _take(self, plan: list[_Planned], name: str, request: Request) -> _Planned | None:
        with self._lock:
            for planned in plan:
                if planned.left > 0 and self._means(planned.on, name, request):
                    planned.left -= 1
                    return planned
        return None

    def _means(self, on: str | None, name: str, request: Request) -> bool:
        if on is None:
            return True
        if any(_is_called(on, route) for route in self._routes):
            return _is_called(on, name)
        return on in f"{request.method} {request.path}"


def _is_called(on: str, route: str) -> bool:
    return route == on or (on in FAMILIES and route.startswith(f"{on}-"))


def until(chunks: Iterator[bytes], limit: int | None) -> Iterator[bytes]:
    """The chunks of a body, and ``Cut`` after ``limit`` bytes."""
    if limit is None:
        yield from chunks
        return
    for chunk in chunks:
        if len(chunk) >= limit:
            yield chunk[:limit]
            raise Cut
        limit -= len(chunk)
        yield chunk
