"""Repairing datasets: what is good is copied, what can be told is written anew, the rest is named.

``demoreel.repair(path, target)`` does it all; the source is only read.

    tables.py    every row that can be read, also from files that never got a footer
    videos.py    every frame that is there, and which episode it belongs to
    absent.py    files that are not there: they are fetched, not repaired
    features.py  what the features are, where ``info.json`` and the tables disagree
    values.py    columns in other types than the features', read as the features
    texts.py     the texts of tasks, in whatever form
    decide.py    which episodes can be kept, how much of each, and why others cannot
    refuse.py    what is left out only if the user says so
    writing.py   a v3.0 dataset of what was kept: videos as they are, tables and ``meta/`` as needed
    work.py      all of it, for one dataset
    compare.py   what the result says otherwise than the source
    changes.py   what was changed, a sentence for each kind
    run.py       ``repair()``: arguments and places, then the result is checked
    report.py    what was done, what was lost, what is still wrong
"""

from __future__ import annotations

from demoreel.packages import stand_for
from demoreel.repair.run import repair

stand_for(__name__, repair)
