"""Building a cut: what each step takes, leaves and refuses."""

from __future__ import annotations

import numpy as np
import pytest

import demoreel
from demoreel.errors import ArgumentError, DatasetNotFoundError, OutOfRangeError, UnknownKeyError
from demoreel.testing import make_dataset

from .conftest import CAMERA, assert_is, opened, tasks_of


def numbers(made) -> list[tuple[int, int, int]]:
    return [(clip.episode, clip.start, clip.stop) for clip in made.clips]


def test_a_cut_never_changes(whole):
    made = whole("small_files")
    before = made.cutlist
    made.delete(1).trim(0, 1, 3).retask("x").remove("note")
    assert made.cutlist == before
    assert len(made) == 4
    assert "4 episodes, 29 frames" in repr(made)


def test_an_open_dataset_is_cut_as_it_was_chosen(sources):
    chosen = demoreel.open(sources["small_files"], episodes=[3, 1])
    assert numbers(demoreel.cut(chosen)) == [(1, 0, 12), (3, 0, 9)]


def test_episodes_keep_their_names(whole):
    made = whole("small_files").delete([0, 2]).trim(3, 2, 8)
    assert numbers(made) == [(1, 0, 12), (3, 2, 8)]
    with pytest.raises(ArgumentError, match="no episode 2"):
        made.delete(2)


def test_keep_orders_and_repeats(whole, tmp_path):
    made = whole("small_files").keep([3, 0, 3])
    assert [clip.episode for clip in made.clips] == [3, 0, 3]
    made.render(tmp_path / "out")
    assert_is(opened(tmp_path / "out"), made)


def test_seconds_and_frames(whole):
    assert numbers(whole("b_frames").trim(0, 3, 7))[0] == (0, 3, 7)
    assert numbers(whole("b_frames").trim(0, 0.1, 0.2))[0] == (0, 3, 6)
    assert numbers(whole("b_frames").trim(0, stop=4))[0] == (0, 0, 4)
    assert numbers(whole("b_frames").trim(0, 2).trim(0, stop=9))[0] == (0, 2, 9)


@pytest.mark.parametrize(
    ("start", "stop"),
    [(7, 7), (8, 3), (11, None), (0, 12), (-1, None), (0, "x"), (float("nan"), 1)],
)
def test_what_cannot_be_trimmed(whole, start, stop):
    with pytest.raises(ArgumentError):
        whole("b_frames").trim(0, start, stop)


@pytest.mark.parametrize("episodes", [4, [0, 4], [], [0, 1, 2, 3], "1", [True], -1])
def test_what_cannot_be_deleted(whole, episodes):
    with pytest.raises(ArgumentError):
        whole("small_files").delete(episodes)


def test_of_several_sources_an_episode_is_named_with_its_source(whole):
    both = whole("b_frames").merge(whole("av1"))
    assert numbers(both.delete((1, 0))) == [(0, 0, 11), (1, 0, 7), (1, 0, 5)]
    with pytest.raises(ArgumentError, match="Which source"):
        both.delete(0)
    with pytest.raises(ArgumentError, match="of source 2"):
        both.delete((2, 0))


def test_retask(whole, tmp_path):
    made = whole("b_frames").retask({"do it": "get it"}).retask({1: "alone"})
    made.render(tmp_path / "out")
    result = opened(tmp_path / "out")
    # An episode changes its task in the middle.
    assert tasks_of(result) == ["get it"] * 6 + ["do b_frames"] * 5 + ["alone"] * 7
    assert [episode.tasks for episode in result.episodes] == [("get it", "do b_frames"), ("alone",)]
    assert result.info.total_tasks == len(result.tasks)
    again = made.retask({"get it": "alone", "alone": "get it"})
    again.render(tmp_path / "again")
    assert tasks_of(opened(tmp_path / "again"))[-1] == "get it"
    assert tasks_of(opened(tmp_path / "again"))[0] == "alone"


@pytest.mark.parametrize("tasks", [{"no such": "x"}, {9: "x"}, {}, "", {"do it": " "}])
def test_what_is_no_task(whole, tasks):
    with pytest.raises(ArgumentError):
        whole("b_frames").retask(tasks)


def test_tasks_that_nobody_does_any_more_are_gone(tmp_path):
    make_dataset(tmp_path / "in", episodes=[2, 2, 2], cameras=0, tasks=("a", "b", "c"))
    demoreel.cut(tmp_path / "in").keep([2, 0]).render(tmp_path / "out")
    result = opened(tmp_path / "out")
    assert dict(result.tasks) == {0: "c", 1: "a"}
    assert tasks_of(result) == ["c", "c", "a", "a"]


def test_features(whole, tmp_path):
    reward = np.linspace(0, 1, 18).astype(np.float32)
    made = (
        whole("b_frames")
        .remove("note")
        .rename({"action": "actions", CAMERA: "observation.images.eye"})
    )
    made = made.add("reward", reward).add("goal", np.arange(36).reshape(18, 2), names=["x", "y"])
    made.trim(0, 5).render(tmp_path / "out")
    result, source = opened(tmp_path / "out"), opened(whole("b_frames").cutlist.sources[0].path)
    assert result.cameras == ("observation.images.eye",)
    assert "note" not in result.features
    assert result.features["goal"].names == ["x", "y"]
    rows = [*range(5, 18)]
    found, theirs = result.batch(range(13)), source.batch(rows)
    assert np.array_equal(found["actions"], theirs["action"])
    assert np.array_equal(found["observation.images.eye"], theirs[CAMERA])
    assert np.array_equal(found["reward"], reward[rows])
    assert np.array_equal(found["goal"], np.arange(36).reshape(18, 2)[rows])
    assert result.stats["actions"]["count"] == [13]
    assert result.stats["observation.images.eye"]["mean"].shape == (3, 1, 1)


