"""Which files outside a dataset its tables may name, and which spellings do not get around that."""

from __future__ import annotations

import os
import shutil

import pytest

from demoreel.errors import ArgumentError, UnsafePathError
from demoreel.storage.external import (
    External,
    allow_as,
    allow_external,
    linked_folders,
    prefixes_of,
    remember_links,
    shown,
)
from demoreel.storage.place import RemotePlace


@pytest.fixture
def table(tmp_path):
    """A table in a dataset's folder."""
    made = tmp_path / "data" / "a" / "videos.lance"
    (made / "_versions").mkdir(parents=True)
    (made / "_versions" / "1.manifest").write_bytes(b"random names")
    return made


INSIDE = ["videos/x.mp4", "x.mp4", "videos.lance/data/x", "with space/x.mp4", "100%.mp4"]


@pytest.mark.parametrize("name", INSIDE)
def test_the_datasets_own_folder_is_allowed(table, name):
    path = table.parent / name
    for uri in (path.as_uri(), path.as_uri().replace("file://", "FILE://localhost"), str(path)):
        assert not External(str(table)).refuses(uri)


OUTSIDE = [
    "file:///etc/passwd",
    "/etc/passwd",
    "etc/passwd",
    "",
    "file:",
    "file://",
    "file:///",
    "{root}b/x.mp4",  # /data/ab beside /data/a
    "{root}/../ab/x.mp4",
    "{root}/./../ab/x.mp4",
    "{root}/%2e%2e/ab/x.mp4",
    "{root}/%2E%2e%2Fab/x.mp4",
    "{root}/..%2fab/x.mp4",
    "{root}/%252e%252e/../x.mp4",
    "{root}/%252e%252e/ab/x.mp4",
    "{path}/%2e%2e/ab/x.mp4",
    "{root}//../x.mp4",
    "{root}//x.mp4",
    "{root}/x.mp4?y",
    "{root}/x.mp4#y",
    "{root}/x\\..\\y.mp4",
    "{root}/x.mp4\n",
    "{root}/x%00.mp4",
    "file://evil{path}/x.mp4",
    "file://user@localhost{path}/x.mp4",
    "file-object-store://{path}/x.mp4",
    "http://127.0.0.1{path}/x.mp4",
    "s3://bucket/x.mp4",
    "hf://datasets/me/private/x.mp4",
    "gs://bucket/x.mp4",
    "az://container/x.mp4",
    "memory://x",
]


@pytest.mark.parametrize("uri", OUTSIDE)
def test_everything_else_is_refused(table, uri):
    path = str(table.parent)
    uri = uri.replace("{root}", f"file://{path}").replace("{path}", path)
    external = External(str(table))
    assert external.refuses(uri)
    with pytest.raises(UnsafePathError, match="allow_external"):
        external.require([uri])


def test_links_are_followed_before_they_are_judged(table, tmp_path):
    (tmp_path / "secret").mkdir()
    (table.parent / "inside").symlink_to(tmp_path / "secret")
    assert External(str(table)).refuses((table.parent / "inside" / "x").as_uri())
    (tmp_path / "link").symlink_to(table.parent)
    assert not External(str(tmp_path / "link" / table.name)).refuses(
        (table.parent / "x.mp4").as_uri()
    )


def test_a_prefix_ends_where_a_folder_ends(table, tmp_path):
    allow_external(table.parent, tmp_path / "data" / "b")
    external = External(str(table))
    assert not external.refuses((tmp_path / "data" / "b" / "x.mp4").as_uri())
    for name in ("bb/x.mp4", "b.mp4", "x.mp4", "b/../c/x.mp4"):
        assert external.refuses(f"file://{tmp_path}/data/{name}")


