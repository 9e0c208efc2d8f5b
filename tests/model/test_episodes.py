"""Episodes as columns: found by number, by position and by row, whatever their order."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demoreel.errors import MetadataError, OutOfRangeError
from demoreel.model import Episode, Episodes

WHERE = "meta/episodes.jsonl"


def episodes(index, length, **options):
    return Episodes(np.array(index, int), np.array(length, int), where=WHERE, **options)


@st.composite
def tables(draw):
    """Indices in any order and with gaps, half of the time simply 0, 1, 2..."""
    if draw(st.booleans()):
        index = list(range(draw(st.integers(0, 30))))
    else:
        index = draw(st.lists(st.integers(0, 10**6) | st.integers(0, 40), unique=True, max_size=30))
    length = draw(st.lists(st.integers(1, 50), min_size=len(index), max_size=len(index)))
    return index, length


@given(tables(), st.data())
def test_an_episode_is_found_by_its_number(table, data):
    index, length = table
    found = episodes(index, length)
    for position, number in enumerate(index):
        assert found.position_of(number) == position
        assert found.position_of(np.int64(number)) == position
    absent = data.draw(st.integers(-5, 10**6 + 5).filter(lambda number: number not in index))
    with pytest.raises(OutOfRangeError, match=f"no episode {absent}"):
        found.position_of(absent)


@given(tables())
def test_rows_are_found_as_naively(table):
    index, length = table
    found = episodes(index, length)
    naive = [position for position, count in enumerate(length) for _ in range(count)]
    rows = np.arange(len(naive))
    assert found.positions_of_rows(rows).tolist() == naive
    assert found.positions_of_rows(rows[::-3]).tolist() == naive[::-3]
    assert found.total_frames == len(naive)


@given(tables())
def test_every_episode_in_order(table):
    index, length = table
    found = episodes(index, length)
    assert len(found) == len(index)
    begin = 0
    for position, (episode, number, count) in enumerate(zip(found, index, length, strict=True)):
        assert episode == found[position] == found[position - len(found)]
        assert (episode.index, episode.length) == (number, count)
        assert (episode.start, episode.stop) == (begin, begin + count)
        begin += count
    assert [episode.index for episode in found[::-2]] == index[::-2]
    assert [episode.index for episode in found[1:4]] == index[1:4]


@given(tables())
def test_they_travel(table):
    found = episodes(*table)
    again = pickle.loads(pickle.dumps(found))
    assert list(again) == list(found)
    for number in table[0]:
        assert again.position_of(number) == found.position_of(number)


@pytest.mark.parametrize("position", [3, -4, 100, -100])
def test_positions_out_of_range(position):
    found = episodes([5, 3, 9], [1, 2, 3])
    with pytest.raises(OutOfRangeError, match="from 3 to 9"):
        found[position]
    with pytest.raises(IndexError):  # as Python's sequences do
        found[position]


@pytest.mark.parametrize("number", [-1, 3, 10**30, -(10**30)])
@pytest.mark.parametrize("index", [[0, 1, 2], [2, 0, 1], [0, 1, 7]])
def test_numbers_that_are_not_there(index, number):
    with pytest.raises(OutOfRangeError) as caught:
        episodes(index, [1, 1, 1]).position_of(number)
    assert f"to {max(index)}" in caught.value.hint
    assert caught.value.where["file"] == WHERE


def test_no_episodes():
    found = episodes([], [])
    assert (len(found), found.total_frames, list(found)) == (0, 0, [])
    with pytest.raises(OutOfRangeError, match="no episodes"):
        found.position_of(0)
    with pytest.raises(OutOfRangeError, match="no episodes"):
        found[0]


@given(tables().filter(lambda table: table[0]), st.data())
def test_two_with_the_same_number_are_refused(table, data):
    index, length = table
    twice = data.draw(st.sampled_from(index))
    place = data.draw(st.integers(0, len(index)))
    with pytest.raises(MetadataError, match="same episode_index") as caught:
        episodes([*index[:place], twice, *index[place:]], [*length, 1])
    assert caught.value.where == {"file": WHERE, "episode": twice}


@pytest.mark.parametrize("length", [0, -1, -(10**12), 1 << 60])
def test_impossible_lengths_are_refused(length):
    with pytest.raises(MetadataError, match="length") as caught:
        episodes([4, 7, 2], [10, length, 10])
    assert caught.value.where == {"file": WHERE, "episode": 7}


def test_lengths_that_would_add_up_to_nonsense_are_refused():
    with pytest.raises(MetadataError, match="length"):
        episodes([0, 1, 2, 3], [1 << 61] * 4)


def test_details_are_asked_for_when_they_are_wanted():
    asked = []

    def details(position):
        asked.append(position)
        return {"tasks": (f"task {position}",), "data_file": "file"}

    found = episodes([3, 4], [1, 2], details=details)
    assert asked == []
    assert found[1] == Episode(4, 2, 1, 3, tasks=("task 1",), data_file="file")
    assert asked == [1]


def test_a_million_of_them():
    order = np.random.default_rng(0).permutation(1_000_000)
    found = episodes(order, np.full(1_000_000, 300))
    assert found.position_of(int(order[777_777])) == 777_777
    assert found.positions_of_rows(np.array([299_999_999, 300, 0])).tolist() == [999_999, 1, 0]
    assert repr(found) == "<Episodes: 1000000, 300000000 frames>"
