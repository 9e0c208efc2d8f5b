"""``save_episode(episode_data=)`` and ``writer.episode_buffer``, as lerobot's scripts use them."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from PIL import Image

from demoreel.errors import ArgumentError
from demoreel.testing.stamp import Stamp, read_stamp, stamp
from demoreel.torch import LeRobotDataset

FRONT, STILL, DEEP = "observation.images.front", "observation.images.still", "deep"
IMAGE = {"shape": (48, 64, 3), "names": ["height", "width", "channels"]}
FEATURES = {
    "state": {"dtype": "float32", "shape": (2,), "names": None},
    "phase": {"dtype": "int64", "shape": (1,), "names": None},
    "note": {"dtype": "string", "shape": (1,), "names": None},
    FRONT: {"dtype": "video", **IMAGE},
    STILL: {"dtype": "image", **IMAGE},
}


def image(episode, number):
    made = np.full((48, 64, 3), 90, np.uint8)
    stamp(made, episode, number)
    return made


def frame(episode, number):
    return {
        "state": np.array([episode, number], np.float32),
        "phase": np.array([number], np.int64),
        "note": f"note {number}",
        FRONT: image(episode, number),
        STILL: image(episode, 100 + number),
        "task": f"task {number}",
    }


def whole(size, *, episode=0, **columns):
    frames = [frame(episode, number) for number in range(size)]
    made = {key: [one[key] for one in frames] for key in frames[0]}
    made |= {"size": size, "episode_index": episode, "index": [], "task_index": []}
    made |= {"frame_index": list(range(size)), "timestamp": [n / 10 for n in range(size)]}
    return made | columns


@pytest.fixture
def ds(tmp_path):
    made = LeRobotDataset.create("me/task", 10, FEATURES, root=tmp_path / "ds", vcodec="h264")
    yield made
    made.finalize()


def test_the_buffer_has_lerobots_fields_and_the_values_that_were_added(ds):
    assert set(ds.writer.episode_buffer) == {*ds.features, "size", "task"}
    assert ds.writer.episode_buffer["size"] == 0
    for number in range(3):
        ds.add_frame(frame(0, number))
    buffer = ds.writer.episode_buffer
    assert (buffer["size"], buffer["episode_index"]) == (3, 0)
    assert buffer["task"] == ["task 0", "task 1", "task 2"]
    assert (buffer["note"], buffer["frame_index"]) == (["note 0", "note 1", "note 2"], [0, 1, 2])
    assert [one.tolist() for one in buffer["state"]] == [[0, 0], [0, 1], [0, 2]]
    assert [one.shape for one in buffer["phase"]] == [(1,)] * 3
    assert buffer["timestamp"] == pytest.approx([0, 0.1, 0.2])
    assert buffer[FRONT] == [None] * 3


def test_a_changed_buffer_is_what_is_saved_with_the_images_that_were_added(ds):
    for number in range(2):
        ds.add_frame(frame(0, number))
    changed = copy.deepcopy(ds.writer.episode_buffer)
    changed |= {"task": ["other", "task 1"], "note": ["a", "b"], "phase": [[7], [8]]}
    ds.save_episode(episode_data=changed)
    assert changed["size"] == 2
    assert ds.writer.episode_buffer["size"] == 0
    ds.add_frame(frame(1, 0))
    ds.save_episode(ds.writer.episode_buffer)
    ds.finalize()
    rows = [ds[row] for row in range(3)]
    assert [row["task"] for row in rows] == ["other", "task 1", "task 0"]
    assert [row["note"] for row in rows] == ["a", "b", "note 0"]
    assert [row["phase"].item() for row in rows] == [7, 8, 0]
    assert [row["state"].tolist() for row in rows] == [[0, 0], [0, 1], [1, 0]]
    assert [read_stamp(row[FRONT]) for row in rows] == [Stamp(0, 0), Stamp(0, 1), Stamp(1, 0)]
    assert [read_stamp(row[STILL]).frame for row in rows] == [100, 101, 100]


def test_an_episode_is_given_as_a_whole_with_arrays_and_files(ds, tmp_path):
    paths = [tmp_path / f"{number}.png" for number in range(2)]
    for number, path in enumerate(paths):
        Image.fromarray(image(0, number)).save(path)
    ds.save_episode(whole(2, **{FRONT: [str(path) for path in paths]}))
    ds.finalize()
    assert [read_stamp(ds[row][FRONT]) for row in range(2)] == [Stamp(0, 0), Stamp(0, 1)]
    assert [read_stamp(ds[row][STILL]).frame for row in range(2)] == [100, 101]
    assert [ds[row]["state"].tolist() for row in range(2)] == [[0, 0], [0, 1]]


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
def test_files_of_depth_keep_their_unit(tmp_path, dtype):
    depth = np.full((48, 64), 1500 if dtype is np.uint16 else 1.5, dtype)
    path = tmp_path / ("deep.png" if dtype is np.uint16 else "deep.tiff")
    Image.fromarray(depth).save(path)
    features = {
        DEEP: {"dtype": "image", "shape": (48, 64, 1), "names": IMAGE["names"]}
        | {"info": {"is_depth_map": True}}
    }
    ds = LeRobotDataset.create("me/task", 10, features, root=tmp_path / "ds")
    data = whole(1)
    data = {key: data[key] for key in (*ds.features, "size", "task") if key != DEEP}
    ds.save_episode({**data, DEEP: [path]})
    ds.finalize()
    assert float(ds[0][DEEP].max()) == 1500
    assert ds.features[DEEP]["info"]["depth_unit"] == ("mm" if dtype is np.uint16 else "m")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"size": None}, "size"),
        ({"task": None}, "task"),
        ({"size": 0}, "no frames"),
        ({"size": 3}, "3 values"),
        ({"episode_index": 4}, "next one is 0"),
        ({"more": [1, 2]}, "more"),
        ({"note": None}, "note"),
        ({"note": ["a"]}, "2 values"),
        ({"state": [np.zeros(2), np.zeros(3)]}, r"state.*\(2,\)"),
        ({"frame_index": [0, 2]}, "frame_index"),
        ({"timestamp": [0.0, 0.5]}, "timestamp"),
        ({FRONT: [None, None]}, "no images"),
        ({FRONT: ["/none/0.png", "/none/1.png"]}, "cannot be read"),
        ({"task": ["a", 3]}, "no task"),
    ],
)
def test_what_is_no_episode_of_this_dataset_is_refused_and_leaves_nothing(ds, change, says):
    data = {key: value for key, value in (whole(2) | change).items() if value is not None}
    with pytest.raises(ArgumentError, match=says):
        ds.save_episode(data)
    assert (ds.num_episodes, ds.has_pending_frames()) == (0, False)
    ds.add_frame(frame(0, 0))
    ds.add_frame(frame(0, 1))
    if FRONT not in change:
        with pytest.raises(ArgumentError, match=says):
            ds.save_episode(data)
    ds.save_episode()
    assert (ds.num_episodes, ds[1]["state"].tolist()) == (1, [0.0, 1.0])


def test_an_empty_task_is_a_task(ds):
    for number, task in enumerate(["", "  ", "pick"]):
        ds.add_frame({**frame(0, number), "task": task})
    ds.save_episode()
    ds.finalize()
    assert [ds[row]["task"] for row in range(3)] == ["", "  ", "pick"]


def test_a_whole_episode_of_another_length_than_was_added_is_refused(ds):
    ds.add_frame(frame(0, 0))
    with pytest.raises(ArgumentError, match="2 frames, and 1 were added"):
        ds.save_episode(whole(2))
    assert ds.writer.episode_buffer["size"] == 1
