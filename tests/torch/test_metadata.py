"""``LeRobotDatasetMetadata``: written alone, and read under lerobot's names."""

from __future__ import annotations

import copy
import json
import pickle
import shutil

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from demoreel.errors import ArgumentError, OutOfRangeError, TargetExistsError
from demoreel.testing import make_dataset
from demoreel.torch import LeRobotDataset, LeRobotDatasetMetadata

FEATURES = {
    "action": {"dtype": "float32", "shape": (2,), "names": None},
    "observation.images.front": {
        "dtype": "video",
        "shape": (48, 64, 3),
        "names": ["height", "width", "channels"],
        "info": None,
    },
}
STATS = {
    "action": {
        "min": np.zeros(2),
        "max": np.ones(2),
        "mean": np.full(2, 0.5),
        "std": np.full(2, 0.25),
        "count": np.array([5]),
    }
}


@pytest.fixture
def meta(tmp_path):
    return LeRobotDatasetMetadata.create("me/task", 30, FEATURES, "so101", tmp_path / "ds")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = make_dataset(
        tmp_path_factory.mktemp("meta") / "ds", episodes=[3, 5, 4], tasks=("pick", "place")
    )
    table = folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
    rows = pq.read_table(table)
    rows = rows.append_column("success", [[True, False, True]])
    rows = rows.append_column("sparse_subtask_names", [[["reach", "grasp"], [], ["reach"]]])
    pq.write_table(rows, table)
    return folder


@pytest.fixture
def read(path):
    return LeRobotDatasetMetadata("me/task", path)


def info_on_disk(root):
    return json.loads((root / "meta" / "info.json").read_text())


def test_a_new_dataset(meta, tmp_path):
    assert info_on_disk(tmp_path / "ds")["fps"] == meta.fps == 30
    assert (meta.total_episodes, meta.total_frames, meta.total_tasks) == (0, 0, 0)
    assert (meta.tasks, meta.episodes, meta.stats, meta.subtasks) == (None,) * 4
    assert meta.video_keys == meta.camera_keys == ["observation.images.front"]
    assert meta.shapes["action"] == (2,)
    assert meta.get_task_index("pick") is None
    with pytest.raises(IndexError):
        meta.get_data_file_path(0)
    with pytest.raises(TargetExistsError):
        LeRobotDatasetMetadata.create("me/task", 30, FEATURES, root=tmp_path / "ds")
    again = LeRobotDatasetMetadata("me/task", tmp_path / "ds")
    assert (again.total_episodes, again.episodes) == (0, None)


def test_what_cannot_be_begun(tmp_path):
    with pytest.raises(ArgumentError, match="use_videos"):
        LeRobotDatasetMetadata.create("a/b", 30, FEATURES, root=tmp_path / "ds", use_videos=False)
    assert not (tmp_path / "ds").exists()


def test_episodes_that_the_caller_has_written(meta, tmp_path):
    meta.save_episode_tasks(["pick"])
    meta.save_episode_tasks(["pick", "place"])
    assert [meta.get_task_index(task) for task in ("pick", "place", "push")] == [0, 1, None]
    with pytest.raises(ValueError, match="not unique"):
        meta.save_episode_tasks(["twice", "twice"])
    where = {"data/chunk_index": 0, "data/file_index": 0}
    for name, value in {"chunk_index": 0, "file_index": 0, "from_timestamp": 0.0}.items():
        where[f"videos/observation.images.front/{name}"] = value
    where["videos/observation.images.front/to_timestamp"] = 0.1
    for number in range(3):
        meta.save_episode(number, 5, ["place"], STATS, {**where, "success": number > 0})
    assert (meta.total_episodes, meta.total_frames, meta.total_tasks) == (3, 15, 2)
    assert meta.stats["action"]["count"] == 15
    assert meta.latest_episode["dataset_to_index"] == [15]
    meta.finalize()
    meta.finalize()
    with pytest.raises(ArgumentError, match="next episode is 3"):
        meta.save_episode(7, 5, ["place"], STATS, where)
    with pytest.raises(ArgumentError, match="no index"):
        meta.save_episode(3, 5, ["push"], STATS, where)
    with pytest.raises(ArgumentError, match="'success'"):
        meta.save_episode(3, 5, ["place"], STATS, {**where, "success": "perhaps"})
    for known in (meta, LeRobotDatasetMetadata("me/task", tmp_path / "ds")):
        known.ensure_readable()
        assert known.episodes["success"] == [False, True, True]
        assert known.episodes[2]["tasks"] == ["place"]
        assert known.get_data_file_path(2).as_posix() == "data/chunk-000/file-000.parquet"
    assert info_on_disk(tmp_path / "ds")["splits"] == {"train": "0:3"}


