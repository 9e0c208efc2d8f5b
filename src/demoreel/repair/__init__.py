"""Repairing datasets: what is good is copied, what can be told is written anew, the rest is named.

``demoreel.repair(path, target)`` does it all; the source is only read.

    tables.py    every row that can be read, also from files that never got a footer
    videos.py    every frame that is there, and which episode it belongs to
    features.py  what the features are, where ``info.json`` and the tables disagree
    values.py    columns and texts in other types than declared, read as what they are
    decide.py    which episodes can be kept, how much of each, and why others cannot
    refuse.py    what is left out, or done without, only if the user says so
    writing.py   a v3.0 dataset of what was kept: videos as they are, tables and ``meta/`` as needed
    work.py      all of it, for one dataset
    run.py       ``repair()``: arguments and places, then the result is checked
    report.py    what was changed, what was lost, what is still wrong
"""

from __future__ import annotations

from demoreel.packages import stand_for
from demoreel.repair.run import repair

stand_for(__name__, repair)
