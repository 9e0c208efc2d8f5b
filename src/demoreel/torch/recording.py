"""Recording and publishing under the names that LeRobot users have in their scripts."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from demoreel.errors import ArgumentError, ReadOnlyError
from demoreel.torch.info import InfoView
from demoreel.torch.metadata import LeRobotDatasetMetadata
from demoreel.torch.place import fetch_to_record, recorded_root
from demoreel.torch.reader import ItemReader

if TYPE_CHECKING:
    from demoreel.hub.plan import PushReport
    from demoreel.record import EpisodeReport, Recorder
    from demoreel.torch.dataset import LeRobotDataset
    from demoreel.torch.writer import RecordingWriter


class RecordingDataset:
    """The part of ``LeRobotDataset`` that records and publishes; mixed into it.

    An object made by ``create`` or ``resume`` records until ``finalize()``. Unlike lerobot's, it
    may be read all the while: items are those of the episodes that are saved.
    """

    _recorder: Recorder | None = None
    _encoding: tuple[Any, ...] | None = None
    _begin: Callable[..., Recorder] | None = None  # until the first frame
    repo_id: str
    root: Path
    meta: LeRobotDatasetMetadata
    episodes: list[int] | None

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
        capture_times: Any = "beside",
        on_behind: Any = "error",
    ) -> Self:
        """Begin a dataset to record into.

        Frames are always encoded while they come, in processes of their own, and every episode is
        saved when ``save_episode`` returns. So ``image_writer_processes``,
        ``image_writer_threads``, ``batch_encoding_size``, ``metadata_buffer_size``,
        ``streaming_encoding`` and ``encoder_queue_maxsize`` are taken for compatibility and change
        nothing.

        Until the first frame is added, ``meta.features`` may be changed in place, as lerobot's
        scripts do (``ds.meta.info.features[key]["shape"] = ...``): the dataset then begins anew.

        Args:
            repo_id: ``me/my_task``; names the folder under ``HF_LEROBOT_HOME`` if ``root`` is None.
            fps: Frames per second.
            features: The features, as LeRobot declares them.
            root: The dataset's folder; must not hold anything.
            robot_type: What is recorded.
            use_videos: Whether features of dtype ``video`` may be declared. The dtype of each
                camera decides how it is stored.
            tolerance_s: Taken for compatibility; frames are found by number.
            image_writer_processes: See above.
            image_writer_threads: See above.
            video_backend: Taken for compatibility.
            batch_encoding_size: See above.
            rgb_encoder: lerobot's encoder settings (``vcodec``, ``pix_fmt``, ``g``, ``crf``,
                ``preset``, ``fast_decode``, ``extra_options``); None is ``vcodec`` with demoreel's
                defaults.
            depth_encoder: lerobot's settings of depth cameras: those of ``rgb_encoder``, and the
                range (``depth_min``, ``depth_max``, ``shift``, ``use_log``).
            metadata_buffer_size: See above.
            streaming_encoding: See above.
            encoder_queue_maxsize: See above.
            encoder_threads: Most threads of an encoder.
            video_files_size_in_mb: Size up to which videos are merged.
            data_files_size_in_mb: Size up to which tables are merged.
            vcodec: ``auto`` measures this machine and takes the best that keeps up.
            layout: ``v3.0``, ``lance-video`` or ``lance-native``.
            capture_times: Where to keep the times at which rows were captured: ``beside`` the
                data, in a ``column``, or ``none``.
            on_behind: ``error`` or ``skip``: what happens to a frame that cannot be kept.

        Raises:
            TargetExistsError: There is something in the folder.
            ArgumentError: A feature cannot be recorded.
        """
        from demoreel.record import create as begin_dataset
        from demoreel.torch.encoders import settings_of

        folder = recorded_root(repo_id) if root is None else Path(root)
        sizes: dict[str, Any] = {
            "video_files_size_in_mb": video_files_size_in_mb,
            "data_files_size_in_mb": data_files_size_in_mb,
        }
        begin = partial(
            begin_dataset,
            folder,
            fps=fps,
            robot_type=robot_type,
            layout=layout,
            vcodec=vcodec,
            video=settings_of(rgb_encoder),
            depth_video=settings_of(depth_encoder),
            capture_times=capture_times,
            on_behind=on_behind,
            encoder_threads=encoder_threads,
            **{name: size for name, size in sizes.items() if size is not None},
        )
        recorder = begin(features=_declared(features, use_videos, depth_encoder))
        made = cls._recording(repo_id, folder, recorder, tolerance_s)
        made._begin = begin if layout == "v3.0" else None
        return made

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
        *,
        token: str | bool | None = None,
    ) -> Self:
        """Append to a dataset of any writer; if it is not in ``root``, it is fetched there first.

        Args:
            repo_id: ``me/my_task``.
            root: The dataset's folder.
            tolerance_s: Taken for compatibility; frames are found by number.
            revision: Of the repository, if the dataset is fetched.
            force_cache_sync: Pull what is newer on the Hub first, if the folder was pulled from it.
            video_backend: Taken for compatibility.
            batch_encoding_size: Taken for compatibility: as for ``create``.
            rgb_encoder: As for ``create``; None goes on as the dataset was recorded.
            depth_encoder: As for ``create``.
            encoder_threads: Most threads of an encoder.
            image_writer_processes: Taken for compatibility: as for ``create``.
            image_writer_threads: Likewise.
            streaming_encoding: Likewise.
            encoder_queue_maxsize: Likewise.
            token: For the Hub, if it is asked; it is not kept.

        Raises:
            ArgumentError: There is no ``root``: a snapshot of the Hub must not be written to.
            DatasetNotFoundError: There is no dataset.
        """
        from demoreel.record import resume as go_on
        from demoreel.torch.encoders import settings_of

        if root is None:
            raise ArgumentError(
                "resume() needs root=: what was fetched from the Hub must not be written to.",
                hint="copy the dataset to a folder of its own, and resume that",
            )
        folder = Path(root)
        fetch_to_record(repo_id, folder, revision, sync=force_cache_sync, token=token)
        _refuse_other_range(folder, _depth_range(depth_encoder))
        recorder = go_on(
            folder,
            video=settings_of(rgb_encoder),
            depth_video=settings_of(depth_encoder),
            encoder_threads=encoder_threads,
        )
        return cls._recording(repo_id, folder, recorder, tolerance_s)

    @classmethod
    def _recording(cls, repo_id: str, root: Path, recorder: Recorder, tolerance_s: float) -> Self:
        made = cls.__new__(cls)
        made.__dict__.update(
            repo_id=repo_id,
            root=root,
            revision=recorder.info.version,
            episodes=None,
            image_transforms=None,
            tolerance_s=tolerance_s,
            meta=LeRobotDatasetMetadata.recording(repo_id, recorder),
            _delta_timestamps=None,
            _return_uint8=False,
            _revision=None,
            _depth_unit="mm",
            _ring_of_process=(None, None),
            _recorder=recorder,
            _opened=(-1, None),
        )
        return made

    def __getattr__(self, name: str) -> Any:
        # Read mode has it as a plain attribute; while recording it follows what is saved.
        if name == "reader" and "_opened" in self.__dict__:
            return self._as_saved()
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _as_saved(self) -> ItemReader | None:
        """Return the reader of the episodes that are saved now; None if there are none."""
        recorder = self._recorder
        saved, reader = self.__dict__["_opened"]
        if recorder is not None and saved != recorder.num_episodes:
            reader = None
            if recorder.num_episodes:
                reader = ItemReader(
                    self.root,
                    windows=in_seconds(self.__dict__["_delta_timestamps"]),
                    tolerance_s=self.__dict__["tolerance_s"],
                    depth_unit=self.__dict__["_depth_unit"],
                )
                reader.belong_to(cast("LeRobotDataset", self))
            self.__dict__["_opened"] = (recorder.num_episodes, reader)
        return cast("ItemReader | None", reader)

    @property
    def writer(self) -> RecordingWriter | None:
        """What records; None for a dataset that is read."""
        if self._recorder is None and self._encoding is None:
            return None
        from demoreel.torch.writer import RecordingWriter

        return RecordingWriter(self, self._recorder)

    def _record_when_asked(self, *encoding: Any) -> None:
        """Let the first frame that is added resume the recording, with these settings.

        The dataset is not taken before: most that are opened so are only read.
        """
        warnings.warn(
            "streaming_encoding= and batch_encoding_size= of LeRobotDataset() are deprecated; "
            "LeRobotDataset.resume() appends to a dataset.",
            DeprecationWarning,
            stacklevel=3,
        )
        self._encoding = encoding

    def _resume_here(self, encoding: tuple[Any, ...]) -> Recorder:
        """Go on recording the dataset that this object reads."""
        from demoreel.hub.snapshot import hub_cache
        from demoreel.record import resume as go_on
        from demoreel.torch.encoders import settings_of

        is_copy = self.reader.is_remote or self.root.is_relative_to(hub_cache())
        if is_copy or self.episodes is not None:
            raise ArgumentError(
                "This dataset is not appended to: "
                + ("it was fetched to a cache." if is_copy else "it was opened with episodes=."),
                hint="LeRobotDataset.resume(..., root=) appends to one in a folder of its own",
                dataset=self.root,
            )
        rgb_encoder, depth_encoder, threads = encoding
        _refuse_other_range(self.root, _depth_range(depth_encoder))
        self._recorder = recorder = go_on(
            self.root,
            video=settings_of(rgb_encoder),
            depth_video=settings_of(depth_encoder),
            encoder_threads=threads,
        )
        self._encoding = None
        del self.__dict__["reader"]
        self.__dict__["_opened"] = (-1, None)
        self.meta.follow(recorder)
        return recorder

    def _require_recorder(self, method: str) -> Recorder:
        if self._recorder is None and self._encoding is not None:
            return self._resume_here(self._encoding)
        if self._recorder is None:
            raise ReadOnlyError(
                f"{method}() records, and this dataset is read-only.",
                hint="LeRobotDataset.create(...) or LeRobotDataset.resume(...) records",
                dataset=self.root,
            )
        return self._recorder

    def add_frame(self, frame: Mapping[str, Any]) -> None:
        """Take one frame: a value for every feature, and ``task``.

        Values are as strict as lerobot's: arrays or tensors of the declared dtype and shape,
        images as arrays or PIL images, texts. ``demoreel.create`` records what can be cast, too.

        Raises:
            ArgumentError: A value is missing, too many, or of another kind; all are listed.
            ReadOnlyError: The dataset is read, or finalized.
        """
        from demoreel.torch.frame_values import refuse_other_values

        recorder = self._require_recorder("add_frame")
        if self._begin is not None:
            recorder = self._as_declared_now(recorder, self._begin)
            self._begin = None
        refuse_other_values(frame, recorder.info.features)
        recorder.add_frame(frame)

    def _as_declared_now(self, recorder: Recorder, begin: Callable[..., Recorder]) -> Recorder:
        """Begin the dataset anew where ``meta.features`` are others than it was created with."""
        from demoreel.record.spec import describe

        features, info = self.meta.features, recorder.info
        if features == InfoView.of(info).features:
            return recorder
        describe(features, fps=info.fps)  # refuses what cannot be, before anything is let go
        recorder.finalize()
        (self.root / "meta" / "info.json").unlink(missing_ok=True)
        with suppress(OSError):
            (self.root / "meta").rmdir()
        sizes = ("chunks_size", "data_files_size_in_mb", "video_files_size_in_mb")
        self._recorder = anew = begin(
            features=features, **{name: getattr(info, name) for name in sizes}
        )
        if info.extra:
            anew.restate(**info.extra)
        self.meta.follow(anew)
        return anew

    def save_episode(
        self, episode_data: Mapping[str, Any] | None = None, parallel_encoding: bool = True
    ) -> EpisodeReport:
        """Commit the episode; when this returns it is safe, and readable by every process.

        Args:
            episode_data: The episode as ``writer.episode_buffer`` has it, which takes the place of
                the values that were added; images that were added stay. Where no frame was added,
                it holds images too: arrays, PIL images, or paths of files.
            parallel_encoding: Taken for compatibility: cameras are always encoded side by side.

        Raises:
            ArgumentError: There is no frame, or ``episode_data`` does not describe this episode.
        """
        recorder = self._require_recorder("save_episode")
        if episode_data is not None:
            from demoreel.torch.writer import take_episode

            take_episode(recorder, episode_data)
        return recorder.save_episode()

    def clear_episode_buffer(self, delete_images: bool = True) -> None:
        """Forget the frames since the last episode.

        Args:
            delete_images: Taken for compatibility: nothing of them is left on disk.
        """
        if self._recorder is None and self._encoding is not None:
            return  # nothing was added yet
        self._require_recorder("clear_episode_buffer").discard_episode()

    def has_pending_frames(self) -> bool:
        """Whether there are frames that are not saved."""
        return self._recorder is not None and self._recorder.pending_frames > 0

    def finalize(self) -> None:
        """Merge small files and let go of the dataset, which is then one that is read.

        Nothing to do for one that is read already. May be called twice.
        """
        if self._recorder is None:
            return
        try:
            self._recorder.finalize()
        finally:
            is_empty = not self._recorder.num_episodes
            self._recorder = self._begin = None
            self.meta.follow(None)
        if is_empty:
            self.__dict__["_opened"] = (0, None)
            return
        del self.__dict__["_opened"]
        self._read_as_recorded()

    def _read_as_recorded(self) -> None:
        raise NotImplementedError

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


def _declared(
    features: Mapping[str, Mapping[str, Any]], use_videos: bool, depth_encoder: Any
) -> dict[str, dict[str, Any]]:
    """Return the features as they are declared, depth videos with the range that is asked for."""
    videos = [key for key, spec in features.items() if spec.get("dtype") == "video"]
    if videos and not use_videos:
        raise ArgumentError(
            f"use_videos is False, and features have the dtype 'video': {', '.join(videos)}.",
            hint="declare them with the dtype 'image', or leave use_videos out",
        )
    declared = {key: dict(spec) for key, spec in features.items()}
    said = _depth_range(depth_encoder)
    for key in videos if said else ():
        info = declared[key].get("info") or {}
        if info.get("is_depth_map") or info.get("video.is_depth_map"):
            declared[key]["info"] = {**info, **said}
    return declared


def _depth_range(encoder: Any) -> dict[str, Any]:
    """Return the fields of a feature's ``info`` for lerobot's settings of depth."""
    names = ("depth_min", "depth_max", "shift", "use_log")
    return {
        f"video.{name}": getattr(encoder, name)
        for name in names
        if getattr(encoder, name, None) is not None
    }


def _refuse_other_range(root: Path, asked: Mapping[str, Any]) -> None:
    """Refuse a range of depth that is not the one that a dataset was recorded with."""
    from demoreel.layouts.meta import read_info
    from demoreel.model import DepthCode

    path = root / "meta" / "info.json"
    if not asked or not path.is_file():
        return
    for key, feature in read_info(path).features.items():
        code = feature.depth_code if feature.is_video else None
        if code is not None and DepthCode.from_info({**feature.info, **asked}) != code:
            raise ArgumentError(
                f"Depth camera {key!r} was recorded with another range than depth_encoder has: "
                f"{code.minimum:g} to {code.maximum:g} m, shift {code.shift:g}, "
                f"{'logarithmic' if code.log else 'linear'}.",
                hint="leave depth_encoder out, and recording goes on with the dataset's range",
                dataset=root,
                camera=key,
            )


def in_seconds(windows: Mapping[str, Sequence[float]] | None) -> dict[str, list[float]] | None:
    """Return windows whose offsets are all seconds: LeRobot users write 0 for 0.0."""
    if windows is None:
        return None
    return {key: [float(value) for value in values] for key, values in windows.items()}
