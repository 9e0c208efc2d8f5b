"""Repairing datasets: what is good is copied, what can be told is written anew, the rest is named.

``demoreel.repair(path, target)`` does it all; the source is only read.

    tables.py    every row that can be read, also from files that never got a footer
    videos.py    every frame that is there, and which episode it belongs to
    features.py  what the features are, where ``info.json`` and the tables disagree
    decide.py    which episodes can be kept, how much of each, and why others cannot
    writing.py   a v3.0 dataset of what was kept: videos as they are, tables and ``meta/`` as needed
    run.py       ``repair()``: all of it, then the result is checked
    report.py    what was done, what was lost, what is still wrong
"""

from __future__ import annotations

from demoreel.packages import stand_for
from demoreel.repair.run import repair

stand_for(__name__, repair)