def test_what_is_allowed_to_one_dataset_is_not_to_another(table, tmp_path):
    other = tmp_path / "other" / "videos.lance"
    allow_external(table.parent, "s3://bucket/videos/")
    assert not External(str(table)).refuses("s3://bucket/videos/x.mp4")
    assert External(str(other)).refuses("s3://bucket/videos/x.mp4")
    allow_external(None, "s3://bucket/videos")
    assert not External(str(other)).refuses("S3://bucket/videos/x.mp4")


IN_A_STORE = {
    "s3://bucket/ds/videos/x.mp4": False,
    "s3://bucket/ds": False,
    "s3://bucket/dsx/x.mp4": True,
    "s3://bucket/other/x.mp4": True,
    "s3://bucket/ds/../other/x.mp4": True,
    "s3://bucket/ds/%2e%2e/other/x.mp4": True,
    "s3://bucket/ds//x.mp4": True,
    "s3://bucket.evil/ds/x.mp4": True,
    "s3://me@bucket/ds/x.mp4": True,
    "s3://bucket:80/ds/x.mp4": True,
    "s3://bucket/ds/x.mp4?token=1": True,
    "gs://bucket/ds/x.mp4": True,
    "file:///etc/passwd": True,
    "ds/x.mp4": True,
}


@pytest.mark.parametrize(("uri", "refused"), IN_A_STORE.items())
def test_a_table_in_a_store_names_what_lies_beside_it(uri, refused):
    external = External(RemotePlace("s3://bucket/ds/videos.lance"))
    assert external.refuses(uri) is refused


def test_a_copy_may_name_what_the_original_may(tmp_path):
    allow_external("s3://bucket/ds", tmp_path / "here")
    allow_as(tmp_path / "copy", "s3://bucket/ds")
    external = External(str(tmp_path / "copy" / "videos.lance"))
    assert not external.refuses("s3://bucket/ds/x.mp4")
    assert not external.refuses((tmp_path / "here" / "x.mp4").as_uri())
    assert external.refuses("s3://bucket/x.mp4")


@pytest.mark.parametrize("prefix", ["", 3, ["/a", None], "s3://", "s3://a/../b", "file://host/x"])
def test_prefixes_that_are_none_are_refused(table, prefix):
    with pytest.raises(ArgumentError, match="allow_external"):
        allow_external(table.parent, prefix)
    assert External(str(table)).refuses("s3://a/b")


def test_a_link_is_noted_for_this_user_and_this_table(table, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    source = tmp_path / "source"
    uri = (source / "x.mp4").as_uri()
    remember_links(table, [str(source)], made_in=table)
    assert linked_folders(str(table)) == [str(source)]
    assert not External(str(table)).refuses(uri)
    elsewhere = shutil.copytree(table, tmp_path / "copy" / table.name)
    assert External(str(elsewhere)).refuses(uri)
    (table / "_versions" / "2.manifest").write_bytes(b"more rows")
    assert not External(str(table)).refuses(uri)
    (table / "_versions" / "1.manifest").write_bytes(b"another table in its place")
    assert External(str(table)).refuses(uri)


@pytest.mark.parametrize("text", ["", "[]", '{"links": 3}', '{"links": {"x": 3}}', "\xff"])
def test_a_damaged_note_allows_nothing(table, tmp_path, monkeypatch, text):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "demoreel").mkdir()
    (tmp_path / "demoreel" / "links.json").write_bytes(text.encode("latin1"))
    assert External(str(table)).refuses("file:///etc/passwd")
    remember_links(table, ["/x"], made_in=table)
    assert not External(str(table)).refuses("file:///x/y")


def test_errors_show_no_secrets():
    assert shown("s3://user:secret@bucket/x?token=abc\x1b[2J") == "s3://bucket/x"
    assert prefixes_of(["file:///a/b%20c/x.mp4", "file:///a/b%20c/y.mp4"]) == ["/a/b c"]
    assert len(shown("file:///" + "x" * 9999)) < 300


def test_processes_that_are_started_know(table):
    allow_external(table.parent, "/x")
    assert "/x" in os.environ["DEMOREEL_ALLOW_EXTERNAL"]
