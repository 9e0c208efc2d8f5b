"""Editing under the names that LeRobot users know.

Parameters and defaults are those of lerobot 0.6.1. Underneath is ``demoreel.cut``: packets and rows
are copied, no image is encoded again unless that is what was asked for, and the result is absent
until it is whole. As in lerobot, ``modify_tasks``, ``reencode_dataset`` and ``recompute_stats``
change the dataset that they are given, each in one commit; with ``output_dir`` or ``repo_id`` they
make a new one instead.

Every function takes an open dataset, a folder or a ``repo_id``. Without ``output_dir``, the result
goes to ``HF_LEROBOT_HOME/repo_id``; without ``repo_id``, that is the source's with ``_modified``
behind it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from demoreel.edit.cut import Cut
from demoreel.edit.form import Form, FormOptions
from demoreel.edit.render import render_several
from demoreel.edit.sources import open_source
from demoreel.errors import ArgumentError, UnknownKeyError, nearest
from demoreel.layouts.base import Reader
from demoreel.media.settings import VideoSettings
from demoreel.model import DEFAULT_FEATURES, Feature
from demoreel.model.numbers import cast_numbers
from demoreel.run.anywhere import is_here
from demoreel.stats.recompute import Which, recompute
from demoreel.torch.dataset import LeRobotDataset
from demoreel.torch.editing import (
    Editable,
    Original,
    PathLike,
    changed_in_place,
    opened,
    opened_anew,
    original,
    place_of,
    refuse_unknown,
    render_and_warn,
    replace_source,
    target_of,
    written,
)

log = logging.getLogger(__name__)

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
    """Make a dataset whose cameras are videos of one whose images lie in its tables.

    Cameras that are videos already are copied. Depth stays in the tables.

    Args:
        dataset: The dataset.
        output_dir: The folder to make; None is ``HF_LEROBOT_HOME/repo_id``.
        repo_id: The result's name; None is the source's with ``_video`` behind it.
        rgb_encoder: How to encode; None is AV1 with a keyframe every second frame.
        depth_encoder: Accepted without effect, with a warning: depth is kept as it is.
        episode_indices: Only these episodes, in this order; None is all.
        num_workers: Processes to use, at most one a core.
        max_episodes_per_batch: Accepted without effect: memory is bounded anyway.
        max_frames_per_batch: Likewise.

    Raises:
        ArgumentError: No camera's images lie in the tables, or an argument makes no sense.
        TargetExistsError: There is something at the target.
    """
    source = original(dataset, is_part=True)
    name = repo_id or f"{source.repo_id}_video"
    target = target_of(name, output_dir)
    reader = open_source(source.cut.cutlist.sources[0])
    _keep_depth(depth_encoder, reader)
    opened_with = getattr(dataset, "episodes", None)
    if episode_indices is None and opened_with is not None:
        episode_indices = opened_with
    cameras = [
        key
        for key in reader.info.cameras
        if reader.in_tables(key) and not reader.info.features[key].is_depth
    ]
    if not cameras:
        raise ArgumentError(
            f"This operation is for image datasets only: no camera of {source.repo_id} has its "
            "images in the tables.",
            dataset=reader.root,
        )
    if episode_indices is not None:
        refuse_unknown(episode_indices, source.cut)
    made = source.cut if episode_indices is None else source.cut.keep(list(episode_indices))
    form = _form(rgb_encoder) | FormOptions(images="video", cameras=cameras)
    return written(made, source, name, target, jobs=_jobs(num_workers), **form)


def reencode_dataset(
    dataset: Editable,
    rgb_encoder: Encoder = None,
    depth_encoder: Encoder = None,
    encoder_threads: int | None = None,
    num_workers: int | None = None,
    *,
    output_dir: PathLike | None = None,
    repo_id: str | None = None,
) -> LeRobotDataset:
    """Encode a dataset's videos in another way. Depth is copied.

    Without ``output_dir`` and ``repo_id``, the result takes the dataset's place when it is whole,
    as in lerobot, and the old videos are gone; else it is a new dataset.

    Args:
        dataset: The dataset.
        rgb_encoder: How to encode.
        depth_encoder: Accepted without effect, with a warning: depth is kept as it is. Alone, it is
            refused.
        encoder_threads: Accepted without effect: an encoder chooses.
        num_workers: Processes to use, at most one a core; None is one.
        output_dir: The folder to make a new dataset in.
        repo_id: The new dataset's name; None is the source's with ``_modified`` behind it.

    Returns:
        The dataset itself, with its new videos; of a new one, that.

    Raises:
        ArgumentError: No encoder is given, or it makes no sense.
        DatasetBusyError: Another process records to the dataset.
        TargetExistsError: There is something at the target.
    """
    if rgb_encoder is None:
        raise ArgumentError(
            "Either rgb_encoder or depth_encoder must be provided."
            if depth_encoder is None
            else "Depth is kept without loss, as it is.",
            hint='rgb_encoder="h264"',
        )
    source = original(dataset)
    _keep_depth(depth_encoder, open_source(source.cut.cutlist.sources[0]))
    form = _form(rgb_encoder) | {"jobs": _jobs(num_workers or 1)}
    if output_dir is not None or repo_id is not None:
        name = repo_id or f"{source.repo_id}_modified"
        return written(source.cut, source, name, target_of(name, output_dir), **form)
    replace_source(source, source.cut, **form)
    return changed_in_place(dataset, source)


convert_image_to_video = convert_image_to_video_dataset
reencode_videos = reencode_dataset
# What ``lerobot-edit-dataset`` calls these operations.


def recompute_stats(
    dataset: Editable,
    skip_image_video: bool = True,
    relative_action: bool = False,
    relative_exclude_joints: Sequence[str] | None = None,
    chunk_size: int = 50,
    num_workers: int = 0,
    *,
    output_dir: PathLike | None = None,
    repo_id: str | None = None,
) -> LeRobotDataset:
    """Compute a dataset's statistics anew from its data.

    Without ``output_dir`` and ``repo_id``, they are put in the place of those it has, as one
    commit, and nothing else changes; else, into a copy.

    Args:
        dataset: The dataset.
        skip_image_video: Leave those of images as they are; False decodes every image.
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
        render_and_warn(source.cut, target)
        recompute(target, pictures=pictures)
        return opened(target, name, source)
    if isinstance(dataset, LeRobotDataset):
        recompute(dataset.root, pictures=pictures)
        return opened_anew(dataset)
    source = original(dataset)
    recompute(Path(source.cut.cutlist.sources[0].path), pictures=pictures)
    return changed_in_place(dataset, source)


