"""Tasks are found by their index, not by their line."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demoreel.errors import MetadataError
from demoreel.model import Tasks

tables = st.dictionaries(st.integers(0, 10**6), st.text(max_size=20), max_size=20)


@given(tables)
def test_they_are_a_mapping(texts):
    tasks = Tasks(texts)
    assert dict(tasks) == texts
    assert list(tasks) == sorted(texts)
    assert len(tasks) == len(texts)
    assert tasks == texts
    for index, text in texts.items():
        assert index in tasks
        assert tasks[index] == tasks[np.int64(index)] == tasks.get(index) == text
        assert texts[tasks.index_of(text)] == text


@given(tables, st.lists(st.integers(0, 30), max_size=30))
def test_texts_of_a_column(texts, places):
    known = sorted(texts)
    wanted = [known[place % len(known)] for place in places] if known else []
    assert Tasks(texts).texts(np.array(wanted, np.int64)) == [texts[index] for index in wanted]


def test_from_texts():
    tasks = Tasks.of(["pick", "öffne die Tür", "放下"])
    assert dict(tasks) == {0: "pick", 1: "öffne die Tür", 2: "放下"}
    assert tasks.index_of("放下") == 2
    with pytest.raises(KeyError):
        tasks.index_of("nothing")


def test_an_index_without_a_text():
    tasks = Tasks({0: "pick", 7: "place"})
    with pytest.raises(MetadataError, match="task_index 3") as caught:
        tasks[3]
    assert caught.value.hint
    with pytest.raises(MetadataError, match="task_index 3"):
        tasks.texts(np.array([0, 7, 3]))
    assert tasks.get(3) is None
    assert tasks.get(3, "none") == "none"
    assert 3 not in tasks
    assert "pick" not in tasks


def test_they_travel():
    tasks = Tasks({3: "a", 1: "b"})
    assert pickle.loads(pickle.dumps(tasks)) == tasks
    assert repr(tasks) == "Tasks({1: 'b', 3: 'a'})"


def test_the_callers_table_may_change_later():
    texts = {0: "pick"}
    tasks = Tasks(texts)
    texts[0] = "other"
    assert tasks[0] == "pick"
