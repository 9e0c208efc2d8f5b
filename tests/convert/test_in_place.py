"""Conversions in place: the new dataset under the old name, the old one beside it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import demoreel
from demoreel.convert.report import Progress
from demoreel.errors import (
    ArgumentError,
    ConversionError,
    DatasetBusyError,
    TargetExistsError,
    UnfinishedError,
)
from demoreel.storage.commit.replace import finish_replacing
from demoreel.storage.commit.writer_lock import WriterLock

pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe")

# Converts in place, and kills itself before or after the n-th rename of a whole folder.
PROGRAM = """
import os, signal, sys
import demoreel
from demoreel.storage.commit import replace
root, to, way, which, when = sys.argv[1:]
rename, exchange, folders = os.rename, replace.exchange, []

def counted(move):
    def wrapper(left, right):
        folder = os.path.isdir(left) and ".replace" in f"{left}{right}" and "cut-" not in str(left)
        folders.extend([left] if folder else [])
        if folder and len(folders) == int(which) and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = move(left, right)
        if folder and len(folders) == int(which) and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return done
    return wrapper

replace.os.rename = counted(rename)
replace.exchange = counted(exchange) if way == "exchange" else lambda *_: False
demoreel.convert(root, to=to, in_place=True)
print(len(folders))
"""


@pytest.fixture
def root(make, tmp_path: Path) -> Path:
    """A v2.1 dataset of one's own."""
    shutil.copytree(make("v2.1 videos"), tmp_path / "arm")
    return tmp_path / "arm"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("to", ["v3.0", "lance-video", "v2.1"])
def test_the_new_one_takes_the_old_ones_place(make, root, to, assert_same_items):
    report = demoreel.convert(root, to=to, in_place=True)
    assert (report.target, report.kept) == (root, root.with_name("arm_old"))
    assert demoreel.open(root).layout == to
    assert names(root.parent) == ["arm", "arm_old"]
    assert not (root / ".demoreel").exists()
    assert not (root.with_name("arm_old") / ".demoreel").exists()
    assert_same_items(make("v2.1 videos"), root)
    assert_same_items(make("v2.1 videos"), root.with_name("arm_old"))


def test_there_is_an_old_one_already(root):
    root.with_name("arm_old").mkdir()
    with pytest.raises(TargetExistsError, match="kept"):
        demoreel.convert(root, to="v3.0", in_place=True)
    (root.with_name("arm_old") / "precious").touch()
    with pytest.raises(TargetExistsError, match="something"):
        demoreel.convert(root, to="v3.0", in_place=True)
    assert demoreel.open(root).layout == "v2.1"
    assert names(root.parent) == ["arm", "arm_old"]


@pytest.mark.parametrize("options", [{"overwrite": True}, {"link": True}, {"target": "x"}])
def test_what_makes_no_sense_in_place(root, options):
    with pytest.raises(ArgumentError, match="in place"):
        demoreel.convert(root, options.pop("target", None), to="v3.0", in_place=True, **options)
    assert names(root.parent) == ["arm"]


def test_a_link_is_not_replaced(root):
    root.with_name("link").symlink_to(root)
    with pytest.raises(ArgumentError, match="link"):
        demoreel.convert(root.with_name("link"), to="v3.0", in_place=True)
    assert names(root.parent) == ["arm", "link"]


def test_dry_run(root):
    report = demoreel.convert(root, to="v3.0", in_place=True, dry_run=True)
    assert (report.target, report.kept, report.dry_run) == (root, root.with_name("arm_old"), True)
    assert names(root.parent) == ["arm"]


def test_a_dataset_that_someone_records_to(root):
    with WriterLock(root), pytest.raises(DatasetBusyError):
        demoreel.convert(root, to="v3.0", in_place=True)
    assert demoreel.open(root).layout == "v2.1"
    assert names(root.parent) == ["arm"]


def test_nobody_can_record_meanwhile(root):
    def record(now: Progress) -> None:
        with pytest.raises(DatasetBusyError):
            WriterLock(root, patience_s=0)
        seen.append(now.stage)

    seen: list[str] = []
    demoreel.convert(root, to="v3.0", in_place=True, progress=record)
    assert "commit" in seen


def test_an_error_changes_nothing(make, root, assert_same_items):
    def spoil(now: Progress) -> None:
        if now.stage == "verify":
            path = next(root.parent.glob(".arm.replace/.new.cut-*/dataset/**/*.mp4"))
            path.write_bytes(path.read_bytes()[:-1])

    with pytest.raises(ConversionError):
        demoreel.convert(root, to="v3.0", in_place=True, progress=spoil)
    assert names(root.parent) == ["arm"]
    assert_same_items(make("v2.1 videos"), root)


def run(root: Path, to: str, way: str, which: int, when: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(root), to, way, str(which), when],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode, done.stdout.strip()


MOMENTS = [
    ("exchange", 1, "before"),
    *(("exchange", which, "after") for which in (1, 2, 3)),
    *(("two renames", which, "after") for which in (1, 2, 3)),
]


@pytest.mark.soak
@pytest.mark.parametrize(("way", "which", "when"), MOMENTS)
def test_killed_between_two_renames(make, root, way, which, when, assert_same_items):
    """There is a whole dataset, at the latest when it is finished; nothing of the old is lost."""
    assert run(root, "v3.0", way, which, when)[0] == -signal.SIGKILL
    if not root.exists():
        with pytest.raises(UnfinishedError, match="demoreel finish"):
            demoreel.open(root)
        assert demoreel.finish(root).completed
    layout = demoreel.open(root).layout
    assert_same_items(make("v2.1 videos"), root)
    old = root.with_name("arm_old")
    if layout == "v3.0":
        finish_replacing(root)
        assert demoreel.open(old).layout == "v2.1"
    else:
        assert not old.exists()
        demoreel.convert(root, to="v3.0", in_place=True)
    assert demoreel.open(root).layout == "v3.0"
    assert_same_items(make("v2.1 videos"), root)
    assert_same_items(make("v2.1 videos"), old)
    assert names(root.parent) == ["arm", "arm_old"]


def test_the_next_run_finishes_what_was_begun(make, root, assert_same_items):
    run(root, "v3.0", "exchange", 1, "after")
    with pytest.raises(TargetExistsError):  # the first one is done now
        demoreel.convert(root, to="v3.0", in_place=True)
    assert demoreel.open(root.with_name("arm_old")).layout == "v2.1"
    assert names(root.parent) == ["arm", "arm_old"]
    assert_same_items(make("v2.1 videos"), root)


def test_something_else_in_its_place(root):
    run(root, "v3.0", "two renames", 1, "after")
    root.mkdir()
    (root / "stranger").touch()
    with pytest.raises(TargetExistsError, match="something else"):
        demoreel.convert(root, to="v3.0", in_place=True)
    shutil.rmtree(root)
    assert demoreel.finish(root).completed
    assert demoreel.open(root).layout == "v3.0"
    assert demoreel.open(root.with_name("arm_old")).layout == "v2.1"


def test_a_killed_conversion_goes_on(root):
    program = """
import os, signal, sys, demoreel
def progress(now):
    if now.stage == "verify":
        os.kill(os.getpid(), signal.SIGKILL)
demoreel.convert(sys.argv[1], to="v3.0", in_place=True, progress=progress)
"""
    command = [sys.executable, "-c", program, str(root)]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL
    assert demoreel.open(root).layout == "v2.1"
    demoreel.convert(root, to="v3.0", in_place=True)
    assert demoreel.open(root).layout == "v3.0"
    assert names(root.parent) == ["arm", "arm_old"]
