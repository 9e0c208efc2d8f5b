"""Metadata that were kept: those of the right version, whole, whatever happens to others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from demoreel.layouts.lance.history import (
    has_history,
    keep_metadata,
    keep_settled,
    kept_versions,
    metadata_of,
    notes,
)
from demoreel.storage.names import OLD_METADATA
from support.crash import files_may_not_grow


@pytest.fixture
def root(tmp_path) -> Path:
    (tmp_path / "meta" / "episodes").mkdir(parents=True)
    write(tmp_path, "one")
    return tmp_path


def write(root: Path, text: str) -> None:
    for name in ("info.json", "episodes/file.parquet"):
        fresh = root / "fresh"
        fresh.write_text(text)
        os.replace(fresh, root / "meta" / name)


def text_of(root: Path, version: int) -> str:
    meta = metadata_of(root, version)
    assert (meta / "info.json").read_text() == (meta / "episodes" / "file.parquet").read_text()
    return (meta / "info.json").read_text()


def test_a_version_has_the_next_that_were_kept(root):
    assert not has_history(root)
    assert text_of(root, 5) == "one"
    keep_metadata(root, 3)
    write(root, "two")
    keep_metadata(root, 7)
    write(root, "three")
    assert kept_versions(root) == [3, 7]
    found = {version: text_of(root, version) for version in (1, 3, 4, 7, 8)}
    assert found == {1: "one", 3: "one", 4: "two", 7: "two", 8: "three"}


def test_what_is_kept_stays(root):
    keep_metadata(root, 3)
    write(root, "two")
    keep_metadata(root, 3)
    assert text_of(root, 3) == "one"


def test_large_files_are_not_copied(root):
    (root / "meta" / "large").write_bytes(bytes(2 << 20))
    keep_metadata(root, 3)
    same = os.path.samefile(root / "meta" / "large", metadata_of(root, 3) / "large")
    assert same
    assert not os.path.samefile(root / "meta" / "info.json", metadata_of(root, 3) / "info.json")


def test_a_full_disk_leaves_nothing(root):
    (root / "meta" / "more").write_bytes(bytes(5000))
    with files_may_not_grow(1000), pytest.raises(OSError, match="large"):
        keep_metadata(root, 3)
    assert os.listdir(root / OLD_METADATA) == []


def test_a_commit_in_between_is_noticed(root):
    (root / ".demoreel").mkdir()
    versions = iter([3, 4])

    def newest() -> int:
        number = next(versions)
        if number == 3:
            write(root, "two")  # as a writer would, right now
        return number

    keep_settled(root, newest)
    assert kept_versions(root) == [4]
    assert text_of(root, 4) == "two"
    assert not list((root / OLD_METADATA).glob(".new-*"))


def test_notes_of_nothing(root):
    assert notes(root) == {}
