"""What lerobot reads from v2.x datasets that were converted to v3.0. `make conformance` runs it.

lerobot 0.6 refuses v2.x. Here it opens what the conversion has made of them, and its items must be
those that demoreel reads from the originals, where they are.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lerobot_answers import describe_like

import demoreel
from demoreel.testing import make_dataset
from demoreel.torch import LeRobotDataset

HERE = Path(__file__).resolve().parent
FIXTURES = Path(os.environ.get("DEMOREEL_FIXTURES") or HERE.parents[1] / "shared" / "fixtures")
LEROBOT_PYTHON = os.environ.get("DEMOREEL_LEROBOT_PYTHON")

FRONT, WRIST = "observation.images.front", "observation.images.wrist"
WINDOWS = {FRONT: [-0.1, 0.0, 0.1], "action": [0.0, 0.05]}


def v21(folder: Path, **options: Any) -> Path:
    return make_dataset(
        folder,
        **{
            "layout": "v2.1",
            "episodes": [7, 4, 9],
            "fps": 20,
            "cameras": {FRONT: (64, 96), WRIST: (48, 64)},
            "tasks": ("take it", "放下"),
            "task_changes": True,
            **options,
        },
    )


def aged(folder: Path) -> Path:
    """As older programs leave them: no names, ``video_info``, no statistics of images."""
    root = v21(folder)
    path = root / "meta" / "info.json"
    info = json.loads(path.read_text())
    for key in (FRONT, WRIST):
        info["features"][key]["names"] = None
        info["features"][key]["video_info"] = info["features"][key].pop("info", {})
    path.write_text(json.dumps(info))
    path = root / "meta" / "episodes_stats.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line["stats"] = {key: kinds for key, kinds in line["stats"].items() if key != FRONT}
    path.write_text("".join(json.dumps(line) + "\n" for line in reversed(lines)))
    path = root / "meta" / "episodes.jsonl"
    path.write_text("".join(sorted(path.open(), reverse=True)))
    return root


SOURCES: dict[str, Callable[[Path], Path]] = {
    "plain": v21,
    "aged": aged,
    "v20": lambda folder: v21(folder, layout="v2.0"),
    "b_frames": lambda folder: v21(folder, gop=8, b_frames=2),
    "av1": lambda folder: v21(folder, codec="av1"),
    "pictures": lambda folder: v21(folder, cameras=0, image_cameras={FRONT: (48, 64)}),
}
CASES: dict[str, dict[str, Any]] = {
    "items": {"return_uint8": True},
    "windows": {"return_uint8": True, "delta_timestamps": WINDOWS},
    "episodes": {"return_uint8": True, "episodes": [2]},
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("migrated")


@pytest.fixture(scope="session")
def answers(folder: Path) -> dict[str, Any]:
    """Convert everything, and ask lerobot once."""
    if not LEROBOT_PYTHON:
        pytest.skip("DEMOREEL_LEROBOT_PYTHON is not set: run `make conformance`")
    cases = [{"kwargs": kwargs, "indices": "all"} for kwargs in CASES.values()]
    jobs = []
    for name, make in SOURCES.items():
        demoreel.convert(make(folder / name), folder / f"{name}_v30", to="v3.0")
        jobs.append({"name": name, "root": str(folder / f"{name}_v30"), "cases": cases})
    if FIXTURES.is_dir():
        demoreel.convert(FIXTURES / "g1_v21", folder / "g1_v30", to="v3.0")
        some = [{"kwargs": CASES["items"], "indices": {"step": 37}}]
        jobs.append({"name": "g1", "root": str(folder / "g1_v30"), "cases": some})
    (folder / "jobs.json").write_text(json.dumps(jobs))
    subprocess.run(
        [
            *(LEROBOT_PYTHON, HERE / "lerobot_answers.py"),
            *("--jobs", folder / "jobs.json", folder / "answers.json"),
        ],
        check=True,
    )
    found: dict[str, Any] = json.loads((folder / "answers.json").read_text())["datasets"]
    return found


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", SOURCES)
def test_items_are_those_of_the_original(
    answers: dict[str, Any], folder: Path, name: str, case: str
) -> None:
    assert "error" not in answers[name], answers[name]
    compare(answers[name]["cases"][list(CASES).index(case)], folder / name, CASES[case])


def test_items_of_a_real_recording(answers: dict[str, Any]) -> None:
    if "g1" not in answers:
        pytest.skip(f"{FIXTURES} does not exist")
    assert "error" not in answers["g1"], answers["g1"]
    compare(answers["g1"]["cases"][0], FIXTURES / "g1_v21", CASES["items"])


def compare(expected: dict[str, Any], source: Path, kwargs: dict[str, Any]) -> None:
    assert "error" not in expected, expected
    dataset = LeRobotDataset("conformance/source", source, **kwargs)
    assert (len(dataset), dataset.num_episodes) == (expected["len"], expected["num_episodes"])
    assert expected["items"]
    for index, item in expected["items"].items():
        assert "error" not in item, item
        mine = dataset[int(index)]
        assert set(mine) == set(item)
        for key, value in mine.items():
            assert describe_like(value, item[key]) == item[key], f"item {index}, {key}"


def test_statistics_are_complete(answers: dict[str, Any]) -> None:
    for name in SOURCES:
        meta = answers[name]["meta"]
        assert {"action", "observation.state", *meta["camera_keys"]} <= set(meta["stats"]), name
