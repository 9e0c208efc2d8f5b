"""Starts a recording: a new dataset, or an existing one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from demoreel.errors import ArgumentError, DiskError, TargetExistsError
from demoreel.layouts.appending import (
    Appender,
    create_appender,
    no_room_is_an_error,
    open_appender,
    require_dataset,
)
from demoreel.layouts.base import Reader
from demoreel.layouts.detect import open_reader
from demoreel.layouts.pending import warn_of_damaged
from demoreel.media.images import open_image
from demoreel.media.settings import VideoSettings, codec_named, with_known_chroma
from demoreel.model import Feature, Info
from demoreel.model.clocks import clock_of
from demoreel.model.depth import DepthUnit, unit_of
from demoreel.record.commit import Committer
from demoreel.record.encoding.choose import choose_codec
from demoreel.record.encoding.plan import CameraPlan
from demoreel.record.finish import commit_pending
from demoreel.record.recorder import OnBehind, Recorder, RecordOptions
from demoreel.record.spec import (
    FeatureSpec,
    RecordLayout,
    WhereTimes,
    describe,
    settings_of,
    where_times,
    with_encoding,
    with_units,
)
from demoreel.storage.store import is_uri

PathLike = str | os.PathLike[str]
VideoCodec = Literal["auto", "av1", "h264", "hevc"] | str
"""``auto``, a codec, or the name of one of FFmpeg's encoders (``libx264``)."""


def create(
    root: PathLike,
    *,
    fps: float,
    features: Mapping[str, FeatureSpec],
    robot_type: str | None = None,
    layout: RecordLayout = "v3.0",
    task: str | None = None,
    vcodec: VideoCodec = "auto",
    video: VideoSettings | None = None,
    depth_video: VideoSettings | None = None,
    capture_times: WhereTimes | bool = "beside",
    cameras_with_clocks: Sequence[str] = (),
    allow_nan: bool = False,
    on_behind: OnBehind = "error",
    memory_mb: int = 512,
    encoder_threads: int | None = None,
    merge: bool = True,
    chunks_size: int = 1000,
    data_files_size_in_mb: float = 100,
    video_files_size_in_mb: float = 200,
) -> Recorder:
    """Begin a dataset and return what records into it: ``add_frame``, then ``save_episode``.

    Cost: starts one encoder process for each video camera. With ``vcodec="auto"``, encoders are
    measured first, which takes up to two seconds; the result is kept for the next recording.

    Args:
        root: The dataset's folder; it must not exist, or be empty.
        fps: Frames per second.
        features: The features by key, as in LeRobot: ``dtype``, ``shape``, ``names``. Default
            columns are added. A camera with ``{"info": {"is_depth_map": True}}`` records depth.
        robot_type: The robot, as a text for ``info.json``.
        layout: How the dataset is stored: ``v3.0``, ``lance-video`` or ``lance-native``.
        task: The task of episodes for which ``save_episode`` names none.
        vcodec: Codec of all cameras (``av1``, ``h264``, ``hevc``), the name of one of FFmpeg's
            encoders, or ``auto``: the best that keeps up with ``fps`` on this machine.
        video: All settings of the encoder, instead of ``vcodec``.
        depth_video: All settings of the encoder of depth cameras; by default lossless HEVC.
        capture_times: Where to keep when each row was captured, in nanoseconds: ``beside`` the
            data, for ``Dataset.capture_times``; in a ``column`` ``capture_time_ns``; or ``none``.
            True and False stand for ``beside`` and ``none``.
        cameras_with_clocks: Cameras that get a column for their own capture times, where rows have
            one; beside the data, those of all cameras are kept.
        allow_nan: Accept NaN and infinity in numbers; by default ``add_frame`` refuses them.
        on_behind: If neither the encoders nor the disk keep up: ``"error"`` raises
            ``EncoderBehindError``, ``"skip"`` makes ``add_frame`` skip the frame and return False.
        memory_mb: Shared memory in which frames of all cameras wait for their encoders; more wait
            on disk.
        encoder_threads: Threads of each encoder; by default the cores divided by the
            cameras, at most 4.
        merge: Merge small files while recording, in a process of the lowest priority.
        chunks_size: The most files in one folder.
        data_files_size_in_mb: Size up to which tables are merged.
        video_files_size_in_mb: Size up to which videos are merged.

    Raises:
        TargetExistsError: The folder exists and is not empty.
        ArgumentError: A feature or an option is invalid.
        VideoError: An encoder does not start.
        DiskError: The disk is full or not writable.
    """
    info = describe(
        features,
        fps=fps,
        robot_type=robot_type,
        layout=layout,
        capture_times=capture_times,
        cameras_with_clocks=cameras_with_clocks,
        chunks_size=chunks_size,
        data_files_size_in_mb=data_files_size_in_mb,
        video_files_size_in_mb=video_files_size_in_mb,
    )
    keep = where_times(capture_times) != "none"
    options = RecordOptions(task, allow_nan, on_behind, memory_mb, encoder_threads, merge, keep)
    target = folder_for_new(root)
    plans = _plans(info, _settings(info, vcodec, video, depth_video))
    info = with_encoding(info, {plan.key: plan.settings for plan in plans})
    appender = create_appender(target, info, layout=layout)
    try:
        with no_room_is_an_error(target):
            return Recorder(appender, plans, Committer(appender, root=target), options)
    except BaseException:
        with suppress(DiskError):
            appender.close()
        # Made above, and nothing of the caller's is in it.
        shutil.rmtree(target, ignore_errors=True)
        raise


