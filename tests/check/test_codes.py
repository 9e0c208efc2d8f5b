"""Each code is explained, and each can be provoked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from demoreel.check.codes import CODES, REPAIR, SEVERITIES, Code
from demoreel.check.thresholds import THRESHOLDS
from demoreel.testing.defects import BASES, DEFECTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "checks.md"
SECTION = re.compile(r"^### `([a-z0-9-]+)`\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def sections():
    return dict(SECTION.findall(PAGE.read_text()))


@pytest.mark.parametrize("name", CODES)
def test_is_explained(name, sections):
    code = CODES[name]
    assert name in sections, f"docs/checks.md has no section {name}"
    text = " ".join(sections[name].split())
    assert code.severity in text
    assert code.title in text
    assert code.effect in text


def test_no_section_is_of_a_code_that_is_gone(sections):
    assert set(sections) <= set(CODES)


def test_every_threshold_is_explained():
    text = PAGE.read_text()
    assert [name for name in THRESHOLDS if f"`{name}`" not in text] == []


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
    assert code.mend is None or code.mend.startswith("demoreel ")


def test_repair_is_one_command():
    assert REPAIR.count("{dataset}") == 2
