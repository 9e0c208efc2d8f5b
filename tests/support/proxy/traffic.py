"""What passes through a proxy: counted, listed, and subject to a plan of faults."""

from __future__ import annotations

from collections import deque

from support.proxy.faults import Fault, FaultPlan
from support.proxy.framing import AnswerHead, RequestHead

BUFFERED = 1 << 20  # bytes that may wait on one side for the other
_LOG_LENGTH = 200_000  # the newest requests; older ones are counted, but no longer listed


class Traffic:
    """What passes through a proxy, and what is to happen to it.

    Attributes:
        log: Method, path, range, status (0: no answer) and bytes of each request that has ended.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.latency_s = 0.0
        self.plan = FaultPlan()
        self.reset()

    def reset(self) -> None:
        """Count from zero."""
        self.requests = 0
        self.bytes = 0
        self.log: deque[tuple[str, str, str, int, int]] = deque(maxlen=_LOG_LENGTH)


class Exchange:
    """A request and its answer, under way."""

    __slots__ = ("answer", "fault", "keep", "passed", "raw", "refused", "request")

    def __init__(self, raw: bytes, fault: Fault | None, request: RequestHead) -> None:
        self.raw = raw
        self.request = request
        self.fault = fault
        self.refused = False  # the proxy answers itself
        self.answer: AnswerHead | None = None
        self.keep: int | None = None  # bytes of the body that still pass before the fault
        self.passed = 0
