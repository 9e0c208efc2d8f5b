"""What is no plain file where a recorder keeps one: named by every command, followed by none."""

from __future__ import annotations

import json
import os
import warnings

import pytest

import demoreel
from demoreel.errors import ArgumentError, DemoreelWarning, UnsafePathError
from demoreel.testing import make_dataset
from support.persisted import leave_persisted

KINDS = {
    "dangling": lambda path: path.symlink_to(path.with_name("nowhere")),
    "folder": lambda path: path.mkdir(),
    "pipe": lambda path: os.mkfifo(path),
    "loop": lambda path: path.symlink_to(path),
}


@pytest.fixture
def root(tmp_path):
    return make_dataset(tmp_path / "data", episodes=[3], cameras=1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_manifest(root, kind):
    folder = leave_persisted(root, frames=2)
    (folder / "sealed.json").unlink()
    KINDS[kind](folder / "sealed.json")
    said = {"dangling": "a link", "loop": "a link", "folder": "a folder", "pipe": "a pipe"}[kind]
    with pytest.warns(DemoreelWarning, match=f"sealed.json is {said}"):
        assert len(demoreel.open(root)) == 3
    assert "episode-waiting-damaged" in demoreel.check(root).counts
    for dry_run in (True, False):
        (kept,) = demoreel.finish(root, dry_run=dry_run).kept
        assert f"sealed.json is {said}" in kept.why
        (left,) = demoreel.clean(root, dry_run=dry_run).kept
        assert "no plain file" in left.why
    assert (folder / "rows.arrow").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_the_record_of_a_commit(root, kind):
    path = root / ".demoreel" / "journal.json"
    path.parent.mkdir()
    KINDS[kind](path)
    for work in (demoreel.open, demoreel.finish, demoreel.cut):
        with pytest.raises(UnsafePathError, match="delete it"):
            work(root)
    with pytest.raises((UnsafePathError, ArgumentError)):
        demoreel.resume(root)
    assert "commit-pending" in demoreel.check(root).counts
    path.rmdir() if kind == "folder" else path.unlink()
    assert len(demoreel.open(root)) == 3


def test_a_file_in_the_place_of_the_hidden_folder(root):
    (root / ".demoreel").write_text("mine")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(demoreel.open(root)) == 3
    demoreel.check(root)
    assert demoreel.finish(root).episodes == ()
    with pytest.raises(UnsafePathError, match=r"(?s)is a file.*move the file away"):
        demoreel.resume(root)
    assert (root / ".demoreel").read_text() == "mine"


def test_a_list_of_merged_videos_names_no_other_file(root, tmp_path):
    video = next(root.rglob("*.mp4")).relative_to(root).as_posix()
    merged = video.replace("file-000", "file-017")
    (root / merged).write_bytes(b"merged into another")
    precious = [tmp_path / "precious", tmp_path / "file-000.mp4", root / "meta" / "stats.json"]
    for path in precious[:2]:
        path.write_text("keep me")
    climbing = video.replace("videos/", "videos/../../", 1)
    names = [
        "../precious",
        str(precious[1]),
        "../file-000.mp4",
        "meta/stats.json",
        climbing,
        merged,
    ]
    (root / ".demoreel").mkdir(exist_ok=True)
    (root / ".demoreel" / "stale.json").write_text(json.dumps(names))
    demoreel.resume(root).finalize()
    assert all(path.exists() for path in precious)
    assert not (root / merged).exists()
    assert len(demoreel.open(root)[:]["index"]) == 3


@pytest.mark.parametrize("text", ["[" * 100_000, "5", "[5, null]", "{"])
def test_a_list_of_merged_videos_that_is_none(root, text):
    (root / ".demoreel").mkdir(exist_ok=True)
    (root / ".demoreel" / "stale.json").write_text(text)
    demoreel.resume(root).finalize()
    assert len(demoreel.open(root)) == 3
