"""What is remembered: right for as long as files do not change, and never needed."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess

import pytest

from demoreel.hub.records import CheckSums, last_known, remember

INFO = "meta/info.json"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def sums(root, kind="sha256"):
    return CheckSums(root).of([(INFO, root / INFO, kind)])[INFO]


def test_sums_are_those_of_lfs_and_git(fixtures):
    root = fixtures / "g1_v30"
    content = (root / INFO).read_bytes()
    assert sums(root) == hashlib.sha256(content).hexdigest()
    command = ["git", "hash-object", "--no-filters", str(root / INFO)]
    there = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert sums(root, "git") == there
    assert CheckSums(root).of([("x", content, "git")]) == {"x": there}


def test_a_file_is_read_once(fixtures, cache):
    root = fixtures / "g1_v30"
    first = sums(root)
    (note,) = cache.rglob("sums-*.json")
    note.write_text(note.read_text().replace(first, "f" * 64))
    assert sums(root) == "f" * 64  # used: the file is as it was


def test_a_file_that_changed_is_read_again(tmp_path, cache):
    (tmp_path / "meta").mkdir()
    path = tmp_path / INFO
    seen = set()
    for content in ("aaaa", "bbbb", "cccc"):  # as fast as it goes, with the same size and time
        path.write_text(content)
        os.utime(path, ns=(10**18, 10**18))
        seen.add(sums(tmp_path))
    assert len(seen) == 3


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"meta/info.json": 3}', "\x00"])
def test_a_damaged_memory_is_no_memory(fixtures, cache, damage):
    root = fixtures / "g1_v30"
    first = sums(root)
    remember(root, "https://hub", "me/x", "main", "c" * 40, {INFO: first})
    for note in cache.rglob("*.json"):
        note.write_text(damage)
    assert sums(root) == first
    assert last_known(root, "https://hub", "me/x", "main") is None


def test_notes_are_of_one_folder_and_one_branch(tmp_path):
    remember(tmp_path, "https://hub", "me/x", "main", "c" * 40, {INFO: "1"})
    found = last_known(tmp_path, "https://hub", "me/x", "main")
    assert found is not None
    assert found.commit == "c" * 40
    assert found.files == {INFO: "1"}
    for other in [
        ("https://b", "me/x", "main"),
        ("https://hub", "me/y", "main"),
        ("https://hub", "me/x", "dev"),
    ]:
        assert last_known(tmp_path, *other) is None
    assert last_known(tmp_path / "..", "https://hub", "me/x", "main") is None


def test_a_home_that_cannot_be_written(tmp_path, monkeypatch, fixtures):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    remember(tmp_path, "https://hub", "me/x", "main", "c" * 40, {})
    assert last_known(tmp_path, "https://hub", "me/x", "main") is None
    assert len(sums(fixtures / "g1_v30")) == 64


def test_a_pulled_folder_says_what_it_was_pulled_from(tmp_path):
    (tmp_path / ".demoreel").mkdir()
    note = {
        "repo_id": "me/x",
        "commit": "d" * 40,
        "episodes": None,
        "files": {INFO: [4, None, "e" * 40, 1]},
    }
    record = tmp_path / ".demoreel" / "pulled.json"
    record.write_text(json.dumps(note))
    found = last_known(tmp_path, "https://hub", "me/x", "main")
    assert found is not None
    assert found.commit == "d" * 40
    assert found.files == {INFO: "e" * 40}
    assert last_known(tmp_path, "https://hub", "me/y", "main") is None
    record.write_text(json.dumps({**note, "episodes": [1]}))
    assert last_known(tmp_path, "https://hub", "me/x", "main") is None
    record.write_text(json.dumps(note))
    os.utime(record, ns=(10**18, 10**18))
    remember(tmp_path, "https://hub", "me/x", "main", "c" * 40, {})
    newest = last_known(tmp_path, "https://hub", "me/x", "main")
    assert newest is not None
    assert newest.commit == "c" * 40
