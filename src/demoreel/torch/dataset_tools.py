"""Editing under the names that LeRobot users know.

Parameters and defaults are those of lerobot 0.6.1. Underneath is ``demoreel.cut``: packets and rows
are copied, no picture is encoded again unless that is what was asked for, and the result is absent
until it is whole. One thing is different on purpose: no function changes the dataset that it is
given; those that do so in lerobot (``modify_tasks``, ``recompute_stats``, ``reencode_dataset``)
make a new one, too.

Every function takes an open dataset, a folder or a ``repo_id``. Without ``output_dir``, the result
goes to ``HF_LEROBOT_HOME/repo_id``; without ``repo_id``, that is the source's with ``_modified``
behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from demoreel.edit.cut import Cut
from demoreel.edit.several import render_several
from demoreel.edit.sources import open_source
from demoreel.edit.target_info import Form
from demoreel.errors import ArgumentError, UnknownKeyError, nearest
from demoreel.layouts.base import Reader
from demoreel.model import Feature
from demoreel.torch.dataset import LeRobotDataset
from demoreel.torch.edited import (
    Editable,
    Original,
    PathLike,
    opened,
    original,
    place_of,
    target_of,
    written,
)

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
    return _changed(source, source.cut.delete(list(episode_indices)), output_dir, repo_id)


def split_dataset(
    dataset: Editable,
    splits: Mapping[str, float | Sequence[int]],
    output_dir: PathLike | None = None,
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
    parts = source.cut.split(_episodes_of_splits(splits, len(source.cut)))
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
        raise ArgumentError("There are no splits.", hint='{"train": 0.8, "val": 0.2}')
    shares = {name: part for name, part in splits.items() if isinstance(part, (float, int))}
    listed = {
        name: sorted(int(number) for number in part)
        for name, part in splits.items()
        if not isinstance(part, (float, int))
    }
    if listed and shares:
        raise ArgumentError("Splits are shares or lists of episodes, not some of each.")
    if sum(shares.values()) > 1 + 1e-9:
        raise ArgumentError(f"The shares are {sum(shares.values()):g} together, more than 1.")
    begin = 0
    for number, (name, share) in enumerate(shares.items()):
        end = total if number == len(shares) - 1 else begin + int(total * share)
        listed[name] = list(range(begin, end)) if share > 0 else []
        begin = end
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
        concatenate_videos: Only True: files are filled up to the dataset's size.
        concatenate_data: Likewise.

    Raises:
        ArgumentError: There are none, or they do not fit together; the message has a table.
        TargetExistsError: There is something at the target.
    """
    _refuse_single_files(concatenate_videos, concatenate_data)
    sources = [original(dataset) for dataset in datasets]
    target = target_of(output_repo_id, output_dir)
    return written(_merged(sources), sources[0], output_repo_id, target)


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
        concatenate_videos: Only True: files are filled up to these sizes.
        concatenate_data: Likewise.

    Raises:
        ArgumentError: There are none, roots are more or fewer, or datasets do not fit together.
        DatasetNotFoundError: One of them is not on this machine.
        TargetExistsError: There is something at the target.
    """
    _refuse_single_files(concatenate_videos, concatenate_data)
    if roots is not None and len(roots) != len(repo_ids):
        raise ArgumentError(f"There are {len(repo_ids)} repo_ids and {len(roots)} roots.")
    sources = [original(place) for place in (repo_ids if roots is None else map(Path, roots))]
    target = target_of(aggr_repo_id, aggr_root)
    _merged(sources).render(
        target,
        data_files_size_in_mb=data_files_size_in_mb or _DATA_MB,
        video_files_size_in_mb=video_files_size_in_mb or _VIDEO_MB,
        chunks_size=chunk_size or _CHUNK,
    )
    return opened(target, aggr_repo_id)


def _merged(sources: Sequence[Original]) -> Cut:
    if not sources:
        raise ArgumentError("There are no datasets to merge.")
    first, *others = (source.cut for source in sources)
    return first.merge(*others)


def _refuse_single_files(videos: bool, data: bool) -> None:
    if not (videos and data):
        raise ArgumentError(
            "Files of the sources are not kept one by one: packets and rows fill new ones.",
            hint="leave concatenate_videos and concatenate_data as they are; joining costs no more",
        )


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
            the frame's columns, without its pictures. Numbers only.
        remove_features: The name of a feature to leave out, or several.
        output_dir: The folder to make; None is ``HF_LEROBOT_HOME/repo_id``.
        repo_id: The result's name; None is the source's with ``_modified`` behind it.

    Raises:
        ArgumentError: There is nothing to do, or values do not fit the dataset or their entry.
        UnknownKeyError: A feature to remove is not there.
        TargetExistsError: There is something at the target.
    """
    if not add_features and not remove_features:
        raise ArgumentError("There is no feature to add or to remove.")
    source = original(dataset)
    made = source.cut
    if remove_features:
        gone = [remove_features] if isinstance(remove_features, str) else list(remove_features)
        made = made.remove(*gone)
    for key, (values, entry) in (add_features or {}).items():
        reader = open_source(source.cut.cutlist.sources[0])
        feature = _declared(key, entry)
        array = _computed(values, feature, reader) if callable(values) else _given(values, feature)
        made = made.add(key, array, names=feature.names)
    return _changed(source, made, output_dir, repo_id)


