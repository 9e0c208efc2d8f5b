"""Datasets with something wrong: every kind of defect that ``demoreel check`` must find.

``DEFECTS`` names them. Each damages a clean copy of one of the ``BASES`` and says which codes a
check must report, so that a checker, ours or another, can be measured::

    from support.defects import DEFECTS, make_base

    clean = make_base("v3", folder / "clean")
    ...                                          # copy it
    DEFECTS["video_too_short"].damage(copy)

A module a family; a new code needs a defect there.
"""

from __future__ import annotations

from collections.abc import Mapping

from support.defects.bases import BASES, make_base
from support.defects.registry import Defect, collected

__all__ = ["BASES", "DEFECTS", "Defect", "make_base"]

DEFECTS: Mapping[str, Defect] = collected()
"""Every defect by its name."""
