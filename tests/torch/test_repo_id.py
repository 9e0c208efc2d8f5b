"""``LeRobotDataset("me/my_task")`` from a Hub on loopback: what is fetched, where to, how often."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import demoreel
from demoreel.errors import (
    ArgumentError,
    DatasetNotFoundError,
    DemoreelWarning,
    OutOfRangeError,
    StoreError,
    TargetExistsError,
    UnknownKeyError,
    VideoError,
)
from demoreel.testing import make_dataset
from demoreel.torch import (
    LeRobotDataset,
    LeRobotDatasetMetadata,
    LeRobotLanceDataset,
    LeRobotLanceVideoDataset,
)
from support.hub_server import HubServer

LENGTHS = [8, 6, 7, 5]
FRONT, WRIST = "observation.images.front", "observation.images.wrist"
CAMERAS = {FRONT: (64, 64), WRIST: (48, 64)}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Four episodes, two cameras; a file for each."""
    return make_dataset(
        tmp_path_factory.mktemp("source") / "task",
        episodes=LENGTHS,
        cameras=CAMERAS,
        data_files_size_in_mb=0.0001,
        video_files_size_in_mb=0.0001,
    )


@pytest.fixture(scope="module")
def source_v21(tmp_path_factory):
    return make_dataset(
        tmp_path_factory.mktemp("v2") / "task", episodes=LENGTHS, cameras=CAMERAS, layout="v2.1"
    )


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with HubServer(tmp_path / "hub server") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
        yield server


def files_in(folder: Path, kind: str) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob(f"*.{kind}"))


def same_items(left, right, frames=(0, 3, -1)) -> None:
    for frame in frames:
        ours, theirs = left[frame % len(left)], right[frame % len(right)]
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            same = torch.equal(ours[key], value) if torch.is_tensor(value) else ours[key] == value
            assert same, key


def test_it_lies_where_lerobot_puts_it(hub, source, tmp_path):
    commit = hub.seed("me/task", source, tag="v3.0")
    ours = LeRobotDataset("me/task")
    cache = tmp_path / "home/hub/datasets--me--task"
    assert ours.root == cache / "snapshots" / commit
    assert (cache / "refs/v3.0").read_text() == commit
    assert (ours.repo_id, ours.revision, ours.meta.root) == ("me/task", "v3.0", ours.root)
    same_items(ours, LeRobotDataset("me/task", root=source))


def test_what_lerobot_has_fetched_is_used(hub, source, tmp_path):
    hub.seed("me/task", source, tag="v3.0")
    code = (
        "from huggingface_hub import snapshot_download as fetch\n"
        f"fetch('me/task', repo_type='dataset', revision='v3.0', cache_dir={str(tmp_path)!r}"
        " + '/home/hub')"
    )
    subprocess.run([sys.executable, "-c", code], env=dict(os.environ), check=True)
    hub.reset_log()
    assert len(LeRobotDataset("me/task")) == 26
    assert hub.requests <= 2
    hub.reset_log()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        assert len(LeRobotDataset("me/task")) == 26
    assert hub.requests == 0


def test_a_warm_cache(hub, source, monkeypatch):
    commit = hub.seed("me/task", source, tag="v3.0")
    LeRobotDataset("me/task")
    hub.reset_log()
    ours = LeRobotDataset("me/task")
    loader = torch.utils.data.DataLoader(ours, batch_size=4, num_workers=1)
    assert sum(len(batch["index"]) for batch in loader) == 26
    assert hub.requests == 1
    hub.reset_log()
    LeRobotDataset("me/task", revision=commit)
    assert hub.requests == 0
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for revision in (None, "v3.0", commit):
        same_items(LeRobotDataset("me/task", revision=revision), ours)
    assert LeRobotDatasetMetadata("me/task").total_episodes == 4
    assert hub.requests == 0


@pytest.mark.parametrize("layout", ["v3.0", "v2.1"])
def test_only_what_the_episodes_need(hub, source, source_v21, layout):
    folder = source if layout == "v3.0" else source_v21
    hub.seed("me/task", folder, tag=layout)
    ours = LeRobotDataset("me/task", episodes=[1, 3])
    same_items(ours, LeRobotDataset("me/task", root=folder, episodes=[1, 3]))
    tables = [name for name in files_in(ours.root, "parquet") if name.startswith("data/")]
    assert (len(tables), len(files_in(ours.root, "mp4"))) == (2, 4)
    filtered = LeRobotDataset("me/task", episode_filter=lambda row: row["length"] == 7)
    assert len(filtered) == 7
    assert len(files_in(ours.root, "mp4")) == 6
    hub.reset_log()
    LeRobotDataset("me/task", episodes=[1, 2])
    assert hub.requests == 1
    assert len(LeRobotDataset("me/task")[25]["action"]) == 6
    assert len(files_in(ours.root, "mp4")) == 8


