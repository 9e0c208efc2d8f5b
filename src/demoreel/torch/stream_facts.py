"""What a stream says of the dataset behind it, under the names that LeRobot users know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from demoreel.torch.dataset import LeRobotDataset, Transform
from demoreel.torch.metadata import LeRobotDatasetMetadata


class StreamFacts:
    """Attributes of the map-style dataset that reads the items."""

    dataset: LeRobotDataset

    @property
    def repo_id(self) -> str:
        """What the dataset is called."""
        return self.dataset.repo_id

    @property
    def root(self) -> Path:
        """Where the dataset lies."""
        return self.dataset.root

    @property
    def meta(self) -> LeRobotDatasetMetadata:
        """The dataset's metadata."""
        return self.dataset.meta

    @property
    def revision(self) -> str:
        """The dataset's revision."""
        return self.dataset.revision

    @property
    def episodes(self) -> list[int] | None:
        """The chosen episodes; None if all."""
        return self.dataset.episodes

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        """Every feature's entry in ``info.json``."""
        return self.dataset.features

    @property
    def fps(self) -> float:
        """Frames per second."""
        return self.dataset.fps

    @property
    def num_frames(self) -> int:
        """Frames in the chosen episodes: samples of an epoch, all ranks together."""
        return self.dataset.num_frames

    @property
    def num_episodes(self) -> int:
        """Chosen episodes."""
        return self.dataset.num_episodes

    @property
    def delta_timestamps(self) -> dict[str, list[float]] | None:
        """Windows in seconds."""
        return self.dataset.delta_timestamps

    @property
    def delta_indices(self) -> dict[str, list[int]] | None:
        """Windows in frames."""
        return self.dataset.delta_indices

    @property
    def depth_output_unit(self) -> str:
        """Unit of depth pictures and their statistics."""
        return self.dataset.depth_output_unit

    @property
    def image_transforms(self) -> Transform | None:
        """What is applied to pictures."""
        return self.dataset.image_transforms
