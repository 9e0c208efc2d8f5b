"""Signatures stay out of the logs: urllib3 writes every path there at DEBUG, query and all."""

from __future__ import annotations

import logging
import re

_QUERY = re.compile(r"\?[^\s\"]*(?:signature|sig=|token|credential)[^\s\"]*", re.IGNORECASE)
_LOGGERS = ("urllib3.connectionpool", "urllib3.connection", "urllib3.poolmanager")


def keep_queries_out_of_logs() -> None:
    """Let the HTTP client write signed addresses without what is secret about them."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_without_signatures)  # the same one is added once


def _without_signatures(record: logging.LogRecord) -> bool:
    args = record.args if isinstance(record.args, tuple) else ()
    if any(isinstance(value, str) and "?" in value for value in args) or "?" in str(record.msg):
        record.msg = _QUERY.sub("?***", record.getMessage())
        record.args = ()
    return True
