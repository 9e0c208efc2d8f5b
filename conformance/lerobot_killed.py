"""Record with lerobot, and be killed before ``finalize()``: what users lose their days to.

    lerobot-python lerobot_killed.py FOLDER

Three episodes are saved; in the fourth the process kills itself. Numbers and images say which
frame they are of (``demoreel.testing.stamp``).
"""

from __future__ import annotations

import os
import signal
import sys

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset

from demoreel.testing.stamp import stamp

LENGTHS = (10, 11, 12)
CAMERA = "observation.images.front"
FEATURES = {
    "observation.state": {"dtype": "float32", "shape": (2,), "names": ["episode", "frame"]},
    "action": {"dtype": "float32", "shape": (2,), "names": None},
    CAMERA: {
        "dtype": "video",
        "shape": (96, 128, 3),
        "names": ["height", "width", "channels"],
    },
}


def main() -> None:
    dataset = LeRobotDataset.create(
        "me/killed",
        fps=30,
        features=FEATURES,
        root=sys.argv[1],
        robot_type="toy",
    )
    for episode, length in enumerate((*LENGTHS, 5)):
        for frame in range(length):
            image = np.zeros((96, 128, 3), np.uint8)
            stamp(image, episode, frame)
            numbers = np.array([episode, frame], np.float32)
            task = "pick" if episode % 2 else "place"
            dataset.add_frame(
                {"observation.state": numbers, "action": -numbers, CAMERA: image, "task": task}
            )
        if episode == len(LENGTHS):
            os.kill(os.getpid(), signal.SIGKILL)
        dataset.save_episode()


if __name__ == "__main__":
    main()
