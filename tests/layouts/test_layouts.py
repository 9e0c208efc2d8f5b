"""Every layout passes the public conformance suite."""

import pytest

from demoreel.testing import LayoutTests


@pytest.mark.soak  # v2.1 but for where statistics are
class TestV20(LayoutTests):
    layout = "v2.0"


class TestV21(LayoutTests):
    layout = "v2.1"


class TestV30(LayoutTests):
    layout = "v3.0"
