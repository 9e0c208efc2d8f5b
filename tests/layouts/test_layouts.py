"""Every layout passes the public conformance suite."""

from demoreel.testing import LayoutTests


class TestV20(LayoutTests):
    layout = "v2.0"


class TestV21(LayoutTests):
    layout = "v2.1"


class TestV30(LayoutTests):
    layout = "v3.0"
