"""Every defect of the family lance is found, and nothing that is not there."""

from __future__ import annotations

import pytest

from .conftest import defects_of


@pytest.mark.parametrize("name", defects_of("lance"))
def test_finds(name, assert_found):
    assert_found(name)
