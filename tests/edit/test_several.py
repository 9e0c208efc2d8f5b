"""Several datasets of one command: nothing before all are planned, and none made twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import demoreel
from demoreel.edit.form import Form
from demoreel.edit.render import render_several
from demoreel.errors import ArgumentError, TargetExistsError

from .conftest import assert_is, opened

# Is killed when it begins to write the second of two, or has just given it its place.
KILLED = """
import os, signal, sys, demoreel
from contextlib import contextmanager
from demoreel.edit.render import render_several
from demoreel.edit.target_info import Form

rename = os.rename
def rename_and_die(old, new):
    rename(old, new)
    if sys.argv[3] == "end" and os.fspath(new) == sys.argv[2] + "/val":
        os.kill(os.getpid(), signal.SIGKILL)
os.rename = rename_and_die

@contextmanager
def progress(target):
    def report(share):
        if sys.argv[3] == "begin" and target.endswith("val"):
            os.kill(os.getpid(), signal.SIGKILL)
    yield report

cuts = demoreel.cut(sys.argv[1]).split({"train": [0, 1], "val": [2]})
parts = {f"{sys.argv[2]}/{name}": made.cutlist for name, made in cuts.items()}
render_several(parts, form=Form(), progress=progress)
"""


def parts_of(source: Path, folder: Path) -> dict[str, demoreel.edit.cut.Cut]:
    cuts = demoreel.cut(source).split({"train": [0, 1], "val": [2]})
    return {str(folder / name): made for name, made in cuts.items()}


def render(parts, **options):
    lists = {target: made.cutlist for target, made in parts.items()}
    return render_several(lists, form=Form(), **options)


def killed(source: Path, folder: Path, when: str) -> None:
    program = [sys.executable, "-c", KILLED, str(source), str(folder), when]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_all_are_written_and_nothing_else_stays(sources, tmp_path):
    parts = parts_of(sources["small_files"], tmp_path)
    done = render(parts)
    assert [str(one.path) for one in done] == list(parts)
    assert all(one.committed and one.resumed == 0 for one in done)
    assert names(tmp_path) == ["train", "val"]
    for target, made in parts.items():
        assert_is(opened(Path(target)), made)
    with pytest.raises(TargetExistsError):
        render(parts)


def test_one_target_that_is_taken_stops_all(sources, tmp_path):
    (tmp_path / "val").mkdir()
    (tmp_path / "val" / "mine").write_text("mine")
    with pytest.raises(TargetExistsError):
        render(parts_of(sources["small_files"], tmp_path))
    assert names(tmp_path) == ["val"]


@pytest.mark.parametrize("when", ["begin", pytest.param("end", marks=pytest.mark.soak)])
def test_killed_and_run_again(sources, tmp_path, when):
    killed(sources["small_files"], tmp_path, when)
    visible = [name for name in names(tmp_path) if not name.startswith(".")]
    assert visible == (["train"] if when == "begin" else ["train", "val"])
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "train").rglob("*")}
    parts = parts_of(sources["small_files"], tmp_path)
    first, second = render(parts)
    assert first.resumed == first.tasks > 0
    assert (second.resumed == second.tasks) == (when == "end")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "train").rglob("*")} == before
    assert names(tmp_path) == ["train", "val"]
    for target, made in parts.items():
        assert_is(opened(Path(target)), made)


@pytest.mark.soak
def test_what_was_changed_after_a_kill_is_not_taken_for_the_result(sources, tmp_path):
    killed(sources["small_files"], tmp_path, "begin")
    info = tmp_path / "train" / "meta" / "info.json"
    os.replace(info, tmp_path / "aside")
    info.write_bytes((tmp_path / "aside").read_bytes())
    with pytest.raises(TargetExistsError):
        render(parts_of(sources["small_files"], tmp_path))
    assert not (tmp_path / "val").exists()


@pytest.mark.soak
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: os.truncate(path, 10)])
def test_what_was_damaged_after_a_kill_is_not_taken_for_the_result(sources, tmp_path, damage):
    killed(sources["small_files"], tmp_path, "begin")
    damage(next((tmp_path / "train").rglob("data/*/*.parquet")))
    with pytest.raises(TargetExistsError):
        render(parts_of(sources["small_files"], tmp_path))


@pytest.mark.soak
def test_a_remembered_part_is_no_shard(sources, tmp_path):
    from demoreel.edit.render import commit

    killed(sources["small_files"], tmp_path, "begin")
    with pytest.raises(ArgumentError, match="No shard"):
        commit(tmp_path / "train")
    first, second = render(parts_of(sources["small_files"], tmp_path))
    assert first.resumed == first.tasks > 0
    assert second.committed


def test_a_refused_part_stops_all(sources, tmp_path):
    parts = parts_of(sources["small_files"], tmp_path)
    inside = {**parts, str(sources["small_files"] / "inside"): parts[str(tmp_path / "val")]}
    with pytest.raises(ArgumentError):
        render(inside)
    assert names(tmp_path) == []


def test_shards_keep_what_they_have_written(sources, tmp_path):
    from demoreel.edit.render import Shard, commit

    parts = parts_of(sources["small_files"], tmp_path)
    for number in range(2):
        assert not any(one.committed for one in render(parts, shard=Shard(number, 2)))
    for target, made in parts.items():
        assert commit(target).committed
        assert_is(opened(Path(target)), made)
    assert names(tmp_path) == ["train", "val"]
