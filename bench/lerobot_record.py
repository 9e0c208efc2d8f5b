"""Record with lerobot at a steady pace. Runs beside lerobot; prints JSON.

lerobot_record.py ROOT --pictures pictures.npy --mode default|streaming [--seconds 10]
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np

os.environ["HF_HUB_OFFLINE"] = "1"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path)
    parser.add_argument("--pictures", type=Path, required=True)
    parser.add_argument("--mode", choices=("default", "streaming"), required=True)
    parser.add_argument("--fps", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--episodes", type=int, default=1)
    options = parser.parse_args()

    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    from record_pace import CAMERAS, features, record_paced

    pictures = np.load(options.pictures, mmap_mode="r")
    pictures = np.ascontiguousarray(pictures)
    dataset = LeRobotDataset.create(
        "bench/record",
        options.fps,
        features(*pictures.shape[1:3]),
        root=options.root,
        image_writer_threads=4 * len(CAMERAS),  # as its documentation advises
        streaming_encoding=options.mode == "streaming",
    )
    answer = record_paced(
        dataset.add_frame,
        dataset.save_episode,
        pictures,
        fps=options.fps,
        seconds=options.seconds,
        episodes=options.episodes,
    )
    dataset.finalize()
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
