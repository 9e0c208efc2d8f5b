"""Our classes and functions beside lerobot's: parameters, methods, attributes.

A script that changes its imports finds what it found before. What differs is listed here, with the
reason; what is listed and does not differ any more fails, too.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping

import pytest
from asking_lerobot import FIXTURES, HERE

DELIBERATE = {
    "LeRobotDataset.push_to_hub(license)": "None keeps the licence that the card has; a new card "
    "gets lerobot's",
    "StreamingLeRobotDataset.num_shards": "nothing is divided into shards: the order is of frames",
    "StreamingLeRobotDataset.rng": "the order follows from the seed and the epoch, not from a "
    "generator that is used up",
    "StreamingLeRobotDataset.video_decoder_cache": "there are no decoders that outlive a batch",
}


def test_what_lerobot_has(
    lerobot_python: str,
    beside_lerobot: Mapping[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    if not FIXTURES.is_dir():
        pytest.skip(f"{FIXTURES} does not exist")
    scratch = tmp_path_factory.mktemp("faces")
    environment = {**os.environ, **beside_lerobot, "HF_DATASETS_CACHE": str(scratch)}
    out = scratch / "found.json"
    subprocess.run(
        [lerobot_python, HERE / "faces.py", FIXTURES / "g1_v30", out], env=environment, check=True
    )
    found: dict[str, str] = json.loads(out.read_text())
    assert {name: what for name, what in found.items() if name not in DELIBERATE} == {}
    assert [name for name in DELIBERATE if name not in found] == []
