"""Clean datasets, made once, and damaged copies of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import demoreel
from demoreel.check.catalogue import CODES
from demoreel.check.report import Report
from support.defects import DEFECTS, Defect, make_base

MakeBase = Callable[[str], Path]


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> MakeBase:
    """A function that returns a clean dataset by its name; no test changes it."""
    folder = tmp_path_factory.mktemp("bases")

    def made(name: str) -> Path:
        path = folder / name
        return path if path.exists() else make_base(name, path)

    return made


@pytest.fixture
def copy(base: MakeBase, tmp_path: Path) -> MakeBase:
    """A function that returns a copy of a clean dataset."""

    def copied(name: str) -> Path:
        return Path(shutil.copytree(base(name), tmp_path / name))

    return copied


def defects_of(family: str) -> list[str]:
    """Return the names of the defects in one module of ``support.defects``."""
    module = f"support.defects.{family}"
    return [name for name, defect in DEFECTS.items() if defect.damage.__module__ == module]


def snapshot(root: Path) -> dict[str, tuple[int, int]]:
    """Return what changes if anybody writes to a folder."""
    files = (path for path in root.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


@pytest.fixture
def assert_found(base: MakeBase, copy: MakeBase) -> Callable[[str], Report]:
    """A function that makes a defect, checks the dataset, and compares what was found."""

    def found(name: str) -> Report:
        defect: Defect = DEFECTS[name]
        root = copy(defect.on)
        defect.damage(root)
        before = snapshot(root)
        if defect.leaks:
            report = demoreel.check(base(defect.on), root, leaks=True)
        else:
            report = demoreel.check(root, deep=defect.deep)
        assert snapshot(root) == before, "a check writes nothing"
        codes = set(report.counts)
        assert codes >= set(defect.codes), str(report)
        alarms = {code for code in codes if CODES[code].severity != "hint"}
        assert alarms <= {*defect.codes, *defect.also}, str(report)
        return report

    return found
