"""Record with demoreel at a steady pace; prints JSON.

demoreel_record.py ROOT --pictures pictures.npy [--seconds 10] [--vcodec auto]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from record_pace import features, record_paced

import demoreel


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path)
    parser.add_argument("--pictures", type=Path, required=True)
    parser.add_argument("--fps", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--episodes", type=int, default=1)
    parser.add_argument("--vcodec", default="auto")
    options = parser.parse_args()

    pictures = np.load(options.pictures)
    recorder = demoreel.create(
        options.root,
        fps=options.fps,
        features=features(*pictures.shape[1:3]),
        vcodec=options.vcodec,
    )
    reports = []
    answer = record_paced(
        recorder.add_frame,
        lambda: reports.append(recorder.save_episode()),
        pictures,
        fps=options.fps,
        seconds=options.seconds,
        episodes=options.episodes,
    )
    answer["codec"] = next(
        feature.info["video.codec"]
        for feature in recorder.info.features.values()
        if feature.is_video
    )
    recorder.finalize()
    answer["reports"] = [report.to_json() for report in reports]
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
