"""``push_to_hub`` as LeRobot users call it."""

from __future__ import annotations

import inspect
import shutil

import numpy as np
import pytest

from demoreel.errors import ArgumentError, DatasetBusyError
from demoreel.testing import make_dataset
from demoreel.torch import LeRobotDataset, LeRobotLanceVideoDataset
from support.hub_server import HubServer

REPO = "me/my_task"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with HubServer(tmp_path / "hub") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
        yield server


def test_lerobots_arguments():
    names = list(inspect.signature(LeRobotDataset.push_to_hub).parameters)
    assert names[:9] == [
        "self",
        "branch",
        "tags",
        "license",
        "tag_version",
        "push_videos",
        "private",
        "allow_patterns",
        "upload_large_folder",
    ]


def test_a_dataset_that_was_just_recorded(hub):
    features = {"action": {"dtype": "float32", "shape": (2,), "names": None}}
    dataset = LeRobotDataset.create(REPO, 30, features)
    for number in range(3):
        dataset.add_frame({"action": np.full(2, number, np.float32), "task": "go"})
    dataset.save_episode()
    with pytest.raises(DatasetBusyError):
        dataset.push_to_hub()
    dataset.finalize()
    done = dataset.push_to_hub(
        tags=["so101"], license="mit", private=True, upload_large_folder=True, url="https://x.org"
    )
    card = hub.read(REPO, "README.md").decode()
    assert "license: mit" in card
    assert "- so101" in card
    assert "https://x.org" in card
    assert hub.refs(REPO)["tags"] == {"v3.0": done.commit}


def test_a_branch_takes_the_tag_with_it(hub, tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=1, length=3, cameras=0)
    done = LeRobotDataset(REPO, root=root).push_to_hub("side")
    assert hub.refs(REPO)["tags"] == {"v3.0": done.commit}
    assert hub.refs(REPO)["branches"]["side"] == done.commit
    with pytest.raises(ArgumentError, match="episodes="):
        LeRobotDataset(REPO, root=root, episodes=[0]).push_to_hub()


def test_a_lance_dataset(hub, fixtures, tmp_path):
    root = shutil.copytree(fixtures / "g1_lance_video", tmp_path / "ds")
    done = LeRobotLanceVideoDataset(REPO, root=root).push_to_hub()
    assert done.layout == "lance-video"
    assert "g1_videos.lance/_versions/18446744073709551614.manifest" in hub.files(REPO)
