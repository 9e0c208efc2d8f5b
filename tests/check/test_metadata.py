"""Every defect of the family metadata is found, and nothing that is not there."""

from __future__ import annotations

import pytest

import demoreel
from demoreel.errors import DatasetNotFoundError, MetadataError

from .conftest import defects_of


@pytest.mark.filterwarnings("ignore::demoreel.errors.DemoreelWarning")
@pytest.mark.parametrize("name", defects_of("metadata"))
def test_finds(name, assert_found):
    report = assert_found(name)
    stopped, code = "", None
    try:
        _ = demoreel.open(report.datasets[0]).stats
    except MetadataError as error:
        stopped, code = error.what, error.code
    except DatasetNotFoundError:
        pass
    if name not in ("nothing_recorded", "commit_interrupted"):
        # One parser: what a reader stops at is what the check lists.
        assert any(
            finding.what.endswith(stopped) or finding.code == code for finding in report.findings
        ), stopped