def _keep_depth(encoder: Encoder, reader: Reader) -> None:
    """Say that depth is not encoded anew, where that was asked for."""
    if encoder is not None and reader.info.depth_keys:
        cameras = ", ".join(reader.info.depth_keys)
        log.warning(
            "%s: depth is kept without loss, as it is; depth_encoder has no effect", cameras
        )


def _form(encoder: Encoder) -> FormOptions:
    """Return lerobot's encoder settings, ours, or a codec's name as a cut takes them."""
    if encoder is None or isinstance(encoder, str):
        return FormOptions(vcodec=encoder or _CODEC)
    ours = isinstance(encoder, VideoSettings)
    name = (encoder.encoder or encoder.codec) if ours else str(getattr(encoder, "vcodec", _CODEC))
    options = getattr(encoder, "options" if ours else "extra_options", None)
    if getattr(encoder, "fast_decode", 0):
        options = {**(options or {}), "fast_decode": encoder.fast_decode}
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


Values = Any
"""An array or tensor with a row for each frame, or a function of (row, episode, frame)."""

_DATA_MB, _VIDEO_MB, _CHUNK = 100, 200, 1000  # lerobot's defaults for a merged dataset


def delete_episodes(
    dataset: Editable,
    episode_indices: Sequence[int],
    output_dir: PathLike | None = None,
    repo_id: str | None = None,
) -> LeRobotDataset:
    """Make a dataset without some episodes.

    Args:
        dataset: The dataset.
        episode_indices: The episodes to leave out.
        output_dir: The folder to make; None is ``HF_LEROBOT_HOME/repo_id``.
        repo_id: The result's name; None is the source's with ``_modified`` behind it.

    Raises:
        ArgumentError: There is no such episode, none is named, or none would be left.
        TargetExistsError: There is something at the target.
    """
    source = original(dataset)
    gone = [int(number) for number in episode_indices]
    if not gone:
        raise ArgumentError("No episodes to delete.")
    refuse_unknown(gone, source.cut)
    if len(set(gone)) == len(source.cut):
        raise ArgumentError("Cannot delete all episodes from dataset.")
    return _changed(source, source.cut.delete(gone), output_dir, repo_id)


