"""Files that are fetched: whole, some, again after an interruption, damaged on the way."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import pytest

from demoreel.errors import DatasetNotFoundError, StoreError, UnsafePathError
from demoreel.storage.remote import fetch
from demoreel.storage.remote.fetch import (
    fetch_folder,
    local_copies,
    local_copy,
    name_of,
    working_home,
)
from demoreel.storage.store import FileInfo
from support.hub_server import HubServer
from support.proxy.faults import Cut, ShortBody, Status

from .conftest import FolderStore


def content(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder, but for hidden ones at its top."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.relative_to(folder).parts[0].startswith(".demoreel")
    }


def fetched(proxy) -> set[str]:
    """Return the paths of objects that were asked for; listings ask for the bucket."""
    paths = {request.path.split("?")[0] for request in proxy.log if request.method == "GET"}
    return {path for path in paths if path.strip("/").count("/")}


@pytest.mark.parametrize("layout", ["v3.0", "lance-video"])
def test_a_folder_arrives_whole(layout, uploaded, local_datasets, tmp_path):
    shares: list[float] = []
    done = fetch_folder(uploaded(layout), tmp_path / "copy", report=shares.append)
    here = content(tmp_path / "copy")
    assert here == content(local_datasets(layout))
    assert done.files == len(here)
    assert done.bytes == done.fetched_bytes == sum(map(len, here.values()))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_some_files(uploaded, local_datasets, tmp_path):
    every = content(local_datasets("v3.0"))
    table = min(name for name in every if name.startswith("data/"))
    fetch_folder(uploaded("v3.0"), tmp_path / "copy", names=[table, "data/none.parquet"])
    assert set(content(tmp_path / "copy")) == {n for n in every if n.startswith("meta/")} | {table}


def test_an_interrupted_fetch_goes_on(uploaded, local_datasets, proxy, tmp_path):
    uri, copy = uploaded("v3.0"), tmp_path / "copy"
    proxy.fail(1.0, Status(400), where="cam1")
    with pytest.raises(StoreError) as raised:
        fetch_folder(uri, copy)
    assert raised.value.where["object"].startswith(f"{uri}/videos/")
    proxy.clear()
    proxy.reset()
    fetch_folder(uri, copy)
    assert content(copy) == content(local_datasets("v3.0"))
    asked = fetched(proxy)
    assert any("cam1" in path for path in asked)
    assert not any("/meta/" in path for path in asked)
    proxy.reset()
    assert fetch_folder(uri, copy).fetched_bytes == 0
    assert fetched(proxy) == set()


def test_parts_that_are_not_what_they_were_are_fetched(
    uploaded, local_datasets, tmp_path, monkeypatch
):
    monkeypatch.setattr(fetch, "_PART_BYTES", 1000)
    uri, copy = uploaded("v3.0"), tmp_path / "copy"
    fetch_folder(uri, copy)
    table = next(copy.glob("data/*/*.parquet"))
    data = bytearray(table.read_bytes())
    data[1500] ^= 1
    table.write_bytes(data)
    assert fetch_folder(uri, copy).fetched_bytes == 1000
    assert content(copy) == content(local_datasets("v3.0"))


def test_what_changed_and_what_went(s3, uploaded, tmp_path):
    uri, copy = uploaded("v3.0"), tmp_path / "copy"
    fetch_folder(uri, copy)
    key = uri.removeprefix(f"s3://{s3.bucket}/")
    stats = s3.get(f"{key}/meta/stats.json")
    s3.put(f"{key}/meta/stats.json", stats.replace(b"1", b"2"))  # of the same size
    s3.delete(f"{key}/meta/tasks.parquet")
    assert fetch_folder(uri, copy).fetched_bytes == len(stats)
    assert (copy / "meta" / "stats.json").read_bytes() == stats.replace(b"1", b"2")
    assert not (copy / "meta" / "tasks.parquet").exists()


def test_faults_on_the_way(uploaded, local_datasets, proxy, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "_PART_BYTES", 3000)
    uri = uploaded("v3.0")
    faults = [Cut(100), ShortBody(5), ShortBody(7, "asked"), Status(503)]
    proxy.fail(0.2, faults, where="data/")
    fetch_folder(uri, tmp_path / "copy")
    assert content(tmp_path / "copy") == content(local_datasets("v3.0"))


def test_marks_of_folders_and_odd_names_do_no_harm(folder_store, tmp_path):
    """A store's console makes an object for each folder, and someone has put a log there."""
    right = content(folder_store.folder)
    (folder_store.folder / "run_12:30.log").write_text("x")
    folder_store.lies = [FileInfo("", 0, None), FileInfo("meta/", 0, None)]
    fetch_folder(folder_store, tmp_path / "copy")
    assert content(tmp_path / "copy") == {**right, "run_12:30.log": b"x"}


