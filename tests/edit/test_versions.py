"""Going back: versions, tags, checkouts; tables and metadata of one version together."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import demoreel
from demoreel.edit.cut import cut
from demoreel.errors import ArgumentError, DiskFullError
from demoreel.testing import make_dataset
from support.crash import files_may_not_grow

from .stamped import assert_shows, wanted

LENGTHS = [4, 6, 3]
EVERY = wanted(*((number, range(length)) for number, length in enumerate(LENGTHS)))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("versions")
    source = make_dataset(folder / "v3", episodes=LENGTHS, tasks=("one", "two"))
    for layout in ("lance-video", "lance-native"):
        cut(source).render(folder / layout, layout=layout)
    return {layout: folder / layout for layout in ("lance-video", "lance-native", "v3")}


@pytest.fixture(params=["lance-video", "lance-native"])
def dataset(request, made, tmp_path) -> Path:
    return shutil.copytree(made[request.param], tmp_path / request.param)


def told(version) -> tuple[int | None, int, str, tuple[str, ...]]:
    return version.episodes, version.frames, version.done, version.tags


def test_history(dataset):
    first = demoreel.lance.versions(dataset)[-1]
    assert told(first) == (3, 13, "indexed", ())
    demoreel.lance.tag(dataset, "whole")
    cut(dataset).delete(0).render_in_place()
    cut(dataset).trim(0, 2).retask("other").render_in_place()
    went = demoreel.lance.checkout(dataset, "whole")
    assert went.number == first.number
    *_, whole, deleted, trimmed, back = demoreel.lance.versions(dataset)
    assert told(whole) == (3, 13, "indexed", ("whole",))
    assert told(deleted) == (2, 9, "deleted 1 episode", ())
    assert told(trimmed) == (2, 7, "trimmed 1 episode; changed tasks", ())
    assert told(back) == (3, 13, f"went back to version {whole.number}", ())
    assert whole.time <= deleted.time <= trimmed.time <= back.time


def test_every_version_reads_as_it_was(dataset):
    shown = {}

    def seen(**options):
        ds = demoreel.open(dataset, decode_threads=1, **options)
        batch = ds.batch(range(len(ds)))
        kept = {k: v.tolist() for k, v in batch.items() if isinstance(v, np.ndarray)}
        kept["task"] = batch["task"]
        stats = {k: {n: v.tolist() for n, v in kinds.items()} for k, kinds in ds.stats.items()}
        return kept, stats, ds.info.to_json(), dict(ds.tasks)

    def note():
        shown[demoreel.lance.versions(dataset)[-1].number] = seen()

    note()
    cut(dataset).delete(1).render_in_place()
    note()
    cut(dataset).trim(0, 1, 3).retask({"one": "first"}).render_in_place()
    note()
    cut(dataset).remove("action").rename({"observation.state": "state"}).render_in_place()
    note()
    demoreel.lance.checkout(dataset, min(shown))
    note()
    assert len(shown) == 5
    for number, was in shown.items():
        assert seen(version=number) == was, number
    demoreel.lance.tag(dataset, "second", version=sorted(shown)[1])
    assert seen(tag="second") == shown[sorted(shown)[1]]


def test_an_old_version_can_be_cut_and_converted(dataset, tmp_path):
    cut(dataset).delete([0, 1]).render_in_place()
    old = demoreel.open(dataset, version=3)
    cut(old).delete(2).render(tmp_path / "again")
    assert_shows(tmp_path / "again", EVERY[:2])
    demoreel.convert(dataset, tmp_path / "v3", to="v3.0")
    assert_shows(tmp_path / "v3", EVERY[2:])
    assert not (tmp_path / "v3" / ".versions").exists()


def test_a_copy_has_its_history(dataset, tmp_path):
    cut(dataset).delete(0).render_in_place()
    copy = shutil.copytree(dataset, tmp_path / "copy" / dataset.name)
    shutil.rmtree(dataset)
    assert_shows(demoreel.open(copy, version=3, decode_threads=1), EVERY)
    demoreel.lance.checkout(copy, 3)
    assert_shows(copy, EVERY)


def test_programs_that_write_into_files_do_not_change_the_past(dataset):
    cut(dataset).delete(0).render_in_place()
    cut(dataset).delete(0).render_in_place()
    demoreel.lance.checkout(dataset, 3)
    path = dataset / "meta" / "info.json"
    info = json.loads(path.read_text())
    with path.open("r+") as file:  # the same file, with other bytes
        file.truncate(0)
        file.write(json.dumps({**info, "robot_type": "another"}))
    assert demoreel.open(dataset).info.robot_type == "another"
    assert demoreel.open(dataset, version=3).info.robot_type == info["robot_type"]


def test_tags(dataset):
    assert demoreel.lance.tag(dataset, "v1.0") == demoreel.lance.versions(dataset)[-1].number
    assert demoreel.lance.tag(dataset, "early", version=1) == 1
    assert demoreel.lance.versions(dataset)[0].tags == ("early",)
    with pytest.raises(ArgumentError, match="has the tag 'early' already"):
        demoreel.lance.tag(dataset, "early")
    for name in ("", "a b", "a/b", "..", "7", "é"):
        with pytest.raises(ArgumentError, match="cannot be called"):
            demoreel.lance.tag(dataset, name)
    with pytest.raises(ArgumentError, match="no version 99"):
        demoreel.lance.tag(dataset, "late", version=99)
    assert demoreel.lance.tag(dataset, "early", delete=True) == 1
    with pytest.raises(ArgumentError, match=r"no tag 'early'(.|\n)*v1\.0"):
        demoreel.lance.tag(dataset, "early", delete=True)
    with pytest.raises(ArgumentError, match="no tag 'early'"):
        demoreel.open(dataset, tag="early")


def test_what_is_refused_changes_nothing(dataset, made):
    before = {path: path.stat().st_mtime_ns for path in dataset.rglob("*")}
    newest = demoreel.lance.versions(dataset)[-1].number
    for version, message in ((newest, "is the newest"), (99, "no version"), ("x", "no tag")):
        with pytest.raises(ArgumentError, match=message):
            demoreel.lance.checkout(dataset, version)
    assert {path: path.stat().st_mtime_ns for path in dataset.rglob("*")} == before
    for call in (
        demoreel.lance.versions,
        lambda p: demoreel.lance.tag(p, "x"),
        lambda p: demoreel.lance.checkout(p, 1),
    ):
        with pytest.raises(ArgumentError, match="only Lance datasets"):
            call(made["v3"])


def test_only_looking(dataset):
    cut(dataset).delete(0).render_in_place()
    newest = demoreel.lance.versions(dataset)[-1].number
    assert demoreel.lance.checkout(dataset, 3, dry_run=True).episodes == 3
    assert demoreel.lance.versions(dataset)[-1].number == newest


def test_a_full_disk(dataset):
    cut(dataset).delete(0).render_in_place()
    before = {path: path.stat().st_mtime_ns for path in dataset.rglob("*") if path.is_file()}
    with files_may_not_grow(200), pytest.raises(DiskFullError):
        demoreel.lance.checkout(dataset, 3)
    after = {path: path.stat().st_mtime_ns for path in dataset.rglob("*") if path.is_file()}
    assert after == before
    demoreel.lance.checkout(dataset, 3)
    assert_shows(dataset, EVERY)
