"""``ds.meta``: a dataset's metadata under the names that LeRobot users know."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from demoreel.errors import (
    ArgumentError,
    MetadataError,
    MissingExtraError,
    OutOfRangeError,
    UnknownKeyError,
)
from demoreel.layouts.base import Reader
from demoreel.layouts.detect import open_reader
from demoreel.layouts.meta import listing_files, read_info, read_tasks
from demoreel.layouts.persisted_files import persisted_folders
from demoreel.model import Info, Stats, Tasks
from demoreel.model.feature import LANGUAGE_KEYS
from demoreel.model.stats import MERGED, QUANTILES
from demoreel.storage.folder import DatasetFolder, dataset_folder
from demoreel.storage.parquet import open_parquet
from demoreel.torch.episodes import EpisodesView
from demoreel.torch.info import DEFAULT_TOOLS, InfoView
from demoreel.torch.place import metadata_root, place_of_type, remote_uri

if TYPE_CHECKING:
    import pandas as pd

    from demoreel.record import Recorder
    from demoreel.torch.metadata_writer import MetadataWriter

CODEBASE_VERSION = "v3.0"
"""The version of the format that datasets are recorded in."""


class LeRobotDatasetMetadata:
    """Metadata of a dataset of any layout: on this machine, in an object store, or from the Hub.

    ``info``, ``tasks``, ``episodes`` and ``stats`` may be assigned, which changes this object only.
    Of a dataset without episodes, ``tasks``, ``episodes`` and ``stats`` are None, as in lerobot.
    While a dataset is recorded, ``ds.meta`` follows it: every episode counts when it is saved.

    Args:
        repo_id: ``me/my_task``. If ``root`` is None, looked for in ``HF_LEROBOT_HOME``; else the
            metadata are fetched from the Hub to the cache that lerobot uses.
        root: The dataset's folder, or where it is remote: ``s3://bucket/path`` and the like.
        revision: A tag, a branch or a commit of the repository.
        force_cache_sync: Ask the Hub for something newer, if ``root`` is None.
        metadata_buffer_size: Accepted for compatibility: every episode is written at once.
        repo_type: ``dataset``, or ``bucket`` for one of the Hub's storage buckets.
        token: For the Hub; None uses ``HF_TOKEN`` or the login. It is not kept.
        reader: The dataset, where it is open.

    Raises:
        DatasetNotFoundError: There is no such dataset.
        MetadataError: Its metadata are broken.
        ArgumentError: An argument makes no sense.
    """

    def __init__(
        self,
        repo_id: str,
        root: str | os.PathLike[str] | None = None,
        revision: str | None = None,
        force_cache_sync: bool = False,
        metadata_buffer_size: int = 10,
        *,
        repo_type: Literal["dataset", "bucket"] = "dataset",
        token: str | bool | None = None,
        reader: Reader | None = None,
    ) -> None:
        root = place_of_type(repo_id, root, repo_type)
        self.repo_id = repo_id
        self.repo_type = repo_type
        self._set_up()
        uri = remote_uri(repo_id, root, revision, stream=False) if reader is None else None
        if uri is not None:
            options = {"hf_token": token} if token else None
            self._folder = dataset_folder(uri, storage_options=options)
        else:
            folder = None if root is None else Path(root)
            self._folder = DatasetFolder(
                metadata_root(repo_id, folder, revision, sync=force_cache_sync, token=token)
            )
        self.root = self._folder.local
        self._load(reader)
        self.revision = revision or self._model.version

    def _set_up(self) -> None:
        self._depth_unit: str | None = None
        self._recorder: Recorder | None = None
        self._writer: MetadataWriter | None = None
        self._latest: dict[str, Any] | None = None
        self._first_recorded: int | None = None

    @classmethod
    def create(
        cls,
        repo_id: str,
        fps: float,
        features: Mapping[str, Mapping[str, Any]],
        robot_type: str | None = None,
        root: str | os.PathLike[str] | None = None,
        use_videos: bool = True,
        metadata_buffer_size: int = 10,
        chunks_size: int | None = None,
        data_files_size_in_mb: float | None = None,
        video_files_size_in_mb: float | None = None,
    ) -> Self:
        """Begin the metadata of a dataset whose tables and videos the caller writes.

        ``LeRobotDataset.create`` records a dataset whole; this is for programs that write v3.0's
        files themselves and say of each episode where it lies (``save_episode``).

        Args:
            repo_id: ``me/my_task``; names the folder under ``HF_LEROBOT_HOME`` if ``root`` is None.
            fps: Frames per second.
            features: The features, as LeRobot declares them.
            robot_type: What is recorded.
            root: The dataset's folder; it must not exist.
            use_videos: Must be True where a feature is a video.
            metadata_buffer_size: Accepted for compatibility: every episode is written at once.
            chunks_size: Files in a folder; None is 1000.
            data_files_size_in_mb: Size at which a new table is begun; None is 100.
            video_files_size_in_mb: Size at which a new video is begun; None is 200.

        Raises:
            TargetExistsError: There is something at ``root``.
            ArgumentError: A feature cannot be, or an argument makes no sense.
        """
        from demoreel.torch.metadata_writer import begin

        made = cls.__new__(cls)
        made._set_up()
        sizes: dict[str, Any] = {
            "chunks_size": chunks_size,
            "data_files_size_in_mb": data_files_size_in_mb,
            "video_files_size_in_mb": video_files_size_in_mb,
        }
        made.root = begin(
            repo_id,
            root,
            fps=fps,
            features=features,
            robot_type=robot_type,
            use_videos=use_videos,
            **{name: size for name, size in sizes.items() if size is not None},
        )
        made.repo_id = repo_id
        made.repo_type = "dataset"
        made._folder = DatasetFolder(made.root)
        made._load(None)
        made.revision = CODEBASE_VERSION
        return made

    @classmethod
    def recording(cls, repo_id: str, recorder: Recorder) -> Self:
        """Return the metadata of a dataset that is being recorded, which follow it."""
        made = cls.__new__(cls)
        made._set_up()
        made.repo_id = repo_id
        made.repo_type = "dataset"
        made.root = recorder.root
        made.revision = recorder.info.version
        made._folder = DatasetFolder(recorder.root)
        made.follow(recorder)
        return made

    def _load(self, reader: Reader | None) -> None:
        """Read what is there now; None opens the dataset."""
        self._values: dict[str, Any] = {}
        self._tasks: Tasks | None = None
        recorder = self._recorder
        if recorder is not None:
            self._seen = _progress(recorder)
        if reader is None and recorder is not None and not recorder.num_episodes:
            self._reader, self._model = None, recorder.info
            return
        info = None if reader is not None else self._without_episodes()
        if info is not None:
            self._reader, self._model = None, info
            path = self.root / "meta" / "tasks.parquet"
            self._tasks = read_tasks(path) if path.exists() else None
            return
        self._reader = reader if reader is not None else open_reader(self._folder)
        self._model = self._reader.info
        self._tasks = self._reader.tasks

    def _without_episodes(self) -> Info | None:
        """Return what ``info.json`` says where the dataset has no episodes yet; None if it has."""
        meta = self.root / "meta"
        if not (self._folder.grows and (meta / "info.json").is_file()):
            return None
        if (meta / "episodes.jsonl").exists() or listing_files(meta / "episodes"):
            return None
        if persisted_folders(self.root):
            return None
        info = read_info(meta / "info.json")
        return None if info.total_episodes else info

    def _now(self) -> dict[str, Any]:
        """Return what was read or assigned; read anew where a recorder has saved an episode."""
        recorder = self._recorder
        if recorder is not None and self._seen != _progress(recorder):
            self._load(None)
        return self._values

    def follow(self, recorder: Recorder | None) -> None:
        """Follow another recorder, or none any more; what is there now is read again."""
        self._recorder = recorder
        if recorder is not None:
            self._first_recorded = recorder.num_episodes
        self._load(None)

    def _value(self, name: str, make: Callable[[], Any]) -> Any:
        values = self._now()
        if name not in values:
            values[name] = make()
        return values[name]

    def __getstate__(self) -> dict[str, Any]:
        state = {n: v for n, v in self.__dict__.items() if n not in ("_reader", "_model", "_tasks")}
        # What was read is read again; what was assigned, and changed, is kept.
        return {**state, "_recorder": None, "_writer": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        kept = dict(self._values)
        self._load(None)
        self._values.update(kept)

    @property
    def said(self) -> dict[str, Any]:
        """What was asked of this object and can be changed in place; ``say`` takes it."""
        values = self._now()
        return {name: values[name] for name in ("info", "stats", "tasks") if name in values}

    def say(self, said: Mapping[str, Any]) -> None:
        """Say what another object says, which a script may have changed."""
        self._now().update(said)

    @property
    def info(self) -> InfoView:
        """``info.json``, readable as attributes and as a dict."""
        found: InfoView = self._value("info", self._info)
        return found

    @info.setter
    def info(self, info: Any) -> None:
        self._now()["info"] = InfoView.from_dict(
            info.to_dict() if hasattr(info, "to_dict") else info
        )

    def _info(self) -> InfoView:
        info = InfoView.of(self._model)
        if self._reader is not None:
            # The episodes' own metadata are the authority.
            info.total_episodes = len(self._reader.episodes)
            info.total_frames = self._reader.episodes.total_frames
            info.total_tasks = len(self._reader.tasks)
        if self._recorder is not None:
            info.total_episodes = self._recorder.num_episodes
            info.total_frames = self._recorder.num_frames
        return info

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        """Every feature's entry, shapes as tuples."""
        return self.info.features

    @property
    def stats(self) -> Stats | None:
        """Statistics by feature, depth in the unit that samples have; None if there are none."""
        found: Stats | None = self._value("stats", self._stats)
        return found

    @stats.setter
    def stats(self, stats: Stats | None) -> None:
        self._now()["stats"] = stats

    def _stats(self) -> Stats | None:
        stats = None if self._reader is None else self._reader.stats
        if stats is None or self._depth_unit is None:
            return stats
        scaled = dict(stats)
        for key in self.depth_keys:
            stored = self._model.features[key].info.get("depth_unit")
            if key in stats and stored is not None and stored != self._depth_unit:
                factor = 1000.0 if stored == "m" else 0.001
                scaled[key] = {
                    name: value * factor if name in (*MERGED, *QUANTILES) else value
                    for name, value in stats[key].items()
                }
        return scaled

    def rescale_depth_stats(self, output_unit: str) -> None:
        """Give depth statistics in this unit from now on."""
        self._depth_unit = output_unit
        self._values.pop("stats", None)

    @property
    def tasks(self) -> pd.DataFrame | None:
        """Tasks as a DataFrame: indexed by text, with the column ``task_index``; None if none."""
        found: pd.DataFrame | None = self._value("tasks", self._task_frame)
        return found

    @tasks.setter
    def tasks(self, tasks: pd.DataFrame | None) -> None:
        self._now()["tasks"] = tasks

    def _task_frame(self) -> pd.DataFrame | None:
        tasks = self._tasks
        if not tasks:
            return None
        return _indexed_by_text(list(tasks.values()), list(tasks), "task")

    @property
    def subtasks(self) -> pd.DataFrame | None:
        """``meta/subtasks.parquet`` as a DataFrame, indexed by text; None if there is none."""
        found: pd.DataFrame | None = self._value("subtasks", self._subtask_frame)
        return found

    def _subtask_frame(self) -> pd.DataFrame | None:
        meta = self._reader.meta if self._reader is not None else self.root / "meta"
        path = meta / "subtasks.parquet"
        if not path.is_file():
            return None
        _pandas("meta.subtasks")
        with open_parquet(path, kind=MetadataError) as parquet:
            return parquet.read().to_pandas()

    def get_task_index(self, task: str) -> int | None:
        """Return a task's index, or None."""
        tasks = self.tasks
        if tasks is None or task not in tasks.index:
            return None
        return int(tasks.loc[task].task_index)

    @property
    def episodes(self) -> EpisodesView | None:
        """Per-episode metadata: ``episodes[3]`` is a dict, ``episodes["length"]`` a list."""
        found: EpisodesView | None = self._value("episodes", self._episode_rows)
        return found

    @episodes.setter
    def episodes(self, episodes: Any) -> None:
        self._now()["episodes"] = episodes

    @property
    def latest_episode(self) -> dict[str, Any] | None:
        """The row of the episode that was saved last, each value in a list, as in lerobot.

        None where none was saved since the recording began, or by this object.
        """
        if self._latest is None and self._first_recorded is not None:
            episodes = self.episodes
            if episodes is not None and len(episodes) > self._first_recorded:
                return {name: [value] for name, value in episodes[-1].items()}
        return self._latest

    @latest_episode.setter
    def latest_episode(self, row: dict[str, Any] | None) -> None:
        self._latest = row

    def _episode_rows(self) -> EpisodesView | None:
        return None if self._reader is None else EpisodesView(self._reader)

    def forget_episodes(self) -> None:
        """Let ``ensure_readable`` read the episodes anew, which are more by now."""
        self._values.pop("episodes", None)
        self._reader = None

    def filter_episodes(
        self, predicate: Callable[[dict[str, Any]], bool], candidates: list[int] | None = None
    ) -> list[int]:
        """Return the episodes whose metadata satisfy a predicate, in order."""
        allowed = None if candidates is None else set(candidates)
        every: Iterable[dict[str, Any]] = self.episodes or ()
        rows = (row for row in every if allowed is None or row["episode_index"] in allowed)
        return sorted(int(row["episode_index"]) for row in rows if predicate(row))

    def ensure_readable(self) -> None:
        """Read the dataset's metadata, where that has not happened."""
        if self.episodes is None:
            kept = dict(self._values)
            self._load(None)
            self._values.update({n: v for n, v in kept.items() if v is not None})

    def get_data_file_path(self, ep_index: int) -> Path:
        """Return an episode's table, relative to the root.

        Raises:
            OutOfRangeError: There is no such episode.
        """
        reader = self._read_episode(ep_index)
        return Path(reader.data_file(reader.episodes.position_of(ep_index)))

    def get_video_file_path(self, ep_index: int, vid_key: str) -> Path:
        """Return an episode's video, relative to the root.

        Raises:
            OutOfRangeError: There is no such episode.
            UnknownKeyError: The camera's frames do not lie in videos, or there is no such camera.
        """
        reader = self._read_episode(ep_index)
        if vid_key not in self.video_keys or reader.in_tables(vid_key):
            raise UnknownKeyError(
                f"{vid_key!r} has no videos.",
                hint=f"the cameras stored as video are {', '.join(self.video_keys) or 'none'}",
                dataset=self.root,
            )
        return Path(reader.video_file(reader.episodes.position_of(ep_index), vid_key))

    def _read_episode(self, number: int) -> Reader:
        self.ensure_readable()
        if self._reader is None:
            raise OutOfRangeError(f"There is no episode {number}; there are none yet.")
        return self._reader

    @property
    def url_root(self) -> str:
        """Where the dataset lies on the Hub, if it is there."""
        return f"hf://{self.repo_type}s/{self.repo_id}"

    @property
    def fps(self) -> float:
        """Frames per second."""
        return self.info.fps

    @property
    def robot_type(self) -> str | None:
        """What was recorded."""
        return self.info.robot_type

    @property
    def data_path(self) -> str:
        """Template of the tables."""
        return self.info.data_path

    @property
    def video_path(self) -> str | None:
        """Template of the videos."""
        return self.info.video_path

    @property
    def camera_keys(self) -> list[str]:
        """Every camera."""
        return [key for key, f in self.features.items() if f["dtype"] in ("video", "image")]

    @property
    def video_keys(self) -> list[str]:
        """Cameras stored as video."""
        return [key for key, feature in self.features.items() if feature["dtype"] == "video"]

    @property
    def image_keys(self) -> list[str]:
        """Cameras stored as images."""
        return [key for key, feature in self.features.items() if feature["dtype"] == "image"]

    @property
    def depth_keys(self) -> list[str]:
        """Depth cameras."""
        self._now()
        return list(self._model.depth_keys)

    @property
    def has_language_columns(self) -> bool:
        """Whether frames carry language; then batches need a collation that keeps lists."""
        return any(key in self.features for key in LANGUAGE_KEYS)

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools that the dataset declares; the format's default where it declares none."""
        return [dict(tool) for tool in self.info.tools or DEFAULT_TOOLS]

    @tools.setter
    def tools(self, tools: Sequence[Mapping[str, Any]] | None) -> None:
        """Declare tools in ``info.json``, in one commit; none takes the key away."""
        self._restate(tools=[dict(tool) for tool in tools] if tools else None)

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
        return self.info.total_episodes

    @property
    def total_frames(self) -> int:
        """Frames in the dataset."""
        return self.info.total_frames

    @property
    def total_tasks(self) -> int:
        """Tasks in the dataset."""
        return self.info.total_tasks

    @property
    def chunks_size(self) -> int:
        """Files (v3.0) or episodes (v2.x) per chunk folder."""
        return self.info.chunks_size

    @property
    def data_files_size_in_mb(self) -> float:
        """Size at which a new table file is begun."""
        return self.info.data_files_size_in_mb

    @property
    def video_files_size_in_mb(self) -> float:
        """Size at which a new video file is begun."""
        return self.info.video_files_size_in_mb

    def get_chunk_settings(self) -> dict[str, float]:
        """Return the most files in a folder, and the sizes at which new files are begun."""
        return {
            "chunks_size": self.chunks_size,
            "data_files_size_in_mb": self.data_files_size_in_mb,
            "video_files_size_in_mb": self.video_files_size_in_mb,
        }

    def update_chunk_settings(
        self,
        chunks_size: int | None = None,
        data_files_size_in_mb: float | None = None,
        video_files_size_in_mb: float | None = None,
    ) -> None:
        """Change the sizes of files that are written from now on, in one commit.

        Args:
            chunks_size: The most files in one folder; None keeps it.
            data_files_size_in_mb: Size up to which tables are filled; None keeps it.
            video_files_size_in_mb: Size up to which videos are filled; None keeps it.

        Raises:
            ArgumentError: One is not positive.
            DatasetBusyError: Another process writes the dataset.
        """
        given = {
            "chunks_size": chunks_size,
            "data_files_size_in_mb": data_files_size_in_mb,
            "video_files_size_in_mb": video_files_size_in_mb,
        }
        sizes = {name: size for name, size in given.items() if size is not None}
        for name, size in sizes.items():
            if not size > 0:
                raise ArgumentError(f"{name} must be positive, got {size}.")
        if sizes:
            self._restate(**sizes)

    def _restate(self, **fields: Any) -> None:
        """Commit other words in ``info.json``."""
        from demoreel.torch.metadata_writer import restate

        if self._recorder is not None:
            self._recorder.restate(**fields)
            self._load(None)
            return
        restate(self.root, fields)
        kept = {name: value for name, value in self._now().items() if name != "info"}
        self._load(None)
        self._values.update(kept)

    def save_episode_tasks(self, tasks: Sequence[str]) -> None:
        """Give tasks that are new an index, and write them to ``meta/tasks.parquet``.

        Args:
            tasks: Texts, each of them once.

        Raises:
            ArgumentError: One is there twice, or the dataset is recorded by ``add_frame``.
            DatasetBusyError: Another process writes the dataset.
        """
        texts = list(tasks)
        if len(set(texts)) != len(texts):
            raise ArgumentError(f"Tasks are not unique: {texts}.")
        self._own_writer().save_tasks(texts)

    def save_episode(
        self,
        episode_index: int,
        episode_length: int,
        episode_tasks: Sequence[str],
        episode_stats: Mapping[str, Mapping[str, Any]],
        episode_metadata: Mapping[str, Any],
    ) -> None:
        """Add an episode whose tables and videos the caller has written, in one commit.

        Args:
            episode_index: Its number, which must be the next one.
            episode_length: How many frames it has.
            episode_tasks: Its tasks; ``save_episode_tasks`` has registered them.
            episode_stats: Statistics by feature.
            episode_metadata: The other columns of its row: where its table and videos lie
                (``data/chunk_index``, ...), and whatever else.

        Raises:
            ArgumentError: The number is another one, a task has no index, or the dataset is
                recorded by ``add_frame``.
            DatasetBusyError: Another process writes the dataset.
        """
        self._own_writer().save_episode(
            episode_index, episode_length, list(episode_tasks), episode_stats, episode_metadata
        )

    def _own_writer(self) -> MetadataWriter:
        from demoreel.torch.metadata_writer import MetadataWriter

        if self._recorder is not None:
            raise ArgumentError(
                "This dataset is being recorded, which writes its metadata.",
                hint="use add_frame() and save_episode() of the dataset",
                dataset=self.root,
            )
        if self._writer is None:
            self._writer = MetadataWriter(self)
        return self._writer

    def update_video_info(
        self,
        video_key: str | None = None,
        video_encoder: Any = None,
        preserve_keys: Iterable[str] | None = None,
    ) -> None:
        """Set what ``info`` says of videos to what the first episode's are; nothing is written.

        Args:
            video_key: Only of this camera; None is all whose frames lie in videos.
            video_encoder: lerobot's encoder settings, whose fields are noted, too.
            preserve_keys: Entries that keep the value they have.

        Raises:
            ArgumentError: There is no such camera.
            VideoError: A video is missing or does not open.
        """
        from demoreel.torch.metadata_writer import video_info

        if video_key is not None and video_key not in self.video_keys:
            raise ArgumentError(
                f"Video key {video_key} not found in dataset.",
                hint=f"it has {', '.join(self.video_keys) or 'no videos'}",
            )
        kept = set(preserve_keys or ())
        for key in [video_key] if video_key is not None else self.video_keys:
            name = str(self.video_path).format(video_key=key, chunk_index=0, file_index=0)
            if self._reader is not None:
                name = self._reader.video_file(0, key)
            found = video_info(self.root / name, video_encoder, fps=self.fps)
            said = self.features[key].get("info") or {}
            self.features[key]["info"] = {
                **said,
                **{n: value for n, value in found.items() if n not in kept},
            }

    def finalize(self) -> None:
        """Do nothing: every episode was committed when it was saved."""

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(repo_id={self.repo_id!r}, "
            f"total_episodes={self.total_episodes}, total_frames={self.total_frames}, "
            f"features={list(self.features)})"
        )


def _progress(recorder: Recorder) -> tuple[Any, ...]:
    """Return what changes when there is more to read: episodes are saved, and later committed."""
    return recorder.num_episodes, recorder.pending_episodes, recorder.info


def _pandas(what: str) -> Any:
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingExtraError(
            f"{what} is a pandas DataFrame, and pandas is not installed.",
            hint="pip install 'demoreel[torch]'",
        ) from error
    return pd


def _indexed_by_text(texts: list[str], numbers: list[int], name: str) -> pd.DataFrame:
    pd = _pandas(f"meta.{name}s")
    frame: Any = pd.DataFrame({f"{name}_index": numbers}, index=pd.Index(texts, name=name))
    return frame