def test_names_that_lead_elsewhere(folder_store, tmp_path):
    odd = ("a\0b", "a\nb", "x" * 256, "meta/info.json/x", "meta")
    for name in ("../out", "data/../../out", "data//x", "/etc/x", "a\\b", *odd):
        folder_store.lies = [FileInfo(name, 3, None)]
        with pytest.raises(UnsafePathError):
            fetch_folder(folder_store, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("names", [("A.parquet", "a.parquet"), ("\u00e9.txt", "e\u0301.txt")])
def test_names_that_are_one_file_on_this_disk(folder_store, tmp_path, monkeypatch, names):
    for name in names:
        (folder_store.folder / "data" / name).write_text(name)
    fetch_folder(folder_store, tmp_path / "copy")  # this disk tells them apart
    assert [(tmp_path / "copy" / "data" / name).read_text() for name in names] == list(names)

    def lexists(path):  # as on a disk that does not
        def folded(text):
            return unicodedata.normalize("NFC", os.fspath(text)).casefold()

        return folded(path) in [folded(p) for p in Path(path).parent.iterdir()]

    monkeypatch.setattr("demoreel.storage.names.os.path.lexists", lexists)
    with pytest.raises(UnsafePathError, match="are one file on this disk"):
        fetch_folder(folder_store, tmp_path / "other")
    assert list((tmp_path / "other").iterdir()) == []


def test_hidden_files_stay(folder_store, tmp_path):
    (folder_store.folder / ".demoreel").mkdir(exist_ok=True)
    (folder_store.folder / ".demoreel" / "journal.json").write_text("{}")
    fetch_folder(folder_store, tmp_path / "copy")
    assert not (tmp_path / "copy" / ".demoreel").exists()


class OddStore(FolderStore):
    """Objects whose etags look like check sums, and are none; or whose check sums are wrong."""

    wrong: str | None = None

    def sha256(self, name: str) -> str | None:
        return self.wrong

    def stat(self, name: str) -> FileInfo:
        return super().stat(name)._replace(etag="0" * 32)


def test_an_etag_that_is_no_check_sum(folder_store, tmp_path):
    store = OddStore(folder_store.folder)
    fetch_folder(store, tmp_path / "copy")
    assert content(tmp_path / "copy") == content(store.folder)


def test_a_wrong_check_sum(folder_store, tmp_path):
    store = OddStore(folder_store.folder)
    store.wrong = "0" * 64
    with pytest.raises(StoreError, match="arrived damaged twice"):
        fetch_folder(store, tmp_path / "copy")


def test_a_dataset_of_the_hub(local_datasets, tmp_path, monkeypatch):
    with HubServer(tmp_path / "hub") as hub:
        for name, value in hub.environment.items():
            monkeypatch.setenv(name, value)
        hub.seed("me/task", local_datasets("v2.1"))
        fetch_folder("hf://datasets/me/task", tmp_path / "copy")
    here = content(tmp_path / "copy")
    assert {n: d for n, d in here.items() if "/" in n} == content(local_datasets("v2.1"))


def test_nothing_there(s3, proxy, tmp_path):
    with pytest.raises(DatasetNotFoundError):
        fetch_folder(s3.uri("nobody/was/here"), tmp_path / "copy")


# Copies that do not last


def test_a_copy_is_gone_at_the_end(uploaded, local_datasets):
    uri = uploaded("v3.0")
    with local_copy(uri) as first, local_copy(uri) as second:
        assert first != second
        assert first.name == second.name == "v3.0"
        assert content(first) == content(second) == content(local_datasets("v3.0"))
    assert list(working_home().iterdir()) == []


def test_a_copy_stays_when_it_is_interrupted(uploaded, proxy, monkeypatch, tmp_path):
    monkeypatch.setenv("DEMOREEL_STAGING", str(tmp_path / "elsewhere"))
    uri = uploaded("v3.0")
    with pytest.raises(KeyboardInterrupt), local_copy(uri):
        raise KeyboardInterrupt
    assert len(list((tmp_path / "elsewhere").iterdir())) == 1
    proxy.reset()
    with pytest.raises(ValueError, match="mine"), local_copy(uri):
        raise ValueError("mine")
    assert fetched(proxy) == set()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_old_copies_go(uploaded, tmp_path, monkeypatch):
    monkeypatch.setenv("DEMOREEL_STAGING", str(tmp_path / "work"))
    old, young = f"copy-{'0' * 16}", f"send-{'1' * 16}-1"
    for name, age in ((old, 9e5), (young, 100), ("somebody's", 9e5)):
        (tmp_path / "work" / name).mkdir(parents=True)
        (tmp_path / "work" / name / "lock").touch()
        then = (tmp_path / "work" / name).stat().st_mtime - age
        os.utime(tmp_path / "work" / name, (then, then))
    with local_copies(["./here", uploaded("v2.1")]) as copies:
        assert len(copies) == 1
    assert {place.name for place in (tmp_path / "work").iterdir()} == {young, "somebody's"}


def test_names():
    assert name_of("s3://bucket/a/pick cube/") == "pick_cube"
    assert name_of("hf://datasets/me/task@0123abc") == "task"
    assert name_of("s3://bucket/..") == "dataset"
