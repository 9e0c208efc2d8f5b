"""hf://: datasets on the Hub read where they are, at one commit; the token is for the Hub alone."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import traceback

import pytest

import demoreel
from demoreel.errors import (
    AccessError,
    ArgumentError,
    DatasetNotFoundError,
    ObjectChangedError,
    StoreError,
)
from demoreel.storage import cache
from demoreel.storage.cache import ByteCache
from demoreel.storage.remote import transfer
from demoreel.storage.remote.hub_store import HubPlace, hub_place, hub_store
from demoreel.storage.remote.transfer import Link
from support.hub_server import HubServer

from ...conftest import LAYOUTS, assert_same_batch

PARQUET = ("v2.0", "v2.1", "v3.0")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "_FIRST_PAUSE_S", 0.005)
    monkeypatch.setattr(transfer, "_LONGEST_PAUSE_S", 0.01)
    monkeypatch.setattr(cache, "_memory", ByteCache(1 << 20))
    with HubServer(tmp_path / "hub") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("DEMOREEL_CACHE", str(tmp_path / "cache"))
        yield server


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        ("hf://datasets/me/x", HubPlace("datasets", "me/x", None, "")),
        ("hf://datasets/me/x@v3.0", HubPlace("datasets", "me/x", "v3.0", "")),
        ("hf://datasets/me/x@abc/a/b/", HubPlace("datasets", "me/x", "abc", "a/b")),
        ("hf://buckets/me/x/a", HubPlace("buckets", "me/x", None, "a")),
    ],
)
def test_what_uris_name(uri, place):
    assert hub_place(uri) == place


@pytest.mark.parametrize(
    "uri",
    [
        "hf://me/x",
        "hf://models/me/x",
        "hf://datasets/x",
        "hf://datasets/me/@v3.0",
        "hf://datasets/me/x?token=abc",
        "hf://token@datasets/me/x",
        "hf://datasets/me/x/../y",
        "hf://buckets/me/x@v3.0",
    ],
)
def test_uris_that_name_nothing(uri):
    with pytest.raises(ArgumentError):
        demoreel.open(uri)


@pytest.mark.parametrize("layout", PARQUET)
def test_items_are_those_of_the_local_dataset(hub, local_datasets, layout):
    hub.seed("me/x", local_datasets(layout), tag=layout)
    there, here = demoreel.open("hf://datasets/me/x"), demoreel.open(local_datasets(layout))
    assert there.uri.startswith("hf://datasets/me/x@")
    assert_same_batch(there[:], here[:])
    requests = hub.requests
    assert_same_batch(there[::3], here[::3])
    assert hub.requests == requests
    assert_same_batch(pickle.loads(pickle.dumps(there))[5], here[5])


@pytest.mark.parametrize("more", [0, pytest.param(5500, marks=pytest.mark.soak)])
def test_opening_asks_little(hub, local_datasets, more):
    hub.seed("me/x", local_datasets("v3.0"))
    folders = ("data/chunk-001", "videos/chunk-001")
    hub.commit("me/x", {f"{folder}/{n}": b"" for folder in folders for n in range(more)})
    hub.reset_log()
    demoreel.open("hf://datasets/me/x")
    assert hub.requests <= 20


def test_revisions(hub, local_datasets):
    first = hub.seed("me/x", local_datasets("v2.1"), tag="v2.1")
    hub.seed("me/x", local_datasets("v3.0"), revision="other")
    second = hub.seed("me/x", local_datasets("v3.0"), tag="v3.0")
    for uri, commit, layout in (
        ("hf://datasets/me/x", second, "v3.0"),
        ("hf://datasets/me/x@v2.1", first, "v2.1"),
        (f"hf://datasets/me/x@{first}", first, "v2.1"),
    ):
        there = demoreel.open(uri)
        assert (there.layout, there.uri) == (layout, f"hf://datasets/me/x@{commit}")
    assert demoreel.open("hf://datasets/me/x@other").layout == "v3.0"
    with pytest.raises(DatasetNotFoundError):
        demoreel.open("hf://datasets/me/x@nothing")


def test_a_commit_that_comes_later_changes_nothing(hub, local_datasets):
    hub.seed("me/x", local_datasets("v3.0"), tag="v3.0")
    there = demoreel.open("hf://datasets/me/x")
    video = next(name for name in hub.files("me/x") if name.endswith(".mp4"))
    hub.commit("me/x", {video: b"something else"})
    assert_same_batch(there[::9], demoreel.open(local_datasets("v3.0"))[::9])


def test_a_folder_in_a_repository(hub, local_datasets):
    files = {
        f"sub folder/{path.relative_to(local_datasets('v3.0')).as_posix()}": path.read_bytes()
        for path in local_datasets("v3.0").rglob("*")
        if path.is_file()
    }
    hub.seed("me/x", tag="v3.0")
    hub.commit("me/x", files)
    there = demoreel.open("hf://datasets/me/x@main/sub folder")
    assert_same_batch(there[::9], demoreel.open(local_datasets("v3.0"))[::9])
    with pytest.raises(DatasetNotFoundError, match="sub folder"):
        demoreel.open("hf://datasets/me/x@main")


def test_private_ones(hub, local_datasets, monkeypatch):
    hub.seed("me/x", local_datasets("v3.0"), tag="v3.0", private=True)
    wanted = demoreel.open(local_datasets("v3.0"))[::9]
    assert_same_batch(demoreel.open("hf://datasets/me/x")[::9], wanted)
    monkeypatch.setenv("HF_TOKEN", hub.stranger_token)
    with pytest.raises(DatasetNotFoundError):
        demoreel.open("hf://datasets/me/x")
    options = {"hf_token": hub.token}
    there = demoreel.open("hf://datasets/me/x", storage_options=options)
    assert hub.token.encode() not in pickle.dumps(there)
    assert_same_batch(pickle.loads(pickle.dumps(there))[::9], wanted)
    with pytest.raises(ArgumentError, match="means nothing"):
        demoreel.open("hf://datasets/me/x", storage_options={"aws_region": "x"})


@pytest.mark.parametrize(
    ("location", "headers"),
    [
        ("/elsewhere", True),
        ("https://hub.test/elsewhere", True),
        ("https://other.test/x", False),
        ("https://hub.test:8443/x", False),
        ("//other.test/x", False),
        ("https://hub.test@other.test/x", False),
    ],
)
def test_where_the_token_follows(location, headers):
    store = hub_store("hf://buckets/me/x", {"hf_token": "hush"})
    link = Link("https://hub.test/x", {"Authorization": "Bearer hush"})
    assert bool(store.moved("x", link, location).headers) == headers


@pytest.mark.parametrize("location", ["file:///etc/passwd", "http://hub.test/x", "ftp://x/y"])
def test_addresses_that_are_not_followed(location):
    store = hub_store("hf://buckets/me/x", {"hf_token": "hush"})
    with pytest.raises(StoreError, match="not safe"):
        store.moved("x", Link("https://hub.test/x", {"Authorization": "hush"}), location)


def test_the_token_is_for_the_hub_alone(hub, local_datasets, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG)
    hub.seed("me/x", local_datasets("v3.0"), tag="v3.0", private=True)
    there = demoreel.open("hf://datasets/me/x")
    there[0], there[40]
    elsewhere = [entry for entry in hub.log if entry.route == "cdn"]
    assert elsewhere
    assert not any(entry.authorized for entry in elsewhere)
    said = f"{there!r} {vars(there)} {there._arguments} {vars(there.folder.store)}"
    hub.fail_next(1000, status=403, on="cdn")
    hub.fail_next(1000, status=403, on="resolve")
    monkeypatch.setattr(cache, "_memory", ByteCache(1 << 20))  # what was read before is in it
    with pytest.raises(AccessError) as caught:
        demoreel.open("hf://datasets/me/x")[20]
    said += "".join(traceback.format_exception(caught.value)) + repr(pickle.dumps(caught.value))
    said += caplog.text
    assert hub.token not in said
    assert "Signature=" not in said


def test_links_that_have_run_out_are_renewed(hub, local_datasets, monkeypatch):
    hub.seed("me/x", local_datasets("v3.0"), tag="v3.0")
    there, here = demoreel.open("hf://datasets/me/x"), demoreel.open(local_datasets("v3.0"))
    there[0]
    hub.expire_urls()
    monkeypatch.setattr(cache, "_memory", ByteCache(1 << 20))
    assert_same_batch(there[::9], here[::9])


@pytest.mark.parametrize(
    "fault", [{"status": 503}, {"status": 429, "retry_after": 0}, {"status": 500}]
)
def test_a_hub_that_is_busy(hub, local_datasets, fault):
    hub.seed("me/x", local_datasets("v3.0"), tag="v3.0")
    there = demoreel.open("hf://datasets/me/x")
    hub.fail_next(2, on="cdn", **fault)
    hub.fail_next(2, on="resolve", **fault)
    hub.cut_download(100)
    assert_same_batch(there[::9], demoreel.open(local_datasets("v3.0"))[::9])


def test_files_that_the_hub_has_lost(hub, local_datasets):
    hub.seed("me/x", local_datasets("v3.0"), tag="v3.0")
    there = demoreel.open("hf://datasets/me/x")
    hub.fail_next(1000, status=404, on="resolve")
    with pytest.raises(StoreError, match=r"\.mp4|\.parquet"):
        there[0]


def test_no_such_place(hub):
    with pytest.raises(DatasetNotFoundError):
        demoreel.open("hf://datasets/me/nothing")
    with pytest.raises(DatasetNotFoundError):
        demoreel.open("hf://buckets/me/nothing")


# Buckets


@pytest.mark.parametrize("layout", ["v2.1", "v3.0"])
def test_buckets(hub, local_datasets, layout):
    hub.seed("me/b", local_datasets(layout), repo_type="bucket")
    there, here = demoreel.open("hf://buckets/me/b"), demoreel.open(local_datasets(layout))
    assert there.uri == "hf://buckets/me/b"
    assert_same_batch(there[:], here[:])


def test_a_bucket_that_changes(hub, local_datasets, monkeypatch):
    """Its listing tells no state, so nothing that was copied before is used."""
    hub.seed("me/b", local_datasets("v3.0"), repo_type="bucket")
    first = demoreel.open("hf://buckets/me/b")
    first[0]
    info = hub.read("me/b", "meta/info.json", repo_type="bucket")
    video = next(name for name in hub.files("me/b", repo_type="bucket") if "cam0" in name)
    film = hub.read("me/b", video, repo_type="bucket")
    changed = info.replace(b'"fps": 30', b'"fps": 25', 1)
    hub.commit("me/b", {"meta/info.json": changed, video: film[:-1] + b"?"}, repo_type="bucket")
    assert demoreel.open("hf://buckets/me/b").info.to_json() != first.info.to_json()
    monkeypatch.setattr(cache, "_memory", ByteCache(1 << 20))
    hub.expire_urls()  # those that lead to the old bytes
    with pytest.raises(ObjectChangedError):
        first.batch(range(0, 56, 5))


# Processes


def test_offline(hub, local_datasets):
    hub.seed("me/unasked", local_datasets("v3.0"), tag="v3.0")
    program = "import demoreel, sys; demoreel.open('hf://datasets/me/unasked')[0]"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "HF_HUB_OFFLINE" in ended.stderr
    # By name: this process may still be reading ahead for a test before this one.
    assert [entry.path for entry in hub.log if "unasked" in entry.path] == []


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout.startswith("lance")])
def test_lance_on_the_hub(hub, local_datasets, layout):
    hub.seed("me/x", local_datasets(layout), tag="v3.0")
    there = demoreel.open("hf://datasets/me/x")
    assert_same_batch(there[::9], demoreel.open(local_datasets(layout))[::9])
