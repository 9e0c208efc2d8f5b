"""What is wrong with a dataset, before GPU-hours are spent on it.

``demoreel.check(path)`` looks and returns a ``Report``; nothing is ever written. This room can be
called, because it and the function have the same name.

How it is put together, for whoever adds a check:

    findings.py    ``Finding`` (code, what, where; severity, effect and mend come from the code) and
                   ``Findings``, which collects them and bounds how many are kept
    codes.py       ``Code`` and ``CODES``; one table a family in ``catalogue/FAMILY.py``
    thresholds.py  every number that a check decides by, by name, with its default
    look.py        ``Look``: a tolerant view of one dataset. It never raises on broken data. What it
                   cannot read is a finding and an attribute that is None
    rows.py        ``scan_rows``: one pass over all numbers, shared by those who want to see them
    report.py      ``Report``: findings, grouped and counted, as data and as text
    run.py         ``check()``: runs the families in order; one that crashes becomes a finding
    motion*.py     movements: measured while rows pass by, judged at the end
    fingerprints.py, film_prints.py, matching.py   what episodes hold, as hashes; who shares them:
                   duplicates.py in one dataset, leaks.py in several
    footage.py     the videos that open, and where episodes lie in them
    deep*.py       every picture decoded once: decoding, watching, judging
    html.py        the report as a page

A family is a function of a ``Look`` that calls ``look.found(code, what, episode=..., file=...)``;
it is named in ``run.FAMILIES``. One that wants to see all rows gives a ``RowCheck`` instead, in
``run.ROW_CHECKS``: its ``take`` gets portions of whole episodes (in threads, so it only returns),
its ``finish`` gets what ``take`` returned, in the dataset's order. A new code needs an entry in the
family's catalogue, a section in docs/checks.md, and a defect in ``demoreel.testing.defects``;
tests/check/test_codes.py holds that.

No check decodes a picture unless it is asked to (``deep``), and none trusts a number from a file
before it is bounded: counts, shapes and sizes come from strangers.
"""

from __future__ import annotations

import sys
import types
from typing import Any


class _Room(types.ModuleType):
    """This module, as something that can be called; ``run.check`` says with what."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Check datasets; see ``run.check``."""
        from demoreel.check.run import check

        return check(*arguments, **options)


sys.modules[__name__].__class__ = _Room
