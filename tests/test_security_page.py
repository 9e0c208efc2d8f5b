"""docs/security.md: every line of its tables names tests that are there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "security.md"
TEST = re.compile(r"`(tests/[\w/]+\.py)::([\w:]+)`")


def rows() -> list[str]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [line for line in lines if not line.startswith("| What ")]


@cache
def named_tests(path: Path) -> set[str]:
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            parts = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            names |= {f"{node.name}::{part.name}" for part in parts}
    return {name for name in names if name.split("::")[-1].startswith("test_")}


def test_the_page_has_lines():
    assert len(rows()) > 30


@pytest.mark.parametrize("row", rows())
def test_a_test_holds_each_line(row):
    named = TEST.findall(row)
    assert named, "no test is named"
    for path, name in named:
        assert name in named_tests(ROOT / path), f"{path} has no {name}"
