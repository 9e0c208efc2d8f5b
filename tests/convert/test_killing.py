"""Conversions that are killed, interrupted, or run out of disk: real processes, really ended."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import demoreel
from demoreel.errors import DatasetBusyError, TargetExistsError

pytestmark = [
    pytest.mark.soak,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),
]

PROGRAM = """
import os, resource, signal, sys, threading
import demoreel
from demoreel.convert import run  # so that a timer measures the conversion alone
from demoreel.edit import tasks, verbatim

tasks._BYTES = (1, 1)                   # many parts, of little data
verbatim._ROWS = verbatim._ROWS_WITH_PICTURES = 4
source, target, to, what, value = sys.argv[1:]
if to.startswith("lance"):
    import lance

rename = os.rename

def rename_and_die(old, new):
    rename(old, new)
    if str(new) == target:
        os.kill(os.getpid(), signal.SIGKILL)

if what == "kill after rename":
    os.rename = rename_and_die

def progress(now):
    if what == "kill at" and now.stage == value:
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "signal" and now.stage == "write":
        os.kill(os.getpid(), getattr(signal, value))
    if what == "wait" and now.stage == value:
        print("here", flush=True)
        sys.stdin.readline()

if what == "kill after":
    threading.Timer(float(value), os.kill, (os.getpid(), signal.SIGKILL)).start()
if what == "disk":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(value), int(value)))
codec = "png" if to == "lance-frames" else None
try:
    report = demoreel.convert(source, target, to=to, image_codec=codec, progress=progress)
except demoreel.errors.DemoreelError as error:
    print(type(error).__name__)
    os._exit(1)