def split_dataset(
    dataset: Editable,
    splits: Mapping[str, float | Sequence[int]],
    output_dir: PathLike | None = None,
    *,
    repo_id: str | None = None,
) -> dict[str, LeRobotDataset]:
    """Make several datasets out of one.

    Args:
        dataset: The dataset.
        splits: By name, which episodes, or a share of them. Shares are rounded down, and the last
            part takes all that is left, as in lerobot.
        output_dir: The folder to make them in, by name; None makes ``HF_LEROBOT_HOME/repo_id_NAME``
            of each.
        repo_id: What their names begin with; None is the source's name.

    Raises:
        ArgumentError: Parts overlap, one is empty, or an episode does not exist.
        TargetExistsError: There is something at one of the targets.
    """
    source = original(dataset)
    name = repo_id or source.repo_id
    chosen = _episodes_of_splits(splits, len(source.cut))
    refuse_unknown([number for numbers in chosen.values() for number in numbers], source.cut)
    parts = source.cut.split(chosen)
    targets: dict[str, Path] = {}
    for part in parts:
        if part in (".", "..") or Path(part).name != part:
            raise ArgumentError(f"A part cannot be called {part!r}.", hint="it names a folder")
        folder = None if output_dir is None else Path(output_dir) / part
        targets[part] = place_of(f"{name}_{part}", folder)
        if not (targets[part] / "meta").exists():  # else it may be what a killed call has made
            target_of(f"{name}_{part}", folder)
    render_several({str(targets[part]): made.cutlist for part, made in parts.items()}, form=Form())
    return {part: opened(targets[part], f"{name}_{part}", source) for part in parts}


def _episodes_of_splits(
    splits: Mapping[str, float | Sequence[int]], total: int
) -> dict[str, Sequence[int]]:
    if not splits:
        raise ArgumentError("No splits provided.", hint='{"train": 0.8, "val": 0.2}')
    shares = {name: part for name, part in splits.items() if isinstance(part, (float, int))}
    listed = {
        name: sorted(int(number) for number in part)
        for name, part in splits.items()
        if not isinstance(part, (float, int))
    }
    if listed and shares:
        raise ArgumentError("Splits are shares or lists of episodes, not some of each.")
    if sum(shares.values()) > 1 + 1e-9:
        raise ArgumentError(
            f"Split fractions must sum to <= 1.0; these sum to {sum(shares.values()):g}."
        )
    begin = 0
    for number, (name, share) in enumerate(shares.items()):
        end = total if number == len(shares) - 1 else begin + int(total * share)
        listed[name] = list(range(begin, end)) if share > 0 else []
        begin = end
    taken: set[int] = set()
    for name, numbers in listed.items():
        if not numbers:
            raise ArgumentError(f"Split {name!r} has no episodes.")
        if taken.intersection(numbers):
            raise ArgumentError(
                "Episodes cannot appear in multiple splits; "
                f"{sorted(taken.intersection(numbers))} do."
            )
        taken.update(numbers)
    return {name: listed[name] for name in splits}


