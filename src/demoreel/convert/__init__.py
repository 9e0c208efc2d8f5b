"""From layout to layout: planned, written in parts, verified, committed once.

``demoreel.convert(source, target, to="lance-video")`` does it all. This room can be called, because
it and the function have the same name: whoever imports something from here must not take the
function away from others.

    plan      what there is, what will be written, in which parts (``plan.py``)
    write     rows and videos, each part once (``lance_target.py``, ``v3_target.py``), each noted
              in a journal (``staging.py``)
    finish    tables, indices and ``meta/`` (``metadata.py``)
    verify    read back and compared with the source (``verify.py``)
    commit    one rename (``staging.py``)
"""

from __future__ import annotations

import sys
import types
from typing import Any


class _Room(types.ModuleType):
    """This module, as something that can be called; ``run.convert`` says with what."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Convert a dataset to another layout; see ``run.convert``."""
        from demoreel.convert.run import convert

        return convert(*arguments, **options)


sys.modules[__name__].__class__ = _Room
