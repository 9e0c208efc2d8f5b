"""Killed at any moment, the target is absent or whole, and the same cut continues."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import demoreel
from demoreel.edit.render import commit
from demoreel.errors import (
    ArgumentError,
    ConversionError,
    DatasetBusyError,
    DiskFullError,
    TargetExistsError,
)
from demoreel.testing import make_dataset

from .conftest import assert_is, opened

SIZES = {"data_files_size_in_mb": 0.004, "video_files_size_in_mb": 0.01}

# Renders, and after each file says so and waits for a line: time to be killed.
SLOW = """
import sys, demoreel
def tell(share):
    print(share, flush=True)
    if not sys.stdin.readline():
        sys.exit("nobody is there")
made = demoreel.cut(sys.argv[1]).delete(2)
made.render(sys.argv[2], report=tell, data_files_size_in_mb=0.004, video_files_size_in_mb=0.01)
"""


def slow_render(source: Path, target: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SLOW, str(source), str(target)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def advance(process: subprocess.Popen[str], files: int) -> None:
    """Let it finish so many files, and wait until it says that it has."""
    for number in range(files):
        if number:
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.stdout.readline()


def kill(process: subprocess.Popen[str], folder: Path, files: int) -> None:
    """Kill it when it has noted so many files; notes are written in the background."""
    while len(list(folder.glob(".out.cut-*/notes/*.json"))) < files:
        assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("files", [1, 3])
def test_killed_and_continued(sources, tmp_path, files):
    process = slow_render(sources["small_files"], tmp_path / "out")
    advance(process, files)
    kill(process, tmp_path, files)
    assert not (tmp_path / "out").exists()
    made = demoreel.cut(sources["small_files"]).delete(2)
    done = made.render(tmp_path / "out", **SIZES)
    assert done.resumed == files
    assert_is(opened(tmp_path / "out"), made)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_is_cut_off_is_written_again(sources, tmp_path):
    process = slow_render(sources["small_files"], tmp_path / "out")
    advance(process, 3)
    kill(process, tmp_path, 3)
    finished = sorted(tmp_path.glob(".out.cut-*/dataset/**/*.*"))
    for path in finished:
        os.truncate(path, 10) if path.is_file() else None
    made = demoreel.cut(sources["small_files"]).delete(2)
    assert made.render(tmp_path / "out", **SIZES).resumed == 0
    assert_is(opened(tmp_path / "out"), made)


# Renders, and is killed between the rename and what comes after it.
AT_THE_END = """
import os, signal, sys, demoreel
rename = os.rename
def rename_and_die(old, new):
    rename(old, new)
    if os.fspath(new) == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
