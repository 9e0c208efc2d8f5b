"""Recording and publishing under the names that LeRobot users have in their scripts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from demoreel.errors import ArgumentError
from demoreel.model import Info
from demoreel.read.dataset import Dataset
from demoreel.torch.metadata import InfoView, LeRobotDatasetMetadata
from demoreel.torch.place import recorded_root

if TYPE_CHECKING:
    from demoreel.hub.plan import PushReport
    from demoreel.media.settings import VideoSettings
    from demoreel.record import EpisodeReport, Recorder


class RecordingDataset:
    """The part of ``LeRobotDataset`` that records and publishes; mixed into it.

    An object made by ``create`` or ``resume`` records until ``finalize()``. Unlike lerobot's, it
    may be read all the while: items are those of the episodes that are saved.
    """

    _recorder: Recorder | None = None
    repo_id: str
    root: Path

    @classmethod
    def create(
        cls,
        repo_id: str,
        fps: float,
        features: Mapping[str, Mapping[str, Any]],
        root: str | os.PathLike[str] | None = None,
        robot_type: str | None = None,
        use_videos: bool = True,
        tolerance_s: float = 1e-4,
        image_writer_processes: int = 0,
        image_writer_threads: int = 0,
        video_backend: str | None = None,
        batch_encoding_size: int = 1,
        rgb_encoder: Any = None,
        depth_encoder: Any = None,
        metadata_buffer_size: int = 10,
        streaming_encoding: bool = False,
        encoder_queue_maxsize: int = 30,
        encoder_threads: int | None = None,
        video_files_size_in_mb: float | None = None,
        data_files_size_in_mb: float | None = None,
        *,
        vcodec: str = "auto",
        layout: Any = "v3.0",
        capture_times: bool = True,
        on_behind: Any = "error",
    ) -> Self:
        """Begin a dataset to record into.

        Frames are always encoded while they come, in processes of their own, and every episode is
        saved when ``save_episode`` returns. So ``image_writer_processes``,
        ``image_writer_threads``, ``batch_encoding_size``, ``metadata_buffer_size``,
        ``streaming_encoding`` and ``encoder_queue_maxsize`` are taken for compatibility and change
        nothing.

        Args:
            repo_id: ``me/my_task``; names the folder under ``HF_LEROBOT_HOME`` if ``root`` is None.
            fps: Frames per second.
            features: The features, as LeRobot declares them.
            root: The dataset's folder; must not hold anything.
            robot_type: What is recorded.
            use_videos: Store cameras as videos; else as images.
            tolerance_s: Taken for compatibility; frames are found by number.
            image_writer_processes: See above.
            image_writer_threads: See above.
            video_backend: Taken for compatibility.
            batch_encoding_size: See above.
            rgb_encoder: lerobot's encoder settings (``vcodec``, ``pix_fmt``, ``g``, ``crf``,
                ``preset``); None is ``vcodec`` with demoreel's defaults.
            depth_encoder: Taken for compatibility where it is lerobot's default.
            metadata_buffer_size: See above.
            streaming_encoding: See above.
            encoder_queue_maxsize: See above.
            encoder_threads: Most threads of an encoder.
            video_files_size_in_mb: Size up to which videos are merged.
            data_files_size_in_mb: Size up to which tables are merged.
            vcodec: ``auto`` measures this machine and takes the best that keeps up.
            layout: ``v3.0``, ``lance-video`` or ``lance-native``.
            capture_times: Keep the time at which each row was captured.
            on_behind: ``error`` or ``skip``: what happens to a frame that cannot be kept.

        Raises:
            TargetExistsError: There is something in the folder.
            ArgumentError: A feature cannot be recorded.
        """
        from demoreel.record import create as begin_dataset

        folder = recorded_root(repo_id) if root is None else Path(root)
        sizes: dict[str, Any] = {
            "video_files_size_in_mb": video_files_size_in_mb,
            "data_files_size_in_mb": data_files_size_in_mb,
        }
        recorder = begin_dataset(
            folder,
            fps=fps,
            features=_cameras_as(features, use_videos),
            robot_type=robot_type,
            layout=layout,
            vcodec=vcodec,
            video=_settings(rgb_encoder),
            capture_times=capture_times,
            on_behind=on_behind,
            encoder_threads=encoder_threads,
            **{name: size for name, size in sizes.items() if size is not None},
        )
        return cls._recording(repo_id, folder, recorder, tolerance_s)

    @classmethod
    def resume(
        cls,
        repo_id: str,
        root: str | os.PathLike[str] | None = None,
        tolerance_s: float = 1e-4,
        revision: str | None = None,
        force_cache_sync: bool = False,
        video_backend: str | None = None,
        batch_encoding_size: int = 1,
        rgb_encoder: Any = None,
        depth_encoder: Any = None,
        encoder_threads: int | None = None,
        image_writer_processes: int = 0,
        image_writer_threads: int = 0,
        streaming_encoding: bool = False,
        encoder_queue_maxsize: int = 30,
    ) -> Self:
        """Append to a dataset of any writer; the arguments are those of ``create``.

        Raises:
            ArgumentError: There is no ``root``: a snapshot of the Hub must not be written to.
            DatasetNotFoundError: There is no dataset.
        """
        from demoreel.record import resume as go_on

        if root is None:
            raise ArgumentError(
                "resume() needs root=: what was fetched from the Hub must not be written to.",
                hint="copy the dataset to a folder of its own, and resume that",
            )
        recorder = go_on(root, video=_settings(rgb_encoder), encoder_threads=encoder_threads)
        return cls._recording(repo_id, Path(root), recorder, tolerance_s)

    @classmethod
    def _recording(cls, repo_id: str, root: Path, recorder: Recorder, tolerance_s: float) -> Self:
        made = cls.__new__(cls)
        made.__dict__.update(
            repo_id=repo_id,
            root=root,
            revision=recorder.info.version,
            episodes=None,
            delta_timestamps=None,
            image_transforms=None,
            tolerance_s=tolerance_s,
            _return_uint8=False,
            _revision=None,
            _depth_unit="mm",
            _ring_of_process=(None, None),
            _recorder=recorder,
            _opened=(-1, None, None),
        )
        return made

    def __getattr__(self, name: str) -> Any:
        # Read mode has both as plain attributes; while recording they follow what is saved.
        if name in ("reader", "meta") and self.__dict__.get("_recorder") is not None:
            reader, meta = self._as_saved()
            if name == "meta":
                return meta
            if reader is None:
                raise ArgumentError("No episode is saved yet, so there is nothing to read.")
            return reader
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _as_saved(self) -> tuple[Dataset | None, Any]:
        """Return the reader and the metadata of the episodes that are saved now."""
        recorder = self._recorder
        assert recorder is not None
        saved, reader, meta = self.__dict__["_opened"]
        if saved != recorder.num_episodes:
            if recorder.num_episodes:
                reader = Dataset(self.root, depth_unit=self.__dict__["_depth_unit"])
                meta = LeRobotDatasetMetadata(self.repo_id, self.root, reader=reader.reader)
            else:
                reader, meta = None, EmptyMetadata(self.repo_id, self.root, recorder.info)
            self.__dict__["_opened"] = (recorder.num_episodes, reader, meta)
        return reader, meta

    def _require_recorder(self, method: str) -> Recorder:
        if self._recorder is None:
            raise ArgumentError(
                f"{method}() records, and this dataset was opened to be read.",
                hint="LeRobotDataset.create(...) or LeRobotDataset.resume(...) records",
            )
        return self._recorder

    def add_frame(self, frame: Mapping[str, Any]) -> None:
        """Take one frame: a value for every feature, and ``task``."""
        self._require_recorder("add_frame").add_frame(frame)

    def save_episode(
        self, episode_data: Mapping[str, Any] | None = None, parallel_encoding: bool = True
    ) -> EpisodeReport:
        """Commit the episode; when this returns it is safe, and readable by every process."""
        if episode_data is not None:
            raise ArgumentError("episode_data is not taken: add the frames with add_frame().")
        return self._require_recorder("save_episode").save_episode()

    def clear_episode_buffer(self, delete_images: bool = True) -> None:
        """Forget the frames since the last episode."""
        self._require_recorder("clear_episode_buffer").discard_episode()

    def has_pending_frames(self) -> bool:
        """Whether there are frames that are not saved."""
        return self._recorder is not None and self._recorder.pending_frames > 0

    def finalize(self) -> None:
        """Merge small files and let go of the dataset; nothing to do for one that is read."""
        if self._recorder is not None:
            self._recorder.finalize()
            # Merging moves episodes to other files.
            self.__dict__["_opened"] = (-1, None, None)

    def push_to_hub(
        self,
        branch: str | None = None,
        tags: Sequence[str] | None = None,
        license: str | None = None,
        tag_version: bool = True,
        push_videos: bool = True,
        private: bool | None = None,
        allow_patterns: Sequence[str] | str | None = None,
        upload_large_folder: bool = False,
        *,
        force: bool = False,
        dry_run: bool = False,
        token: str | None = None,
        **card_kwargs: Any,
    ) -> PushReport:
        """Publish the dataset as ``repo_id`` on the Hub, in one commit; see ``demoreel.push``.

        Args:
            branch: The branch; ``main`` if None.
            tags: Tags for the card, beside ``LeRobot``.
            license: The licence for the card; None keeps the card's, or is ``apache-2.0``.
            tag_version: Whether the tag of the dataset's version (``v3.0``) moves to the commit.
            push_videos: Whether ``videos/`` is sent.
            private: Whether only its owner sees it, where the repository is made.
            allow_patterns: Only files that match one of these.
            upload_large_folder: Taken for compatibility: a push of any size goes on where it was
                interrupted.
            force: Push even where episodes would be lost that others have put there.
            dry_run: Say what would be done, and do nothing.
            token: A token; None takes ``HF_TOKEN`` or the login.
            **card_kwargs: More for the card: ``url``, ``paper``, ``citation``; YAML keys.

        Raises:
            ArgumentError: The dataset was opened with ``episodes=``, or an argument makes no sense.
            DatasetBusyError: It is being recorded: ``finalize()`` it first.
            NewerRemoteError: Episodes would be lost that others have put there.
            AccessError: There is no token, or the Hub does not accept it.
            StoreError: The Hub does not answer; push again, and it goes on.
        """
        if getattr(self, "episodes", None) is not None:
            raise ArgumentError(
                "This dataset was opened with episodes=, and is pushed as a whole.",
                hint="demoreel.cut(ds.reader).render(FOLDER) makes a dataset of them; push that",
                dataset=self.root,
            )
        from demoreel.hub.push import push

        return push(
            self.root,
            self.repo_id,
            branch=branch,
            private=private,
            tags=tags or (),
            license=license,
            tag_version=tag_version,
            push_videos=push_videos,
            allow_patterns=allow_patterns,
            force=force,
            dry_run=dry_run,
            token=token,
            **card_kwargs,
        )


class EmptyMetadata:
    """``ds.meta`` of a dataset that has no episode yet."""

    def __init__(self, repo_id: str, root: Path, info: Info) -> None:
        self.repo_id = repo_id
        self.root = root
        self.info = InfoView(info.to_json())
        self.features = {
            key: {**feature.to_json(), "shape": tuple(feature.shape)}
            for key, feature in info.features.items()
        }
        self.fps = info.fps
        self.robot_type = info.robot_type
        self.revision = info.version
        self.camera_keys = list(info.cameras)
        self.video_keys = list(info.video_keys)
        self.image_keys = list(info.image_keys)
        self.depth_keys = list(info.depth_keys)
        self.total_episodes = self.total_frames = self.total_tasks = 0
        self.episodes: list[dict[str, Any]] = []
        self.stats = None


class VideoEncodingManager:
    """Finalizes a dataset when the block ends, however it ends.

    Args:
        dataset: A dataset that is being recorded.
    """

    def __init__(self, dataset: RecordingDataset) -> None:
        self.dataset = dataset

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.dataset.finalize()


def _cameras_as(
    features: Mapping[str, Mapping[str, Any]], use_videos: bool
) -> dict[str, dict[str, Any]]:
    """Return the features with every camera stored as asked for."""
    kind = "video" if use_videos else "image"
    return {
        key: {**spec, "dtype": kind} if spec.get("dtype") in ("video", "image") else dict(spec)
        for key, spec in features.items()
    }


def _settings(encoder: Any) -> VideoSettings | None:
    """Return lerobot's encoder settings as ours; None leaves the choice to us."""
    if encoder is None:
        return None
    from demoreel.media.settings import ENCODERS, VideoSettings

    by_encoder = {name: codec for codec, name in ENCODERS.items()}
    vcodec = getattr(encoder, "vcodec", None)
    given: dict[str, Any] = {
        "codec": by_encoder.get(str(vcodec), vcodec),
        "pix_fmt": getattr(encoder, "pix_fmt", None),
        "gop": getattr(encoder, "g", None),
        "crf": getattr(encoder, "crf", None),
        "preset": getattr(encoder, "preset", None),
        "options": getattr(encoder, "extra_options", None),
    }
    if given["codec"] == "auto":
        return None
    return replace(
        VideoSettings(), **{name: value for name, value in given.items() if value is not None}
    )