def merge_datasets(
    datasets: Sequence[Editable],
    output_repo_id: str,
    output_dir: PathLike | None = None,
    concatenate_videos: bool = True,
    concatenate_data: bool = True,
) -> LeRobotDataset:
    """Make one dataset out of several, their episodes one behind the other.

    Args:
        datasets: The datasets; the order of their features does not matter.
        output_repo_id: The result's name.
        output_dir: The folder to make; None is ``HF_LEROBOT_HOME/output_repo_id``.
        concatenate_videos: Fill videos up to the dataset's size; else each source video begins one.
        concatenate_data: Likewise of tables.

    Raises:
        ArgumentError: There are none, or they do not fit together; the message has a table.
        TargetExistsError: There is something at the target.
    """
    if not datasets:
        raise ArgumentError("No datasets to merge.")
    sources = [original(dataset) for dataset in datasets]
    target = target_of(output_repo_id, output_dir)
    return written(
        _merged(sources),
        sources[0],
        output_repo_id,
        target,
        join_videos=concatenate_videos,
        join_tables=concatenate_data,
    )


def aggregate_datasets(
    repo_ids: Sequence[str],
    aggr_repo_id: str,
    roots: Sequence[PathLike] | None = None,
    aggr_root: PathLike | None = None,
    data_files_size_in_mb: float | None = None,
    video_files_size_in_mb: float | None = None,
    chunk_size: int | None = None,
    concatenate_videos: bool = True,
    concatenate_data: bool = True,
) -> LeRobotDataset:
    """Make one dataset out of several that are named, not open.

    Args:
        repo_ids: Their names.
        aggr_repo_id: The result's name.
        roots: Their folders; None looks for them as ``LeRobotDataset`` does.
        aggr_root: The folder to make; None is ``HF_LEROBOT_HOME/aggr_repo_id``.
        data_files_size_in_mb: Size at which a new table is begun; None is 100.
        video_files_size_in_mb: Size at which a new video is begun; None is 200.
        chunk_size: Files in a chunk folder; None is 1000.
        concatenate_videos: Fill videos up to this size; else each source video begins one.
        concatenate_data: Likewise of tables.

    Raises:
        ArgumentError: There are none, roots are more or fewer, or datasets do not fit together.
        DatasetNotFoundError: One of them is not on this machine.
        TargetExistsError: There is something at the target.
    """
    if not repo_ids:
        raise ArgumentError("No datasets to merge.")
    if roots is not None and len(roots) != len(repo_ids):
        raise ArgumentError(f"There are {len(repo_ids)} repo_ids and {len(roots)} roots.")
    sources = [original(place) for place in (repo_ids if roots is None else map(Path, roots))]
    target = target_of(aggr_repo_id, aggr_root)
    render_and_warn(
        _merged(sources),
        target,
        data_files_size_in_mb=data_files_size_in_mb or _DATA_MB,
        video_files_size_in_mb=video_files_size_in_mb or _VIDEO_MB,
        chunks_size=chunk_size or _CHUNK,
        join_videos=concatenate_videos,
        join_tables=concatenate_data,
    )
    return opened(target, aggr_repo_id)


def _merged(sources: Sequence[Original]) -> Cut:
    first, *others = (source.cut for source in sources)
    return first.merge(*others)


