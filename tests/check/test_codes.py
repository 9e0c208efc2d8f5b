"""Each code is explained, and each can be provoked."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest

from demoreel.check.catalogue import CODES
from demoreel.check.codes import REPAIR, SEVERITIES, Code
from demoreel.check.thresholds import THRESHOLDS
from support.defects import BASES, DEFECTS

ROOT = Path(__file__).resolve().parents[2]
MAKES_PROBLEMS = {"Problem", "noted", "_noting", "_read_columns"}


def test_the_page_is_made_from_the_catalogue():
    made = runpy.run_path(str(ROOT / "docs" / "make_checks.py"))
    text = made["PAGE"].read_text()
    assert made["page"](text) == text, "run docs/make_checks.py"
    assert [name for name in (*CODES, *THRESHOLDS) if f"| `{name}` |" not in text] == []


def test_parsers_have_codes_of_the_catalogue():
    """They lie below the room of checks, and cannot ask."""
    used = set()
    for path in (ROOT / "src" / "demoreel").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in MAKES_PROBLEMS:
                values = [each.value for each in node.args if isinstance(each, ast.Constant)]
                used |= {v for v in values if re.fullmatch(r"[a-z]+(-[a-z]+)+", str(v))}
    assert len(used) > 15
    assert used <= set(CODES)


def test_every_code_has_a_defect():
    provoked = {code for defect in DEFECTS.values() for code in defect.codes}
    assert set(CODES) - provoked - {"check-failed"} == set()  # that one has a test of its own


def test_there_are_many_kinds():
    assert len(DEFECTS) >= 60
    assert {defect.on for defect in DEFECTS.values()} <= set(BASES)


@pytest.mark.parametrize("name", CODES)
def test_reads_well(name):
    code: Code = CODES[name]
    assert re.fullmatch(r"[a-z]+(-[a-z0-9]+)*", name)
    assert code.severity in SEVERITIES
    assert not code.title.endswith(".")
    assert code.effect.endswith(".")
    known = ("demoreel ", "git -C {dataset} lfs ", "find {dataset} ")
    assert code.command is None or code.command.startswith(known)


def test_repair_is_one_command():
    assert REPAIR.count("{dataset}") == 2
