"""Editing under lerobot's names, where pictures are decoded: other codecs, statistics anew."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from demoreel.edit.sources import open_source
from demoreel.edit.statistics.recompute import Which, recompute
from demoreel.edit.target_info import FormOptions
from demoreel.errors import ArgumentError
from demoreel.media.settings import VideoSettings
from demoreel.torch.dataset import LeRobotDataset
from demoreel.torch.edited import (
    Editable,
    PathLike,
    opened,
    opened_anew,
    original,
    target_of,
    written,
)

Encoder = Any
"""lerobot's ``RGBEncoderConfig``, our ``VideoSettings``, or the name of a codec."""

_CODEC = "av1"


def convert_image_to_video_dataset(
    dataset: Editable,
    output_dir: PathLike | None = None,
    repo_id: str | None = None,
    rgb_encoder: Encoder = None,
    depth_encoder: Encoder = None,
    episode_indices: Sequence[int] | None = None,
    num_workers: int = 4,
    max_episodes_per_batch: int | None = None,
    max_frames_per_batch: int | None = None,
) -> LeRobotDataset:
    """Make a dataset whose cameras are videos of one whose pictures lie in its tables.

    Cameras that are videos already are copied. Depth stays in the tables.

    Args:
        dataset: The dataset.
        output_dir: The folder to make; None is ``HF_LEROBOT_HOME/repo_id``.
        repo_id: The result's name; None is the source's with ``_video`` behind it.
        rgb_encoder: How to encode; None is AV1 with a keyframe every second frame.
        depth_encoder: Must be None: depth is kept without loss, as it is.
        episode_indices: Only these episodes, in this order; None is all.
        num_workers: Processes to use, at most one a core.
        max_episodes_per_batch: Accepted without effect: memory is bounded anyway.
        max_frames_per_batch: Likewise.

    Raises:
        ArgumentError: No camera's pictures lie in the tables, or an argument makes no sense.
        TargetExistsError: There is something at the target.
    """
    _refuse_depth(depth_encoder)
    source = original(dataset)
    name = repo_id or f"{source.repo_id}_video"
    target = target_of(name, output_dir)
    reader = open_source(source.cut.cutlist.sources[0])
    cameras = [
        key
        for key in reader.info.cameras
        if reader.in_tables(key) and not reader.info.features[key].is_depth
    ]
    if not cameras:
        raise ArgumentError("No camera's pictures lie in the tables.", dataset=reader.root)
    made = source.cut if episode_indices is None else source.cut.keep(list(episode_indices))
    form = _form(rgb_encoder) | FormOptions(images="video", cameras=cameras)
    return written(made, source, name, target, jobs=_jobs(num_workers), **form)


def reencode_dataset(
    dataset: Editable,
    rgb_encoder: Encoder = None,
    depth_encoder: Encoder = None,
    encoder_threads: int | None = None,
    num_workers: int | None = None,
    output_dir: PathLike | None = None,
    repo_id: str | None = None,
) -> LeRobotDataset:
    """Make a dataset whose videos are encoded in another way. Depth is copied.

    Args:
        dataset: The dataset; it is not changed.
        rgb_encoder: How to encode.
        depth_encoder: Must be None: depth is kept without loss, as it is.
        encoder_threads: Accepted without effect: an encoder chooses.
        num_workers: Processes to use, at most one a core; None is one.
        output_dir: The folder to make; None is ``HF_LEROBOT_HOME/repo_id``.
        repo_id: The result's name; None is the source's with ``_modified`` behind it.

    Raises:
        ArgumentError: No encoder is given, or it makes no sense.
        TargetExistsError: There is something at the target.
    """
    _refuse_depth(depth_encoder)
    if rgb_encoder is None:
        raise ArgumentError("No encoder was given.", hint='rgb_encoder="h264"')
    source = original(dataset)
    name = repo_id or f"{source.repo_id}_modified"
    form = _form(rgb_encoder)
    target = target_of(name, output_dir)
    return written(source.cut, source, name, target, jobs=_jobs(num_workers or 1), **form)


def recompute_stats(
    dataset: Editable,
    skip_image_video: bool = True,
    relative_action: bool = False,
    relative_exclude_joints: Sequence[str] | None = None,
    chunk_size: int = 50,
    num_workers: int = 0,
    output_dir: PathLike | None = None,
    repo_id: str | None = None,
) -> LeRobotDataset:
    """Compute a dataset's statistics anew from its data.

    Without ``output_dir`` and ``repo_id``, they are put in the place of those it has, as one
    commit, and nothing else changes; else, into a copy.

    Args:
        dataset: The dataset.
        skip_image_video: Leave those of pictures as they are; False decodes every picture.
        relative_action: Must be False: actions are stored as they are, and so are their statistics.
        relative_exclude_joints: Goes with it.
        chunk_size: Likewise.
        num_workers: Likewise.
        output_dir: The folder to make a copy in.
        repo_id: The copy's name.

    Returns:
        The dataset itself, with its new statistics; of a copy, that.

    Raises:
        ArgumentError: An argument makes no sense.
        DatasetBusyError: Another process records to the dataset.
        TargetExistsError: There is something at the target.
    """
    if relative_action or relative_exclude_joints:
        raise ArgumentError(
            "Statistics of relative actions are not computed.",
            hint="they describe what a policy makes of actions, not what the dataset holds",
        )
    pictures: Which = "none" if skip_image_video else "all"
    if output_dir is not None or repo_id is not None:
        source = original(dataset)
        name = repo_id or f"{source.repo_id}_modified"
        target = target_of(name, output_dir)
        source.cut.render(target)
        recompute(target, pictures=pictures)
        return opened(target, name, source)
    if isinstance(dataset, LeRobotDataset):
        recompute(dataset.root, pictures=pictures)
        return opened_anew(dataset)
    source = original(dataset)
    root = Path(source.cut.cutlist.sources[0].path)
    recompute(root, pictures=pictures)
    return opened(root, source.repo_id, source)


def _refuse_depth(encoder: Encoder) -> None:
    if encoder is not None:
        raise ArgumentError("Depth is kept without loss, as it is.", hint="leave depth_encoder out")


def _form(encoder: Encoder) -> FormOptions:
    """Return lerobot's encoder settings, ours, or a codec's name as a cut takes them."""
    if encoder is None or isinstance(encoder, str):
        return FormOptions(vcodec=encoder or _CODEC)
    ours = isinstance(encoder, VideoSettings)
    name = (encoder.encoder or encoder.codec) if ours else str(getattr(encoder, "vcodec", _CODEC))
    options = getattr(encoder, "options" if ours else "extra_options", None)
    if options:
        raise ArgumentError(f"The encoder's own options cannot be passed on: {dict(options)}.")
    crf = getattr(encoder, "crf", None)
    return FormOptions(
        vcodec=_CODEC if name == "auto" else name,
        gop=getattr(encoder, "gop" if ours else "g", None),
        crf=None if crf is None else round(crf),
        preset=getattr(encoder, "preset", None),
        pix_fmt=getattr(encoder, "pix_fmt", None),
    )


def _jobs(workers: int) -> int:
    return max(1, min(workers, os.cpu_count() or 1))
