"""The page: complete, readable by any browser, and safe from what datasets hold."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

import demoreel
from demoreel.check.html import page, write_page
from demoreel.errors import ArgumentError
from support.moving import make_moving

HOSTILE = "<script>alert(1)</script>\"'&<img src=x onerror=alert(1)>"


class Parsed(HTMLParser):
    """Collects what a browser would see, and insists that what is opened is closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.links, self.words, self.open = [], set(), set(), [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.tags.append(tag)
        assert not any(name.startswith("on") for name in values)
        assert not {"src", "srcset", "data", "action"} & set(values)
        if "id" in values:
            self.ids.add(values["id"])
        if "href" in values:
            self.links.add(values["href"])
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """A dataset with findings of many kinds."""

    def change(episode, columns):
        if episode == 3:
            columns["action"][30, 2] += 8
        return columns

    root = make_moving(
        tmp_path_factory.mktemp("html") / "arm",
        lengths=(60, 52, 66, 57, 63, 55, 61, 58, 640, 50),
        change=change,
    )
    (root / "meta" / "stats.json").unlink()
    return root


def test_every_finding_is_on_the_page(damaged):
    report = demoreel.check(damaged)
    parsed = Parsed(page(report))
    text = "".join(parsed.words)
    for finding in report.findings:
        assert finding.what in text
        assert finding.effect in text
    assert set(report.counts) <= parsed.ids
    assert parsed.links == {f"#{name}" for name in report.counts}


def test_plots_stand_in_the_page(damaged):
    text = page(demoreel.check(damaged))
    for label in (
        "Episode lengths",
        "Findings by episode",
        "Ranges of action",
        "Ranges of observation.state",
    ):
        assert f'aria-label="{label}"' in text
    assert "an outlier at" in text  # the action that leaps
    assert "median 59" in text


def test_nothing_is_fetched(damaged):
    text = page(demoreel.check(damaged))
    assert re.findall(r"https?://|url\(|@import|<script|<link", text) == []
    assert "default-src 'none'" in text


def test_a_clean_dataset_has_a_page(base):
    parsed = Parsed(page(demoreel.check(base("v3-moves"))))
    assert "Nothing was found." in "".join(parsed.words)


def test_what_datasets_hold_is_text(tmp_path):
    root = make_moving(tmp_path / "a<b>&'\"c")
    info = json.loads((root / "meta/info.json").read_text())
    info["features"]["action"]["names"] = [HOSTILE] * 6
    info["features"][HOSTILE] = {"dtype": "float32", "shape": [1], "names": None}
    info["robot_type"] = info["codebase_version_note"] = HOSTILE
    info["splits"] = {HOSTILE: "0:99"}
    (root / "meta/info.json").write_text(json.dumps(info))
    text = page(demoreel.check(root))
    parsed = Parsed(text)
    assert "script" not in parsed.tags
    assert "img" not in parsed.tags
    assert any("<script>" in words for words in parsed.words)  # it is there, as text


def test_a_dataset_that_cannot_be_read_has_a_page(tmp_path):
    (tmp_path / "empty").mkdir()
    Parsed(page(demoreel.check(tmp_path / "empty")))


def test_several_datasets_are_told_apart(base, damaged):
    report = demoreel.check(base("v3-moves"), damaged, leaks=True)
    text = "".join(Parsed(page(report)).words)
    assert f"{damaged}: episode" in text


def test_written_in_one_step(base, tmp_path):
    report = demoreel.check(base("v3-moves"), only=["motion"])
    target = tmp_path / "report.html"
    target.write_text("before")
    write_page(report, target)
    assert target.read_text() == page(report)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_page_needs_a_folder(base, tmp_path):
    report = demoreel.check(base("v3-moves"), only=["motion"])
    for place in (tmp_path, tmp_path / "no" / "report.html"):
        with pytest.raises(ArgumentError, match="cannot be written there"):
            write_page(report, place)
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_it(base, tmp_path):
    from typer.testing import CliRunner

    from demoreel.cli.app import make_app

    target = tmp_path / "report.html"
    result = CliRunner().invoke(make_app(), ["check", str(base("v3-moves")), "--html", str(target)])
    assert result.exit_code == 0, result.output
    Parsed(target.read_text())
