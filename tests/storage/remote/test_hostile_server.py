"""A server that lies about names, sizes and states: an error of the tree, and nothing is kept."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import demoreel
from demoreel.errors import ObjectChangedError, StoreError, TableError, UnsafePathError
from support.fuzz import make_bases
from support.fuzz.store import FolderS3


@pytest.fixture(scope="module")
def bucket(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bucket")
    make_bases(folder, ["v3", "lance-frames"])
    return folder


@pytest.fixture
def server(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("DEMOREEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DEMOREEL_STAGING", str(tmp_path / "staging"))
    with FolderS3(bucket) as server:
        yield server
        assert not server.written


def opened(server: FolderS3, name: str = "v3", **options):
    return demoreel.open(server.uri(name), storage_options=server.storage_options, **options)


def lists_files(asked) -> bool:
    return "list-type" in asked.query and "delimiter" not in asked.query


def ways_in(server: FolderS3, tmp_path: Path):
    yield lambda: opened(server)[0]
    target = tmp_path / "pulled"
    yield lambda: demoreel.pull(server.uri("v3"), target, storage_options=server.storage_options)
    assert not target.exists()


# Listings


def test_a_listing_that_repeats_itself(server, tmp_path):
    page = [(f"v3/meta/{number}", 1) for number in range(1000)]

    def lie(handler, asked):
        if lists_files(asked):
            handler.answer_listing(page, {}, "again")
        return lists_files(asked)

    server.lie = lie
    for way in ways_in(server, tmp_path):
        with pytest.raises(StoreError, match="twice"):
            way()


def test_a_listing_without_end(server, tmp_path, monkeypatch):
    monkeypatch.setenv("DEMOREEL_LIMIT_LISTED_FILES", "2500")

    def lie(handler, asked):
        if lists_files(asked):
            at = int(asked.query.get("continuation-token", "0"))
            handler.answer_listing(
                [(f"v3/meta/{at}-{number}", 1) for number in range(1000)], {}, str(at + 1)
            )
        return lists_files(asked)

    server.lie = lie
    for way in ways_in(server, tmp_path):
        with pytest.raises(StoreError, match="LISTED_FILES"):
            way()


def test_folders_without_end(server, monkeypatch):
    monkeypatch.setattr("demoreel.storage.remote.object_store._FOLDERS_S", 0.5)

    def lie(handler, asked):
        if "delimiter" in asked.query:
            handler.answer_listing([], {"v3/meta/": None}, "again")
        return "delimiter" in asked.query

    server.lie = lie
    with pytest.raises(StoreError, match="did not list"):
        opened(server)


@pytest.mark.parametrize(
    "name", ["../../x", "/etc/x", "a\x7f", "a\nb", "a" * 300, "a\\b", "./x", "info.json/x"]
)
def test_names_that_no_folder_may_hold(server, bucket, tmp_path, name):
    size = (bucket / "v3/meta/info.json").stat().st_size

    def lie(handler, asked):
        if lists_files(asked):
            handler.answer_listing([("v3/meta/info.json", size), (f"v3/meta/{name}", 4)], {}, None)
        return lists_files(asked)

    server.lie = lie
    for way in ways_in(server, tmp_path):
        with pytest.raises((UnsafePathError, StoreError)):
            way()
    kept = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert not [name for name in kept if name in ("x", "a")]


def test_metadata_of_a_terabyte(server):
    def lie(handler, asked):
        if lists_files(asked):
            handler.answer_listing([("v3/meta/info.json", 1 << 40)], {}, None)
        return lists_files(asked)

    server.lie = lie
    with pytest.raises(StoreError, match="METADATA_BYTES"):
        opened(server)


# Answers


def answers(change):
    """A lie about each object: what changes its size, its headers and its status."""

    def lie(handler, asked):
        if not asked.size:
            return False
        headers = handler.headers_of(asked)
        headers["Content-Range"] = f"bytes {asked.first}-{asked.stop - 1}/{asked.size}"
        status, body = change(headers, asked)
        handler.close_connection = True
        handler.head(status, headers)
        handler.wfile.write(body)
        return True

    return lie


def another_size(headers, asked):
    headers["Content-Range"] = f"bytes {asked.first}-{asked.stop - 1}/{asked.size + 5}"
    return 206, bytes(asked.stop - asked.first)


def a_terabyte(headers, asked):
    headers["Content-Length"] = str(1 << 40)
    return 200, bytes(1 << 20)


def elsewhere(headers, asked):
    headers |= {"Content-Length": "0", "Location": "/robots/v3/meta/info.json"}
    return 302, b""


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (another_size, ObjectChangedError),
        (a_terabyte, ObjectChangedError),
        (elsewhere, StoreError),
    ],
)
def test_answers_of_another_size_or_place(server, tmp_path, change, error):
    server.lie = answers(change)
    for way in ways_in(server, tmp_path):
        with pytest.raises(error):
            way()


def longer(headers, asked):
    size = asked.stop - asked.first + 9
    headers["Content-Length"] = str(size)
    return 206, bytes(size)


def shorter(headers, asked):
    headers["Content-Length"] = str(asked.stop - asked.first - 1)
    return 206, bytes(asked.stop - asked.first - 1)


def endless(headers, asked):
    del headers["Content-Length"]
    return 206, bytes(8 << 20)


@pytest.mark.parametrize("change", [longer, shorter, endless])
def test_ranges_of_another_length(server, tmp_path, monkeypatch, change):
    monkeypatch.setattr("demoreel.storage.remote.transfer._MOST_TRIES", 2)
    server.lie = answers(change)
    for way in ways_in(server, tmp_path):
        with pytest.raises(StoreError, match="2 tries"):
            way()


# Data


def test_lists_that_unfold_are_refused_when_a_query_reads_them(server, bucket, monkeypatch):
    shutil.copytree(bucket / "v3", bucket / "lists")
    path = next((bucket / "lists" / "data").rglob("*.parquet"))
    table = pq.read_table(path)
    rows = len(table)
    values = pa.array([0.0]).take(pa.array([0] * 400_000))
    ends = pa.array([number * 400_000 // rows for number in range(rows + 1)], pa.int32())
    place = table.column_names.index("action")
    table = table.set_column(place, "action", pa.ListArray.from_arrays(ends, values))
    pq.write_table(table, path, store_schema=False)
    assert path.stat().st_size < 20_000
    monkeypatch.setenv("DEMOREEL_LIMIT_TABLE_BYTES", "1MiB")
    dataset = opened(server, "lists")
    assert dataset.sql("select count(*), max(note) from frames").num_rows == 1
    for query in ("select max(action[1]) from frames", "select * from frames"):
        with pytest.raises(TableError, match="TABLE_BYTES"):
            dataset.sql(query)


def test_a_manifest_of_gigabytes(server, bucket, tmp_path):
    shutil.copytree(bucket / "lance-frames", bucket / "manifest")
    for table in (bucket / "manifest").glob("*.lance"):
        newest = min((table / "_versions").glob("*.manifest"))
        end = newest.read_bytes()[-8:]
        with newest.open("wb") as file:
            file.write(struct.pack("<I", 0xFFFFFFF0))
            file.truncate(6 << 30)
            file.seek(0, 2)
            file.write(struct.pack("<Q", 0) + end)
    with pytest.raises(TableError, match="MANIFEST_BYTES"):
        opened(server, "manifest")[0]
    with pytest.raises(TableError, match="MANIFEST_BYTES"):
        demoreel.open(bucket / "manifest")[0]
    options = {"storage_options": server.storage_options}
    with pytest.raises(StoreError, match="MANIFEST_BYTES"):  # before it is fetched
        demoreel.repair(server.uri("manifest"), tmp_path / "repaired", **options)


def test_rows_of_a_lance_table_that_unfold(bucket, monkeypatch):
    monkeypatch.setenv("DEMOREEL_LIMIT_TABLE_BYTES", "200")
    with pytest.raises(TableError, match="TABLE_BYTES"):
        demoreel.open(bucket / "lance-frames")[0]
