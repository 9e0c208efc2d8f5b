"""What strangers wrote reaches terminals, spreadsheets and pages as text, and as nothing else."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import logging

import pytest

import demoreel
from demoreel.check.html import page
from demoreel.cli import main
from demoreel.cli.output import Output, TableColumn
from demoreel.hub.card import CardFacts, merged_card
from demoreel.testing import make_dataset

TASK = "=1+1\x1b[2J\x9b31m\u202egpj.exe\u2028\r\n\x7f<script>"
FEATURE = "\u202eowned\u2028"  # names with control characters are refused
OBEYED = ("\x1b", "\x9b", "\u202e", "\u2028", "\r", "\x7f", "\x07")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    return make_dataset(
        tmp_path_factory.mktemp("hostile") / "ds",
        episodes=[4, 3],
        cameras=0,
        tasks=(TASK, "=cmd|' /C calc'!A0"),
        features={FEATURE: {"dtype": "float32", "shape": [1]}},
    )


def printed(*arguments: object) -> tuple[str, str]:
    """Run a verb in this process; return what it wrote."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        main(list(map(str, arguments)))
    return out.getvalue(), errors.getvalue()


@pytest.mark.parametrize(
    "arguments",
    [
        ("info", "DS"),
        ("info", "DS", "--json"),
        ("episodes", "DS"),
        ("episodes", "DS", "--json"),
        ("stats", "DS"),
        ("stats", "DS", "--json"),
        ("sql", "DS", "select * from tasks"),
        ("sql", "DS", "select * from tasks", "--csv"),
        ("sql", "DS", "select * from tasks", "--json"),
        ("sql", "DS", "select * from frames limit 1"),
        ("sql", "DS", "select * from frames limit 1", "--csv"),
        ("sql", "DS", "select tasks from episodes", "--csv"),
        ("sql", "DS", "select \x1b[2J from frames", "--debug"),
        ("check", "DS"),
        ("check", "DS", "--json"),
        ("diff", "DS", "DS"),
        ("cut", "select", "DS", "nowhere", "--where", "task = '\x1b[2J'", "--dry-run"),
        ("cut", "split", "DS", "nowhere", "--by", "task", "--dry-run"),
        ("frame", "DS", "99"),
        ("frame", "DS", "0", "--camera", "\x1b[2J\u202e"),
        ("info", "nowhere\x1b[2J\u202e"),
        ("info", "nowhere\x1b[2J\u202e", "--json"),
        ("\x1b[2J",),
    ],
    ids=lambda given: " ".join(given)[:40].encode("unicode_escape").decode(),
)
def test_no_terminal_obeys_a_dataset(hostile, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out, errors = printed(*(hostile if each == "DS" else each for each in arguments))
    assert out or errors
    for character in OBEYED:
        assert character not in out + errors
    if "--json" in arguments:
        json.loads(out or errors)


def test_json_gives_the_texts_back(hostile):
    out, _ = printed("sql", hostile, "select task from tasks order by task_index", "--json")
    assert json.loads(out)["rows"][0] == [TASK]
    with_lone_surrogate = "a\ud800b\U0001f600\U000e0001"
    assert json.loads(demoreel.errors.json_text([with_lone_surrogate])) == [with_lone_surrogate]


def test_no_spreadsheet_calculates_a_text(hostile):
    out, _ = printed("sql", hostile, "select task, -1 as n, '+x' as \"=x\" from tasks", "--csv")
    head, *rows = csv.reader(io.StringIO(out))
    assert head == ["task", "n", "'=x"]
    assert {row[0][:2] for row in rows} == {"'="}
    assert {tuple(row[1:]) for row in rows} == {("-1", "'+x")}


def test_log_lines_and_headings(capsys):
    root = logging.getLogger()
    before = root.handlers[:]
    for handler in before:
        root.removeHandler(handler)
    try:
        out = Output(json=False, quiet=False, debug=True)
        logging.getLogger("x").warning("task %s\n at https://h/x?sig=abcdefgh", TASK)
        out.stream([TableColumn(FEATURE)], [[TASK]])
        out.table([TableColumn(FEATURE)], [[TASK]])
    finally:
        for handler in root.handlers[:]:
            root.removeHandler(handler)
        for handler in before:
            root.addHandler(handler)
    said = capsys.readouterr()
    assert "abcdefgh" not in said.err
    assert len(said.err.splitlines()) == 1
    for character in OBEYED:
        assert character not in said.out + said.err


def test_pages_and_cards_show_no_other_direction(hostile):
    report = page(demoreel.check(hostile))
    facts = CardFacts(
        "x", "v3.0", {"robot_type": TASK, "features": {FEATURE: {}}}, 1, 1, 1.0,
        sheet="p.png", cameras=[FEATURE + "`\n# owned"], texts={"url": TASK},
    )  # fmt: skip
    card = merged_card(None, facts)
    for character in OBEYED:
        assert character not in report + card
    block = card[card.index("```json") + 7 : card.rindex("```")]
    assert json.loads(block)["robot_type"] == TASK
    assert "\n# owned" not in card


URIS = [
    "hf://datasets/me/x?token=s3cr3tv4lue",
    "s3://AKIA:s3cr3tv4lue@bucket/x",
    "https://me:s3cr3tv4lue@host/x",
    "hf://s3cr3tv4lue@datasets/me/x",
    "s3://bucket/x?X-Amz-Signature=s3cr3tv4lue",
    "az://box/x?sig=s3cr3tv4lue",
    "hf://nothing/me/x?s3cr3tv4lue",
    "gs://bucket/x#access_token=s3cr3tv4lue",
]
VERBS = [
    ("info", "URI"),
    ("sql", "URI", "select 1", "--debug"),
    ("check", "URI", "--json"),
    ("diff", "URI", "URI"),
    ("convert", "URI", "here", "--to", "v3.0"),
    ("convert", "DS", "URI", "--to", "v3.0"),
    ("cut", "select", "URI", "here", "--episodes", "0"),
    ("cut", "select", "DS", "URI", "--episodes", "0"),
    ("pull", "URI", "here"),
    ("repair", "URI", "here"),
    ("push", "DS", "URI", "--dry-run"),
    ("info", "DS", "URI"),
]


@pytest.mark.parametrize(
    ("uri", "verb"),
    [(uri, VERBS[0]) for uri in URIS] + [(uri, verb) for uri in URIS[:2] for verb in VERBS[1:]],
)
def test_credentials_in_a_uri_are_not_echoed(hostile, tmp_path, monkeypatch, uri, verb):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    names = {"DS": str(hostile), "URI": uri}
    out, errors = printed(*(names.get(each, each) for each in verb))
    assert "s3cr3tv4lue" not in out + errors
    assert errors
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"s3cr3tv4lue" in path.read_bytes() for path in left)
    assert not any("s3cr3tv4lue" in str(path) for path in tmp_path.rglob("*"))
