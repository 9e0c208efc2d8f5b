"""No encoder raises the priority of its own process or of the one that opens it."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from demoreel.media.encode import VideoEncoder, VideoSettings, same_priority

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="needs /proc")


def policies():
    return {os.sched_getscheduler(int(thread)) for thread in os.listdir("/proc/self/task")}


@pytest.mark.parametrize("codec", ["av1", "h264", "hevc"])
def test_encoders_run_as_their_caller_does(tmp_path, codec):
    before = policies()
    settings = VideoSettings(codec=codec)
    with VideoEncoder(
        tmp_path / "v.mp4", fps=30, width=640, height=480, settings=settings
    ) as video:
        assert policies() == before
        for _ in range(20):
            video.add(np.zeros((480, 640, 3), np.uint8))
        assert policies() == before
    assert policies() == before


def test_a_thread_that_was_made_urgent_is_so_no_longer():
    before = policies()
    try:
        with same_priority():
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        pytest.skip("only the privileged can make themselves urgent")
    assert policies() == before


def test_who_renounces_urgency_cannot_become_urgent():
    code = """
import os
from demoreel.media.encode import renounce_urgency
os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
renounce_urgency()
try:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
except PermissionError:
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "refused", done.stderr
