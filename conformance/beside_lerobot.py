"""demoreel and lerobot in one process: what is checked, one function each. Runs beside lerobot.

    PYTHONPATH=src lerobot-python beside_lerobot.py FIXTURES OUT.json

`OUT.json` holds, for each check, "passed" or the traceback; `test_beside_lerobot.py` reports them.
Checks run in the order in which they stand here: the first ones are about what is true before
anybody imports lerobot.
"""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import pickle
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from faces import TOOLS

Check = Callable[[Path], None]
CHECKS: dict[str, Check] = {}
OPENED_BEFORE: dict[str, Any] = {}
CAMERA = "observation.images.cam_high"
VIDEO_LAYOUTS = ("g1_lance_video", "g1_lance_native")


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


def main() -> None:
    fixtures, out = Path(sys.argv[1]), Path(sys.argv[2])
    results = {}
    with tempfile.TemporaryDirectory(prefix="beside-lerobot-") as scratch:
        # Before lerobot is imported: no network, and no tables cached by an earlier run.
        os.environ["HF_HUB_OFFLINE"] = "1"
        os.environ["HF_DATASETS_CACHE"] = scratch
        for name, function in CHECKS.items():
            try:
                function(fixtures)
                results[name] = "passed"
            except BaseException:
                results[name] = traceback.format_exc()
    out.write_text(json.dumps(results))


def lance_classes(fixtures: Path, **options: Any) -> dict[str, Any]:
    from demoreel.torch import LeRobotLanceDataset, LeRobotLanceVideoDataset

    return {
        "g1_lance_video": LeRobotLanceVideoDataset(root=fixtures / "g1_lance_video", **options),
        "g1_lance_native": LeRobotLanceVideoDataset(root=fixtures / "g1_lance_native", **options),
        "kitchen_lance_frames": LeRobotLanceDataset(
            root=fixtures / "kitchen_lance_frames", decode_device="cpu", **options
        ),
    }


def same(got: dict[str, Any], wanted: dict[str, Any], *, loss: float = 0.0) -> None:
    """Compare two items; `loss` is how far images may be apart, in 0..1, at their worst."""
    import torch

    assert set(got) == set(wanted), set(got) ^ set(wanted)
    for key, value in wanted.items():
        if not isinstance(value, torch.Tensor):
            assert got[key] == value, key
        elif ".images." in key and not key.endswith("_is_pad") and loss:
            assert (got[key].dtype, got[key].shape) == (value.dtype, value.shape), key
            assert (got[key] - value).abs().mean() <= loss, key
        else:
            assert got[key].dtype == value.dtype, key
            assert torch.equal(got[key], value), key


def some(length: int, count: int) -> list[int]:
    return [0, length - 1, *random.Random(0).sample(range(length), count)]


def batches(dataset: Any, indices: list[int], **options: Any) -> Iterable[dict[str, Any]]:
    from torch.utils.data import DataLoader, Subset

    return DataLoader(Subset(dataset, indices), batch_size=8, **options)


# ── Before lerobot ────────────────────────────────────────────────────────────────────────────────


@check
def nobody_imports_lerobot(fixtures: Path) -> None:
    from demoreel.torch import LeRobotDataset

    before = multiprocessing.get_start_method(allow_none=True)
    OPENED_BEFORE.update(lance_classes(fixtures))
    OPENED_BEFORE["g1_v30"] = LeRobotDataset("me/g1", root=fixtures / "g1_v30")
    for dataset in OPENED_BEFORE.values():
        assert dataset.__class__ is type(dataset)
        dataset[0]
    assert "lerobot" not in sys.modules
    assert multiprocessing.get_start_method(allow_none=True) == before


# ── Kinship ───────────────────────────────────────────────────────────────────────────────────────


@check
def isinstance_holds_before_and_after(fixtures: Path) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    for name, dataset in [*OPENED_BEFORE.items(), *lance_classes(fixtures).items()]:
        assert isinstance(dataset, LeRobotDataset), name
        assert isinstance(dataset, type(dataset))
        assert issubclass(dataset.__class__, LeRobotDataset)
        assert "demoreel" in type(dataset).__module__


@check
def copies_and_pickles_stay_kin(fixtures: Path) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    for dataset in OPENED_BEFORE.values():
        for other in (pickle.loads(pickle.dumps(dataset)), copy.copy(dataset)):
            assert type(other) is type(dataset)
            assert isinstance(other, LeRobotDataset)
            same(other[5], dataset[5])