def test_tools_and_sizes_are_written(meta, tmp_path):
    assert meta.tools[0]["function"]["name"] == "say"
    assert "tools" not in info_on_disk(tmp_path / "ds")
    tool = {"type": "function", "function": {"name": "look"}}
    meta.tools = [tool]
    assert meta.tools == meta.info.tools == info_on_disk(tmp_path / "ds")["tools"] == [tool]
    meta.tools = None
    assert meta.tools[0]["function"]["name"] == "say"
    assert "tools" not in info_on_disk(tmp_path / "ds")
    meta.update_chunk_settings(chunks_size=500)
    assert meta.chunks_size == info_on_disk(tmp_path / "ds")["chunks_size"] == 500
    for wrong in ({"chunks_size": 0}, {"video_files_size_in_mb": -1}):
        with pytest.raises(ValueError, match="must be positive"):
            meta.update_chunk_settings(**wrong)
    assert meta.get_chunk_settings()["chunks_size"] == 500


def test_every_column_of_the_episodes(read):
    assert read.episodes["success"] == [True, False, True]
    assert read.episodes[0]["sparse_subtask_names"] == ["reach", "grasp"]
    assert read.episodes["sparse_subtask_names"][1] == []
    assert "stats/action/mean" not in read.episodes.column_names
    chosen = read.filter_episodes(lambda row: row["success"] and row["length"] > 3)
    assert chosen == [2]


def test_episodes_as_scripts_use_them(read):
    episodes = read.episodes
    assert (len(episodes), episodes.num_rows, episodes.shape[0]) == (3, 3, 3)
    assert [row["length"] for row in episodes] == episodes["length"] == [3, 5, 4]
    assert episodes[-1] == episodes[2]
    assert episodes[1:]["length"] == episodes[[1, 2]]["length"] == [5, 4]
    assert episodes[np.int64(1)]["dataset_from_index"] == 3
    frame = episodes.to_pandas()
    assert frame.loc[frame["success"], "length"].sum() == 7
    assert episodes.filter(lambda row: row["success"])["episode_index"] == [0, 2]
    assert episodes.select([2, 0])["tasks"] == [episodes[2]["tasks"], episodes[0]["tasks"]]
    assert episodes.select_columns(["length"]).column_names == ["length"]
    assert pickle.loads(pickle.dumps(episodes)).to_list() == list(episodes)
    with pytest.raises(KeyError, match="sucess"):
        episodes["sucess"]
    with pytest.raises(OutOfRangeError):
        episodes[3]


def test_info_as_attributes_and_as_a_dict(read, path):
    assert read.info.fps == read.info["fps"] == read.info.get("fps")
    assert read.info.features is read.features
    assert read.info.features["action"]["shape"] == (6,)
    assert read.info.to_dict()["features"]["action"]["shape"] == [6]
    assert json.loads(json.dumps(read.info.to_dict())) == read.info.to_dict()
    assert read.info.tools is None
    with pytest.raises(AttributeError):
        _ = read.info.nothing
    read.info.robot_type = "other"
    assert read.robot_type == "other"
    assert info_on_disk(path)["robot_type"] != "other"
    assert copy.deepcopy(read).robot_type == pickle.loads(pickle.dumps(read)).robot_type == "other"
    assert read.url_root == "hf://datasets/me/task"


def test_what_videos_are(path):
    read = LeRobotDatasetMetadata("me/task", path)
    camera = read.video_keys[0]
    read.features[camera]["info"] |= {"video.height": 1, "video.crf": 7}
    read.update_video_info(camera, preserve_keys=["video.width"])
    assert read.features[camera]["info"]["video.height"] == read.shapes[camera][0]
    assert read.features[camera]["info"]["video.crf"] == 7
    with pytest.raises(ValueError, match="not found"):
        read.update_video_info("nothing")


def test_cameras_without_videos_have_no_file(read, tmp_path):
    made = make_dataset(
        tmp_path / "images", episodes=[3], cameras=0, image_cameras={"observation.image": (16, 16)}
    )
    images = LeRobotDatasetMetadata("me/images", made)
    for meta, camera in ((images, images.image_keys[0]), (read, "action"), (read, "no camera")):
        with pytest.raises(KeyError, match="no videos"):
            meta.get_video_file_path(0, camera)


def test_subtasks(path, tmp_path):
    root = shutil.copytree(path, tmp_path / "ds")
    frame = pd.DataFrame({"subtask_index": [0, 1]}, index=pd.Index(["reach", "grasp"]))
    frame.to_parquet(root / "meta" / "subtasks.parquet")
    assert list(LeRobotDatasetMetadata("me/task", root).subtasks.index) == ["reach", "grasp"]


def test_arguments_in_lerobots_order(path):
    ds = LeRobotDataset("me/task", path, None, lambda row: row["success"])
    assert ds.episodes == [0, 2]
    with pytest.raises(ValueError, match="repo_type"):
        LeRobotDatasetMetadata("me/task", path, repo_type="model")
    with pytest.raises(ArgumentError, match="root="):
        LeRobotDataset(str(path))
