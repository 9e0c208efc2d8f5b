"""Datasets for training with torch: ``LeRobotDataset``, streaming, and two for Lance datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from demoreel.errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise MissingExtraError(
        "demoreel.torch needs torch, which is not installed.",
        hint="pip install 'demoreel[torch]'",
    ) from error

from demoreel.torch.dataset import LeRobotDataset
from demoreel.torch.metadata import LeRobotDatasetMetadata
from demoreel.torch.sampler import (
    EpisodeAwareSampler,
    PrefetchBatchSampler,
    WeightedSampler,
    compute_sampler_state,
)

if TYPE_CHECKING:
    from demoreel.read.splits import eval_split, split_episodes
    from demoreel.torch.dataset_tools import (
        add_features,
        aggregate_datasets,
        convert_image_to_video,
        convert_image_to_video_dataset,
        delete_episodes,
        merge_datasets,
        modify_features,
        modify_tasks,
        recompute_stats,
        reencode_dataset,
        reencode_videos,
        remove_feature,
        split_dataset,
    )
    from demoreel.torch.device_loader import DeviceLoader, to_device
    from demoreel.torch.lance import LeRobotLanceDataset, LeRobotLanceVideoDataset
    from demoreel.torch.mixture import Mixture, MixtureMetadata, Part
    from demoreel.torch.multi import MultiLeRobotDataset
    from demoreel.torch.recording import VideoEncodingManager
    from demoreel.torch.reuse import ReuseSampler
    from demoreel.torch.streaming import StreamingLeRobotDataset
    from demoreel.torch.video_decoders import close_decoders

__all__ = [
    "DeviceLoader",
    "EpisodeAwareSampler",
    "LeRobotDataset",
    "LeRobotDatasetMetadata",
    "LeRobotLanceDataset",
    "LeRobotLanceVideoDataset",
    "Mixture",
    "MixtureMetadata",
    "MultiLeRobotDataset",
    "Part",
    "PrefetchBatchSampler",
    "ReuseSampler",
    "StreamingLeRobotDataset",
    "VideoEncodingManager",
    "WeightedSampler",
    "add_features",
    "aggregate_datasets",
    "close_decoders",
    "compute_sampler_state",
    "convert_image_to_video",
    "convert_image_to_video_dataset",
    "delete_episodes",
    "eval_split",
    "merge_datasets",
    "modify_features",
    "modify_tasks",
    "recompute_stats",
    "reencode_dataset",
    "reencode_videos",
    "remove_feature",
    "split_dataset",
    "split_episodes",
    "to_device",
]

_HOMES = {
    "DeviceLoader": "device_loader",
    "LeRobotLanceDataset": "lance",
    "LeRobotLanceVideoDataset": "lance",
    "Mixture": "mixture",
    "MixtureMetadata": "mixture",
    "MultiLeRobotDataset": "multi",
    "Part": "mixture",
    "ReuseSampler": "reuse",
    "StreamingLeRobotDataset": "streaming",
    "VideoEncodingManager": "recording",
    "close_decoders": "video_decoders",
    "to_device": "device_loader",
}
"""Where names are that load when they are first asked for; the others are dataset tools."""


def __getattr__(name: str) -> Any:
    import importlib

    if name in ("dataset_tools", "lance", "streaming"):
        return importlib.import_module(f"{__name__}.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = f"{__name__}.{_HOMES.get(name, 'dataset_tools')}"
    if name in ("eval_split", "split_episodes"):
        home = "demoreel.read.splits"
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
