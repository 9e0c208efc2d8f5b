"""``ds.meta``: a dataset's metadata under the names that LeRobot users know."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from demoreel.errors import MissingExtraError
from demoreel.layouts.base import Reader
from demoreel.layouts.detect import open_reader
from demoreel.model import Stats
from demoreel.model.feature import LANGUAGE_KEYS
from demoreel.storage.folder import dataset_folder
from demoreel.torch.place import metadata_root, remote_uri

if TYPE_CHECKING:
    import pandas as pd

_STATS_IN_DEPTH_UNITS = ("min", "max", "mean", "std", "q01", "q10", "q50", "q90", "q99")


class LeRobotDatasetMetadata:
    """Metadata of a dataset of any layout: on this machine, in an object store, or from the Hub.

    Args:
        repo_id: ``me/my_task``. If ``root`` is None, looked for in ``HF_LEROBOT_HOME``; else the
            metadata are fetched from the Hub to the cache that lerobot uses.
        root: The dataset's folder, or where it is remote: ``s3://bucket/path`` and the like.
        revision: A tag, a branch or a commit of the repository.
        force_cache_sync: Ask the Hub for something newer, if ``root`` is None.
        token: For the Hub; None uses ``HF_TOKEN`` or the login. It is not kept.
    """

    def __init__(
        self,
        repo_id: str,
        root: str | os.PathLike[str] | None = None,
        revision: str | None = None,
        force_cache_sync: bool = False,
        *,
        reader: Reader | None = None,
        token: str | bool | None = None,
    ) -> None:
        self.repo_id = repo_id
        uri = remote_uri(repo_id, root, revision, stream=False) if reader is None else None
        if uri is not None:
            remote = dataset_folder(uri, storage_options={"hf_token": token} if token else None)
            self.root = remote.local
            self._reader = open_reader(remote)
        else:
            folder = None if root is None else Path(root)
            self.root = metadata_root(repo_id, folder, revision, sync=force_cache_sync, token=token)
            self._reader = reader if reader is not None else open_reader(self.root)
        self.revision = revision or self._reader.info.version
        self._depth_unit: str | None = None

    @cached_property
    def info(self) -> InfoView:
        """``info.json``, readable as attributes and as a dict."""
        raw = InfoView(self._reader.info.to_json())
        raw["features"] = self.features
        return raw

    @cached_property
    def features(self) -> dict[str, dict[str, Any]]:
        """Every feature's entry, shapes as tuples."""
        entries = {key: f.to_json() for key, f in self._reader.info.features.items()}
        for entry in entries.values():
            entry["shape"] = tuple(entry["shape"])
        return entries

    @cached_property
    def stats(self) -> Stats | None:
        """Statistics by feature; depth in the unit that samples have."""
        stats = self._reader.stats
        if stats is None or self._depth_unit is None:
            return stats
        scaled = dict(stats)
        for key in self.depth_keys:
            stored = self._reader.info.features[key].info.get("depth_unit")
            if key in stats and stored is not None and stored != self._depth_unit:
                factor = 1000.0 if stored == "m" else 0.001
                scaled[key] = {
                    name: value * factor if name in _STATS_IN_DEPTH_UNITS else value
                    for name, value in stats[key].items()
                }
        return scaled

    def rescale_depth_stats(self, output_unit: str) -> None:
        """Give depth statistics in this unit from now on."""
        self._depth_unit = output_unit
        self.__dict__.pop("stats", None)

    @cached_property
    def tasks(self) -> pd.DataFrame:
        """Tasks as a DataFrame: indexed by text, with the column ``task_index``."""
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingExtraError(
                "meta.tasks is a pandas DataFrame, and pandas is not installed.",
                hint="pip install 'demoreel[torch]'",
            ) from error
        tasks = self._reader.tasks
        index = pd.Index(list(tasks.values()), name="task")
        return pd.DataFrame({"task_index": list(tasks)}, index=index)

    def get_task_index(self, task: str) -> int | None:
        """Return a task's index, or None."""
        try:
            return self._reader.tasks.index_of(task)
        except KeyError:
            return None

    @cached_property
    def episodes(self) -> EpisodesView:
        """Per-episode metadata: ``episodes[3]`` is a dict, ``episodes["length"]`` a list."""
        return EpisodesView(self._reader)

    def filter_episodes(
        self, predicate: Callable[[dict[str, Any]], bool], candidates: list[int] | None = None
    ) -> list[int]:
        """Return the episodes whose metadata satisfy a predicate, in order."""
        allowed = None if candidates is None else set(candidates)
        rows = (row for row in self.episodes if allowed is None or row["episode_index"] in allowed)
        return [int(row["episode_index"]) for row in rows if predicate(row)]

    def get_data_file_path(self, ep_index: int) -> Path:
        """Return an episode's table, relative to the root."""
        return Path(self._reader.data_file(self._reader.episodes.position_of(ep_index)))

    def get_video_file_path(self, ep_index: int, vid_key: str) -> Path:
        """Return an episode's video, relative to the root."""
        return Path(self._reader.video_file(self._reader.episodes.position_of(ep_index), vid_key))

    @property
    def fps(self) -> float:
        """Frames per second."""
        return self._reader.info.fps

    @property
    def robot_type(self) -> str | None:
        """What was recorded."""
        return self._reader.info.robot_type

    @property
    def data_path(self) -> str:
        """Template of the tables."""
        return self._reader.info.data_path.text

    @property
    def video_path(self) -> str | None:
        """Template of the videos."""
        template = self._reader.info.video_path
        return template.text if template else None

    @property
    def camera_keys(self) -> list[str]:
        """Every camera."""
        return list(self._reader.info.cameras)

    @property
    def video_keys(self) -> list[str]:
        """Cameras stored as video."""
        return list(self._reader.info.video_keys)

    @property
    def image_keys(self) -> list[str]:
        """Cameras stored as images."""
        return list(self._reader.info.image_keys)

    @property
    def depth_keys(self) -> list[str]:
        """Depth cameras."""
        return list(self._reader.info.depth_keys)

    @property
    def has_language_columns(self) -> bool:
        """Whether frames carry language; then batches need a collation that keeps lists."""
        return any(key in self.features for key in LANGUAGE_KEYS)

    @property
    def names(self) -> dict[str, Any]:
        """Names of the dimensions of each feature."""
        return {key: feature["names"] for key, feature in self.features.items()}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each feature."""
        return {key: tuple(feature["shape"]) for key, feature in self.features.items()}

    @property
    def total_episodes(self) -> int:
        """Episodes in the dataset."""
        return len(self._reader.episodes)

    @property
    def total_frames(self) -> int:
        """Frames in the dataset."""
        return self._reader.episodes.total_frames

    @property
    def total_tasks(self) -> int:
        """Tasks in the dataset."""
        return len(self._reader.tasks)

    @property
    def chunks_size(self) -> int:
        """Files (v3.0) or episodes (v2.x) per chunk folder."""
        return self._reader.info.chunks_size

    @property
    def data_files_size_in_mb(self) -> float:
        """Size at which a new table file is begun."""
        return self._reader.info.data_files_size_in_mb

    @property
    def video_files_size_in_mb(self) -> float:
        """Size at which a new video file is begun."""
        return self._reader.info.video_files_size_in_mb

    def __repr__(self) -> str:
        return (
            f"LeRobotDatasetMetadata(repo_id={self.repo_id!r}, "
            f"total_episodes={self.total_episodes}, total_frames={self.total_frames})"
        )


class InfoView(dict[str, Any]):
    """A dict whose entries are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class EpisodesView:
    """Per-episode metadata by LeRobot's column names; v2.x gets the columns that v3.0 has."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        episodes = reader.episodes
        self._columns: dict[str, np.ndarray] = {
            "dataset_from_index": episodes.start[:-1],
            "dataset_to_index": episodes.start[1:],
            **reader.episode_columns(),
        }

    @property
    def column_names(self) -> list[str]:
        """Names of the columns."""
        return [*self._columns, "tasks"]

    def __len__(self) -> int:
        return len(self._reader.episodes)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[position] for position in range(len(self)))

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            if key == "tasks":
                return [list(episode.tasks) for episode in self._reader.episodes]
            return self._columns[key].tolist()
        episode = self._reader.episodes[key]
        place = key + len(self) if key < 0 else key
        row = {name: column[place].item() for name, column in self._columns.items()}
        row["tasks"] = list(episode.tasks)
        return row
