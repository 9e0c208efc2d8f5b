"""Signed addresses kept out of what HTTP clients log: one is enough to fetch the file.

urllib3 writes every path at DEBUG, httpx every address at INFO; huggingface_hub warns with the full
address when a transfer breaks off. Their lines stay; what stands behind the question mark goes.
"""

from __future__ import annotations

import logging
import re

_QUERY = re.compile(r"(/[^\s?\"]*)\?[^\s\"]*")
_HTTPCORE = ("connection", "http11", "http2", "proxy", "socks")  # answers' headers, at DEBUG
_LOGGERS = (
    *("urllib3.connectionpool", "urllib3.connection", "urllib3.poolmanager"),
    *("huggingface_hub.file_download", "huggingface_hub.utils._http", "huggingface_hub.lfs"),
    *("httpx", "httpx2"),
    *(f"{core}.{part}" for core in ("httpcore", "httpcore2") for part in _HTTPCORE),
)


def hide_signatures() -> None:
    """Let the clients log addresses without their signatures, from now on."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_without_queries)  # a second time changes nothing


def _without_queries(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    if "?" in text:
        record.msg, record.args = _QUERY.sub(r"\1?...", text), ()
    return True
