"""Links that lead out of a dataset: nothing behind them is copied, published or written to."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import demoreel
from demoreel.errors import ArgumentError, DemoreelError
from demoreel.hub.records import read_record
from demoreel.stats.recompute import recompute
from demoreel.storage.folder import copy_inside, leads_out, links_out, refuse_links_out
from demoreel.testing import make_dataset

LAYOUTS = ("v2.0", "v2.1", "v3.0", "lance-video", "lance-frames", "lance-native")
PLACES = ("README.md", "meta/x", "meta/.x", "data/more", "meta/deep/er/x", ".demoreel/x")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A function that returns a small dataset of a layout, to be copied."""
    folder = tmp_path_factory.mktemp("made")

    def of(layout):
        target = folder / layout
        if not target.exists() and layout.startswith("lance"):
            demoreel.convert(of("v3.0"), target, to=layout, verify=False)
        elif not target.exists():
            make_dataset(target, episodes=[3, 2], layout=layout)
        return target

    return of


@pytest.fixture
def copy(made, tmp_path):
    """A function that returns a dataset of a layout to change."""

    def of(layout):
        return Path(shutil.copytree(made(layout), tmp_path / "ds"))

    return of


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "elsewhere" / "secret"
    path.parent.mkdir()
    path.write_text("secret")
    return path


def link(root, name, target):
    place = root / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)
    return place


def everything(folder):
    return {path: path.lstat().st_mtime_ns for path in sorted(folder.rglob("*"))}


WRITERS = {
    "convert": lambda root, out: demoreel.convert(root, out, to=_other(root)),
    "convert --dry-run": lambda root, out: demoreel.convert(
        root, out, to=_other(root), dry_run=True
    ),
    "convert --in-place": lambda root, out: demoreel.convert(root, to=_other(root), in_place=True),
    "cut": lambda root, out: demoreel.cut(root).keep([0]).render(out),
    "repair": lambda root, out: demoreel.repair(root, out),
    "repair --dry-run": lambda root, out: demoreel.repair(root, dry_run=True),
    "repair --in-place": lambda root, out: demoreel.repair(root, in_place=True),
    "stats --recompute": lambda root, out: recompute(root, pictures="none"),
}


def _other(root):
    return "v3.0" if any(root.glob("*.lance")) or "v2" in info(root) else "lance-video"


def info(root):
    return (root / "meta" / "info.json").read_text()


@pytest.mark.parametrize("writer", WRITERS)
def test_writers_refuse_links_out(copy, secret, tmp_path, writer):
    root = copy("v3.0")
    place = link(root, "meta/x", secret)
    before = everything(tmp_path)
    with pytest.raises(ArgumentError, match="leads out") as caught:
        WRITERS[writer](root, tmp_path / "out")
    assert caught.value.where == {"path": place, "leads_to": secret}
    assert everything(tmp_path) == before


@pytest.mark.parametrize("layout", LAYOUTS)
def test_in_every_layout_and_folder(copy, secret, tmp_path, layout):
    root = copy(layout)
    folders = [path for path in root.rglob("*") if path.is_dir()]
    names = {*PLACES, *(f"{folder.relative_to(root)}/linked" for folder in folders)}
    for name in sorted(names):
        place = link(root, name, secret)
        with pytest.raises(ArgumentError, match="leads out"):
            demoreel.cut(root).keep([0]).render(tmp_path / "out")
        place.unlink()
    assert not (tmp_path / "out").exists()
    refuse_links_out(root)


@pytest.mark.parametrize("layout", ["v3.0", "lance-video", "lance-native"])
def test_recorders_and_edits_in_place_do_not_write_through_links(copy, secret, tmp_path, layout):
    root = copy(layout)
    folder = root / "data" if layout == "v3.0" else next(root.glob("*.lance")) / "data"
    away = secret.parent / "data"
    shutil.move(folder, away)
    folder.symlink_to(away)
    demoreel.open(root)[0]  # users may assemble a dataset of links, and read it
    before = everything(tmp_path)
    with pytest.raises(ArgumentError, match="leads out"):
        demoreel.resume(root)
    if layout != "v3.0":
        with pytest.raises(ArgumentError, match="leads out"):
            demoreel.cut(root).keep([0]).render_in_place()
        with pytest.raises(ArgumentError, match="leads out"):
            demoreel.tag(root, "first")
    assert everything(tmp_path) == before


def test_a_folder_of_unfinished_episodes_that_is_a_link(copy, secret):
    root = copy("v3.0")
    link(root, ".demoreel/encoding", secret.parent)
    with pytest.raises(ArgumentError, match="leads out"):
        demoreel.resume(root)
    assert os.listdir(secret.parent) == ["secret"]


