"""What a person says of episodes: in the columns and files where the field keeps it."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

import demoreel
from demoreel.cli import main
from demoreel.edit.clips import CutList, Labels, LanguageRow
from demoreel.edit.cut import load
from demoreel.edit.labels import labels_of
from demoreel.edit.scores import read_labels
from demoreel.errors import ArgumentError, DemoreelError
from demoreel.testing import make_dataset

FPS = 30
REACH, GRASP, LIFT = (
    LanguageRow(frame, "subtask", text)
    for frame, text in ((0, "reach"), (7, "grasp"), (12, "lift"))
)
SAID = LanguageRow(9, "interjection", "a bit left", role="user")
CALL = LanguageRow(10, "trace", None, camera="observation.images.cam0", tool_calls=('{"a": 1}',))


@pytest.fixture
def source(tmp_path):
    return make_dataset(
        tmp_path / "source", episodes=(20, 30, 10, 12), fps=FPS, cameras=1, gop=2, crf=30
    )


def values(dataset, key: str, episode: int) -> list:
    return list(dataset.episode(episode).column(key))


def success(dataset, episode: int) -> list[bool]:
    return np.asarray(dataset.episode(episode).column("next.success")).reshape(-1).tolist()


@pytest.mark.parametrize("layout", ["v3.0", "v2.1", "lance-video"])
def test_success_is_a_column_and_unknown_is_no_failure(source, tmp_path, layout):
    cut = demoreel.cut(source).label(0, success=True).label([2, 3], success=False)
    cut.render(tmp_path / "new", layout=layout, verify="full")
    dataset = demoreel.open(tmp_path / "new")
    assert success(dataset, 0) == [False] * 19 + [True]
    assert not any(success(dataset, 2) + success(dataset, 3))
    unknown = [
        bool(np.asarray(values(dataset, "next.success_is_missing", e)).any()) for e in range(4)
    ]
    assert unknown == [False, True, False, False]
    demoreel.cut(tmp_path / "new").label(1, success=True).render(tmp_path / "next")
    dataset = demoreel.open(tmp_path / "next")
    assert [any(success(dataset, episode)) for episode in range(4)] == [True, True, False, False]
    assert not np.asarray(values(dataset, "next.success_is_missing", 1)).any()


def test_where_all_are_judged_there_is_no_mask(source, tmp_path):
    demoreel.cut(source).label(range(4), success=True).render(tmp_path / "new")
    assert "next.success_is_missing" not in demoreel.open(tmp_path / "new").features


def test_the_last_part_of_a_split_episode_succeeds(source, tmp_path):
    cut = demoreel.cut(source).keep([1, 1]).label(1, success=True, score=3)
    first, second = cut.cutlist.clips
    assert (first.labels.success, second.labels.success) == (None, True)
    assert first.labels.score == second.labels.score == 3


@pytest.mark.parametrize("layout", ["v3.0", "lance-native"])
def test_language_stands_at_the_times_of_frames(source, tmp_path, layout):
    rows = [REACH, GRASP, LIFT]
    cut = demoreel.cut(source).label(1, persistent=rows, events=[SAID, CALL])
    cut = cut.trim(1, 5, 25)
    cut.render(tmp_path / "new", layout=layout, verify="full")
    dataset = demoreel.open(tmp_path / "new")
    times = np.asarray(values(dataset, "timestamp", 1), np.float32).reshape(-1)
    persistent = values(dataset, "language_persistent", 1)
    assert all(one == persistent[0] for one in persistent)
    at = [(row["content"], np.float32(row["timestamp"])) for row in persistent[0]]
    assert at == [("reach", times[0]), ("grasp", times[2]), ("lift", times[7])]
    events = values(dataset, "language_events", 1)
    assert [n for n, said in enumerate(events) if said] == [4, 5]
    assert (events[4][0]["content"], events[4][0]["role"]) == ("a bit left", "user")
    assert events[5][0]["camera"] == "observation.images.cam0"
    assert values(dataset, "language_persistent", 0)[0] == []
    # Cut again: what holds at the beginning is kept once, what is over is not, and times are exact.
    demoreel.cut(tmp_path / "new").trim(1, 4, 6).render(tmp_path / "again")
    dataset = demoreel.open(tmp_path / "again")
    persistent = values(dataset, "language_persistent", 1)
    assert [(row["content"], row["timestamp"]) for row in persistent[0]] == [("grasp", 0.0)]
    assert [len(said) for said in values(dataset, "language_events", 1)] == [1, 1]


@pytest.mark.parametrize("fps", [30, 50, 23.976])
def test_times_of_language_are_bit_for_bit_those_of_frames(tmp_path, fps):
    root = make_dataset(tmp_path / "source", episodes=(60,), fps=fps, cameras=0)
    rows = [LanguageRow(frame, "subtask", f"{frame}") for frame in range(60)]
    demoreel.cut(root).label(0, persistent=rows).render(tmp_path / "all")
    demoreel.cut(tmp_path / "all").trim(0, 17).render(tmp_path / "new")
    dataset = demoreel.open(tmp_path / "new")
    times = np.asarray(values(dataset, "timestamp", 0), np.float32).reshape(-1)
    found = values(dataset, "language_persistent", 0)[0]
    assert [row["content"] for row in found] == [str(frame) for frame in range(17, 60)]
    assert np.array_equal(np.array([row["timestamp"] for row in found], np.float32), times)


def test_scores_and_flags_follow_the_next_cut(source, tmp_path):
    cut = demoreel.cut(source).label(0, score=5, flag="good").label(3, score=2, flag="bad")
    cut.trim(3, 2).render(tmp_path / "new")
    path = tmp_path / "new/scores/labels.parquet"
    metadata = pq.read_schema(path).metadata
    assert metadata[b"lerobot.scores.format"] == b"lerobot.frame_signals"
    assert set(json.loads(metadata[b"lerobot.scores.descriptors"])) == {"score", "flag"}
    assert len(pq.read_table(path)) == 30
    again = demoreel.cut(tmp_path / "new").delete([0]).label(1, flag="good")
    again.render(tmp_path / "again")
    reader = demoreel.open(tmp_path / "again").reader
    assert read_labels(reader, range(3)) == {
        0: Labels(flag="good"),
        2: Labels(score=2, flag="bad"),
    }


def test_an_edit_in_place(source, tmp_path):
    demoreel.convert(source, tmp_path / "lance", to="lance-video")
    cut = demoreel.cut(tmp_path / "lance").delete([0]).label(2, success=True, score=4)
    done = cut.label(3, persistent=[REACH]).render_in_place(verify="full")
    assert done.version is not None
    dataset = demoreel.open(tmp_path / "lance")
    assert success(dataset, 1) == [False] * 9 + [True]
    assert values(dataset, "language_persistent", 2)[0][0]["content"] == "reach"
    assert read_labels(dataset.reader, [1]) == {1: Labels(score=4)}
    assert "labelled 2 episodes" in demoreel.versions(tmp_path / "lance")[-1].done


def test_an_edit_in_place_beside_images(tmp_path):
    root = make_dataset(
        tmp_path / "source",
        episodes=(6, 8),
        cameras=0,
        image_cameras={"observation.images.a": (16, 16)},
    )
    demoreel.convert(root, tmp_path / "lance", to="lance-native")
    demoreel.cut(tmp_path / "lance").label(1, success=True).render_in_place(verify="full")
    demoreel.cut(tmp_path / "lance").label(0, success=False).trim(1, 2).render_in_place()
    dataset = demoreel.open(tmp_path / "lance")
    assert (success(dataset, 0), success(dataset, 1)) == ([False] * 6, [False] * 5 + [True])


def test_a_cut_list_carries_them(source, tmp_path):
    cut = demoreel.cut(source).label(1, success=True, flag="bad", persistent=[REACH], events=[CALL])
    cut = cut.retask({2: "go"})
    cut.save(tmp_path / "list.json")
    assert load(tmp_path / "list.json").cutlist == cut.cutlist
    raw = json.loads((tmp_path / "list.json").read_text())
    assert [len(clip) for clip in raw["clips"]] == [4, 6, 5, 4]


@pytest.mark.parametrize(
    "labels",
    [
        [],
        {"stars": 1},
        {"success": 1},
        {"score": 6},
        {"score": True},
        {"flag": "fine"},
        {"persistent": {}},
        {"persistent": [{"style": "subtask"}]},
        {"persistent": [{"frame": -1, "content": "x"}]},
        {"events": [{"frame": 1, "content": 5}]},
        {"events": [{"frame": 1, "tool_calls": "x"}]},
    ],
)
def test_labels_that_make_no_sense_are_refused(source, labels):
    raw = demoreel.cut(source).cutlist.to_json()
    raw["clips"][0] = [*raw["clips"][0], None, labels]
    with pytest.raises(ArgumentError, match="makes no sense"):
        CutList.from_json(raw)


def test_what_an_episode_does_not_have_is_refused(source):
    with pytest.raises(ArgumentError, match="frame 20 of episode 0"):
        demoreel.cut(source).label(0, events=[LanguageRow(20, "vqa", "x")]).plan()
    with pytest.raises(ArgumentError, match="no camera"):
        demoreel.cut(source).label(0, events=[LanguageRow(1, "vqa", "x", camera="eye")]).plan()
    with pytest.raises(ArgumentError, match="1 to 5"):
        demoreel.cut(source).label(0, score=0)


def test_capture_times_stay_with_a_labelled_episode(tmp_path):
    features = {"action": {"dtype": "float32", "shape": (1,), "names": None}}
    recorder = demoreel.create(tmp_path / "ds", fps=10, features=features)
    for frame in range(5):
        recorder.add_frame({"action": np.array([frame], np.float32), "task": "go"})
    recorder.save_episode()
    recorder.finalize()
    before = demoreel.open(tmp_path / "ds").capture_times(0)
    demoreel.cut(tmp_path / "ds").label(0, success=True).render(tmp_path / "a")
    demoreel.cut(tmp_path / "a").label(0, success=False).render(tmp_path / "b")
    after = demoreel.open(tmp_path / "b").capture_times(0)
    assert before is not None
    assert np.array_equal(before, after)


# Annotations


def annotated(root, episodes: dict[str, list[dict]], **more: object):
    said = {"version": 2, "schema": {"persistent_styles": ["subtask", "phase"]}, **more}
    said["episodes"] = {name: {"atoms": atoms} for name, atoms in episodes.items()}
    (root / "meta" / "lerobot_annotations.json").write_text(json.dumps(said))
    return root


def atom(at: float, style: str, content: str) -> dict:
    whole = {"role": "assistant", "content": content, "style": style, "timestamp": at}
    return {**whole, "camera": None, "tool_calls": None}


def times_of(root, episode: int) -> list[float]:
    column = values(demoreel.open(root), "timestamp", episode)
    return [float(at) for at in np.asarray(column, np.float32).reshape(-1)]


def test_annotations_become_columns_and_follow_a_cut(source, tmp_path):
    at = times_of(source, 1)
    atoms = [atom(at[0], "phase", "one"), atom(at[7], "subtask", "grasp"), atom(at[9], "vqa", "?")]
    annotated(source, {"1": atoms, "3": [atom(0.0, "subtask", "all")]})
    done = demoreel.cut(source).annotate().delete([0]).trim(1, 5).render(tmp_path / "new")
    assert done.dropped == ()
    labels = labels_of(demoreel.open(tmp_path / "new"), 0)
    assert [(row.frame, row.content) for row in labels.persistent] == [(0, "one"), (2, "grasp")]
    assert [(row.frame, row.content) for row in labels.events] == [(4, "?")]
    new = times_of(tmp_path / "new", 0)
    said = json.loads((tmp_path / "new/meta/lerobot_annotations.json").read_text())
    assert [a["timestamp"] for a in said["episodes"]["0"]["atoms"]] == [new[0], new[2], new[4]]
    assert said["episodes"]["2"]["atoms"] == [atom(0.0, "subtask", "all")]
    assert list(said["episodes"]) == ["0", "2"]


def test_annotations_that_make_no_sense_are_said(source, tmp_path):
    annotated(source, {"1": [atom(0.0, "subtask", "x")]}, version=1)
    done = demoreel.cut(source).delete([0]).render(tmp_path / "new")
    assert ["lerobot_annotations" in what for what in done.dropped] == [True]
    for episodes in ({"9": []}, {"x": []}, {"0": [{"content": "x"}]}, {"0": [{"timestamp": "a"}]}):
        annotated(source, episodes)
        with pytest.raises(DemoreelError):
            demoreel.cut(source).annotate()


def test_the_command_labels(source, tmp_path, capsys):
    file = annotated(source, {"2": [atom(0.0, "subtask", "go")]}) / "meta/lerobot_annotations.json"
    out = str(tmp_path / "new")
    said = ["-e", "0,2", "--failure", "--score", "3", "--annotations", str(file)]
    assert main(["cut", "label", str(source), out, *said, "--dry-run"]) == 0
    assert not (tmp_path / "new").exists()
    assert main(["cut", "label", str(source), out, *said]) == 0
    labels = labels_of(demoreel.open(out), 2)
    assert (labels.success, labels.score) == (False, 3)
    assert [row.content for row in labels.persistent] == ["go"]
    assert main(["cut", "label", str(source), out + "2", "-e", "0"]) == 2
