"""Signed addresses kept out of what huggingface_hub logs.

When a download breaks off, its client warns with the full address, and whoever has that may fetch
the file. The warning stays; what stands behind the question mark goes.
"""

from __future__ import annotations

import logging
import re

_SIGNED = re.compile(r"(https?://[^\s?]*)\?\S*")
_LOGGERS = ("huggingface_hub.file_download", "huggingface_hub.utils._http")


class _Unsigned(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if "?" in text:
            record.msg, record.args = _SIGNED.sub(r"\1", text), ()
        return True


_unsigned = _Unsigned()


def hide_signatures() -> None:
    """Let the client log addresses without their signatures, from now on."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_unsigned)  # a second time changes nothing