def test_what_leads_out_and_what_does_not(tmp_path, secret):
    root = tmp_path / "real" / "ds"
    (root / "meta").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / "meta" / "a").write_text("a")
    (root / ".git" / "config").write_text("token")
    link(root, "b", "meta/a")
    link(root, "loop", "loop")
    link(root, "nowhere", "meta/not there")
    link(root, ".cache", secret.parent)  # no part of the dataset
    link(root, ".demoreel/staging-0123456789ab/table", secret.parent)  # of our own
    (tmp_path / "through").symlink_to(tmp_path / "real")
    (tmp_path / "to ds").symlink_to(root)
    for way in (root, tmp_path / "through" / "ds", tmp_path / "to ds"):
        refuse_links_out(way)
    bad = {
        "absolute": secret,
        "relative": os.path.relpath(secret, root),
        "dangling": tmp_path / "elsewhere" / "not there",
        "folder": secret.parent,
        "parent": "..",
        "device": "/dev/zero",
        "hidden": ".git/config",
        "through": "meta/../../x",
    }
    for name, target in bad.items():
        link(root, name, target)
    link(root, "meta/indirect", "../absolute")
    wanted = {*bad, "meta/indirect"}
    assert {str(path.relative_to(root)) for path, _ in links_out(root)} == wanted


def test_snapshots_of_the_hubs_cache_are_their_repositorys(copy, tmp_path):
    root, repo = copy("v3.0"), tmp_path / "hub" / "datasets--me--x"
    snapshot = repo / "snapshots" / "abc"
    (repo / "blobs").mkdir(parents=True)
    for number, path in enumerate(sorted(p for p in root.rglob("*") if p.is_file())):
        blob = repo / "blobs" / f"{number:040x}"
        shutil.move(path, blob)
        link(snapshot, path.relative_to(root), blob)
    demoreel.cut(snapshot).keep([0]).render(tmp_path / "cut")
    demoreel.convert(snapshot, tmp_path / "lance", to="lance-video")
    assert demoreel.repair(snapshot, tmp_path / "repaired").is_clean
    other = tmp_path / "hub" / "datasets--me--private" / "blobs" / f"{1:040x}"
    other.parent.mkdir(parents=True)
    other.write_text("secret")
    place = link(snapshot, "meta/x", other)
    assert leads_out(snapshot, place) == other
    with pytest.raises(ArgumentError, match="leads out"):
        demoreel.convert(snapshot, tmp_path / "again", to="lance-video")


def test_conversions_leave_no_folder_of_a_question_to_lance(made):
    (table,) = made("lance-video").glob("*_videos.lance")
    assert {path.name for path in table.iterdir()} == {
        "_indices",
        "_transactions",
        "_versions",
        "data",
    }
    folders = [path for path in table.rglob("*") if path.is_dir()]
    assert [path for path in folders if not any(path.iterdir())] == []


def test_links_inside_are_copied_as_content(copy, tmp_path):
    root = copy("v3.0")
    (root / "meta" / "a.txt").write_text("a")
    link(root, "meta/b.txt", "a.txt")
    demoreel.convert(root, tmp_path / "out", to="lance-video")
    assert not (tmp_path / "out/meta/b.txt").is_symlink()
    assert (tmp_path / "out/meta/b.txt").read_text() == "a"


def test_a_file_that_is_exchanged_for_a_link_is_not_copied(tmp_path, secret):
    root = tmp_path / "ds"
    place = link(root, "x", secret)
    with pytest.raises(ArgumentError, match="exchanged"):
        copy_inside(root, place, tmp_path / "copy")
    os.mkfifo(root / "pipe")
    with pytest.raises(OSError, match="no regular file"):
        copy_inside(root, root / "pipe", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("meta/demoreel/histograms/chunk-000/file-000.parquet", "cut"),
        ("meta/demoreel/histograms/chunk-000/file-000.parquet", "resume"),
        ("data/chunk-000/file-000.parquet", "recompute"),
        (".demoreel/stale.json", "resume"),
        (".demoreel/lock", "resume"),
        (".demoreel/pulled.json", "pull"),
        ("README.md", "cut"),
    ],
)
def test_pipes_are_not_waited_for(copy, tmp_path, name, work):
    root = copy("v3.0")
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).unlink(missing_ok=True)
    os.mkfifo(root / name)
    do = {
        "cut": lambda: demoreel.cut(root).keep([0]).render(tmp_path / "out"),
        "resume": lambda: demoreel.resume(root).finalize(),
        "recompute": lambda: recompute(root, pictures="none"),
        "pull": lambda: read_record(root),
    }[work]
    with stuck_after(20), suppress(DemoreelError):
        do()


@contextmanager
def stuck_after(seconds):
    def stop(*_):
        raise AssertionError("it waits for a pipe")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