def resume(
    root: PathLike,
    *,
    fps: float | None = None,
    features: Mapping[str, FeatureSpec] | None = None,
    robot_type: str | None = None,
    task: str | None = None,
    vcodec: VideoCodec | None = None,
    video: VideoSettings | None = None,
    depth_video: VideoSettings | None = None,
    allow_nan: bool = False,
    on_behind: OnBehind = "error",
    memory_mb: int = 512,
    encoder_threads: int | None = None,
    merge: bool = True,
    capture_times: bool = True,
) -> Recorder:
    """Append episodes to a dataset; saved episodes that are not encoded yet are encoded first.

    Cost: reads the metadata, starts one encoder process for each video camera, and encodes what
    an interrupted recording has left.

    Args:
        root: The dataset's folder: v3.0, lance-video or lance-native.
        fps: If given, it must be the dataset's.
        features: If given, they must be the dataset's.
        robot_type: If given, it must be the dataset's.
        task: The task of episodes for which ``save_episode`` names none.
        vcodec: If given, it must be the codec that the dataset's videos have.
        video: Settings of the encoder; by default those that ``info.json`` has.
        depth_video: Settings of the encoder of depth cameras, likewise.
        allow_nan: Accept NaN and infinity in numbers; by default ``add_frame`` refuses them.
        on_behind: If neither the encoders nor the disk keep up: ``"error"`` raises
            ``EncoderBehindError``, ``"skip"`` makes ``add_frame`` skip the frame and return False.
        memory_mb: Shared memory in which frames of all cameras wait for their encoders; more wait
            on disk.
        encoder_threads: Threads of each encoder; by default the cores divided by the
            cameras, at most 4.
        merge: Merge small files while recording, in a process of the lowest priority.
        capture_times: Keep when each row was captured: in the column that the dataset has for it,
            or beside the data.

    Raises:
        DatasetNotFoundError: There is no dataset.
        DatasetBusyError: Another process records into it.
        MetadataError: Its metadata are broken.
        ArgumentError: The dataset has another ``fps``, other features or another codec.
        VideoError: An encoder does not start.
        DiskError: The disk is full or not writable.
    """
    options = RecordOptions(
        task, allow_nan, on_behind, memory_mb, encoder_threads, merge, bool(capture_times)
    )
    target = _folder(root)
    appender = open_appender(target)
    try:
        info = appender.info
        _refuse_differences(info, fps=fps, features=features, robot_type=robot_type, root=root)
        chosen = {
            key: (depth_video if info.features[key].is_depth else video)
            or _recorded_settings(info.features[key], vcodec, target)
            for key in info.video_keys
        }
        plans = _plans(info, chosen)
        with no_room_is_an_error(target):
            committer = Committer(appender, root=target)
            _, kept = commit_pending(target, committer)
            warn_of_damaged(target, kept)
            _state_units(appender, target)  # also by what has waited: earlier versions stated none
            return Recorder(appender, plans, committer, options)
    except BaseException:
        with suppress(DiskError):
            appender.close()
        raise


def folder_for_new(root: PathLike) -> Path:
    """Return the folder of a dataset that is to be recorded."""
    target = _folder(root)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise TargetExistsError(
            "There is already something where the dataset is to be recorded.",
            hint="choose another folder, or append to a dataset with demoreel.resume",
            path=target,
        )
    return target


def folder_to_resume(root: PathLike) -> Path:
    """Return the folder of a dataset that episodes are to be appended to."""
    target = _folder(root)
    require_dataset(target)
    return target


def _folder(root: PathLike) -> Path:
    if is_uri(root):
        raise ArgumentError(
            "Episodes are recorded to a folder on this machine.",
            hint="record to a folder, then "
            + (
                "publish it: demoreel push FOLDER REPO"
                if str(root).startswith("hf://")
                else f"copy it: demoreel convert FOLDER {root} --to v3.0"
            ),
            uri=root,
        )
    return Path(root)


def _settings(
    info: Info, vcodec: VideoCodec, video: VideoSettings | None, depth: VideoSettings | None
) -> dict[str, VideoSettings]:
    """Return how each video camera is to be encoded."""
    default = with_known_chroma(video or VideoSettings())
    if video is None and vcodec != "auto":
        codec, encoder = codec_named(vcodec)
        default = replace(default, codec=codec, encoder=encoder)
    chosen = {
        key: settings_of(info.features[key], default=default, depth=depth)
        for key in info.video_keys
    }
    colours = [key for key in info.video_keys if not info.features[key].is_depth]
    if vcodec == "auto" and video is None and colours:
        best = choose_codec(_plans(info, {key: chosen[key] for key in colours}), fps=info.fps)
        chosen |= dict.fromkeys(colours, best)
    return chosen


