"""Findings as data and as text."""

from __future__ import annotations

import json

import pytest

from demoreel.check.catalogue import CODES
from demoreel.check.report import Findings, Report


def report_of(*codes: str, times: int = 1) -> Report:
    findings = Findings("/data/arm")
    for code in codes:
        for number in range(times):
            findings.add(code, f"Number {number}.", episode=number, file="a.mp4")
    return Report(("/data/arm",), tuple(findings.kept), dict(findings.counts))


def test_worst_and_exit_codes():
    nothing, hint = report_of(), report_of("clip-end")
    warning, error = report_of("clip-end", "video-gap"), report_of("video-gap", "video-short")
    assert [r.worst for r in (nothing, hint, warning, error)] == [None, "hint", "warning", "error"]
    assert [r.exit_code() for r in (nothing, hint, warning, error)] == [0, 0, 1, 2]
    assert [r.exit_code("error") for r in (nothing, hint, warning, error)] == [0, 0, 0, 2]
    assert [r.exit_code("hint") for r in (nothing, hint, warning, error)] == [0, 1, 1, 2]
    assert hint.is_sound
    assert not warning.is_sound


def test_many_findings_of_a_code_are_one_block():
    report = report_of("video-short", times=500)
    assert report.counts["video-short"] == 500
    assert len(report.findings) == 200
    text = str(report)
    assert text.count("video-short") == 1
    assert "500 places" in text
    assert "and 497 more" in text
    assert CODES["video-short"].effect in text
    assert "demoreel repair /data/arm /data/arm-repaired" in text


def test_as_json():
    report = report_of("video-gap", "video-short")
    raw = json.loads(json.dumps(report.to_json()))
    assert raw["worst"] == "error"
    assert raw["counts"] == {"video-short": 1, "video-gap": 1}
    first = raw["findings"][0]
    assert first["where"] == {"dataset": "/data/arm", "episode": 0, "file": "a.mp4"}
    assert set(first) == {"code", "severity", "what", "where", "effect", "mend", "count"}


def test_a_place_may_stand_for_many():
    findings = Findings("x")
    findings.add("rows-orphan", "Many.", count=40, episode=3)
    report = Report(("x",), tuple(findings.kept), dict(findings.counts))
    assert report.by_severity()["warning"] == 40
    assert report.summary() == "40 warnings"


def test_unknown_codes_are_a_mistake():
    with pytest.raises(KeyError):
        Findings("x").add("no-such-code", "?")