# ── Items ─────────────────────────────────────────────────────────────────────────────────────────

WINDOWS = {
    CAMERA: [-3 / 30, 0.0, 2 / 30],
    "observation.state": [-1 / 30, 0.0],
    "action": [number / 30 for number in range(8)],
}


def items_of_videos(fixtures: Path, **options: Any) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    from demoreel.torch import LeRobotLanceVideoDataset

    theirs = LeRobotDataset("me/g1", root=fixtures / "g1_v30", **options)
    indices = some(len(theirs), 20)
    wanted = [theirs[index] for index in indices]
    for name in VIDEO_LAYOUTS:
        ours = LeRobotLanceVideoDataset(root=fixtures / name, **options)
        assert (len(ours), ours.num_episodes) == (len(theirs), theirs.num_episodes)
        for index, item, expected in zip(indices, ours.__getitems__(indices), wanted, strict=True):
            same(item, expected)
            same(ours[index], expected)


@check
def items_of_videos_as_floats(fixtures: Path) -> None:
    items_of_videos(fixtures)


@check
def items_of_videos_with_windows(fixtures: Path) -> None:
    items_of_videos(fixtures, delta_timestamps=WINDOWS, return_uint8=True)


@check
def items_of_videos_of_some_episodes(fixtures: Path) -> None:
    items_of_videos(fixtures, episodes=[1, 3], return_uint8=True)


@check
def items_of_frames(fixtures: Path) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    from demoreel.torch import LeRobotLanceDataset

    windows = {"observation.images.front": [-0.1, 0.0], "action": [0.0, 0.1]}
    for options in ({}, {"delta_timestamps": windows}, {"episodes": [1, 4]}):
        theirs = LeRobotDataset("me/kitchen", root=fixtures / "kitchen_images_v30", **options)
        ours = LeRobotLanceDataset(
            root=fixtures / "kitchen_lance_frames", decode_device="cpu", **options
        )
        indices = some(len(theirs), 20)
        for index, item in zip(indices, ours.__getitems__(indices), strict=True):
            expected = theirs[index]
            # The tool that wrote the table leaves text out, and numbers the tasks again.
            del expected["note"], expected["task_index"], item["task_index"]
            same(item, expected, loss=0.02)


@check
def jpegs_by_torchvision(fixtures: Path) -> None:
    """The way that a GPU takes, with torchvision's decoder of the CPU."""
    import torch

    from demoreel.torch.lance import LeRobotLanceDataset, _DeviceBatches

    windows = {"observation.images.front": [-0.2, 0.0], "action": [0.0, 0.1]}
    for options in ({}, {"delta_timestamps": windows}, {"image_size": (48, 64)}):
        kwargs = {"root": fixtures / "kitchen_lance_frames", "decode_device": "cpu", **options}
        ours, device = LeRobotLanceDataset(**kwargs), LeRobotLanceDataset(**kwargs)
        device._device = torch.device("cpu")
        device._on_device = (os.getpid(), _DeviceBatches(device, torch.device("cpu")))
        indices = [5, 5, 0, 122, *some(len(ours), 10)]
        pairs = zip(device.__getitems__(indices), ours.__getitems__(indices), strict=True)
        for item, expected in pairs:
            same(item, expected, loss=2 / 255)


# ── lerobot's tools ───────────────────────────────────────────────────────────────────────────────


@check
def episode_aware_sampler(fixtures: Path) -> None:
    from lerobot.datasets import EpisodeAwareSampler
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    from torch.utils.data import DataLoader

    theirs = LeRobotDataset("me/g1", root=fixtures / "g1_v30", episodes=[1, 3])
    for name in VIDEO_LAYOUTS:
        ours = lance_classes(fixtures)[name]
        some_of_ours = type(ours)(root=fixtures / name, episodes=[1, 3], return_uint8=True)
        assert dict(some_of_ours.absolute_to_relative_idx) == theirs.absolute_to_relative_idx
        assert ours.absolute_to_relative_idx is None
        orders = [
            EpisodeAwareSampler(
                dataset.meta.episodes["dataset_from_index"],
                dataset.meta.episodes["dataset_to_index"],
                episode_indices_to_use=dataset.episodes,
                drop_n_last_frames=7,
                shuffle=True,
                seed=3,
                absolute_to_relative_idx=dataset.absolute_to_relative_idx,
            )
            for dataset in (some_of_ours, theirs)
        ]
        mine, wanted = (list(order) for order in orders)
        assert mine == wanted
        batch = next(iter(DataLoader(some_of_ours, batch_size=4, sampler=orders[0])))
        assert set(batch["episode_index"].tolist()) <= {1, 3}