def test_changes_of_changes(whole):
    made = whole("b_frames").rename({"action": "a"}).rename({"a": "b"})
    assert "b" in made.plan().info.features
    assert "b" not in made.remove("b").plan().info.features
    added = whole("b_frames").add("x", np.zeros(18)).rename({"x": "y"})
    assert "y" in added.plan().info.features
    assert "y" not in added.remove("y").plan().info.features


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda c: c.remove("no such"), UnknownKeyError),
        (lambda c: c.remove("index"), ArgumentError),
        (lambda c: c.rename({"action": "note"}), ArgumentError),
        (lambda c: c.rename({"action": "timestamp"}), ArgumentError),
        (lambda c: c.rename({"nothing": "x"}), UnknownKeyError),
        (lambda c: c.add("action", np.zeros(18)), ArgumentError),
        (lambda c: c.add("short", np.zeros(17)), ArgumentError),
        (lambda c: c.add("text", np.array(["a"] * 18)), ArgumentError),
        (lambda c: c.merge(c, features="all"), ArgumentError),
        (lambda c: c.merge("/nowhere"), DatasetNotFoundError),
        (lambda c: c.render("out", layout="v2.0"), ArgumentError),
        (lambda c: c.render("out", jobs=0), ArgumentError),
        (lambda c: c.render("out", verify="maybe"), ArgumentError),
        (lambda c: c.render("out", chunks_size=-1), ArgumentError),
        (lambda c: c.select(), ArgumentError),
        (lambda c: c.split(), ArgumentError),
        (lambda c: c.split({"a": 0.5, "b": [0]}), ArgumentError),
        (lambda c: c.split({"a": [0, 0]}), ArgumentError),
        (lambda c: c.split(by="length"), ArgumentError),
    ],
)
def test_what_makes_no_sense(whole, change, error, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error):
        change(whole("b_frames"))
    assert list(tmp_path.iterdir()) == []


def test_an_array_in_memory_is_not_saved(whole, tmp_path):
    made = whole("b_frames").add("x", np.zeros(18))
    with pytest.raises(ArgumentError, match="memory"):
        made.save(tmp_path / "list.json")
    np.save(tmp_path / "x.npy", np.zeros(18))
    whole("b_frames").add("x", tmp_path / "x.npy").save(tmp_path / "list.json")


def test_select(whole):
    made = whole("small_files").select("length >= 5 and task like '%small%'", order_by="length")
    assert [clip.length for clip in made.clips] == [5, 9, 12]
    both = whole("small_files").merge(whole("b_frames")).select(order_by="seconds desc")
    assert [clip.length for clip in both.clips] == [12, 11, 9, 7, 5, 3]


def test_split(whole):
    parts = whole("small_files").split({"train": 0.75, "val": 0.25})
    assert [len(part) for part in parts.values()] == [3, 1]
    shuffled = [whole("small_files").split({"a": 0.5, "b": 0.5}, seed=3) for _ in range(2)]
    assert shuffled[0]["a"].cutlist == shuffled[1]["a"].cutlist
    some = whole("small_files").split({"a": range(1), "b": [3, 1]})
    assert [clip.episode for clip in some["b"].clips] == [3, 1]
    by_task = whole("small_files").split(by="task")
    assert {name: len(part) for name, part in by_task.items()} == {"do it": 2, "do small_files": 2}


def test_idle_ends_are_trimmed(tmp_path):
    make_dataset(tmp_path / "in", episodes=[30, 10], cameras=0)
    still = np.zeros((40, 2), np.float32)
    still[12:18, 0] = np.arange(6)
    still[18:30, 0] = 5
    made = demoreel.cut(tmp_path / "in").add("arm", still)
    made.render(tmp_path / "armed")
    trimmed = demoreel.cut(tmp_path / "armed").trim_idle("arm", margin=0.1)
    # It moves from frame 12 (still 0) to frame 17; three frames are kept on both sides.
    assert numbers(trimmed) == [(0, 9, 21), (1, 0, 10)]
    with pytest.raises(UnknownKeyError):
        trimmed.trim_idle("leg")


def test_episodes_stay_in_their_splits(tmp_path):
    import json

    make_dataset(tmp_path / "in", episodes=[2] * 6, cameras=0)
    info = tmp_path / "in" / "meta" / "info.json"
    raw = json.loads(info.read_text())
    info.write_text(json.dumps({**raw, "splits": {"train": "0:4", "test": "4:6"}}))
    made = demoreel.cut(tmp_path / "in")
    assert made.delete([1, 5]).plan().info.splits == {"train": "0:3", "test": "3:4"}
    mixed = made.keep([0, 4, 1]).plan()
    assert mixed.info.splits == {"train": "0:1", "test": "1:2", "train_2": "2:3"}
    assert mixed.dropped == ("splits: 'train' as one range; it is train, train_2 now",)


def test_a_clip_that_is_not_there_is_seen_when_planning(whole):
    from dataclasses import replace

    from demoreel.edit.cut import Cut

    made = whole("b_frames").cutlist
    wrong = replace(made, clips=(replace(made.clips[0], stop=99),))
    with pytest.raises(OutOfRangeError, match="do not exist"):
        Cut(wrong).plan()
