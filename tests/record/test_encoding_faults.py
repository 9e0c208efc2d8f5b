"""Encoders die, recorders die, disks run full: no frame is lost, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from demoreel.errors import DiskFullError, VideoError
from demoreel.media.settings import VideoSettings
from demoreel.record.encoding.cameras import CameraEncoders

pytestmark = pytest.mark.soak

ROUNDS = 12


@pytest.mark.parametrize(
    "settings",
    [
        VideoSettings(codec="h264", preset="ultrafast"),
        VideoSettings(codec="av1", preset=12),
        VideoSettings(codec="hevc", gop=6, b_frames=2),
    ],
    ids=lambda settings: settings.codec,
)
def test_an_encoder_that_is_killed_at_any_instant_costs_no_frame(tmp_path, filming, settings):
    random = np.random.default_rng(4)
    plan = filming.camera(settings=settings)
    with CameraEncoders([plan], fps=30, workdir=tmp_path) as encoders:
        for episode in range(ROUNDS // 4 if settings.codec != "h264" else ROUNDS):
            frames = int(random.integers(1, 60))
            killed = set(random.integers(0, frames, int(random.integers(1, 3))).tolist())
            for frame in range(frames):
                encoders.put("front", filming.image(plan, episode, frame))
                if frame in killed:
                    time.sleep(random.uniform(0, 0.03))  # any instant will do
                    kill(encoders)
            videos = encoders.finish_episode()
            filming.check(videos, [plan], episode, frames)
            videos["front"].path.unlink()


def kill(encoders):
    process = encoders.encoder_processes["front"]
    if process:  # one that was just killed may not have been replaced yet
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def test_an_encoder_that_is_killed_while_it_drains_the_disk_costs_no_frame(tmp_path, filming):
    plan = filming.camera("front", 240, 320)
    with CameraEncoders([plan], fps=30, workdir=tmp_path, memory_mb=1) as encoders:
        os.kill(encoders.encoder_processes["front"], signal.SIGSTOP)
        filming.put(encoders, [plan], 0, 60)
        os.kill(encoders.encoder_processes["front"], signal.SIGKILL)
        filming.wait_until(lambda: 0 < encoders.backlog.frames_on_disk < 50)
        os.kill(encoders.encoder_processes["front"], signal.SIGKILL)
        filming.check(encoders.finish_episode(), [plan], 0, 60)


def test_an_encoder_that_is_killed_between_episodes_is_replaced(tmp_path, filming):
    plan = filming.camera()
    with CameraEncoders([plan], fps=30, workdir=tmp_path) as encoders:
        for episode in range(3):
            filming.put(encoders, [plan], episode, 4)
            filming.check(encoders.finish_episode(), [plan], episode, 4)
            dead = encoders.encoder_processes["front"]
            os.kill(dead, signal.SIGKILL)
            filming.wait_until(lambda gone=dead: encoders.encoder_processes["front"] != gone)


def test_an_encoder_that_is_killed_while_it_drops_an_episode_is_replaced(tmp_path, filming):
    plan = filming.camera()
    with CameraEncoders([plan], fps=30, workdir=tmp_path) as encoders:
        os.kill(encoders.encoder_processes["front"], signal.SIGSTOP)
        filming.put(encoders, [plan], 0, 20)
        encoders.discard_episode()
        filming.put(encoders, [plan], 1, 20)
        os.kill(encoders.encoder_processes["front"], signal.SIGKILL)
        filming.check(encoders.finish_episode(), [plan], 1, 20)


RECORDER = """
    import sys, time
    import numpy as np
    from pathlib import Path
    from demoreel.media.settings import VideoSettings
    from demoreel.record.encoding.cameras import CameraEncoders
    from demoreel.record.encoding.plan import CameraPlan

    fast = VideoSettings(codec="h264", preset="ultrafast")
    plans = [CameraPlan(key, 64, 64, "rgb", fast) for key in ("front", "wrist")]
    encoders = CameraEncoders(plans, fps=30, workdir=Path(sys.argv[1]))
    print(*encoders.encoder_processes.values(), flush=True)
    image = np.zeros((64, 64, 3), np.uint8)
    while True:
        encoders.put_frame({"front": image, "wrist": image})
        time.sleep(0.01)
"""


def start_recorder(tmp_path):
    recorder = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(RECORDER), str(tmp_path / "work")],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a group of its own, as of a terminal
    )
    assert recorder.stdout is not None
    return recorder, [int(word) for word in recorder.stdout.readline().split()]


@pytest.mark.parametrize("stopped", [False, True])
def test_encoders_end_with_a_recorder_that_is_killed_and_leave_no_memory(
    tmp_path, filming, stopped
):
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    recorder, encoders = start_recorder(tmp_path)
    assert len(encoders) == 2
    assert all(psutil.pid_exists(process) for process in encoders)
    if stopped and not sys.platform.startswith("linux"):
        pytest.skip("only Linux ends a process that stands still")
    for process in encoders if stopped else ():
        os.kill(process, signal.SIGSTOP)
    recorder.kill()
    recorder.wait()
    filming.wait_until(lambda: not any(map(is_running, encoders)))
    left = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    assert not {name for name in left - before if "demoreel" in name or "psm" in name}


def test_ctrl_c_ends_the_recorder_and_not_the_encoders_first(tmp_path, filming):
    recorder, encoders = start_recorder(tmp_path)
    for process in encoders:
        os.kill(process, signal.SIGINT)
    assert recorder.poll() is None
    assert all(is_running(process) for process in encoders)
    os.killpg(recorder.pid, signal.SIGINT)
    recorder.wait(60)
    filming.wait_until(lambda: not any(map(is_running, encoders)))


def is_running(process):
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_an_encoder_that_always_dies_is_given_up(tmp_path, filming):
    plan = filming.camera()
    with CameraEncoders([plan], fps=30, workdir=tmp_path) as encoders:
        # A folder where the file of packets is to be: every encoder fails at the first frame.
        (tmp_path / "episode-000001" / "camera-0.packets").mkdir(parents=True)
        encoders.put("front", filming.image(plan, 0, 0))
        with pytest.raises(VideoError, match="cannot be encoded"):
            encoders.finish_episode()
        encoders.discard_episode()
        filming.put(encoders, [plan], 1, 3)
        filming.check(encoders.finish_episode(), [plan], 1, 3)


@pytest.fixture
def small_disk(mounted):
    return mounted("2m")


def test_a_full_disk_is_told_and_when_there_is_room_again_nothing_is_lost(small_disk, filming):
    plan = filming.camera("front", 240, 320)
    with CameraEncoders([plan], fps=30, workdir=small_disk / "work", memory_mb=1) as encoders:
        filler = small_disk / "filler"
        fill(filler)
        taken = filming.put_until_refused(encoders, plan, 0, reason="No space")
        with pytest.raises(DiskFullError, match="No space"):
            encoders.finish_episode()
        filler.unlink()
        filming.check(encoders.finish_episode(), [plan], 0, taken)


def fill(path: Path):
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