@check
def tables_for_tools(fixtures: Path) -> None:
    import torch
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    theirs = LeRobotDataset("me/g1", root=fixtures / "g1_v30", episodes=[2, 0]).hf_dataset
    for dataset in lance_classes(fixtures, episodes=[2, 0]).values():
        if dataset.reader.layout == "lance-frames":
            continue
        table = dataset.hf_dataset
        assert len(table) == len(theirs)
        assert set(table.column_names) == set(theirs.column_names)
        for row in (0, 100, len(theirs) - 1):
            for key, value in theirs[row].items():
                assert torch.equal(torch.as_tensor(table[row][key]), torch.as_tensor(value)), key
        assert table.data.column("task_index").to_numpy().shape == (len(theirs),)


@check
def rows_with_images(fixtures: Path) -> None:
    import torch
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    from demoreel import torch as ours

    for name in ("kitchen_images_v30", "g1_v30"):
        chosen = {"root": fixtures / name, "episodes": [2, 0]}
        theirs = LeRobotDataset("me/task", **chosen)
        mine = ours.LeRobotDataset("me/task", **chosen)
        assert mine.hf_dataset.column_names == theirs.hf_dataset.column_names
        assert len(mine.hf_dataset) == len(theirs.hf_dataset)
        for row in (0, 7, len(theirs) - 1):
            wanted = theirs.hf_dataset[row]
            for found in (mine.hf_dataset[row], mine.get_raw_item(row)):
                assert found.keys() == wanted.keys()
                for key, value in wanted.items():
                    same = torch.equal if isinstance(value, torch.Tensor) else type(value).__eq__
                    assert same(found[key], value), (name, key)
        some = mine.hf_dataset.filter(lambda row: int(row["frame_index"]) == 1)
        assert [int(number) for number in some["episode_index"]] == [0, 2]


@check
def episodes_as_a_dataset(fixtures: Path) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDatasetMetadata

    from demoreel import torch as ours

    theirs = LeRobotDatasetMetadata("me/task", fixtures / "kitchen_v30").episodes
    mine = ours.LeRobotDatasetMetadata("me/task", fixtures / "kitchen_v30").episodes
    assert set(mine.column_names) == set(theirs.column_names)
    assert list(mine) == [{name: row[name] for name in mine.column_names} for row in theirs]
    assert mine.sort("length", reverse=True)["length"] == sorted(theirs["length"], reverse=True)
    assert mine.unique("length") == theirs.unique("length")


@check
def workers(fixtures: Path) -> None:
    import torch

    for name, dataset in OPENED_BEFORE.items():
        indices = some(len(dataset), 14)
        alone = list(batches(dataset, indices))
        for method in ("fork", "spawn"):
            loader = batches(dataset, indices, num_workers=1, multiprocessing_context=method)
            for batch, wanted in zip(loader, alone, strict=True):
                for key, value in wanted.items():
                    equal = torch.equal if isinstance(value, torch.Tensor) else list.__eq__
                    assert equal(batch[key], value), (name, method, key)


# ── Editing ───────────────────────────────────────────────────────────────────────────────────────


@check
def editing_functions_take_the_same(fixtures: Path) -> None:
    """Parameters and defaults are lerobot's; where the result goes may come on top."""
    import inspect

    from lerobot.datasets import aggregate, dataset_tools

    from demoreel import torch as ours

    theirs = {name: getattr(dataset_tools, name) for name in TOOLS}
    theirs["aggregate_datasets"] = aggregate.aggregate_datasets
    for name, function in theirs.items():
        wanted = inspect.signature(function).parameters
        found = inspect.signature(getattr(ours, name)).parameters
        assert list(found)[: len(wanted)] == list(wanted), name
        for key, parameter in wanted.items():
            assert found[key].default == parameter.default, (name, key)
        assert set(list(found)[len(wanted) :]) <= {"output_dir", "repo_id"}, name


