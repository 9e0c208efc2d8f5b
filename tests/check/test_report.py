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
    first, example, effect, blank, summary, repair = str(report).splitlines()
    assert first == "error    video-short: A video has fewer frames than its episodes need " + (
        "(500 episodes: 0-199, ...)"
    )
    assert example.strip() == "e.g. Number 0. [file a.mp4]"
    assert effect.strip() == CODES["video-short"].effect
    assert (blank, summary) == ("", "1 error")
    assert repair == "next: demoreel repair /data/arm /data/arm-repaired  (video-short)"


def test_says_which_episodes():
    findings = Findings("x")
    for episode in (0, 1, 2, 7, 9, 10):
        findings.add("video-short", "Short.", episode=episode, camera="front")
    findings.add("video-short", "Short.", episode=7, camera="wrist")
    facts = {"x": {"episodes": 91}}
    report = Report(("x",), tuple(findings.kept), dict(findings.counts), facts)
    assert "(6 of 91 episodes: 0-2, 7, 9-10; 2 cameras)" in str(report)


def test_what_stops_training_comes_first_and_cosmetics_last():
    codes = ("task-unused", "total-tasks", "keyframes-far", "stats-differ", "video-short")
    report = report_of(*codes)
    order = ["video-short", "stats-differ", "keyframes-far", "total-tasks", "task-unused"]
    assert [group.code.name for group in report.groups()] == order


def test_a_command_is_said_once_with_all_that_it_is_for():
    report = report_of("video-short", "stats-missing", "episode-idle", times=3)
    commands = str(report).splitlines()[-2:]
    assert commands == [
        "next: demoreel repair /data/arm /data/arm-repaired  (video-short, stats-missing)",
        "next: demoreel cut delete /data/arm /data/arm-without --episodes 0,1,2  (episode-idle)",
    ]


def test_as_json():
    report = report_of("video-gap", "video-short")
    raw = json.loads(json.dumps(report.to_json()))
    assert raw["worst"] == "error"
    assert raw["counts"] == {"video-short": 1, "video-gap": 1}
    first = raw["findings"][0]
    assert first["where"] == {"dataset": "/data/arm", "episode": 0, "file": "a.mp4"}
    assert set(first) == {"code", "severity", "what", "where", "effect", "command", "mend", "count"}


def test_a_place_may_stand_for_many():
    findings = Findings("x")
    findings.add("rows-orphan", "Many.", count=40, episode=3)
    report = Report(("x",), tuple(findings.kept), dict(findings.counts))
    assert report.by_severity()["warning"] == 40
    assert report.summary() == "1 warning"
    assert "(40 episodes: 3, ...)" in str(report)


def test_unknown_codes_are_a_mistake():
    with pytest.raises(KeyError):
        Findings("x").add("no-such-code", "?")
