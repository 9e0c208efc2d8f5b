"""Cut lists as values."""

from __future__ import annotations

import pytest

from demoreel.edit.clips import Added, Clip, CutList, Source
from demoreel.errors import ArgumentError

A, B = Source("/a", "1"), Source("/b", "2", tasks={"x": "y"}, remove=("n",), rename={"p": "q"})
C = Source("/c", "3", add={"r": Added("/r.npy", "float32", (2,), ["u", "v"])}, version=4)


def test_json_there_and_back():
    made = CutList((A, B, C), (Clip(0, 1, 2, 3), Clip(2, 0, 0, 9, "do it")), "union")
    assert CutList.from_json(made.to_json()) == made


def test_every_source_once_and_only_where_needed():
    one = CutList((A, B), (Clip(1, 0, 0, 1), Clip(0, 0, 0, 1)))
    two = CutList((B, C), (Clip(0, 5, 0, 1),))
    joined = one.followed_by(two)
    assert joined.sources == (B, A)
    assert [(clip.source, clip.episode) for clip in joined.clips] == [(0, 0), (1, 0), (0, 5)]


@pytest.mark.parametrize(
    "change",
    [
        {"clips": [[0, 0, 0]]},
        {"clips": [[1, 0, 0, 1]]},
        {"clips": [[0, -1, 0, 1]]},
        {"clips": [[0, 0, 0, "1"]]},
        {"clips": [[0, 0, 0, 1, 5]]},
        {"clips": "all"},
        {"features": "some"},
        {"sources": [{"path": 3}]},
        {"sources": [{"path": "/a", "shuffle": True}]},
        {"sources": [{"path": "/a", "add": {"x": {"values": "f", "dtype": "int8", "shape": 1}}}]},
        {"sources": None},
    ],
)
def test_what_makes_no_sense_is_refused(change):
    raw = CutList((A,), (Clip(0, 0, 0, 1),)).to_json() | change
    with pytest.raises(ArgumentError, match="makes no sense"):
        CutList.from_json(raw)
