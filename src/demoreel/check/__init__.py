"""What is wrong with a dataset: ``demoreel.check(path)`` returns a ``Report`` and writes nothing.

    run.py         ``check()``: runs the families in order; one that crashes becomes a finding
    catalogue/     every code with its severity, effect and repair; codes.py: what a code is
    thresholds.py  every number that a check decides by, by name, with its default
    look.py        ``Look``: a dataset as the checks see it, through the parser of all readers
                   (``layouts/meta.py``). A problem is a finding; what cannot be read is None
    report.py      ``Findings`` collects, ``Report`` groups and prints; html.py: as a page
    metadata.py    ``meta/``: info, features, tasks, episodes, splits, files
    recorded_stats.py  the statistics by themselves, and those of episodes against their rows
    tables.py      the tables' files and columns; every number is decoded once
    rows.py        the pass over all rows, and ``RowCheck``, what the checks of rows are:
                   row_checks.py (places and values), motion.py, fingerprints.py
    videos.py      the videos by their packet tables; clips.py: where episodes lie in them
    lance.py       Lance tables, their versions and videos
    duplicates.py  the same episodes, in one dataset or in several
    deep.py        every frame decoded once; deep_watch.py measures it

A check is a function of a ``Look`` that calls ``look.found(code, what, episode=..., file=...)``; a
family of them is named in ``run.FAMILIES``. Checks that need all rows are a ``RowCheck`` in
``run.ROW_CHECKS``: ``take`` gets portions of whole episodes (in threads, so it only returns),
``finish`` gets what ``take`` returned, in the dataset's order.

No check decodes a frame unless ``deep`` is set, and none uses a count, shape or size from a file
before it is bounded.
"""

from __future__ import annotations

from demoreel.check.run import check
from demoreel.packages import stand_for

stand_for(__name__, check)