def test_episodes_that_are_not_here_when_the_hub_must_not_be_asked(hub, source, monkeypatch):
    hub.seed("me/task", source, tag="v3.0")
    LeRobotDataset("me/task", episodes=[1])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert len(LeRobotDataset("me/task", episodes=[1])) == 6
    with pytest.raises(DatasetNotFoundError, match=r"3 files .* HF_HUB_OFFLINE"):
        LeRobotDataset("me/task", episodes=[1, 2])
    with pytest.raises(DatasetNotFoundError, match=r"not on this machine\. HF_HUB_OFFLINE is set"):
        LeRobotDataset("me/other")


def test_videos_and_cameras_that_nobody_wants(hub, source):
    hub.seed("me/task", source, tag="v3.0")
    ours = LeRobotDataset("me/task", download_videos=False)
    assert files_in(ours.root, "mp4") == []
    with pytest.raises(VideoError):
        ours[0]
    blind = LeRobotDataset("me/task", download_videos=False, cameras=[])
    assert blind[0]["action"].shape == (6,)
    LeRobotDataset("me/task", cameras=[WRIST], episodes=[0])
    assert files_in(ours.root, "mp4") == [f"videos/{WRIST}/chunk-000/file-000.mp4"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"cameras": ["nose"]}, UnknownKeyError),
        ({"episodes": [9]}, OutOfRangeError),
        ({"delta_timestamps": {"action": [0.01]}}, ArgumentError),
    ],
)
def test_arguments_are_checked_before_large_files_are_fetched(
    hub, source, tmp_path, options, error
):
    hub.seed("me/task", source, tag="v3.0")
    for root in (None, tmp_path / "root"):
        with pytest.raises(error):
            LeRobotDataset("me/task", root=root, **options)
    assert files_in(tmp_path / "home", "mp4") == []
    assert not (tmp_path / "root").exists()


def test_revisions(hub, source, source_v21):
    old = hub.seed("me/task", source_v21, tag="v2.1")
    assert LeRobotDataset("me/task").reader.layout == "v2.1"
    hub.seed("me/task", source, revision="redo")
    new = hub.seed("me/task", source, tag="v3.0")
    assert LeRobotDataset("me/task").root.name == new
    assert LeRobotDataset("me/task", revision="v2.1").root.name == old
    assert LeRobotDataset("me/task", revision="redo").reader.layout == "v3.0"
    with pytest.raises(DatasetNotFoundError, match=r"v2\.1, v3\.0.*main, redo"):
        LeRobotDataset("me/task", revision="v2.7")


def test_a_tag_that_moves(hub, source, tmp_path, monkeypatch):
    first = hub.seed("me/task", source, tag="v3.0")
    assert LeRobotDataset("me/task").root.name == first
    hub.commit("me/task", {"README.md": b"# card\n"})
    second = hub.seed("me/task", tag="v3.0")
    hub.reset_log()
    assert LeRobotDataset("me/task").root.name == second
    assert not [entry for entry in hub.log if entry.route == "cdn"]  # content is there
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert LeRobotDataset("me/task").root.name == second


def test_a_local_dataset_is_not_asked_about_unless_that_is_forced(hub, source, tmp_path):
    commit = hub.seed("me/task", source, tag="v3.0")
    shutil.copytree(source, tmp_path / "home/me/task")
    hub.reset_log()
    assert LeRobotDataset("me/task").root == tmp_path / "home/me/task"
    assert LeRobotDataset("me/task", root=source).root == source
    assert LeRobotDatasetMetadata("me/task").root == tmp_path / "home/me/task"
    assert hub.requests == 0
    assert LeRobotDataset("me/task", force_cache_sync=True).root.name == commit
    assert LeRobotDatasetMetadata("me/task", force_cache_sync=True).root.name == commit


def test_a_file_of_another_size_is_fetched_again_when_forced(hub, source):
    hub.seed("me/task", source, tag="v3.0")
    root = LeRobotDataset("me/task").root
    video = root / files_in(root, "mp4")[0]
    video.resolve().write_bytes(video.read_bytes()[:100])
    LeRobotDataset("me/task", force_cache_sync=True)
    assert video.read_bytes() == (source / video.relative_to(root)).read_bytes()