print(report.resumed_parts, report.parts, flush=True)
os._exit(0)                             # a timer may still be waiting
"""


def run(source: Path, target: Path, to: str, what: str = "", value: object = "") -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(source), str(target), to, what, str(value)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout.strip()


def nothing_is_visible(folder: Path) -> bool:
    return all(path.name.startswith(".") for path in folder.iterdir())


@pytest.mark.parametrize(
    ("layout", "to", "stage"),
    [
        ("v3.0", "lance-video", "finish"),
        ("v3.0", "lance-native", "verify"),
        ("v3.0", "lance-frames", "commit"),
        ("v3.0", "v3.0", "verify"),
        ("v2.1", "v3.0", "finish"),
        ("v2.0", "v2.1", "verify"),
        ("v3.0", "v2.1", "commit"),
    ],
)
def test_killed_at_each_stage_and_resumed(make, tmp_path, layout, to, stage, assert_same_items):
    root, out = make(f"{layout} videos"), tmp_path / "out"
    assert run(root, out, to, "kill at", stage) == (-signal.SIGKILL, "")
    assert nothing_is_visible(tmp_path)
    code, said = run(root, out, to)
    assert code == 0
    resumed, parts = map(int, said.split())
    if to != "v2.1" and layout == "v3.0":  # what a cut has done is noted when it is on disk, later
        assert resumed == parts
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert_same_items(root, out)


@pytest.mark.parametrize(
    ("layout", "to"), [("v3.0", "lance-video"), ("v3.0", "lance-frames"), ("v2.1", "v3.0")]
)
def test_killed_at_random_instants(make, tmp_path, layout, to, assert_same_items):
    root, out = make(f"{layout} videos"), tmp_path / "out"
    moment, step = random.Random(to), 0.1
    for _ in range(30):
        code, said = run(root, out, to, "kill after", moment.uniform(0.02, step))
        if code == 0:
            break
        assert code == -signal.SIGKILL, said
        if not nothing_is_visible(tmp_path):  # killed between the rename and its end
            assert_same_items(root, out)
        step *= 2
    assert code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert_same_items(root, out)


@pytest.mark.parametrize(
    ("layout", "to"),
    [("v3.0", "lance-video"), ("v3.0", "v3.0"), ("v3.0", "v2.1"), ("v2.1", "v3.0")],
)
def test_killed_when_all_is_done(make, tmp_path, layout, to, assert_same_items):
    root, out = make(f"{layout} videos"), tmp_path / "out"
    assert run(root, out, to, "kill after rename") == (-signal.SIGKILL, "")
    assert_same_items(root, out)
    files = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    report = demoreel.convert(root, out, to=to)
    assert report.resumed_parts == report.parts > 0
    assert report.bytes_written == sum(path.stat().st_size for path in files if path.is_file())
    assert report.verified is not None
    assert report.verified.rows == report.frames
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == files
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    with pytest.raises(TargetExistsError, match="already something"):
        demoreel.convert(root, out, to=to)


@pytest.mark.parametrize("to", ["lance-video", "v2.1"])
def test_killed_when_all_is_done_and_changed_since(make, tmp_path, to):
    root, out = make("v3.0 videos"), tmp_path / "out"
    run(root, out, to, "kill after rename")
    info = out / "meta" / "info.json"
    info.write_text(info.read_text())
    with pytest.raises(TargetExistsError):
        demoreel.convert(root, out, to=to)
    (out / "mine").write_text("")
    (out / "meta" / "info.json").unlink()
    with pytest.raises(TargetExistsError):
        demoreel.convert(root, out, to=to)


@pytest.mark.parametrize("to", ["v3.0", "v2.1"])
def test_killed_when_all_is_done_and_damaged_since(make, tmp_path, to):
    root, out = make("v3.0 videos"), tmp_path / "out"
    run(root, out, to, "kill after rename")
    video = next(out.rglob("*.mp4"))
    content, times = bytearray(video.read_bytes()), video.stat()
    content[len(content) // 2] ^= 1
    with open(video, "r+b") as file:  # the same file
        file.write(content)
    with pytest.raises(TargetExistsError):  # somebody has written to it
        demoreel.convert(root, out, to=to)
    os.utime(video, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(demoreel.errors.ConversionError):  # nobody has, but the disk is bad
        demoreel.convert(root, out, to=to)


def test_another_conversion_does_not_take_the_result_for_its_own(make, tmp_path):
    """What the first has noted is still there when the second is killed in the middle."""
    root, out = make("v3.0 videos"), tmp_path / "out"
    run(root, out, "lance-video", "kill after rename")
    program = PROGRAM.replace("progress=progress", "progress=progress, overwrite=True")
    command = [sys.executable, "-c", program, str(root), str(out), "lance-native"]
    for what in ("kill at", ""):
        subprocess.run([*command, what, "write"], capture_output=True, timeout=120, check=False)
    assert demoreel.open(out).layout == "lance-native"


def test_with_other_options_it_is_another_conversion(make, tmp_path):
    root = make("v3.0 videos")
    program = PROGRAM.replace("progress=progress", "progress=progress, picture_stats=False")
    command = [sys.executable, "-c", program, str(root), str(tmp_path / "out"), "v2.1"]
    done = subprocess.run([*command, "kill after rename", ""], timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    with pytest.raises(TargetExistsError):
        demoreel.convert(root, tmp_path / "out", to="v2.1")
    report = demoreel.convert(root, tmp_path / "out", to="v2.1", picture_stats=False)
    assert report.resumed_parts == report.parts


def test_another_plan_begins_anew(make, tmp_path, assert_same_items):
    root, out = make("v3.0 videos"), tmp_path / "out"
    run(root, out, "lance-video", "kill at", "verify")
    code, said = run(make("v2.1 videos"), out, "lance-video")
    assert (code, said.split()[0]) == (0, "0")
    assert_same_items(make("v2.1 videos"), out)


def test_a_kill_during_an_overwrite_leaves_the_old_one(make, tmp_path, assert_same_items):
    root, out = make("v3.0 videos"), tmp_path / "out"
    demoreel.convert(root, out, to="v3.0")
    program = PROGRAM.replace("progress=progress", "progress=progress, overwrite=True")
    arguments = [str(root), str(out), "lance-native"]
    for what, layout in (("kill at", "v3.0"), ("", "lance-native")):
        command = [sys.executable, "-c", program, *arguments, what, "commit"]
        subprocess.run(command, capture_output=True, timeout=120, check=False)
        assert demoreel.open(out).layout == layout
    assert_same_items(root, out)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("to", "name", "code"),
    [("lance-frames", "SIGINT", -signal.SIGINT), ("lance-video", "SIGTERM", 143)],
)
def test_interrupted_it_leaves_nothing(make, tmp_path, to, name, code):
    ended, _ = run(make("v3.0 videos"), tmp_path / "new" / "out", to, "signal", name)
    assert ended == code
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("to", ["lance-video", "v2.1"])
def test_two_conversions_to_the_same_folder(make, tmp_path, to, assert_same_items):
    root, out = make("v3.0 videos"), tmp_path / "out"
    command = [sys.executable, "-c", PROGRAM, str(root), str(out), to, "wait", "finish"]
    first = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    assert first.stdin is not None
    assert first.stdout.readline() == "here\n"
    with pytest.raises(DatasetBusyError):
        demoreel.convert(root, out, to=to)
    first.stdin.write("go\n")
    first.stdin.close()
    assert first.wait(timeout=60) == 0
    assert_same_items(root, out)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_part_that_was_damaged_after_a_kill_is_found(make, tmp_path):
    root, out = make("v3.0 videos"), tmp_path / "out"
    assert run(root, out, "v3.0", "kill at", "verify")[0] == -signal.SIGKILL
    video = max(tmp_path.rglob("*.mp4"), key=lambda path: path.stat().st_size)
    content = bytearray(video.read_bytes())
    content[len(content) // 2] ^= 1
    video.write_bytes(bytes(content))
    assert run(root, out, "v3.0") == (1, "ConversionError")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("to", ["lance-video", "lance-frames", "v3.0", "v2.1"])
def test_a_full_disk(make, tmp_path, to):
    limit = 1500 if to != "lance-frames" else 20_000
    assert run(make("v3.0 videos"), tmp_path / "out", to, "disk", limit) == (1, "DiskFullError")
    assert list(tmp_path.iterdir()) == []


def test_a_child_of_a_process_that_uses_lance_is_told(make, tmp_path):
    root, out = make("lance-video videos"), tmp_path / "out"
    demoreel.open(root)[0]
    demoreel.convert(root, tmp_path / "before", to="lance-video")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            demoreel.convert(root, out, to="lance-native")
        except demoreel.errors.DemoreelError as error:
            os.write(write, error.what.encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    assert b"forked" in os.read(read, 1000)
    os.close(read)
    assert [path.name for path in tmp_path.iterdir()] == ["before"]
