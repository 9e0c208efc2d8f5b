"""The catalogue: every kind of finding, by family.

A new kind is an entry in the table of its family; ``docs/make_checks.py`` makes the tables of
docs/checks.md from them.
"""

from __future__ import annotations

from collections.abc import Mapping

from demoreel.check.catalogue.episodes import DUPLICATE, MOTION
from demoreel.check.catalogue.metadata import METADATA
from demoreel.check.catalogue.tables import LANCE, TABLE
from demoreel.check.catalogue.videos import DEEP, VIDEO
from demoreel.check.codes import Code, error

_CHECK = (
    error(
        "limit-exceeded",
        "Something is larger than a named limit allows",
        "Reading it stops: it could take all memory. The message names the limit and the "
        "environment variable that raises it.",
    ),
    error(
        "check-failed",
        "A check failed",
        "What this check looks for is unknown.",
    ),
)
"""Codes of the checks themselves."""

CATALOGUE: Mapping[str, tuple[Code, ...]] = {
    "metadata": METADATA,
    "table": TABLE,
    "video": VIDEO,
    "deep": DEEP,
    "lance": LANCE,
    "motion": MOTION,
    "duplicate": DUPLICATE,
    "check": _CHECK,
}
"""The codes by family, in the order of reports."""

CODES: Mapping[str, Code] = {code.name: code for codes in CATALOGUE.values() for code in codes}
"""The codes by name."""