def test_a_root_that_is_not_there_is_made(hub, source, tmp_path):
    hub.seed("me/task", source, tag="v3.0")
    root = tmp_path / "made" / "here"
    ours = LeRobotDataset("me/task", root=root, episodes=[2])
    assert (ours.root, ours.meta.root) == (root, root)
    same_items(ours, LeRobotDataset("me/task", root=source, episodes=[2]))
    assert len(files_in(root, "mp4")) == 2
    assert sorted(path.name for path in root.iterdir()) == ["data", "meta", "videos"]
    hub.reset_log()
    LeRobotDataset("me/task", root=root, episodes=[2])
    assert hub.requests == 0


def test_a_root_whose_fetching_broke_off_is_not_there(hub, source, tmp_path):
    hub.seed("me/task", source, tag="v3.0")
    hub.fail_next(1, status=404, on=".mp4")
    with pytest.raises(StoreError):
        LeRobotDataset("me/task", root=tmp_path / "root")
    assert not (tmp_path / "root").exists()
    assert len(LeRobotDataset("me/task", root=tmp_path / "root")) == 26
    assert list(tmp_path.glob(".root*")) == []


def test_a_root_is_brought_up_to_date_only_if_it_was_pulled(hub, source, tmp_path):
    hub.seed("me/task", source, tag="v3.0")
    demoreel.pull("me/task", tmp_path / "pulled")
    hub.commit("me/task", {"README.md": b"# card\n"})
    hub.seed("me/task", tag="v3.0")
    LeRobotDataset("me/task", root=tmp_path / "pulled", force_cache_sync=True)
    assert (tmp_path / "pulled/README.md").exists()
    (tmp_path / "pulled/README.md").write_text("mine")
    with pytest.raises(TargetExistsError, match="changed since"):
        LeRobotDataset("me/task", root=tmp_path / "pulled", force_cache_sync=True)
    with pytest.raises(ArgumentError, match="not pulled"):
        LeRobotDataset("me/task", root=source, force_cache_sync=True)


def test_a_hub_that_does_not_answer(hub, source):
    hub.seed("me/task", source, tag="v3.0")
    LeRobotDataset("me/task")
    hub.fail_next(99, status=503, retry_after=0)
    with pytest.warns(DemoreelWarning, match="read as it was fetched before"):
        assert len(LeRobotDataset("me/task")) == 26
    with pytest.raises(DatasetNotFoundError, match=r"not on this machine.*status 503"):
        LeRobotDataset("me/other")


def test_a_hub_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for root in (None, tmp_path / "root"):
        with pytest.raises(DatasetNotFoundError, match=r"cannot be reached \(ConnectError\)"):
            LeRobotDataset("me/task", root=root)


def test_tokens_are_used_and_not_kept(hub, source, monkeypatch):
    hub.seed("me/secret", source, tag="v3.0", private=True)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(DatasetNotFoundError, match=r"private.*\n.*hf auth login"):
        LeRobotDataset("me/secret")
    ours = LeRobotDataset("me/secret", token=hub.token)
    assert hub.token.encode() not in pickle.dumps(ours)
    assert hub.token not in repr(ours)


@pytest.mark.parametrize("to", ["lance-video", "lance-native", "lance-frames"])
def test_lance_datasets(hub, source, tmp_path, monkeypatch, to):
    kind = LeRobotLanceDataset if to == "lance-frames" else LeRobotLanceVideoDataset
    demoreel.convert(source, tmp_path / to, to=to)
    commit = hub.seed("me/task_lance", tmp_path / to, tag="v3.0")
    ours = kind(repo_id="me/task_lance", episodes=[0, 2])
    assert ours.root == tmp_path / "home/hub/datasets--me--task_lance/snapshots" / commit
    same_items(ours, kind(root=tmp_path / to, episodes=[0, 2]))
    same_items(LeRobotDataset("me/task_lance"), kind(root=tmp_path / to))
    hub.reset_log()
    assert len(kind("me/task_lance")) == 26
    assert hub.requests == 1
    loader = torch.utils.data.DataLoader(ours, batch_size=5, num_workers=1)
    assert sum(len(batch["index"]) for batch in loader) == 15
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert len(kind("me/task_lance")) == 26
    assert hub.requests == 1
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert len(kind("me/task_lance", root=tmp_path / "root")) == 26
    with pytest.raises(ArgumentError, match="not pulled"):
        kind(root=tmp_path / to, force_cache_sync=True)
    assert len(kind("me/task_lance", root=tmp_path / "root", force_cache_sync=True)) == 26


def test_a_dataset_of_another_layout_costs_its_metadata(hub, source, tmp_path):
    hub.seed("me/task", source, tag="v3.0")
    with pytest.raises(ArgumentError, match="reads Lance datasets"):
        LeRobotLanceVideoDataset("me/task")
    assert files_in(tmp_path / "home", "mp4") == []
