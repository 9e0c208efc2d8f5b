"""Limits: named, raised by the environment, and all of them on the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from demoreel.errors import ArgumentError, MetadataError, VideoError
from demoreel.model.limits import DEFAULTS, MEANINGS, exceeds_limit, limit, refuse_above
from demoreel.testing import make_dataset

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"


def test_every_limit_is_explained():
    assert set(DEFAULTS) == set(MEANINGS)
    assert [name for name in DEFAULTS if f"| `{name}` |" not in PAGE.read_text()] == []


@pytest.mark.parametrize(
    ("text", "value"), [("5", 5), ("2GiB", 2 << 30), ("3 MB", 3 << 20), ("1k", 1024)]
)
def test_the_environment_says_more_or_less(monkeypatch, text, value):
    monkeypatch.setenv("DEMOREEL_LIMIT_FEATURES", text)
    assert limit("FEATURES") == value


@pytest.mark.parametrize("text", ["", "0", "-1", "many", "1e9", "9" * 100])
def test_what_is_no_limit_is_an_error(monkeypatch, text):
    monkeypatch.setenv("DEMOREEL_LIMIT_FEATURES", text)
    with pytest.raises(ArgumentError, match="DEMOREEL_LIMIT_FEATURES"):
        limit("FEATURES")


def test_an_error_names_its_limit():
    refuse_above("MOOV_BYTES", 1, "It has")
    with pytest.raises(VideoError, match="the limit MOOV_BYTES is") as caught:
        refuse_above("MOOV_BYTES", 1 << 40, "It has", VideoError, file="x.mp4")
    assert exceeds_limit(caught.value)
    assert not exceeds_limit(MetadataError("x"))


def test_a_limit_that_is_raised_lets_the_dataset_open(tmp_path, monkeypatch):
    import demoreel

    root = make_dataset(tmp_path / "ds", episodes=(3,), cameras=0)
    monkeypatch.setenv("DEMOREEL_LIMIT_FEATURES", "2")
    with pytest.raises(MetadataError, match="FEATURES"):
        demoreel.open(root)
    assert demoreel.check(root).counts["limit-exceeded"] == 1
    monkeypatch.setenv("DEMOREEL_LIMIT_FEATURES", "100")
    assert len(demoreel.open(root)) == 3
