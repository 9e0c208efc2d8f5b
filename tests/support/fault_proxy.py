"""A proxy that goes before an HTTP server, and makes it slow, unreliable and countable.

    with S3Server(folder) as server, FaultProxy(server.endpoint) as proxy:
        proxy.latency_s = 0.03
        proxy.fail(rate=0.05, how=[Status(503), Cut(after=100)])
        ...  # what reads from proxy.endpoint
        print(proxy.requests, proxy.bytes)

It also runs by itself:

    python -m support.fault_proxy --upstream http://127.0.0.1:8333 --latency-ms 30
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from demoreel.errors import ArgumentError
from support.proxy.faults import (
    Cut,
    Fault,
    Reset,
    ShortBody,
    Stall,
    Status,
    as_words,
)
from support.proxy.passing import listen
from support.proxy.serving import serve_owner, traffic_to

__all__ = ["Cut", "Fault", "FaultProxy", "Request", "Reset", "ShortBody", "Stall", "Status"]

_UNAVAILABLE = Status(503)


class Request(NamedTuple):
    """A request that has ended.

    Attributes:
        path: Without the query, percent signs decoded.
        range: The value of its ``Range`` header, such as ``"bytes=0-99"``; empty without one.
        status: Of the answer; 0 where the client got none.
        bytes: Of the answer's body, as far as they were passed on.
    """

    method: str
    path: str
    range: str
    status: int
    bytes: int


class FaultProxy:
    """A proxy before a server, in a process of its own; use it as a context manager.

    Requests and answers pass unchanged, the ``Host`` header too (signatures cover it). A request
    costs about a tenth of a millisecond of the proxy's processor time. Its methods return when
    the proxy does as they say, and may be called by several threads.

    Args:
        upstream: The server: ``http://host:port``.

    Raises:
        ArgumentError: The server's address is no such URL.
    """

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        if parts.scheme != "http" or not parts.hostname:
            raise ArgumentError(f"A proxy passes on to http://host:port, not to {upstream!r}.")
        self.upstream = upstream
        self._lock = threading.Lock()
        self._latency_s = 0.0
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, "--owned", "--upstream", self.upstream],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._port = int(self._answer()["port"])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()
        self._process = None

    @property
    def endpoint(self) -> str:
        """The URL to ask instead of the server's."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def latency_s(self) -> float:
        """Seconds by which every answer comes later; those of concurrent requests overlap."""
        return self._latency_s

    @latency_s.setter
    def latency_s(self, seconds: float) -> None:
        if seconds < 0:
            raise ArgumentError(f"latency_s={seconds} is not a time to wait.")
        self._tell("latency", seconds=seconds)
        self._latency_s = seconds

    def fail(
        self,
        rate: float,
        how: Fault | Sequence[Fault] = _UNAVAILABLE,
        *,
        seed: int = 0,
        where: str = "",
    ) -> None:
        """Let a share of the requests fail from now on.

        Args:
            rate: Between 0 and 1.
            how: What happens to them; of several faults, one by chance.
            seed: The same seed and the same order of requests give the same faults.
            where: Only requests whose path holds this text.
        """
        kinds = [how] if isinstance(how, Fault) else list(how)
        if not 0 <= rate <= 1 or not kinds:
            raise ArgumentError(f"rate={rate} is not between 0 and 1, or there is no fault.")
        self._tell(
            "fail", rate=rate, kinds=[as_words(kind) for kind in kinds], seed=seed, where=where
        )

    def fail_next(self, times: int, how: Fault = _UNAVAILABLE, *, where: str = "") -> None:
        """Let the next requests fail.

        Args:
            times: How many.
            how: What happens to them.
            where: Only requests whose path holds this text; others pass meanwhile.
        """
        self._tell("fail_next", times=times, kind=as_words(how), where=where)

    def clear(self) -> None:
        """Let everything pass again, at once."""
        self._tell("clear")
        self._latency_s = 0.0

    @property
    def requests(self) -> int:
        """How many requests have come."""
        return int(self._tell("counts")["requests"])

    @property
    def bytes(self) -> int:
        """How many bytes the bodies of answers had that have been passed on."""
        return int(self._tell("counts")["bytes"])

    @property
    def log(self) -> list[Request]:
        """The requests that have ended, in the order in which they ended; the newest 200,000."""
        return [Request(*entry) for entry in self._tell("log")]

    def reset(self) -> None:
        """Count from zero, and forget the log."""
        self._tell("reset")

    def _tell(self, do: str, **order: Any) -> Any:
        with self._lock:
            if self._process is None or self._process.stdin is None:
                raise ArgumentError("The proxy does not run.", hint="use it in a with statement")
            self._process.stdin.write(json.dumps({"do": do, **order}) + "\n")
            self._process.stdin.flush()
            return self._answer()

    def _answer(self) -> Any:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the fault proxy has ended")
        return json.loads(line)


async def _serve_alone(options: argparse.Namespace) -> None:
    traffic = traffic_to(options.upstream)
    traffic.latency_s = options.latency_ms / 1000
    traffic.plan.rate = options.fail
    traffic.plan.kinds = [_BY_NAME[options.how]]
    server = await listen(traffic, options.port)
    port = server.sockets[0].getsockname()[1]
    sys.stdout.write(f"http://127.0.0.1:{port} passes on to {options.upstream}\n")
    sys.stdout.flush()
    try:
        await asyncio.Event().wait()  # which never comes; Ctrl-C does
    finally:
        sys.stdout.write(f"{traffic.requests} requests, {traffic.bytes} bytes of answers\n")


_BY_NAME: dict[str, Fault] = {
    "429": Status(429, retry_after=1),
    "500": Status(500),
    "503": Status(503),
    "cut": Cut(after=100),
    "short": ShortBody(by=1),
    "stall": Stall(5.0),
    "reset": Reset(),
}


def main() -> None:
    """Run a proxy until Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m support.fault_proxy",
        description="A proxy before an HTTP server: slow, unreliable, countable.",
    )
    parser.add_argument("--upstream", required=True, help="the server: http://host:port")
    parser.add_argument("--port", type=int, default=0, help="where to listen (default: any)")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="added to every answer")
    parser.add_argument("--fail", type=float, default=0.0, help="the share that fails, 0 to 1")
    parser.add_argument("--how", choices=_BY_NAME, default="503", help="how it fails")
    parser.add_argument("--owned", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve_owner(options.upstream) if options.owned else _serve_alone(options))


if __name__ == "__main__":
    main()
