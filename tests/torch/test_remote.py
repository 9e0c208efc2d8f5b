"""Training from an object store or the Hub: the same batches, in workers of either kind."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

import demoreel
from demoreel.errors import ArgumentError, StoreError
from demoreel.read.to_ray import _state
from demoreel.testing import make_dataset
from demoreel.torch import LeRobotDataset, LeRobotLanceVideoDataset, PrefetchBatchSampler
from support.fault_proxy import Cut, Reset, ShortBody, Status
from support.hub_server import HubServer

from ..conftest import assert_same, with_an_episode_a_file

CAMERA = "observation.images.cam0"

pytestmark = [
    pytest.mark.filterwarnings("ignore:decode_device='auto'"),
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),
]


def both(layout, local_datasets, uploaded, **options):
    kind = LeRobotDataset if layout.startswith("v") else LeRobotLanceVideoDataset
    windows = {"action": [0.0, 1 / 30], CAMERA: [-1 / 30, 0.0]}
    common = {"delta_timestamps": windows, "return_uint8": True}
    if layout.startswith("v"):
        here = kind("me/x", root=local_datasets(layout), **common)
        return here, kind("me/x", root=uploaded(layout), **common, **options)
    here = kind(root=local_datasets(layout), **common)
    return here, kind(root=uploaded(layout), **common, **options)


@pytest.mark.parametrize(
    ("layout", "method"),
    [
        ("v3.0", "fork"),
        ("v2.1", "fork"),
        ("lance-video", "fork"),
        pytest.param("v3.0", "spawn", marks=pytest.mark.soak),
        pytest.param("lance-video", "spawn", marks=pytest.mark.soak),
    ],
)
def test_workers(local_datasets, uploaded, proxy, layout, method):
    here, there = both(layout, local_datasets, uploaded)
    assert len(there) == len(here)
    assert_same(there[3], here[3])  # used before it is forked
    torch.manual_seed(0)
    order = torch.randperm(len(here)).tolist()
    sampler = PrefetchBatchSampler(order, batch_size=8, num_workers=2, ahead=2)
    loader = DataLoader(there, batch_sampler=sampler, num_workers=2, multiprocessing_context=method)
    proxy.fail(0.05, [Status(503), Reset(), Cut(50)], seed=1)
    for number, batch in enumerate(loader):
        wanted = here.__getitems__(order[8 * number : 8 * number + 8])
        for place, item in enumerate(wanted):
            assert_same({key: column[place] for key, column in batch.items()}, dict(item))


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(
    ("layout", "method"),
    [
        ("lance-video", "fork"),  # with a helper that speaks to Lance, and one to obstore
        pytest.param("v3.0", "spawn", marks=pytest.mark.soak),
        pytest.param("lance-video", "spawn", marks=pytest.mark.soak),
    ],
)
def test_credentials_that_were_given_are_in_no_childs_environment(
    local_datasets, uploaded, s3, monkeypatch, layout, method
):
    uri = uploaded(layout)
    for name in s3.environment:
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    others = _descendants(os.getpid())  # of tests before, which had credentials in the environment
    options = s3.storage_options
    kind = LeRobotDataset if layout.startswith("v") else LeRobotLanceVideoDataset
    name = {"repo_id": "me/x"} if layout.startswith("v") else {}
    there = kind(root=uri, storage_options=options, return_uint8=True, **name)
    here = kind(root=local_datasets(layout), return_uint8=True, **name)
    assert_same(there[3], here[3])
    loader = DataLoader(there, batch_size=4, num_workers=1, multiprocessing_context=method)
    batches = iter(loader)
    batch = next(batches)
    assert_same({key: column[3] for key, column in batch.items()}, dict(here[3]))
    secret = options["aws_secret_access_key"].encode()
    children = _descendants(os.getpid()) - others
    assert batches._workers[0].pid in children
    for pid in children:
        for name in ("environ", "cmdline"):
            with contextlib.suppress(OSError):  # it has just ended
                assert secret not in Path(f"/proc/{pid}/{name}").read_bytes()
    batches._shutdown_workers()
    assert dict(os.environ) == before
    with pytest.raises(ArgumentError, match="do not travel to Ray's workers"):
        _state(demoreel.open(uri, storage_options=options), [])


def _descendants(pid: int) -> set[int]:
    found = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found |= {child, *_descendants(child)}
    return found


def test_a_worker_that_is_killed(local_datasets, uploaded, proxy):
    here, there = both("v3.0", local_datasets, uploaded)
    loader = DataLoader(there, batch_size=4, num_workers=1, multiprocessing_context="fork")
    batches = iter(loader)
    next(batches)
    [worker] = batches._workers

    def go_on_without_it():
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()  # torch raises wherever the signal reaches it
        list(batches)

    with pytest.raises(RuntimeError, match=r"killed|exited"):
        go_on_without_it()
    batches._shutdown_workers()
    assert_same(there[5], here[5])


def test_an_error_reaches_the_training_process(local_datasets, uploaded, proxy, monkeypatch):
    _, there = both("v3.0", local_datasets, uploaded)
    proxy.fail(1.0, ShortBody(content_range="asked"), where=".mp4")
    loader = DataLoader(there, batch_size=4, num_workers=1, multiprocessing_context="fork")
    batches = iter(loader)
    with pytest.raises(StoreError, match=r"10 tries(.|\n)*\.mp4"):
        next(batches)
    batches._shutdown_workers()  # left to the garbage collector, torch waits for five seconds


def test_classes_and_their_arguments(local_datasets, uploaded, proxy, s3):
    uri = uploaded("v3.0")
    there = LeRobotDataset(uri)
    assert there.repo_id == "v3.0"
    assert there.num_episodes == 4
    assert_same(there[7], LeRobotDataset("me/x", root=local_datasets("v3.0"))[7])
    part = LeRobotDataset("me/x", root=uri, episodes=[1, 3])
    assert len(part) == 29
    with pytest.raises(ArgumentError, match="remote"):
        LeRobotDataset("me/x", root=local_datasets("v3.0"), cache_size="1GB")
    with pytest.raises(ArgumentError, match="stream=True"):
        LeRobotDataset("me/x", root=local_datasets("v3.0"), stream=True)


@pytest.mark.parametrize("place", ["folder", "table"])
def test_lance_by_uri(local_datasets, uploaded, proxy, place):
    folder = local_datasets("lance-video")
    uri = uploaded("lance-video")
    if place == "table":
        uri += "/v3.0.lance"
    there, here = LeRobotLanceVideoDataset(uri=uri), LeRobotLanceVideoDataset(root=folder)
    assert_same(there[20], here[20])


def test_lance_by_uri_with_many_tables_of_episodes(s3, proxy, tmp_path):
    v3 = make_dataset(tmp_path / "v3", episodes=[2] * 20)
    demoreel.convert(v3, tmp_path / "film", to="lance-video")
    local = with_an_episode_a_file(tmp_path / "film")
    uri = s3.upload(local, "an episode a file")
    (table,) = (path.name for path in local.glob("*.lance") if "videos" not in path.name)
    there = LeRobotLanceVideoDataset(uri=f"{uri}/{table}")
    assert there.num_episodes == 20
    assert_same(there[17], LeRobotLanceVideoDataset(root=local)[17])


def test_streaming_from_the_hub(local_datasets, tmp_path, monkeypatch):
    with HubServer(tmp_path / "hub") as hub:
        for name, value in hub.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("DEMOREEL_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
        hub.seed("me/x", local_datasets("v3.0"), tag="v3.0")
        there = LeRobotDataset("me/x", stream=True)
        assert_same(there[7], LeRobotDataset("me/x", root=local_datasets("v3.0"))[7])
        assert not (tmp_path / "home").exists()
        assert len(LeRobotDataset("me/x", stream=True, revision="v3.0", episodes=[2])) == 15
