"""The faces that training code knows: ``LeRobotDataset`` and its metadata, as torch datasets."""

from __future__ import annotations

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

__all__ = ["LeRobotDataset", "LeRobotDatasetMetadata"]