os.rename = rename_and_die
made = demoreel.cut(sys.argv[1])
"""
RENDER = "made.delete(2).render(sys.argv[2])"


def killed_at_the_end(source: Path, target: Path, what: str = RENDER) -> None:
    program = [sys.executable, "-c", AT_THE_END + what, str(source), str(target)]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL


@pytest.mark.soak
def test_killed_when_all_is_done(sources, tmp_path):
    made, out = demoreel.cut(sources["small_files"]).delete(2), tmp_path / "out"
    killed_at_the_end(sources["small_files"], out)
    assert_is(opened(out), made)
    files = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    done = made.render(out)
    assert done.committed
    assert done.resumed == done.tasks > 0
    assert done.bytes == 0
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == files
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    with pytest.raises(TargetExistsError):
        made.render(out)


@pytest.mark.soak
def test_killed_when_all_is_done_but_by_another_cut(sources, tmp_path):
    killed_at_the_end(sources["small_files"], tmp_path / "out")
    with pytest.raises(TargetExistsError):
        demoreel.cut(sources["small_files"]).delete(1).render(tmp_path / "out")


@pytest.mark.soak
def test_killed_when_all_is_done_but_less_was_compared(sources, tmp_path):
    what = "made.delete(2).render(sys.argv[2], verify=False)"
    killed_at_the_end(sources["small_files"], tmp_path / "out", what)
    made = demoreel.cut(sources["small_files"]).delete(2)
    with pytest.raises(TargetExistsError):
        made.render(tmp_path / "out", verify="full")
    assert made.render(tmp_path / "out", verify=False).committed


@pytest.mark.soak
def test_a_cut_is_not_a_conversion(sources, tmp_path):
    what = "made.render(sys.argv[2], verify=False)"
    killed_at_the_end(sources["v2.1"], tmp_path / "out", what)
    with pytest.raises(TargetExistsError):
        demoreel.convert(sources["v2.1"], tmp_path / "out", to="v3.0")


@pytest.mark.soak
def test_what_a_dead_cut_has_left_is_no_shard(sources, tmp_path):
    out = tmp_path / "out"
    killed_at_the_end(sources["small_files"], out)
    shutil.rmtree(out)
    with pytest.raises(ArgumentError, match="No shard"):
        commit(out)
    made = demoreel.cut(sources["small_files"]).delete(1)
    made.render(out, shard=(0, 1))
    assert commit(out).committed
    assert_is(opened(out), made)


@pytest.mark.soak
def test_shards_are_committed_and_killed(sources, tmp_path):
    made, out = demoreel.cut(sources["small_files"]), tmp_path / "out"
    for number in range(2):
        made.render(out, shard=(number, 2), **SIZES)
    what = "from demoreel.edit.render import commit; commit(sys.argv[2])"
    killed_at_the_end(sources["small_files"], out, what)
    assert commit(out).committed
    assert_is(opened(out), made)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_two_at_a_time(sources, tmp_path):
    process = slow_render(sources["small_files"], tmp_path / "out")
    advance(process, 1)
    try:
        with pytest.raises(DatasetBusyError):
            demoreel.cut(sources["small_files"]).delete(2).render(tmp_path / "out", **SIZES)
    finally:
        process.communicate("\n" * 100)
    assert process.returncode == 0
    assert len(opened(tmp_path / "out").episodes) == 3


def test_interrupted_and_continued(sources, tmp_path):
    def interrupt(share: float) -> None:
        raise KeyboardInterrupt

    made = demoreel.cut(sources["small_files"])
    with pytest.raises(KeyboardInterrupt):
        made.render(tmp_path / "out", report=interrupt, **SIZES)
    assert not (tmp_path / "out").exists()
    assert made.render(tmp_path / "out", **SIZES).resumed == 1


def test_another_cut_does_not_go_on_from_there(sources, tmp_path):
    def interrupt(share: float) -> None:
        raise KeyboardInterrupt

    made = demoreel.cut(sources["small_files"])
    with pytest.raises(KeyboardInterrupt):
        made.render(tmp_path / "out", report=interrupt, **SIZES)
    assert made.delete(0).render(tmp_path / "out", **SIZES).resumed == 0
    assert_is(opened(tmp_path / "out"), made.delete(0))


def test_shards_in_any_order(sources, tmp_path):
    made = demoreel.cut(sources["small_files"])
    with pytest.raises(ArgumentError, match="No shard"):
        commit(tmp_path / "out")
    for number in (2, 0, 1):
        with pytest.raises(ArgumentError):
            commit(tmp_path / "out")
        done = made.render(tmp_path / "out", shard=(number, 3), **SIZES)
        assert not done.committed
        assert not (tmp_path / "out").exists()
    assert commit(tmp_path / "out").committed
    assert_is(opened(tmp_path / "out"), made)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_several_processes_write_the_same(sources, tmp_path):
    made = demoreel.cut(sources["small_files"]).merge(sources["hevc"])
    made.render(tmp_path / "one", **SIZES)
    made.render(tmp_path / "two", jobs=2, **SIZES)
    one = sorted(p.relative_to(tmp_path / "one") for p in (tmp_path / "one").rglob("*.*"))
    for path in one:
        if path.suffix in (".mp4", ".parquet", ".json"):
            assert (tmp_path / "one" / path).read_bytes() == (tmp_path / "two" / path).read_bytes()


def test_a_broken_video_is_found_before_anything_is_written(tmp_path):
    root = make_dataset(tmp_path / "in", episodes=[3, 3], video_files_size_in_mb=0.001)
    video = sorted(root.rglob("*.mp4"))[1]
    os.truncate(video, video.stat().st_size // 2)
    with pytest.raises(demoreel.errors.VideoError):
        demoreel.cut(root).render(tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_a_broken_table_leaves_nothing(tmp_path):
    root = make_dataset(tmp_path / "in", episodes=[3, 3], data_files_size_in_mb=0.001)
    table = sorted((root / "data").rglob("*.parquet"))[1]
    table.write_bytes(table.read_bytes()[:-100])
    with pytest.raises(demoreel.errors.TableError):
        demoreel.cut(root).render(tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_a_result_that_is_not_the_source_is_not_kept(sources, tmp_path):
    """Someone writes into a finished video before the commit looks at it."""
    damaged: list[Path] = []

    def damage(share: float) -> None:
        if share == 1:
            video = next(tmp_path.glob(".out.cut-*/dataset/videos/**/*.mp4"))
            data = bytearray(video.read_bytes())
            data[-20:] = bytes(20)
            video.write_bytes(data)
            damaged.append(video)

    with pytest.raises(ConversionError, match="differ"):
        demoreel.cut(sources["av1"]).render(tmp_path / "out", report=damage)
    assert damaged
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk(sources, mounted):
    """On a disk of 64 kB: a clear error, what was begun is named, and a larger one continues."""
    disk = mounted("64k")
    made = demoreel.cut(sources["small_files"])
    with pytest.raises(DiskFullError):
        made.render(disk / "out", **SIZES)
    assert not (disk / "out").exists()
    subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
    made.render(disk / "out", **SIZES)
    assert_is(opened(disk / "out"), made)
