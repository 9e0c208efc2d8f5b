"""Where our classes and functions show another face than lerobot's. Runs beside lerobot.

    PYTHONPATH=src lerobot-python faces.py DATASET OUT.json

`OUT.json` holds a sentence for each difference, by what differs: a parameter that lerobot has and
we do not, have elsewhere or with another default; a public method, property or attribute that is
missing, or is a method in one and a value in the other. Objects are compared as they are opened,
while they record, and after that. `test_faces.py` knows which differences are deliberate.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

TOOLS = (
    "add_features",
    "convert_image_to_video_dataset",
    "delete_episodes",
    "merge_datasets",
    "modify_features",
    "modify_tasks",
    "recompute_stats",
    "reencode_dataset",
    "remove_feature",
    "split_dataset",
)


def main() -> None:
    dataset, out = Path(sys.argv[1]), Path(sys.argv[2])
    os.environ["HF_HUB_OFFLINE"] = "1"
    from lerobot import datasets as theirs
    from lerobot.datasets.aggregate import aggregate_datasets

    from demoreel import torch as ours

    found: dict[str, str] = {}
    for name in TOOLS:
        found |= of_call(name, getattr(theirs, name), getattr(ours, name))
    found |= of_call("aggregate_datasets", aggregate_datasets, ours.aggregate_datasets)
    for name in (
        "LeRobotDataset",
        "LeRobotDatasetMetadata",
        "StreamingLeRobotDataset",
        "MultiLeRobotDataset",
        "VideoEncodingManager",
    ):
        found |= of_class(name, getattr(theirs, name), getattr(ours, name))
    pairs = {
        "LeRobotDataset": [kind("me/task", root=dataset) for kind in classes("LeRobotDataset")],
        "StreamingLeRobotDataset": [
            kind("me/task", root=dataset) for kind in classes("StreamingLeRobotDataset")
        ],
    }
    pairs |= of_dataset(pairs["LeRobotDataset"])
    for name, (their, our) in pairs.items():
        found |= of_objects(name, their, our)
    with TemporaryDirectory() as folder:
        recorded = [
            record(kind, Path(folder, kind.__module__)) for kind in classes("LeRobotDataset")
        ]
        for name, (their, our) in {
            "recording": recorded,
            "recording.writer": [one.writer for one in recorded],
            "recording.meta": [one.meta for one in recorded],
        }.items():
            found |= of_objects(name, their, our)
        for one in recorded:
            one.finalize()
            one[0]  # lerobot's has a reader from now on
        for name, (their, our) in {"recorded": recorded, **of_dataset(recorded)}.items():
            found |= of_objects(name, their, our)
    out.write_text(json.dumps(found))


def of_dataset(datasets: list[Any]) -> dict[str, list[Any]]:
    """Return the objects that scripts reach from datasets, by what they are called."""
    return {
        "LeRobotDatasetMetadata": [one.meta for one in datasets],
        "DatasetInfo": [one.meta.info for one in datasets],
        "DatasetReader": [one.reader for one in datasets],
        "hf_dataset": [one.hf_dataset for one in datasets],
        "meta.episodes": [one.meta.episodes for one in datasets],
    }


def record(kind: Any, root: Path) -> Any:
    """Return a dataset that is being recorded, with an episode of two frames."""
    features = {"state": {"dtype": "float32", "shape": (2,), "names": None}}
    made = kind.create("me/task", 10, features, root=root)
    for _ in range(2):
        made.add_frame({"state": np.zeros(2, np.float32), "task": "go"})
    made.save_episode()
    return made


def classes(name: str) -> tuple[Any, Any]:
    from lerobot import datasets as theirs

    from demoreel import torch as ours

    return getattr(theirs, name), getattr(ours, name)


def of_class(name: str, theirs: type[Any], ours: type[Any]) -> dict[str, str]:
    """Return what differs in the methods that a class itself defines."""
    found = of_call(name, theirs, ours)
    for member, value in vars(theirs).items():
        where = f"{name}.{member}"
        if member.startswith("_"):
            continue
        if not hasattr(ours, member):
            found[where] = "is missing"
        elif isinstance(value, property):
            if value.fset is not None and not has_setter(ours, member):
                found[where] = "cannot be assigned"
        elif callable(getattr(theirs, member)):
            found |= of_call(where, getattr(theirs, member), getattr(ours, member))
    return found


def has_setter(kind: type[Any], name: str) -> bool:
    member = inspect.getattr_static(kind, name)
    return not isinstance(member, property) or member.fset is not None


def of_call(name: str, theirs: Callable[..., Any], ours: Callable[..., Any]) -> dict[str, str]:
    """Return what differs in the parameters of two functions."""
    return {f"{name}({parameter})": what for parameter, what in _parameters(theirs, ours)}


def _parameters(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    their = list(inspect.signature(theirs).parameters.values())
    our = inspect.signature(ours).parameters
    by_place = [p for p in our.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    placed = [p for p in their if p.kind is p.POSITIONAL_OR_KEYWORD]
    for place, one in enumerate(their):
        if one.kind is one.VAR_KEYWORD:
            if not any(p.kind is p.VAR_KEYWORD for p in our.values()):
                yield one.name, "is missing"
            continue
        if one.name not in our:
            yield one.name, "is missing"
            continue
        if one in placed and (place >= len(by_place) or by_place[place].name != one.name):
            yield one.name, f"is not at place {place}"
        if our[one.name].default != one.default:
            yield one.name, f"is {our[one.name].default!r} by default, not {one.default!r}"
    for one in by_place[len(placed) :]:
        yield one.name, "is ours, and can be given by place"


def of_objects(name: str, theirs: Any, ours: Any) -> dict[str, str]:
    """Return the public attributes of an object that ours lacks, or has as something else."""
    found = {}
    for member in sorted(set(getattr(theirs, "__dict__", ())) | set(dir(type(theirs)))):
        if member.startswith("_"):
            continue
        if not hasattr(ours, member):
            found[f"{name}.{member}"] = "is missing"
            continue
        try:
            is_method = callable(getattr(theirs, member))
        except Exception:  # lerobot's rows cannot be read while it records
            continue
        if is_method != callable(getattr(ours, member)):
            found[f"{name}.{member}"] = "is a method in one and a value in the other"
    return found


if __name__ == "__main__":
    main()
