"""``MultiLeRobotDataset``: several datasets read as one, without writing a merged one."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from demoreel.errors import ArgumentError, OutOfRangeError
from demoreel.model import Stats, combine_stats
from demoreel.torch.dataset import LeRobotDataset, Transform

log = logging.getLogger(__name__)


class MultiLeRobotDataset(torch.utils.data.Dataset[dict[str, Any]]):
    """Several datasets one behind the other, with the features that all of them have.

    Items are those of ``LeRobotDataset``, and ``dataset_index`` says which dataset each is of. To
    train on one dataset of them all, ``merge_datasets`` writes it.

    Args:
        repo_ids: Their names.
        root: The folder that holds one folder for each name; None is ``HF_LEROBOT_HOME``. What is
            not there is fetched from the Hub.
        episodes: By name, read only these; None is all.
        image_transforms: Applied to each image (or window of images), depth excepted.
        delta_timestamps: Windows in seconds, by feature.
        tolerances_s: By name, as ``tolerance_s`` of ``LeRobotDataset``; None is 1e-4 of each.
        download_videos: False leaves videos out where datasets are fetched.
        video_backend: Accepted for compatibility.
        token: For the Hub; it is not kept.

    Raises:
        DatasetNotFoundError: One of them is neither on this machine nor on the Hub.
        ArgumentError: There are none, or they have no feature in common.
    """

    def __init__(
        self,
        repo_ids: Sequence[str],
        root: str | os.PathLike[str] | None = None,
        episodes: Mapping[str, Sequence[int]] | None = None,
        image_transforms: Transform | None = None,
        delta_timestamps: dict[str, list[float]] | None = None,
        tolerances_s: Mapping[str, float] | None = None,
        download_videos: bool = True,
        video_backend: str | None = None,
        *,
        token: str | bool | None = None,
    ) -> None:
        from demoreel.hub.snapshot import lerobot_home

        if not repo_ids:
            raise ArgumentError("No datasets were named.")
        self.repo_ids = list(repo_ids)
        self.root = lerobot_home() if root is None else Path(root)
        self.tolerances_s = dict(tolerances_s or dict.fromkeys(self.repo_ids, 1e-4))
        self.delta_timestamps = delta_timestamps
        self._datasets = [
            LeRobotDataset(
                repo_id,
                root=None if root is None else self.root / repo_id,
                episodes=episodes[repo_id] if episodes else None,
                image_transforms=image_transforms,
                delta_timestamps=delta_timestamps,
                tolerance_s=self.tolerances_s[repo_id],
                download_videos=download_videos,
                token=token,
            )
            for repo_id in self.repo_ids
        ]
        self._start = np.cumsum([0, *(len(dataset) for dataset in self._datasets)])
        self.disabled_features = self._not_in_all()
        stated = [dataset.meta.stats or {} for dataset in self._datasets]
        self.stats: Stats = {}
        for key in dict.fromkeys(key for stats in stated for key in stats):
            own = [{key: stats[key]} for stats in stated if key in stats]  # of those that have it
            self.stats |= combine_stats(own, quantiles=True) or {}
        self.set_image_transforms(image_transforms)

    def _not_in_all(self) -> set[str]:
        common = set.intersection(*(set(dataset.features) for dataset in self._datasets))
        if not common:
            raise ArgumentError("The datasets have no feature in common.")
        every = {key for dataset in self._datasets for key in dataset.features}
        for repo_id, dataset in zip(self.repo_ids, self._datasets, strict=True):
            extra = sorted(set(dataset.features) - common)
            if extra:
                log.warning("%s: %s left out: not all datasets have it", repo_id, ", ".join(extra))
        return every - common

    def set_image_transforms(self, image_transforms: Transform | None) -> None:
        """Apply this to images from now on."""
        for dataset in self._datasets:
            dataset.set_image_transforms(image_transforms)
        self.image_transforms = image_transforms

    def clear_image_transforms(self) -> None:
        """Hand images out as they are."""
        self.set_image_transforms(None)

    @property
    def repo_id_to_index(self) -> dict[str, int]:
        """The ``dataset_index`` of each dataset."""
        return {repo_id: number for number, repo_id in enumerate(self.repo_ids)}

    @property
    def fps(self) -> float:
        """Frames per second of the first dataset."""
        return self._datasets[0].fps

    @property
    def video(self) -> bool:
        """Whether the first dataset has cameras that are stored as video."""
        return bool(self._datasets[0].meta.video_keys)

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        """The entries of the features that all datasets have."""
        first = self._datasets[0].features
        return {key: entry for key, entry in first.items() if key not in self.disabled_features}

    @property
    def camera_keys(self) -> list[str]:
        """Every camera."""
        return [key for key, f in self.features.items() if f["dtype"] in ("video", "image")]

    @property
    def video_frame_keys(self) -> list[str]:
        """Cameras stored as video."""
        return [key for key, feature in self.features.items() if feature["dtype"] == "video"]

    @property
    def num_frames(self) -> int:
        """Frames of all datasets."""
        return int(self._start[-1])

    @property
    def num_episodes(self) -> int:
        """Episodes of all datasets."""
        return sum(dataset.num_episodes for dataset in self._datasets)

    @property
    def tolerance_s(self) -> float:
        """Just less than the time between two frames."""
        return 1 / self.fps - 1e-4

    def __len__(self) -> int:
        return self.num_frames

    def __getitem__(self, idx: int) -> dict[str, Any]:
        return self.__getitems__([idx])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return many items; those of one dataset are read together.

        Raises:
            OutOfRangeError: There is no such frame.
        """
        total = len(self)
        wanted = np.asarray(indices, np.int64)
        wrong = (wanted < -total) | (wanted >= total)
        if wrong.any():
            raise OutOfRangeError(f"Index {int(wanted[wrong][0])} out of bounds: {total} frames.")
        wanted = wanted % total
        of = np.searchsorted(self._start, wanted, side="right") - 1
        items: list[dict[str, Any]] = [{} for _ in wanted]
        for number in np.unique(of).tolist():
            places = np.flatnonzero(of == number)
            own = (wanted[places] - self._start[number]).tolist()
            found = self._datasets[number].__getitems__(own)
            for place, item in zip(places.tolist(), found, strict=True):
                kept = {k: v for k, v in item.items() if self._is_kept(k)}
                items[place] = {**kept, "dataset_index": torch.tensor(number)}
        return items

    def _is_kept(self, key: str) -> bool:
        gone = self.disabled_features
        return key not in gone and key.removesuffix("_is_pad") not in gone

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(repo_ids={self.repo_ids}, num_episodes={self.num_episodes}, "
            f"num_frames={self.num_frames})"
        )
