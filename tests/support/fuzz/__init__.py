"""Datasets damaged at random: what opening, checking and repairing make of them.

A case is a base (one of ``BASES``, a small dataset of a layout) and a seed; the same two always
give the same damage. Cases run in processes that may crash, hang or take all memory, and are told
on if they do::

    from support.fuzz import Case, make_bases, run_cases

    bases = make_bases(folder / "bases")
    for verdict in run_cases([Case("v3", seed) for seed in range(100)], bases, folder / "work"):
        print(verdict)

What may come of a case: an error of demoreel's own (or a plain OSError), a finding, right data.
What may not: see ``trial.Verdict``.

    bases.py    the datasets
    damage.py   bytes that are flipped, cut off, zeroed, swapped
    hostile.py  metadata that mean harm
    bombs.py    small files that ask for too much; entries.py: every way into a dataset
    trial.py    one case: damage a copy, use it, judge what came of it
    witness.py  what images and numbers say of themselves, and what is in a folder
    pool.py     processes for many cases, and what watches them
"""

from __future__ import annotations

from support.fuzz.bases import BASES, make_bases
from support.fuzz.pool import run_cases
from support.fuzz.trial import Case, Verdict, run_case

__all__ = ["BASES", "Case", "Verdict", "make_bases", "run_case", "run_cases"]