def _state_units(appender: Appender, root: Path) -> None:
    """State the units of depth cameras that were recorded without one, by what is stored."""
    features = appender.info.features
    silent = [k for k, f in features.items() if f.is_depth and f.info.get("depth_unit") is None]
    if silent and appender.episodes:
        reader = open_reader(root, pending=False)
        units = {key: _stored_unit(reader, key) for key in silent}
        appender.redeclare(with_units(features, units))


def _stored_unit(reader: Reader, camera: str) -> DepthUnit:
    if not reader.in_tables(camera):
        return "mm"
    with open_image(reader.encoded(np.arange(1), camera)[0]) as image:
        return unit_of(np.asarray(image).dtype)


def _refuse_missing(encoder: str) -> None:
    """Refuse an encoder that was asked for by its name, and is of no use here."""
    from demoreel.media.encode import encoder_problem

    problem = encoder_problem(encoder)
    if problem is not None:
        raise ArgumentError(
            problem,
            hint="vcodec='auto' takes the best that works here; libsvtav1, libx264 and libx265 "
            "need no hardware",
        )


def _plans(info: Info, settings: Mapping[str, VideoSettings]) -> list[CameraPlan]:
    plans = []
    for encoder in dict.fromkeys(chosen.encoder for chosen in settings.values()):
        if encoder is not None:
            _refuse_missing(encoder)
    for key, chosen in settings.items():
        feature = info.features[key]
        height, width, _ = feature.image_shape
        plans.append(
            CameraPlan(
                key=key,
                height=height,
                width=width,
                kind="depth" if feature.is_depth else "rgb",
                settings=chosen,
            )
        )
    return plans


def _recorded_settings(feature: Feature, vcodec: VideoCodec | None, root: Path) -> VideoSettings:
    """Return settings that continue as a camera was recorded, as far as its info says how."""
    noted = feature.info
    codec = noted.get("video.codec", "av1")
    asked, encoder = (codec, None) if vcodec in (None, "auto") else codec_named(str(vcodec))
    if asked != codec:
        raise ArgumentError(
            f"Camera {feature.key!r} was recorded as {codec}, not {vcodec}.",
            hint="leave vcodec out to continue in the same codec",
            camera=feature.key,
        )
    given: dict[str, Any] = {
        "codec": codec,
        "pix_fmt": noted.get("video.pix_fmt"),
        "gop": noted.get("video.g"),
        "crf": noted.get("video.crf"),
        "preset": noted.get("video.preset"),
        "options": noted.get("video.extra_options"),
    }
    if encoder is not None:  # it has presets and options of its own
        given |= {"encoder": encoder, "preset": None, "options": None}
    return VideoSettings.from_file(
        given,
        default=settings_of(feature, default=VideoSettings()),
        camera=feature.key,
        file=root / "meta" / "info.json",
    )


def _refuse_differences(
    info: Info,
    *,
    fps: float | None,
    features: Mapping[str, FeatureSpec] | None,
    robot_type: str | None,
    root: PathLike,
) -> None:
    differences = []
    if fps is not None and fps != info.fps:
        differences.append(f"fps is {info.fps:g} there, {fps:g} here")
    if robot_type is not None and info.robot_type not in (None, robot_type):
        differences.append(f"robot_type is {info.robot_type!r} there, {robot_type!r} here")
    if features is not None:
        wanted = describe(features, fps=info.fps, capture_times="none").features
        wanted = {key: f for key, f in wanted.items() if clock_of(key) is None}
        there = {key: f for key, f in info.features.items() if clock_of(key) is None}
        differences += _feature_differences(there, wanted)
    if differences:
        raise ArgumentError(
            "The dataset was recorded differently: " + "; ".join(differences) + ".",
            hint="record into a new folder, or with what the dataset has",
            dataset=root,
        )


def _feature_differences(there: Mapping[str, Feature], here: Mapping[str, Feature]) -> list[str]:
    found = [f"{key!r} is there, not here" for key in there if key not in here]
    found += [f"{key!r} is here, not there" for key in here if key not in there]
    for key in there.keys() & here.keys():
        old, new = there[key], here[key]
        if old.dtype != new.dtype:
            found.append(f"{key!r} is {old.dtype} there, {new.dtype} here")
        sizes = [f.image_shape if f.is_camera else f.shape for f in (old, new)]
        if sizes[0] != sizes[1]:
            found.append(f"{key!r} has shape {sizes[0]} there, {sizes[1]} here")
        if old.is_depth != new.is_depth:
            found.append(f"{key!r} is {'' if old.is_depth else 'not '}depth there")
    return sorted(found)