@check
def editing_functions_make_the_same(fixtures: Path) -> None:
    """Results of both, without videos: lerobot would encode those again."""
    import numpy as np
    from lerobot.datasets import dataset_tools as theirs
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    from demoreel import torch as ours
    from demoreel.testing import make_dataset

    scratch = Path(tempfile.mkdtemp(prefix="editing-"))
    lengths = [5, 7, 4, 6, 3]
    make_dataset(scratch / "in", episodes=lengths, cameras=0, tasks=("pick", "place"), fps=10)
    source = LeRobotDataset("me/in", root=scratch / "in")
    entry = {"dtype": "float32", "shape": (1,), "names": None}
    reward = np.linspace(0, 1, sum(lengths), dtype=np.float32)
    added = {
        "reward": (reward, entry),
        "later": (lambda row, episode, frame: np.float32(row["timestamp"] + episode), entry),
    }
    splits = {"a": 0.45, "b": 0.2, "c": 0.2}
    for name, change in {
        "deleted": lambda tools, out: tools.delete_episodes(source, [0, 3], out),
        "features": lambda tools, out: tools.modify_features(source, added, "action", out),
        "merged": lambda tools, out: tools.merge_datasets([source, source], "me/all", out),
        "split_a": lambda tools, out: tools.split_dataset(source, splits, out)["a"],
        "split_b": lambda tools, out: tools.split_dataset(source, splits, out)["b"],
        "split_c": lambda tools, out: tools.split_dataset(source, splits, out)["c"],
    }.items():
        mine, wanted = change(ours, scratch / name), change(theirs, scratch / f"{name}_lerobot")
        same_dataset(mine, wanted, name)
    copied = scratch / "tasks_lerobot"
    shutil.copytree(scratch / "in", copied)
    tasks = {"new_task": "x", "episode_tasks": {1: "y"}, "task_replacements": {"pick": "take"}}
    wanted = theirs.modify_tasks(LeRobotDataset("me/in", root=copied), **tasks)
    mine = ours.modify_tasks(source, **tasks, output_dir=scratch / "tasks")
    assert mine.meta.episodes["tasks"] == list(wanted.meta.episodes["tasks"])
    shutil.rmtree(scratch)


def same_dataset(mine: Any, wanted: Any, name: str) -> None:
    import numpy as np

    assert len(mine) == len(wanted), name
    assert mine.repo_id == wanted.repo_id, name
    for index in range(len(wanted)):
        item, other = mine[index], wanted[index]
        del item["task_index"], other["task_index"]  # tasks are numbered as they come; texts count
        same(item, other)
    for key in ("observation.state", "reward"):
        for kind in ("min", "max", "mean", "std") if key in wanted.meta.stats else ():
            one, other = mine.meta.stats[key][kind], wanted.meta.stats[key][kind]
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, err_msg=f"{name} {key}")


# ── The factory ───────────────────────────────────────────────────────────────────────────────────


def configured(root: Path, **options: Any) -> Any:
    from lerobot.configs.default import DatasetConfig
    from lerobot.configs.train import TrainPipelineConfig
    from lerobot.policies.act.configuration_act import ACTConfig

    policy = ACTConfig(chunk_size=4, n_action_steps=4, device="cpu", push_to_hub=False)
    dataset = DatasetConfig(repo_id="me/any", root=str(root), **options)
    return TrainPipelineConfig(dataset=dataset, policy=policy)


@check
def factory(fixtures: Path) -> None:
    import lerobot.datasets.factory as theirs
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    import demoreel.torch.lerobot as plug
    from demoreel import torch as ours

    expected = {
        "g1_v21": ours.LeRobotDataset,
        "g1_v30": ours.LeRobotDataset,
        "g1_lance_video": ours.LeRobotLanceVideoDataset,
        "g1_lance_native": ours.LeRobotLanceVideoDataset,
        "kitchen_lance_frames": ours.LeRobotLanceDataset,
    }
    for name, kind in expected.items():
        dataset = theirs.make_dataset(configured(fixtures / name))
        assert type(dataset) is kind, name
        assert isinstance(dataset, LeRobotDataset)
        assert dataset[0]["action"].shape[0] == 4
        assert dataset.meta.stats[dataset.meta.camera_keys[0]]["mean"].shape == (3, 1, 1)
    parts = theirs.make_train_eval_datasets(configured(fixtures / "g1_lance_video", eval_split=0.5))
    assert [part.num_episodes for part in parts] == [2, 2]

    plug.unplug()
    plug.unplug()
    assert type(theirs.make_dataset(configured(fixtures / "g1_v30"))) is LeRobotDataset
    plug.plug_in()
    plug.plug_in()
    assert type(theirs.make_dataset(configured(fixtures / "g1_v30"))) is ours.LeRobotDataset
    plug.unplug()


if __name__ == "__main__":
    main()
