"""The process of a fault proxy: it passes connections on, and does what its owner says.

The owner writes lines of JSON to its standard input and reads one line for each. When the owner
is gone, so is the process.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from support.proxy.faults import FaultPlan, from_words
from support.proxy.passing import listen
from support.proxy.traffic import Traffic


def do_as_told(traffic: Traffic, order: dict[str, Any]) -> Any:
    """Carry out an order of the owner, and return the answer to it."""
    return _ORDERS[order.pop("do")](traffic, **order)


def _latency(traffic: Traffic, seconds: float) -> None:
    traffic.latency_s = seconds


def _fail(
    traffic: Traffic, rate: float, kinds: list[dict[str, Any]], seed: int, where: str
) -> None:
    plan = traffic.plan
    plan.rate, plan.where, plan.chance = rate, where, random.Random(seed)
    plan.kinds = [from_words(words) for words in kinds]


def _fail_next(traffic: Traffic, times: int, kind: dict[str, Any], where: str) -> None:
    traffic.plan.next += [(from_words(kind), where)] * times


def _clear(traffic: Traffic) -> None:
    traffic.plan = FaultPlan()
    traffic.latency_s = 0.0


def _counts(traffic: Traffic) -> dict[str, int]:
    return {"requests": traffic.requests, "bytes": traffic.bytes}


_ORDERS: dict[str, Callable[..., Any]] = {
    "latency": _latency,
    "fail": _fail,
    "fail_next": _fail_next,
    "clear": _clear,
    "counts": _counts,
    "log": lambda traffic: list(traffic.log),
    "reset": Traffic.reset,
}


async def serve_owner(upstream: str) -> None:
    """Pass connections on until the owner closes our standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner, who ends us
    traffic = traffic_to(upstream)
    server = await listen(traffic, 0)
    _say({"port": server.sockets[0].getsockname()[1]})
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(orders), sys.stdin
    )
    while line := await orders.readline():
        _say(do_as_told(traffic, json.loads(line)))


def traffic_to(upstream: str) -> Traffic:
    """Return the traffic to a server, of which nothing has passed yet."""
    parts = urlsplit(upstream)
    assert parts.hostname is not None
    return Traffic(parts.hostname, parts.port or 80)


def _say(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
