"""The names, arguments and habits that LeRobot users bring along."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import demoreel
from demoreel.errors import ArgumentError, DatasetNotFoundError
from demoreel.testing import make_dataset, read_stamp
from demoreel.torch import LeRobotDataset, LeRobotDatasetMetadata, MultiLeRobotDataset

CAMERA = "observation.images.cam0"


@pytest.fixture(scope="module", params=["v2.1", "v3.0"])
def root(request, tmp_path_factory):
    return make_dataset(
        tmp_path_factory.mktemp("torch") / "made",
        episodes=[7, 12, 5],
        layout=request.param,
        tasks=("one", "two"),
        features={"note": {"dtype": "string", "shape": [1]}},
    )


def test_metadata_by_lerobots_names(root):
    ds = LeRobotDataset("me/made", root=root)
    meta = ds.meta
    assert isinstance(meta, LeRobotDatasetMetadata)
    assert (meta.repo_id, meta.root, ds.root) == ("me/made", root, root)
    assert (meta.fps, ds.fps, meta.robot_type) == (30, 30, "made_up")
    assert (meta.total_episodes, meta.total_frames, meta.total_tasks) == (3, 24, 2)
    assert (ds.num_episodes, ds.num_frames, len(ds)) == (3, 24, 24)
    assert meta.camera_keys == meta.video_keys == [CAMERA]
    assert meta.image_keys == meta.depth_keys == []
    assert meta.info["fps"] == meta.info.fps == 30
    assert meta.features[CAMERA]["shape"] == (64, 64, 3) == meta.shapes[CAMERA]
    assert ds.features is meta.features
    assert meta.names["action"][0] == "joint_0"
    assert meta.stats["action"]["mean"].shape == (6,)
    assert meta.chunks_size == 1000
    assert meta.tasks.loc["two"].task_index == 1
    assert meta.tasks.iloc[0].name == "one"
    assert meta.get_task_index("two") == 1
    assert meta.get_task_index("three") is None
    assert (root / meta.get_data_file_path(1)).is_file()
    assert (root / meta.get_video_file_path(2, CAMERA)).is_file()
    assert "made" in repr(ds)
    with pytest.raises(AttributeError):
        _ = meta.info.nothing


def test_episodes_by_lerobots_names(root):
    episodes = LeRobotDataset("me/made", root=root).meta.episodes
    assert len(episodes) == 3
    assert episodes["length"] == [7, 12, 5]
    assert episodes["dataset_from_index"] == [0, 7, 19]
    assert episodes["dataset_to_index"] == [7, 19, 24]
    assert episodes["tasks"] == [["one"], ["two"], ["one"]]
    row = episodes[1]
    assert (row["episode_index"], row["length"], row["tasks"]) == (1, 12, ["two"])
    assert row["dataset_to_index"] == 19
    assert episodes[-1]["length"] == 5
    assert [row["length"] for row in episodes] == [7, 12, 5]


def test_items(root):
    item = LeRobotDataset("me/made", root=root, return_uint8=True)[9]
    assert item[CAMERA].dtype == torch.uint8
    assert item[CAMERA].shape == (3, 64, 64)
    assert item[CAMERA].is_contiguous()
    assert (read_stamp(item[CAMERA].numpy()).episode, item["frame_index"].item()) == (1, 2)
    assert item["task"] == "two"
    assert item["note"] == "note, episode 1, frame 2 ✓"
    assert type(item) is dict
    floats = LeRobotDataset("me/made", root=root)[9][CAMERA]
    assert floats.dtype == torch.float32
    torch.testing.assert_close(floats, item[CAMERA] / 255.0, rtol=0, atol=0)


def test_a_window_of_one_video_frame_has_no_axis_as_in_lerobot(root):
    windows = {CAMERA: [0.0], "action": [0.0]}
    item = LeRobotDataset("me/made", root=root, delta_timestamps=windows)[3]
    assert item[CAMERA].shape == (3, 64, 64)
    assert item["action"].shape == (1, 6)
    assert item[f"{CAMERA}_is_pad"].tolist() == [False]


def test_delta_timestamps_and_indices(root):
    ds = LeRobotDataset("me/made", root=root, delta_timestamps={"action": [-1 / 30, 0, 0.1]})
    assert ds.delta_indices == {"action": [-1, 0, 3]}
    assert LeRobotDataset("me/made", root=root).delta_indices is None
    with pytest.raises(ValueError, match=r"action: \[0.01\]"):
        LeRobotDataset("me/made", root=root, delta_timestamps={"action": [0.0, 0.01]})
    # An integer is a second here, as it is for LeRobot users.
    ds = LeRobotDataset("me/made", root=root, delta_timestamps={"action": [-1, 0]})
    assert ds.delta_indices == {"action": [-30, 0]}


def test_image_transforms(root):
    calls = []

    def invert(image):
        calls.append(image.shape)
        return 1 - image

    ds = LeRobotDataset("me/made", root=root, image_transforms=invert)
    plain = LeRobotDataset("me/made", root=root)
    torch.testing.assert_close(ds[4][CAMERA], 1 - plain[4][CAMERA])
    batch = next(iter(DataLoader(ds, batch_size=4)))
    torch.testing.assert_close(batch[CAMERA][3], 1 - plain[3][CAMERA])
    assert set(calls) == {(3, 64, 64)}
    ds.clear_image_transforms()
    torch.testing.assert_close(ds[4][CAMERA], plain[4][CAMERA])
    with pytest.raises(TypeError):
        ds.set_image_transforms(3)


def test_episode_filter(root):
    ds = LeRobotDataset("me/made", root=root, episode_filter=lambda row: row["length"] > 6)
    assert ds.episodes == [0, 1]
    assert len(ds) == 19
    both = LeRobotDataset(
        "me/made", root=root, episodes=[1, 2], episode_filter=lambda row: row["length"] > 6
    )
    assert both.episodes == [1]
    with pytest.raises(ValueError, match="keeps no episode"):
        LeRobotDataset("me/made", root=root, episode_filter=lambda row: False)


def test_home(root, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DatasetNotFoundError, match="demoreel pull me/made"):
        LeRobotDataset("me/made")
    (tmp_path / "me").mkdir()
    (tmp_path / "me/made").symlink_to(root)
    assert len(LeRobotDataset("me/made")) == 24
    with pytest.raises(ArgumentError):
        LeRobotDataset("../made")


def test_snapshots_that_lerobot_has_downloaded(root, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "hub/datasets--me--made"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/v3.0").write_text("abc123")
    (folder / "snapshots").mkdir()
    (folder / "snapshots/abc123").symlink_to(root)
    assert len(LeRobotDataset("me/made")) == 24
    assert len(LeRobotDataset("me/made", revision="abc123")) == 24
    with pytest.raises(DatasetNotFoundError):
        LeRobotDataset("me/made", revision="v9")


def test_nothing_asks_the_network(root, monkeypatch):
    import socket

    def refuse(*args, **kwargs):
        raise AssertionError("a local dataset opened a socket")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert len(LeRobotDataset("me/made", root=root, download_videos=True)[0]) > 5
    with pytest.raises(ArgumentError, match="network"):
        LeRobotDataset("me/made", root=root, force_cache_sync=True)


def test_pickles_small(root):
    ds = LeRobotDataset("me/made", root=root, delta_timestamps={"action": [0.0, 0.1]})
    ds[0]
    data = pickle.dumps(ds)
    assert len(data) < 3000
    assert pickle.loads(data)[5]["action"].tolist() == ds[5]["action"].tolist()


def test_a_copy_says_what_a_script_has_changed(root):
    ds = LeRobotDataset("me/made", root=root)
    ds.meta.stats["action"]["mean"] = torch.full((6,), 7.0)
    for other in (copy.copy(ds), copy.deepcopy(ds), pickle.loads(pickle.dumps(ds))):
        assert other.meta.stats["action"]["mean"].tolist() == [7.0] * 6
        assert other[5]["index"] == 5


def test_numbers_have_lerobots_dtypes(tmp_path):
    kinds = {
        "float16": torch.float32,
        "float64": torch.float32,
        "int32": torch.int64,
        "uint8": torch.int64,
        "bool": torch.bool,
    }
    features = {kind: {"dtype": kind, "shape": [3]} for kind in kinds}
    root = make_dataset(tmp_path / "kinds", episodes=[3], cameras=0, features=features)
    item = LeRobotDataset("me/kinds", root=root)[1]
    assert {kind: item[kind].dtype for kind in kinds} == kinds
    assert demoreel.open(root)[1]["float64"].dtype == np.float64


def test_uint8_holds_for_images_in_tables(tmp_path):
    root = make_dataset(
        tmp_path / "images", episodes=[3], cameras={}, image_cameras={CAMERA: (32, 48)}
    )
    plain = LeRobotDataset("me/images", root=root)[1][CAMERA]
    bytes_of = LeRobotDataset("me/images", root=root, return_uint8=True)[1][CAMERA]
    assert (plain.dtype, bytes_of.dtype) == (torch.float32, torch.uint8)
    assert torch.equal(bytes_of / 255, plain)


def test_several_datasets_as_one(root, tmp_path):
    other = make_dataset(tmp_path / "me" / "other", episodes=[2, 3], cameras={})
    (tmp_path / "me" / "made").symlink_to(root)
    names = ["me/made", "me/other"]
    both = MultiLeRobotDataset(names, tmp_path, delta_timestamps={"action": [0.0]})
    made, rest = LeRobotDataset("me/made", root=root), LeRobotDataset("me/other", root=other)
    assert (len(both), both.num_episodes) == (len(made) + 5, made.num_episodes + 2)
    assert both.camera_keys == []
    assert both.disabled_features >= {CAMERA}
    item = both[len(made) + 1]
    assert torch.equal(item["action"][0], rest[1]["action"])
    assert (int(item["dataset_index"]), both.repo_id_to_index["me/other"]) == (1, 1)
    assert CAMERA not in both[0]
    assert int(both.stats["action"]["count"][0]) == len(both)
    batch = next(iter(torch.utils.data.DataLoader(both, batch_size=4, sampler=[0, 26, 1, 25])))
    assert batch["dataset_index"].tolist() == [0, 1, 0, 1]
    with pytest.raises(IndexError):
        both[len(both)]
    some = MultiLeRobotDataset(names, tmp_path, {"me/made": [0], "me/other": [1]})
    assert some.num_episodes == 2
