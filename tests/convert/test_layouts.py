"""What conversions write passes the conformance suite."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

import demoreel
from demoreel.testing import LayoutTests, make_dataset

pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe")


class ConvertedTests(LayoutTests):
    source_layout: Any = "v3.0"
    options: ClassVar[dict[str, Any]] = {}

    @classmethod
    def make(cls, path: Path, **options: Any) -> Path:
        source = path.with_name(f"{path.name}_source")
        make_dataset(source, layout=cls.source_layout, **options)
        demoreel.convert(source, path, to=cls.layout, **cls.options)
        return path


class TestLanceVideo(ConvertedTests):
    layout = "lance-video"


@pytest.mark.soak
class TestLanceNativeFromV21(ConvertedTests):
    layout = "lance-native"
    source_layout = "v2.1"


@pytest.mark.soak
class TestLanceFrames(ConvertedTests):
    layout = "lance-frames"
    options: ClassVar[dict[str, Any]] = {"image_codec": "png"}
