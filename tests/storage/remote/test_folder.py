"""A dataset's remote folder: which requests opening makes, and the copy of its metadata."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import wait

import pytest

from demoreel.errors import (
    ArgumentError,
    DatasetNotFoundError,
    ObjectChangedError,
    StoreError,
    UnsafePathError,
)
from demoreel.storage.remote import folder as module
from demoreel.storage.remote.folder import open_folder
from demoreel.storage.store import FileInfo


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DEMOREEL_CACHE", str(tmp_path / "home"))
    return tmp_path / "home"


def opened(store, **options):
    return open_folder(store, **{"cache_dir": None, "cache_size": None, **options})


def test_metadata_are_copied_once_for_each_state(folder_store):
    first = opened(folder_store)
    for path in (folder_store.folder / "meta").rglob("*.json"):
        copied = first.local / path.relative_to(folder_store.folder)
        assert copied.read_bytes() == path.read_bytes()
    assert not (first.local / "data").exists()
    folder_store.asked.clear()
    assert opened(folder_store).local == first.local
    assert folder_store.asked == ["folders", "meta/", "data/", "videos/"]
    path = folder_store.folder / "meta" / "info.json"
    path.write_text(path.read_text().replace("30", "25"))  # of the same size
    assert opened(folder_store).local != first.local


def test_files_that_were_listed_are_known(folder_store):
    folder = opened(folder_store)
    name = "data/chunk-000/file-000.parquet"
    assert folder.file(name) is folder.file(name)
    assert folder.file(name).is_known
    assert folder.file(name).uri == f"s3://bucket/folder/{name}"
    other = folder.file("data/chunk-000/file-999.parquet")
    assert not other.is_known
    shutil.copy(folder_store.folder / name, folder_store.folder / "data/chunk-000/file-999.parquet")
    assert other.read(0, 4) == b"PAR1"
    assert other.is_known


@pytest.mark.parametrize(
    "damage",
    [
        lambda local: (local / "meta/info.json").write_text("{"),
        lambda local: (local / "meta/tasks.parquet").unlink(),
        lambda local: (local / "listing.json").write_text('{"uri": '),
        lambda local: shutil.rmtree(local / "meta"),
        lambda local: (local / "listing.json").unlink(),
    ],
    ids=["cut off", "removed", "listing cut off", "folder removed", "listing removed"],
)
def test_a_damaged_copy_is_made_anew(folder_store, damage):
    first = opened(folder_store)
    damage(first.local)
    again = opened(folder_store)
    assert again.local == first.local
    info = folder_store.folder / "meta/info.json"
    assert (again.local / "meta/info.json").read_bytes() == info.read_bytes()
    assert again.file("data/chunk-000/file-000.parquet").is_known


def test_someone_is_just_replacing_it(folder_store):
    """The first listing is of what is no longer there."""
    listed = folder_store.list

    def files(under="", *, most_pages=None):
        found, every = listed(under, most_pages=most_pages)
        if folder_store.asked.count("meta/") == 1:
            found = [file._replace(etag="old") for file in found]
        return found, every

    folder_store.list = files
    assert opened(folder_store).local.is_dir()
    assert folder_store.asked.count("meta/") == 2


def test_someone_replaces_it_for_ever(folder_store):
    listed = folder_store.list
    folder_store.list = lambda under="", *, most_pages=None: (
        [file._replace(etag="old") for file in listed(under, most_pages=most_pages)[0]],
        True,
    )
    with pytest.raises(ObjectChangedError):
        opened(folder_store)
    assert folder_store.asked.count("meta/") == 4


@pytest.mark.parametrize(
    "name",
    [
        *("meta/../../evil", "meta/x\\..\\evil", "meta//../evil", "meta/.."),
        *("meta/a\0b", "meta/a\nb", "meta/\x1b[2J", "meta/\ud800", f"meta/{'x' * 256}"),
        "data/../evil.lance",
    ],
)
def test_names_that_lead_elsewhere(folder_store, name, tmp_path):
    folder_store.lies = [FileInfo(name, 3, None)]
    with pytest.raises(UnsafePathError):
        opened(folder_store)
    assert not list(tmp_path.rglob("evil"))


def test_a_listing_that_names_what_lies_elsewhere(folder_store, home):
    """Folders that are named like Lance tables are made in the copy."""
    listed = folder_store.list

    def files(under="", *, most_pages=None):
        found, whole = listed(under, most_pages=most_pages)
        more = [FileInfo("../evil.lance/x", 3, None)] if under == "data/" else []
        return [*found, *more], whole

    folder_store.list = files
    with pytest.raises(UnsafePathError):
        opened(folder_store)
    assert not list(home.parent.rglob("evil*"))


def test_a_name_that_is_a_file_and_a_folder(folder_store):
    folder_store.read_directly = lambda name, begin, length, etag: bytes(length)
    folder_store.lies = [FileInfo("meta/info.json/x", 3, None)]
    with pytest.raises(StoreError, match="cannot be copied"):
        opened(folder_store)


def test_old_copies_go(folder_store, home):
    for number in range(7):
        (folder_store.folder / "meta" / "note").write_text(str(number))
        local = opened(folder_store).local
        os.utime(local, (number, number))
    kept = [place for place in local.parent.iterdir() if place != local]
    assert len(kept) == 3
    assert not [place for place in local.parent.iterdir() if place.name.startswith(".")]


def test_metadata_of_older_versions(folder_store):
    kept = folder_store.folder / ".versions" / "00000012" / "meta"
    kept.mkdir(parents=True)
    (kept / "info.json").write_text("{}")
    assert not (opened(folder_store).local / ".versions").exists()
    local = opened(folder_store, with_versions=True).local
    assert (local / ".versions/00000012/meta/info.json").read_text() == "{}"


def test_counts_of_levels_stay_where_they_are(folder_store):
    place = folder_store.folder / "meta" / "demoreel" / "counts"
    place.parent.mkdir(exist_ok=True)
    place.write_text("many")
    assert not (opened(folder_store).local / "meta" / "demoreel").exists()
    times = folder_store.folder / "meta" / "demoreel" / "capture_times"
    times.mkdir()
    (times / "file").write_text("late")
    made = opened(folder_store)
    name = "meta/demoreel/capture_times/"
    assert not (made.local / name / "file").exists()
    made.fetch(name)
    assert (made.local / name / "file").read_text() == "late"


def test_a_table_that_comes_later_is_seen(folder_store):
    first = opened(folder_store)
    (folder_store.folder / "x.lance").mkdir()
    again = opened(folder_store)
    assert again.local != first.local
    assert (again.local / "x.lance").is_dir()


def test_no_dataset(folder_store):
    (folder_store.folder / "meta" / "info.json").unlink()
    with pytest.raises(DatasetNotFoundError, match=r"s3://bucket/folder/data"):
        opened(folder_store)


@pytest.mark.parametrize("size", ["lots", -5])
def test_wrong_sizes_change_nothing(folder_store, size, home):
    with pytest.raises(ArgumentError):
        opened(folder_store, cache_size=size)
    assert not home.exists()
    assert folder_store.asked == []


def test_a_home_that_may_not_be_written(folder_store, mounted, monkeypatch, caplog):
    """Metadata are then copied into a temporary folder."""
    disk = mounted("1m")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    monkeypatch.setenv("DEMOREEL_CACHE", str(disk / "x"))
    folder = opened(folder_store)
    assert json.loads((folder.local / "meta/info.json").read_bytes())["fps"] == 30
    assert disk not in folder.local.parents
    assert "not kept in" in caplog.text
    again = opened(folder_store, cache_dir=disk / "y", cache_size="1MB")
    assert again.file("data/chunk-000/file-000.parquet").read(0, 4) == b"PAR1"


def test_no_room_for_metadata(folder_store, mounted, monkeypatch):
    monkeypatch.setenv("DEMOREEL_CACHE", str(mounted("16k")))
    assert (opened(folder_store).local / "meta/info.json").exists()


def test_the_temporary_folder_goes_with_the_process(folder_store, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "tmp").mkdir()
    program = (
        "import sys, pathlib; sys.path.insert(0, sys.argv[1])\n"
        "from demoreel.storage.remote.folder import _passing_home\n"
        "import os\n"
        "home = _passing_home(); (home / 'x').write_text('')\n"
        "child = os.fork()\n"
        "if child == 0: sys.exit()\n"
        "os.waitpid(child, 0)\n"
        "assert (home / 'x').exists()\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    subprocess.run([sys.executable, "-c", program, "."], check=True, env=environment)
    assert not list((tmp_path / "tmp").glob("*/*"))  # the user's own folder stays, empty


# Metadata that wait


def add_episode_files(folder_store, count=30):
    """Put many more files beside the table of episodes; return their names."""
    first = folder_store.folder / "meta/episodes/chunk-000/file-000.parquet"
    for number in range(1, count):
        shutil.copy(first, first.with_name(f"file-{number:03d}.parquet"))
    return [f"meta/episodes/chunk-000/file-{number:03d}.parquet" for number in range(count)]


def test_many_tables_of_episodes_wait_until_they_are_wanted(folder_store):
    names = add_episode_files(folder_store)
    folder = opened(folder_store)
    assert len(folder_store.asked) <= 20
    assert not set(names) & set(folder_store.asked)
    assert (folder.local / "meta/tasks.parquet").is_file()
    assert [file.name for file in folder.deferred("meta/episodes/")] == names
    assert folder.deferred("meta/episodes/", leaving="meta/episodes/chunk-000/") == []
    assert folder.deferred("meta/other/") == []
    folder.fetch("meta/episodes/")
    for name in names:
        assert (folder.local / name).read_bytes() == (folder_store.folder / name).read_bytes()
    assert folder.deferred("meta/episodes/") == []
    folder_store.asked.clear()
    folder.fetch("meta/episodes/")
    again = opened(folder_store)
    assert again.deferred("meta/episodes/") == []
    assert folder_store.asked == ["folders", "meta/", "data/", "videos/"]


def test_few_tables_of_episodes_do_not_wait(folder_store):
    names = add_episode_files(folder_store, count=5)
    folder = opened(folder_store)
    assert all((folder.local / name).is_file() for name in names)
    assert folder.deferred("") == []


@pytest.mark.parametrize("requests_a_file", [1, 2])
def test_as_many_as_fit_do_not_wait(folder_store, requests_a_file):
    folder_store.requests_a_file = requests_a_file
    waited = []
    for count in range(1, 16):
        add_episode_files(folder_store, count)
        folder_store.asked.clear()
        folder = opened(folder_store)
        files = [name for name in folder_store.asked if "." in name]
        lists = len(folder_store.asked) - len(files)
        assert lists + len(files) * requests_a_file <= 18  # two more pages may be to be listed
        waited.append(bool(folder.deferred("")))
    assert waited == sorted(waited)
    assert set(waited) == {False, True}


def test_what_is_cut_off_here_is_brought_again(folder_store):
    names = add_episode_files(folder_store)
    folder = opened(folder_store)
    folder.fetch("meta/episodes/")
    (folder.local / names[3]).write_bytes(b"PAR1")
    folder.fetch("meta/episodes/")
    assert (folder.local / names[3]).read_bytes() == (folder_store.folder / names[3]).read_bytes()


def test_what_has_changed_since_is_refused_when_it_is_wanted(folder_store):
    names = add_episode_files(folder_store)
    folder = opened(folder_store)
    path = folder_store.folder / names[7]
    path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(ObjectChangedError, match=r"file-007|changed"):
        folder.fetch("meta/episodes/")
    assert not (folder.local / names[7]).exists()
    assert not list(folder.local.rglob(".*"))


def test_when_it_fails_nothing_is_written_any_more(folder_store, monkeypatch):
    names, waits, under_way = add_episode_files(folder_store), threading.Event(), []
    folder, read = opened(folder_store), folder_store.read_directly

    def slow_or_broken(name, begin, length, etag):
        if name == names[3]:
            raise StoreError("No.", object=name)
        waits.wait(60)
        return read(name, begin, length, etag)

    def begin(work):
        under_way.append(transfer(work))
        return under_way[-1]

    transfer = module.transfer
    monkeypatch.setattr(module, "transfer", begin)
    folder_store.read_directly = slow_or_broken
    with pytest.raises(StoreError):
        folder.fetch("meta/episodes/chunk-000/file-00")  # ten of them, which all begin
    waits.set()
    wait(under_way)
    assert len(folder.deferred("meta/episodes/")) == len(names)


def test_a_change_of_what_waits_is_another_state(folder_store):
    names = add_episode_files(folder_store)
    first = opened(folder_store)
    path = folder_store.folder / names[9]
    path.write_bytes(path.read_bytes()[::-1])  # of the same size
    assert opened(folder_store).local != first.local


def test_where_nothing_tells_states_of_what_waits(folder_store):
    add_episode_files(folder_store)
    listed = folder_store.list
    folder_store.list = lambda under="", *, most_pages=None: (
        [
            file._replace(etag=None) if "episodes/" in file.name else file
            for file in listed(under, most_pages=most_pages)[0]
        ],
        True,
    )
    assert opened(folder_store).local != opened(folder_store).local


def test_many_files_that_nobody_reads(folder_store):
    for number in range(40):
        (folder_store.folder / "meta" / f"note-{number}.txt").write_text("mine")
    folder = opened(folder_store)
    assert len(folder_store.asked) <= 20
    assert (folder.local / "meta/info.json").is_file()
    folder.fetch("meta/")
    assert (folder.local / "meta/note-7.txt").read_text() == "mine"


def test_no_room_for_what_waited(folder_store, home):
    add_episode_files(folder_store)
    folder = opened(folder_store)
    shutil.rmtree(folder.local / "meta/episodes")
    (folder.local / "meta/episodes").write_text("in the way")
    with pytest.raises(StoreError, match="cannot be copied") as caught:
        folder.fetch("meta/episodes/")
    assert str(home) in str(caught.value)


def test_older_versions_wait_and_their_folders_tell_of_them(folder_store):
    for version in range(1, 12):
        kept = folder_store.folder / ".versions" / f"{version:08d}" / "meta"
        (kept / "episodes").mkdir(parents=True)
        for name in ("info.json", "episodes/x"):
            (kept / name).write_text(str(version))
    folder = opened(folder_store, with_versions=True)
    assert len(folder_store.asked) <= 20
    assert len(list((folder.local / ".versions").iterdir())) == 11
    under = ".versions/00000005/meta/"
    folder.fetch(under, leaving=f"{under}episodes/")
    assert (folder.local / under / "info.json").read_text() == "5"
    assert not (folder.local / under / "episodes/x").exists()
    assert not (folder.local / ".versions/00000004/meta/info.json").exists()
    shutil.rmtree(folder.local / ".versions/00000004")  # which would make 5 of version 4
    again = opened(folder_store, with_versions=True)
    assert len(list((again.local / ".versions").iterdir())) == 11
