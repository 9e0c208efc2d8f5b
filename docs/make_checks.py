"""Write the tables of ``docs/checks.md``: the codes by catalogue, and the thresholds.

    .venv/bin/python docs/make_checks.py

A table stands between ``<!-- NAME: made by docs/make_checks.py -->`` and ``<!-- end -->``. All
other text of the page is written by hand. ``tests/check/test_codes.py`` compares it with ``page``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from demoreel.check.catalogue import CATALOGUE
from demoreel.check.codes import Code
from demoreel.check.thresholds import THRESHOLDS

PAGE = Path(__file__).with_name("checks.md")
_TABLE = re.compile(r"(<!-- (\S+): made by docs/make_checks.py -->\n).*?(<!-- end -->)", re.DOTALL)


def page(text: str) -> str:
    """Return the page with the tables as they should be."""
    return _TABLE.sub(lambda found: f"{found[1]}{_table(found[2])}\n{found[3]}", text)


def _table(name: str) -> str:
    if name == "thresholds":
        rows = [(f"`{n}`", f"{t.default:g}", t.meaning) for n, t in THRESHOLDS.items()]
        return _markdown(("name", "default", "what it is"), rows)
    heads = ("code", "severity", "what is wrong, and what it does to training", "command")
    return _markdown(heads, (_row(code) for code in CATALOGUE[name]))


def _row(code: Code) -> tuple[str, ...]:
    command = (code.command or "").format(dataset="DATASET", episode="EPISODE")
    said = f"{code.title}. {code.effect}"
    return f"`{code.name}`", code.severity, said, f"`{command}`" if command else ""


def _markdown(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