def modify_features(
    dataset: Editable,
    add_features: Mapping[str, tuple[Values, Mapping[str, Any]]] | None = None,
    remove_features: str | Sequence[str] | None = None,
    output_dir: PathLike | None = None,
    repo_id: str | None = None,
) -> LeRobotDataset:
    """Make a dataset with features added, removed, or both.

    Args:
        dataset: The dataset.
        add_features: By name, the values and their entry in ``info.json`` (``dtype``, ``shape``,
            perhaps ``names``). Values are an array or tensor with a row for each frame, or a
            function of (row, episode, frame in the episode) that returns one; ``row`` is a dict of
            the frame's columns, without its images. Numbers only.
        remove_features: The name of a feature to leave out, or several.
        output_dir: The folder to make; None is ``HF_LEROBOT_HOME/repo_id``.
        repo_id: The result's name; None is the source's with ``_modified`` behind it.

    Raises:
        ArgumentError: There is nothing to do, or values do not fit the dataset or their entry: not
            in number, nor in shape, nor one by one in the range of the dtype.
        UnknownKeyError: A feature to remove is not there.
        TargetExistsError: There is something at the target.
    """
    if not add_features and not remove_features:
        raise ArgumentError("Must specify at least one of add_features or remove_features.")
    source = original(dataset)
    made = source.cut
    reader = open_source(source.cut.cutlist.sources[0])
    gone = [remove_features] if isinstance(remove_features, str) else list(remove_features or ())
    _refuse_features(reader, add_features or {}, gone)
    if gone:
        made = made.remove(*gone)
    for key, (values, entry) in (add_features or {}).items():
        feature = _declared(key, entry)
        array = _computed(values, feature, reader) if callable(values) else _given(values, feature)
        made = made.add(key, array, names=feature.names)
    return _changed(source, made, output_dir, repo_id)


def _refuse_features(
    reader: Reader, added: Mapping[str, tuple[Values, Mapping[str, Any]]], gone: Sequence[str]
) -> None:
    """Refuse features that cannot be added or removed, in the words that scripts know."""
    there = reader.info.features
    for key, (_, entry) in added.items():
        if key in there and key not in gone:
            raise ArgumentError(f"Feature {key!r} already exists in dataset.")
        missing = [name for name in ("dtype", "shape") if name not in entry]
        if missing:
            raise ArgumentError(
                f"feature_info for {key!r} must contain keys 'dtype' and 'shape'; it has no "
                f"{' and no '.join(missing)}."
            )
    for key in gone:
        if key not in there:
            raise UnknownKeyError(
                f"Feature {key!r} not found in dataset.", hint=nearest(key, there)
            )
    required = [key for key in gone if key in DEFAULT_FEATURES]
    if required:
        raise ArgumentError(
            f"Cannot remove required features: {required}.",
            hint=f"every dataset has {', '.join(DEFAULT_FEATURES)}",
        )


def _declared(key: str, entry: Mapping[str, Any]) -> Feature:
    feature = Feature.from_json(key, {**entry, "shape": list(entry["shape"])}, where=key)
    if not feature.is_numeric:
        raise ArgumentError(f"Only numbers can be added; {key!r} is {feature.dtype}.")
    return feature


def _given(values: Values, feature: Feature) -> np.ndarray:
    """Return values with the dtype and the shape that were declared."""
    array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    if array.shape[1:] not in (feature.shape, feature.item_shape):
        raise ArgumentError(
            f"The values of {feature.key!r} have rows of shape {array.shape[1:]}, "
            f"not {feature.shape}."
        )
    fitting = cast_numbers(array, feature, rows=True, whole_floats=True)
    return fitting.reshape(len(array), *feature.shape)


def _computed(
    function: Callable[[dict[str, Any], int, int], Any], feature: Feature, reader: Reader
) -> np.ndarray:
    """Ask a function for the value of each frame, an episode of rows at a time."""
    episodes = reader.episodes
    out = np.empty((episodes.total_frames, *feature.shape), feature.numpy_dtype)
    for position, number in enumerate(episodes.episode_index.tolist()):
        columns = reader.rows_once(position, position + 1)
        begin = int(episodes.start[position])
        for frame in range(int(episodes.length[position])):
            row = {key: column[frame] for key, column in columns.items()}
            value = np.asarray(function(row, number, frame))
            if value.size != out[begin].size:
                raise ArgumentError(
                    f"The function of {feature.key!r} returns {value.shape}, not {feature.shape}.",
                    episode=number,
                    frame=frame,
                )
            fitting = cast_numbers(
                value, feature, rows=False, whole_floats=True, episode=number, frame=frame
            )
            out[begin + frame] = fitting.reshape(feature.shape)
    return out


