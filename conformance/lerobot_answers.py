"""Write down what lerobot answers, so that another process can compare. Runs beside lerobot.

    lerobot_answers.py DATASET_ROOT OUT.json --cases cases.json
    lerobot_answers.py --jobs jobs.json OUT.json

`cases.json` is a list of cases:

    {"kwargs": {"episodes": [1, 3], "delta_timestamps": {"action": [0.0, 0.1]}}, "indices": "all"}

`kwargs` go to `LeRobotDataset`. `indices` is "all", a list of indices, or {"step": 7} for every
seventh. `jobs.json` is a list of `{"name": ..., "root": ..., "cases": [...]}`: many datasets for
one import of lerobot. The answer to one dataset is

    {"written_by": "lerobot 0.6.1", "dataset": NAME, "note": ..., "meta": {...}, "cases": [
        {"kwargs": {...}, "len": 123, "num_episodes": 5,
         "items": {"0": {"action": ARRAY, "task": PYTHON}, "1": ...}}, ...]}

    ARRAY   {"dtype": "float32", "shape": [6], "sha256": "76f4...", "value": [...]}
    PYTHON  {"python": "pick up the red cube"}

with an array's "value" where it is small. The answer to jobs is `{"datasets": {NAME: that}}`. Where
lerobot raises, "error" holds what it said: in the place of a dataset's "cases", of a case's
"items", or of one item's keys.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

SMALL = 64  # elements up to which an array's values are written out beside its hash


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", nargs="?", type=Path, help="the folder of one dataset")
    parser.add_argument("out", type=Path)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--cases", type=Path, help="the cases for the dataset at ROOT")
    what.add_argument("--jobs", type=Path, help="many datasets, each with its cases")
    options = parser.parse_args()
    if (options.root is None) != (options.cases is None):
        parser.error("give DATASET_ROOT with --cases, and none with --jobs")

    with tempfile.TemporaryDirectory(prefix="lerobot-answers-") as scratch:
        # Before lerobot is imported: no network, and no tables cached by an earlier run.
        os.environ["HF_HUB_OFFLINE"] = "1"
        os.environ["HF_DATASETS_CACHE"] = scratch
        if options.cases:
            answers: Any = answer_dataset(
                options.root.name, options.root, json.loads(options.cases.read_text())
            )
        else:
            jobs = json.loads(options.jobs.read_text())
            answers = {
                "datasets": {
                    job["name"]: answer_dataset(job["name"], job["root"], job["cases"])
                    for job in jobs
                }
            }
    options.out.write_text(json.dumps(answers, ensure_ascii=False, default=repr))


def answer_dataset(name: str, root: str | Path, cases: list[dict[str, Any]]) -> dict[str, Any]:
    from lerobot.datasets.lerobot_dataset import LeRobotDatasetMetadata

    answers: dict[str, Any] = {
        "written_by": f"lerobot {version('lerobot')}",
        "dataset": name,
        "note": "sha256 is over the C-contiguous array bytes",
    }
    try:
        meta = LeRobotDatasetMetadata(f"conformance/{name}", root=root)
        answers["meta"] = describe_meta(meta)
        answers["cases"] = [answer_case(name, root, case) for case in cases]
    except Exception as error:
        answers["error"] = said(error)
    return answers


def answer_case(name: str, root: str | Path, case: dict[str, Any]) -> dict[str, Any]:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    answers: dict[str, Any] = {"kwargs": case["kwargs"]}
    try:
        dataset = LeRobotDataset(f"conformance/{name}", root=root, **case["kwargs"])
    except Exception as error:
        answers["error"] = said(error)
        return answers
    answers["len"] = len(dataset)
    answers["num_episodes"] = dataset.num_episodes
    answers["items"] = {
        str(index): answer_item(dataset, index)
        for index in choose(case.get("indices", "all"), len(dataset))
    }
    return answers


def answer_item(dataset: Any, index: int) -> dict[str, Any]:
    try:
        return {key: describe(value) for key, value in dataset[index].items()}
    except Exception as error:
        return {"error": said(error)}


def choose(indices: Any, length: int) -> list[int]:
    if indices == "all":
        return list(range(length))
    if isinstance(indices, dict):
        return list(range(0, length, indices["step"]))
    return list(indices)


def describe_meta(meta: Any) -> dict[str, Any]:
    names = ("fps", "robot_type", "total_episodes", "total_frames", "total_tasks")
    keys = ("camera_keys", "video_keys", "image_keys", "depth_keys")
    return {
        **{name: getattr(meta, name) for name in names},
        **{name: sorted(getattr(meta, name)) for name in keys},
        "features": meta.features,
        "tasks": list(meta.tasks.index),
        "lengths": list(meta.episodes["length"]),
        "stats": {
            key: {name: describe(value) for name, value in values.items()}
            for key, values in (meta.stats or {}).items()
        },
    }


def describe(value: Any) -> dict[str, Any]:
    """Describe a value of an item: arrays and tensors by their bytes, the rest as it is."""
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if not isinstance(value, np.ndarray):
        return {"python": value}
    answer = {
        "dtype": str(value.dtype),
        "shape": list(value.shape),
        "sha256": hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest(),
    }
    if value.size <= SMALL:
        answer["value"] = value.tolist()
    return answer


def describe_like(value: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    """Describe a value of ours as lerobot gives it.

    ``return_uint8`` holds for images in tables; lerobot gives these as floats all the same.
    """
    import torch

    is_bytes = isinstance(value, torch.Tensor) and value.dtype == torch.uint8
    return describe(value / 255.0 if is_bytes and wanted.get("dtype") == "float32" else value)


def said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main())
