"""What lerobot reads of labels: success, subtasks, events, their times. `make conformance` runs it.

A dataset is trimmed, labelled and rendered as the viewer does it: from a draft, as a cut list. Then
lerobot opens the result, and its own functions say which subtask holds and what is said at each
frame. What they must say is computed here from the frames of the labels alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking_lerobot import Asked, same_as_answered

import demoreel
from demoreel.edit.labels import labels_of
from demoreel.testing import make_dataset
from demoreel.torch import LeRobotDataset
from demoreel.view.datasets import ShownDataset
from demoreel.view.draft import Drafts, cut_of

FPS = 30
CAMERA = "observation.images.cam0"
QUESTION, ANSWER = "where is it?", '{"label": "cube", "point": [3, 4]}'
DRAFT: dict[str, Any] = {
    "0": {
        "start": 5,
        "stop": 17,
        "success": True,
        "score": 4,
        "persistent": [
            {"frame": 0, "style": "subtask", "content": "reach"},
            {"frame": 9, "style": "subtask", "content": "grasp"},
            {"frame": 9, "style": "plan", "content": "reach, then grasp"},
            {"frame": 18, "style": "subtask", "content": "is cut away"},
        ],
        "events": [
            {"frame": 2, "style": "interjection", "content": "is cut away", "role": "user"},
            {"frame": 11, "style": "interjection", "content": "a bit left", "role": "user"},
            {"frame": 12, "style": "vqa", "content": QUESTION, "role": "user", "camera": CAMERA},
            {"frame": 12, "style": "vqa", "content": ANSWER, "camera": CAMERA},
            {"frame": 13, "style": "trace", "content": "[[1, 2], [3, 4]]", "camera": CAMERA},
        ],
    },
    "1": {"deleted": True},
    "2": {"success": False, "flag": "bad", "task": "put it down"},
}
RECIPE = {
    "bindings": {"heard": "emitted_at(t, style=interjection, role=user)"},
    "messages": [
        {"role": "user", "content": "${task}", "stream": "high_level"},
        {"role": "user", "content": "${heard}", "stream": "high_level", "if_present": "heard"},
        {"role": "assistant", "content": "${subtask}", "stream": "low_level", "target": True},
    ],
}
ASKED: dict[str, dict[str, Any]] = {
    "subtask": {"function": "active_at", "style": "subtask"},
    "plan": {"function": "active_at", "style": "plan"},
    "interjection": {"function": "emitted_at", "style": "interjection"},
    "question": {"function": "emitted_at", "style": "vqa", "role": "user", "camera": CAMERA},
    "answer": {"function": "emitted_at", "style": "vqa", "role": "assistant", "camera": CAMERA},
    "trace": {"function": "emitted_at", "style": "trace", "camera": CAMERA},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    scratch = tmp_path_factory.mktemp("labels")
    source = make_dataset(
        scratch / "source", episodes=(20, 9, 10, 12), fps=FPS, cameras=1, gop=4, tasks=("pick",)
    )
    at = times_of(source, 3)[7]
    atom = {"role": "assistant", "content": "lift", "style": "subtask", "timestamp": at}
    (source / "meta/lerobot_annotations.json").write_text(
        json.dumps({"version": 2, "episodes": {"3": {"atoms": [atom]}}})
    )
    shown, drafts = ShownDataset("source", str(source), {}), Drafts(scratch / "drafts")
    cut = cut_of(shown, drafts.write(shown, 0, DRAFT))
    cut.annotate().render(scratch / "made", verify="full")
    return scratch / "made"


@pytest.fixture(scope="module")
def answers(made: Path, lerobot_python: str, beside_lerobot: Mapping[str, str]) -> dict[str, Any]:
    repo = {"repo_id": "conformance/labels", "kwargs": {"root": str(made), "return_uint8": True}}
    jobs = {
        "items": {"do": "read", **repo},
        "language": {"do": "language", **repo, "asked": ASKED, "recipe": RECIPE},
    }
    return Asked(lerobot_python, jobs, beside_lerobot).answers()


def times_of(root: Path, episode: int) -> list[float]:
    column = demoreel.open(root).episode(episode).column("timestamp")
    return [float(at) for at in np.asarray(column, np.float32).reshape(-1)]


def test_items_are_those_that_lerobot_reads(made: Path, answers: dict[str, Any]) -> None:
    dataset = LeRobotDataset("conformance/labels", root=made, return_uint8=True)
    assert {"next.success", "language_persistent", "language_events"} <= set(dataset.features)
    same_as_answered(dataset, answers["items"])


def test_success_is_what_was_said(made: Path, answers: dict[str, Any]) -> None:
    items = [answers["items"]["items"][str(index)] for index in range(12 + 10 + 12)]
    success = [item["next.success"]["value"] for item in items]
    unknown = [item["next.success_is_missing"]["value"] for item in items]
    flat = [bool(np.all(each)) for each in success]
    assert flat == [False] * 11 + [True] + [False] * 22
    assert [bool(np.all(each)) for each in unknown] == [False] * 22 + [True] * 12
    assert [item["task"]["python"] for item in items] == ["pick"] * 12 + ["put it down"] * 10 + [
        "pick"
    ] * 12


def test_lerobot_finds_the_subtask_and_what_is_said_at_each_frame(
    answers: dict[str, Any],
) -> None:
    found = answers["language"]
    assert "error" not in found, found
    # Frames 5 to 16 of the first episode are left; the last annotation is of another tool.
    first = [
        {
            "subtask": "reach" if frame < 9 else "grasp",
            "plan": None if frame < 9 else "reach, then grasp",
            "interjection": "a bit left" if frame == 11 else None,
            "question": QUESTION if frame == 12 else None,
            "answer": ANSWER if frame == 12 else None,
            "trace": "[[1, 2], [3, 4]]" if frame == 13 else None,
        }
        for frame in range(5, 17)
    ]
    nothing = dict.fromkeys(ASKED)
    last = [{**nothing, "subtask": None if frame < 7 else "lift"} for frame in range(12)]
    assert [item["answers"] for item in found["frames"]] == [*first, *[nothing] * 10, *last]


def test_lerobot_renders_messages(answers: dict[str, Any]) -> None:
    frames = answers["language"]["frames"]

    def contents(index: int) -> list[str]:
        return [message["content"] for message in frames[index]["rendered"]["messages"]]

    assert contents(0) == ["pick", "reach"]
    assert contents(6) == ["pick", "a bit left", "grasp"]
    assert contents(33) == ["pick", "lift"]


def test_lerobot_refuses_no_row(answers: dict[str, Any]) -> None:
    """Each style stands in its column, and speaks of a camera where lerobot demands one."""
    assert answers["language"]["refused"] == []


def test_times_of_rows_are_those_of_frames_bit_for_bit(made: Path, answers: dict[str, Any]) -> None:
    times = times_of(made, 0)
    rows = answers["language"]["frames"][0]["persistent"]
    at = [(row["content"], row["timestamp"]) for row in rows]
    assert at == [
        ("reach", times[0]),
        ("grasp", times[4]),
        ("reach, then grasp", times[4]),
    ]


def test_annotations_and_columns_say_the_same(made: Path, tmp_path: Path) -> None:
    """``meta/lerobot_annotations.json`` of the result, taken into columns, changes nothing."""
    said = json.loads((made / "meta/lerobot_annotations.json").read_text())
    assert [len(each["atoms"]) for each in said["episodes"].values()] == [7, 1]
    demoreel.cut(made).annotate().render(tmp_path / "again", verify="full")
    for episode in range(3):
        before, after = (
            labels_of(demoreel.open(root), episode) for root in (made, tmp_path / "again")
        )
        assert (before.persistent, before.events) == (after.persistent, after.events)
    assert json.loads((tmp_path / "again/meta/lerobot_annotations.json").read_text()) == said