def add_features(
    dataset: Editable,
    features: Mapping[str, tuple[Values, Mapping[str, Any]]],
    output_dir: PathLike | None = None,
    repo_id: str | None = None,
) -> LeRobotDataset:
    """Make a dataset with more features; see ``modify_features``."""
    if not features:
        raise ArgumentError("No features provided.")
    return modify_features(dataset, features, None, output_dir, repo_id)


def remove_feature(
    dataset: Editable,
    feature_names: str | Sequence[str],
    output_dir: PathLike | None = None,
    repo_id: str | None = None,
) -> LeRobotDataset:
    """Make a dataset without some features; see ``modify_features``."""
    return modify_features(dataset, None, feature_names, output_dir, repo_id)


def modify_tasks(
    dataset: Editable,
    new_task: str | None = None,
    episode_tasks: Mapping[int, str] | None = None,
    task_replacements: Mapping[str, str] | None = None,
    *,
    output_dir: PathLike | None = None,
    repo_id: str | None = None,
) -> LeRobotDataset:
    """Give episodes other tasks.

    Without ``output_dir`` and ``repo_id``, the dataset itself is changed, as in lerobot, in one
    commit: rows and metadata are written, no video is. Else the result is a new dataset.

    An episode's own text comes first, then a replacement of its task, then ``new_task``. Episodes
    that nothing applies to stay as they are, also those that change their task on the way.

    Args:
        dataset: The dataset.
        new_task: For every episode that nothing else applies to.
        episode_tasks: Texts by episode.
        task_replacements: New texts by the old ones.
        output_dir: The folder to make a new dataset in.
        repo_id: The new dataset's name; None is the source's with ``_modified`` behind it.

    Returns:
        The dataset itself, with its new tasks; of a new one, that.

    Raises:
        ArgumentError: There is nothing to do, or there is no such episode or task.
        DatasetBusyError: Another process records to the dataset.
        TargetExistsError: There is something at the target.
    """
    own, replaced = dict(episode_tasks or {}), dict(task_replacements or {})
    if not (new_task or own or replaced):
        raise ArgumentError(
            "Must specify at least one of new_task, episode_tasks, or task_replacements."
        )
    source = original(dataset)
    reader = open_source(source.cut.cutlist.sources[0])
    refuse_unknown(own, source.cut)
    unknown = sorted(text for text in replaced if text not in reader.tasks.values())
    if unknown:
        raise UnknownKeyError(
            f"Task replacements reference unknown tasks: {unknown}.",
            hint=nearest(unknown[0], reader.tasks.values()),
        )
    if new_task:
        for episode in reader.episodes:
            if episode.index not in own and not set(episode.tasks[:1]) & set(replaced):
                own[episode.index] = new_task
    if output_dir is None and repo_id is None:
        _retask(source, own, replaced)
        return changed_in_place(dataset, source)
    return _changed(source, _retasked(source, own, replaced), output_dir, repo_id)


def _retasked(source: Original, own: Mapping[int, str], replaced: Mapping[str, str]) -> Cut:
    made = source.cut.retask(dict(replaced)) if replaced else source.cut
    return made.retask(dict(own)) if own else made


def _retask(source: Original, own: Mapping[int, str], replaced: Mapping[str, str]) -> None:
    """Give episodes other tasks where they lie."""
    reader = open_source(source.cut.cutlist.sources[0])
    if reader.layout.startswith("lance"):
        _retasked(source, own, replaced).render_in_place()
    elif reader.layout == "v3.0" and is_here(source.cut.cutlist.sources[0].path):
        from demoreel.edit.in_place.retask import retask_in_place

        retask_in_place(
            Path(source.cut.cutlist.sources[0].path),
            lambda episode, text: own.get(episode, replaced.get(text, text)),
        )
    else:
        replace_source(source, _retasked(source, own, replaced))


def _changed(
    source: Original, made: Cut, output_dir: PathLike | None, repo_id: str | None
) -> LeRobotDataset:
    name = repo_id or f"{source.repo_id}_modified"
    return written(made, source, name, target_of(name, output_dir))
