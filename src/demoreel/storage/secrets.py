"""Secrets that a user passes in a call: kept in the memory of this process and its workers.

A pickle may end up anywhere: on a disk, in a queue of another machine, in a log. An environment is
read by every program that is started, and shows in ``/proc``. So secrets stand in neither. What is
pickled carries a random name in place of a secret. Three kinds of processes can look it up:

- forked children have this process's memory;
- spawned workers (``multiprocessing``, a DataLoader's, a pool's) get it over the pipe that starts
  them: what is known then, whether or not they are given a dataset with it;
- helper processes get it over their own pipe (``hand_over``).

Other programs, other machines and Ray's workers cannot.

A signed address is a secret, too: one is enough to fetch the file. HTTP clients log them:
urllib3 writes every path at DEBUG, httpx every address at INFO; huggingface_hub warns with the full
address when a transfer breaks off. Their lines stay; what stands behind the question mark goes.
"""

from __future__ import annotations

import logging
import re
import secrets as random
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import process

from demoreel.errors import ArgumentError

_QUERY = re.compile(r"(/[^\s?\"]*)\?[^\s\"]*")
_HTTPCORE = ("connection", "http11", "http2", "proxy", "socks")  # answers' headers, at DEBUG
_LOGGERS = (
    *("urllib3.connectionpool", "urllib3.connection", "urllib3.poolmanager"),
    *("huggingface_hub.file_download", "huggingface_hub.utils._http", "huggingface_hub.lfs"),
    *("httpx", "httpx2"),
    *(f"{core}.{part}" for core in ("httpcore", "httpcore2") for part in _HTTPCORE),
)

_known: dict[str, dict[str, str]] = {}
_handing = threading.local()


def keep_secrets(secrets: Mapping[str, str], name: str | None = None) -> str:
    """Keep secrets for this process and its own workers; return the name they go by.

    Args:
        secrets: The secrets.
        name: What they go by in the process that they come from.
    """
    given = dict(secrets)
    if name is None:
        name = next((known for known, held in _known.copy().items() if held == given), None)
    # Random: a hash would let a short secret be guessed from a pickle.
    name = name or random.token_hex(12)
    _known[name] = given
    # multiprocessing hands this to the processes that it starts, as it does with its own key. A
    # pool's workers get their datasets later, over a queue, which may carry no secret.
    process.current_process()._config["demoreel_secrets"] = _Inherited()  # type: ignore[attr-defined]
    return name


class _Inherited:
    """All secrets, for processes that multiprocessing starts; nothing in any other pickle."""

    def __reduce__(self) -> tuple[object, ...]:
        return (_inherit, (_known.copy() if may_travel() else {},))


def _inherit(known: dict[str, dict[str, str]]) -> _Inherited:
    _known.update(known)
    return _Inherited()


def knows_secrets(name: str) -> bool:
    """Whether this process was told of the secrets that go by this name."""
    return name in _known


def recall_secrets(name: str) -> dict[str, str]:
    """Return the secrets that go by this name."""
    if name not in _known:
        raise ArgumentError(
            "The credentials that were given in storage_options= are not known to this process: "
            "they do not travel in pickles.",
            hint="start workers and pools after the dataset was opened, put the credentials into "
            "the environment of every machine, or open the dataset there",
        )
    return dict(_known[name])


@contextmanager
def hand_over() -> Iterator[None]:
    """Let what this thread pickles carry its secrets: for a pipe to a helper, and nothing else."""
    before, _handing.on = getattr(_handing, "on", False), True
    try:
        yield
    finally:
        _handing.on = before


def may_travel() -> bool:
    """Whether what this thread pickles goes to a process of its own, over a pipe."""
    if getattr(_handing, "on", False):
        return True
    context = sys.modules.get("multiprocessing.context")
    # As multiprocessing does for its own keys: set while it pickles what a new process begins with.
    return context is not None and context.get_spawning_popen() is not None


def hide_signatures() -> None:
    """Let the clients log addresses without their signatures, from now on."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_without_queries)  # a second time changes nothing


def _without_queries(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    if "?" in text:
        record.msg, record.args = _QUERY.sub(r"\1?...", text), ()
    return True
