"""The note that says which statistics are approximate, and when it is used."""

from __future__ import annotations

import json

import numpy as np
import pytest

from demoreel.layouts.beside import NOTE, approximate_stats, noted, write_note
from demoreel.model import Feature

FEATURES = {
    "arm": Feature("arm", "float32", (2,)),
    "eye": Feature("eye", "video", (4, 4, 3)),
}
STATS = {key: {kind: np.zeros(1) for kind in ("mean", "q01", "q99")} for key in FEATURES}


@pytest.fixture
def meta(tmp_path):
    (tmp_path / "stats.json").write_text("{}")
    write_note(tmp_path / NOTE, {"eye": ["q01"], "arm": []}, stats=tmp_path / "stats.json")
    return tmp_path


def test_what_was_noted_is_known(meta):
    assert noted(meta) == {"eye": ["q01"]}
    assert approximate_stats(meta, FEATURES, STATS) == {"eye": ["q01"]}


@pytest.mark.parametrize("what", ["other statistics", "no note", "a broken note", "no statistics"])
def test_once_another_program_was_here_nothing_is_known(meta, what):
    if what == "other statistics":
        (meta / "stats.json").write_text('{"arm": {}}')
    elif what == "no note":
        (meta / NOTE).unlink()
    elif what == "a broken note":
        (meta / NOTE).write_text(json.dumps({"approximate_stats": 3}))
    else:
        (meta / "stats.json").unlink()
    assert noted(meta) is None
    found = approximate_stats(meta, FEATURES, STATS)
    assert found == {"arm": ["q01", "q99"], "eye": ["mean", "q01", "q99"]}


def test_of_v21_the_note_is_about_the_episodes_statistics(meta):
    lines = meta / "episodes_stats.jsonl"
    lines.write_text("{}\n")
    assert noted(meta) is None
    write_note(meta / NOTE, {}, stats=lines)
    assert noted(meta) == {}