def _declared(key: str, entry: Mapping[str, Any]) -> Feature:
    missing = [name for name in ("dtype", "shape") if name not in entry]
    if missing:
        raise ArgumentError(f"The entry of {key!r} has no {' and no '.join(missing)}.")
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
    return array.astype(feature.numpy_dtype, copy=False).reshape(len(array), *feature.shape)


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
            out[begin + frame] = value.reshape(feature.shape)
    return out


def add_features(
    dataset: Editable,
    features: Mapping[str, tuple[Values, Mapping[str, Any]]],
    output_dir: PathLike | None = None,
    repo_id: str | None = None,
) -> LeRobotDataset:
    """Make a dataset with more features; see ``modify_features``."""
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
    output_dir: PathLike | None = None,
    repo_id: str | None = None,
) -> LeRobotDataset:
    """Make a dataset with other tasks.

    An episode's own text comes first, then a replacement of its task, then ``new_task``. Episodes
    that nothing applies to stay as they are, also those that change their task on the way.

    Args:
        dataset: The dataset; it is not changed.
        new_task: For every episode that nothing else applies to.
        episode_tasks: Texts by episode.
        task_replacements: New texts by the old ones.
        output_dir: The folder to make; None is ``HF_LEROBOT_HOME/repo_id``.
        repo_id: The result's name; None is the source's with ``_modified`` behind it.

    Raises:
        ArgumentError: There is nothing to do, or there is no such episode or task.
        TargetExistsError: There is something at the target.
    """
    own, replaced = dict(episode_tasks or {}), dict(task_replacements or {})
    if not (new_task or own or replaced):
        raise ArgumentError("There is no task to set.")
    source = original(dataset)
    made = source.cut
    reader = open_source(made.cutlist.sources[0])
    unknown = [text for text in replaced if text not in reader.tasks.values()]
    if unknown:
        hint = nearest(unknown[0], reader.tasks.values())
        raise UnknownKeyError(f"There is no task {unknown[0]!r}.", hint=hint)
    if own:
        made.retask(own)  # says which episode does not exist
    if new_task:
        for episode in reader.episodes:
            if episode.index not in own and not set(episode.tasks[:1]) & set(replaced):
                own[episode.index] = new_task
    if replaced:
        made = made.retask(replaced)
    return _changed(source, made.retask(own) if own else made, output_dir, repo_id)


def _changed(
    source: Original, made: Cut, output_dir: PathLike | None, repo_id: str | None
) -> LeRobotDataset:
    name = repo_id or f"{source.repo_id}_modified"
    return written(made, source, name, target_of(name, output_dir))
