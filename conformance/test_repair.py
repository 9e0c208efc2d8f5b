"""A lerobot recording that was killed before ``finalize()``: lost to lerobot, not to demoreel."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import numpy as np

import demoreel
from demoreel.testing.stamp import read_stamp

PYTHON = os.environ.get("DEMOREEL_LEROBOT_PYTHON", "")
HERE = Path(__file__).parent
LENGTHS = (10, 11, 12)
CAMERA = "observation.images.front"
OPEN = """
import sys
from lerobot.datasets.lerobot_dataset import LeRobotDataset
dataset = LeRobotDataset("me/killed", root=sys.argv[1])
print(*(dataset[i]["index"].item() for i in range(len(dataset))))
"""


def run_lerobot(*arguments: str) -> subprocess.CompletedProcess[str]:
    source = str(HERE.parent / "src")
    return subprocess.run(
        [PYTHON, *arguments],
        env={**os.environ, "PYTHONPATH": source, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_killed_recording_comes_back(tmp_path):
    root, mended = tmp_path / "killed", tmp_path / "mended"
    recorded = run_lerobot(str(HERE / "lerobot_killed.py"), str(root))
    assert recorded.returncode == -signal.SIGKILL, recorded.stderr[-2000:]
    assert run_lerobot("-c", OPEN, str(root)).returncode != 0

    done = demoreel.repair(root, mended)

    assert not done.lost
    assert done.is_clean, done.after
    dataset = demoreel.open(mended)
    assert dataset.episodes.length.tolist() == list(LENGTHS)
    for row, item in enumerate(dataset):
        episode, frame = read_stamp(item[CAMERA])
        assert np.array_equal(item["observation.state"], np.float32([episode, frame]))
        assert (item["episode_index"], item["frame_index"]) == (episode, frame)
        assert item["task"] == ("pick" if episode % 2 else "place"), row
    read = run_lerobot("-c", OPEN, str(mended))
    assert read.returncode == 0, read.stderr[-2000:]
    assert read.stdout.split() == [str(row) for row in range(sum(LENGTHS))]
