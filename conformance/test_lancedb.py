"""What lerobot-lancedb 0.2.2 reads of recordings in lance-video and lance-frames."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import demoreel

CAMERA = "observation.images.front"
FEATURES = {
    "observation.state": {"dtype": "float32", "shape": (6,), "names": None},
    "action": {"dtype": "float32", "shape": (6,), "names": None},
    "tactile": {"dtype": "float32", "shape": (4, 3), "names": None},
    "phase": {"dtype": "int64", "shape": (1,), "names": None},
    "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
    "next.success": {"dtype": "bool", "shape": (1,), "names": None},
    CAMERA: {"dtype": "video", "shape": (96, 128, 3), "names": None},
}
EPISODES, LENGTH = 3, 12
READ = f"""
import json, sys
import lerobot_lancedb
assert lerobot_lancedb.__version__ == "0.2.2"
name, root = sys.argv[1:]
dataset = getattr(lerobot_lancedb, name)(root=root)
items = [dataset[place] for place in range(0, len(dataset), 5)]
print(json.dumps({{
    "length": len(dataset),
    "items": [{{
        key: value.flatten().tolist() if key != {CAMERA!r} else float(value.mean())
        for key, value in item.items() if hasattr(value, "shape")
    }} for item in items],
}}))
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("recorded") / "arm"
    recorder = demoreel.create(root, fps=30, features=FEATURES, vcodec="h264")
    random = np.random.default_rng(0)
    for episode in range(EPISODES):
        for frame in range(LENGTH):
            recorder.add_frame(
                {
                    "observation.state": random.random(6),
                    "action": random.random(6),
                    "tactile": random.random((4, 3)),
                    "phase": np.array([100 * episode + frame]),
                    "next.reward": random.random(1),
                    "next.success": np.array([frame == LENGTH - 1]),
                    CAMERA: np.full((96, 128, 3), 20 * frame + episode, np.uint8),
                    "task": f"task {episode}",
                }
            )
        recorder.save_episode()
    recorder.finalize()
    return root


@pytest.mark.parametrize(
    ("layout", "name"),
    [("lance-video", "LeRobotLanceVideoDataset"), ("lance-frames", "LeRobotLanceDataset")],
)
def test_lerobot_lancedb_reads_a_recording(
    recorded: Path, lancedb_python: str, tmp_path: Path, layout: str, name: str
) -> None:
    demoreel.convert(recorded, tmp_path / "arm", to=layout)
    old = Path(lancedb_python).parent.parent / "lancedb-0.2"
    done = subprocess.run(
        [lancedb_python, "-c", READ, name, str(tmp_path / "arm")],
        env={**os.environ, "PYTHONPATH": str(old), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    ours = demoreel.open(tmp_path / "arm")
    assert found["length"] == len(ours) == EPISODES * LENGTH
    for place, item in zip(range(0, len(ours), 5), found["items"], strict=True):
        sample = ours[place]
        for key in (*ours.features, "index"):
            value = np.asarray(sample[key])
            if key == CAMERA:
                assert item[key] == pytest.approx(value.mean() / 255, abs=0.02)
            else:
                assert item[key] == value.flatten().tolist(), key
