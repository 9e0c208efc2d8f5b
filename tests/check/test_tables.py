"""Every defect of the family table is found, and nothing that is not there."""

from __future__ import annotations

import pytest

import demoreel
from demoreel.testing import make_dataset

from .conftest import defects_of


@pytest.mark.parametrize("name", defects_of("table"))
def test_finds(name, assert_found):
    assert_found(name)


def test_scores_of_a_person_are_no_table_of_rows(tmp_path):
    plain = make_dataset(tmp_path / "plain", episodes=(8, 9, 7), cameras=0)
    demoreel.cut(plain).label(1, score=4, flag="good").render(tmp_path / "ds")
    assert (tmp_path / "ds" / "scores" / "labels.parquet").is_file()
    expected = {finding.code for finding in demoreel.check(plain).findings}
    assert {finding.code for finding in demoreel.check(tmp_path / "ds").findings} == expected
    assert not expected & {"rows-extra", "feature-absent", "feature-undeclared"}
