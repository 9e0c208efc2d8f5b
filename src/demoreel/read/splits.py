"""Splits episodes into training and validation: lerobot's split, and splits without leaks."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

from demoreel.errors import ArgumentError
from demoreel.read.dataset import Dataset
from demoreel.read.order import FrameOrder

SplitBy = Literal["episode", "task", "session"]

_NANOSECONDS = 60 * 10**9


class EpisodeSplit(NamedTuple):
    """Episodes by their ``episode_index``.

    Attributes:
        train: Those to train on.
        val: Those that are held out.
    """

    train: list[int]
    val: list[int]


def eval_split(
    dataset: Dataset, fraction: float, *, episodes: Iterable[int] | None = None
) -> EpisodeSplit:
    """Return lerobot's ``eval_split``: of each task, the last ceil(n x fraction) episodes.

    An episode counts to the first of its tasks. The order is lerobot's: task by task, as they come.

    Args:
        dataset: The dataset.
        fraction: How much of each task is held out, from 0 to 1, the end not included.
        episodes: Only these, in this order; None is all.

    Raises:
        ArgumentError: Nothing would be left to train on, or there is no such fraction.
        OutOfRangeError: There is no such episode.
    """
    if not 0 <= fraction < 1:
        raise ArgumentError(f"A fraction is from 0 up to 1, not {fraction}.")
    listed = dataset.episodes.episode_index.tolist() if episodes is None else list(episodes)
    if not fraction:
        return EpisodeSplit(listed, [])
    by_task: dict[str, list[int]] = {}
    for number in listed:
        tasks = dataset.episodes[dataset.episodes.position_of(number)].tasks
        by_task.setdefault(tasks[0] if tasks else "", []).append(number)
    found = EpisodeSplit([], [])
    for own in by_task.values():
        kept = len(own) - math.ceil(len(own) * fraction)
        found.train.extend(own[:kept])
        found.val.extend(own[kept:])
    if not found.train:
        raise ArgumentError(
            f"eval_split={fraction} leaves no episode of {len(listed)} to train on.",
            hint="hold out less, or record more episodes of each task",
            dataset=dataset.root,
        )
    return found


def split_episodes(
    dataset: Dataset,
    *,
    val: float = 0.1,
    by: SplitBy = "episode",
    seed: int = 0,
    gap_minutes: float = 15,
) -> EpisodeSplit:
    """Hold out whole groups of episodes at random, so that nothing of them is trained on.

    Groups are held out until the next one would bring more than ``val`` of all frames; one at
    least. The same seed gives the same split.

    Cost: ``session`` reads the capture times of every episode.

    Args:
        dataset: The dataset.
        val: How much of all frames to hold out.
        by: What stays together: nothing but the episode; episodes that share a task; or a
            recording session: episodes between which no more than ``gap_minutes`` passed.
        seed: Of the choice.
        gap_minutes: How long a pause ends a session.

    Raises:
        ArgumentError: There is one group only, or no capture times tell of sessions.
    """
    if by not in get_args(SplitBy):
        raise ArgumentError(f"by must be one of {', '.join(get_args(SplitBy))}, not {by!r}.")
    if not 0 < val < 1:
        raise ArgumentError(f"val is a share between 0 and 1, not {val}.")
    groups = _groups(dataset, by, gap_minutes)
    if len(groups) < 2:
        raise ArgumentError(
            f"All episodes are one {by}, so none can be held out.",
            hint="split by something smaller",
            dataset=dataset.root,
        )
    numbers, lengths = dataset.episodes.episode_index, dataset.episodes.length
    room = val * int(lengths.sum())
    order = FrameOrder(len(groups), seed, 0).at(np.arange(len(groups))).tolist()
    held: set[int] = set()
    taken = 0
    for place in order:
        size = int(lengths[groups[place]].sum())
        if taken and taken + size > room:
            continue
        if len(held) + len(groups[place]) == len(numbers):
            continue  # something must be left to train on
        held.update(groups[place])
        taken += size
        if taken >= room:
            break
    each = list(enumerate(numbers.tolist()))
    return EpisodeSplit([n for p, n in each if p not in held], [n for p, n in each if p in held])


def _groups(dataset: Dataset, by: SplitBy, gap_minutes: float) -> list[list[int]]:
    """Return positions of the episodes that stay together."""
    every = list(range(len(dataset.episodes)))
    if by == "episode":
        return [[position] for position in every]
    if by == "task":
        return _connected([dataset.episodes[position].tasks for position in every])
    begins = []
    for number in dataset.episodes.episode_index.tolist():
        times = dataset.capture_times(number)
        known = times[times >= 0] if times is not None else np.empty(0, np.int64)
        if not len(known):
            raise ArgumentError(
                "When this episode was recorded is not known, so sessions are not either.",
                hint="demoreel's recorder keeps capture times; split by episode or task",
                dataset=dataset.root,
                episode=number,
            )
        begins.append((int(known.min()), int(known.max())))
    order = sorted(every, key=lambda position: begins[position])
    groups = [[order[0]]]
    until = begins[order[0]][1]
    for position in order[1:]:
        if begins[position][0] - until > gap_minutes * _NANOSECONDS:
            groups.append([])
        groups[-1].append(position)
        until = max(until, begins[position][1])
    return groups


def _connected(tags: Sequence[Sequence[Hashable]]) -> list[list[int]]:
    """Return the places that share a tag, directly or through others."""
    group_of: dict[Hashable, list[int]] = {}
    for place, own in enumerate(tags):
        merged = [place]
        for group in {id(group_of[tag]): group_of[tag] for tag in own if tag in group_of}.values():
            merged += group
        for tag in {*own, *(tag for member in merged for tag in tags[member])} or {("none", place)}:
            group_of[tag] = merged
    unique = {id(group): sorted(set(group)) for group in group_of.values()}
    return sorted(unique.values())
