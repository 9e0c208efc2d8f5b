"""Choosing clips: by a condition, by order, into parts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from demoreel.edit.clips import Clip, CutList
from demoreel.edit.sources import open_source
from demoreel.errors import ArgumentError, UnknownKeyError, nearest
from demoreel.layouts.base import Reader

Part = float | range | Iterable[int]
"""A share of the episodes, or which of them."""

_COLUMNS = "episode_index, length, seconds, task, tasks"
_ROUNDING = 1e-9
_LONG_REST = 3.0  # seconds; as in check's idle-head

MOVING = ("observation.state", "action")
"""The features in which a robot's movements show."""


def matching(cutlist: CutList, where: str | None, order_by: str | None) -> tuple[Clip, ...]:
    """Return the clips whose episodes meet a condition, sorted by an expression."""
    from demoreel.read.sql import check_expression

    keys: dict[tuple[int, int], Any] = {}
    expression, backwards = _sort_key(order_by)
    if order_by is not None:
        check_expression(expression, what="order_by")
    for number, source in enumerate(cutlist.sources):
        found = episode_keys(open_source(source), where, expression)
        keys |= {(number, episode): key for episode, key in found}
    chosen = [clip for clip in cutlist.clips if (clip.source, clip.episode) in keys]
    if not chosen:
        raise ArgumentError(
            f"No episode is chosen where {where}.", hint=f"the columns are {_COLUMNS}"
        )
    if order_by is not None:
        try:
            chosen.sort(key=lambda clip: keys[clip.source, clip.episode], reverse=backwards)
        except TypeError as error:  # tuples, lists of texts and numbers, some of them missing
            raise ArgumentError(
                f"{order_by!r} is not one number or text for every episode.",
                hint=f"the columns are {_COLUMNS}",
            ) from error
    return tuple(chosen)


def _sort_key(order_by: str | None) -> tuple[str, bool]:
    if order_by is None:
        return "0", False
    words = order_by.split()
    if not words:
        raise ArgumentError("order_by is empty.", hint=f"the columns are {_COLUMNS}")
    if words[-1].lower() in ("asc", "desc"):
        return " ".join(words[:-1]), words[-1].lower() == "desc"
    return order_by, False


def episode_keys(reader: Reader, where: str | None, key: str) -> list[tuple[int, Any]]:
    """Return number and key of the episodes that meet a condition, in the dataset's order.

    Args:
        reader: The dataset.
        where: An SQL expression over the columns of episodes; None is all episodes.
        key: An expression whose value is wanted of each.
    """
    from demoreel.read.sql import check_expression, query

    if where is not None:
        check_expression(where, what="where")
    condition = f"where ({where}\n)" if where is not None else ""
    text = (
        f"select episode_index, ({key}\n) as demoreel_key from (select *, "
        f"length / {reader.info.fps!r} as seconds, array_to_string(tasks, '; ') as task "
        f"from episodes) {condition}"
    )
    try:
        answer = query(reader, np.arange(len(reader.episodes)), text)
    except ArgumentError as error:
        reason = error.what.split("; LINE ")[0]
        raise ArgumentError(
            f"{where or key!r} is not understood: {reason}",
            hint=f"the columns are {_COLUMNS}, and those of meta/episodes",
            dataset=reader.root,
        ) from error
    rows = (answer.column(place).to_pylist() for place in range(2))
    return list(zip(*rows, strict=True))


def parted(
    clips: Sequence[Clip], parts: Mapping[str, Part], *, seed: int | None = None
) -> dict[str, tuple[Clip, ...]]:
    """Return the clips of each part.

    Args:
        clips: All clips.
        parts: By name, a share (all shares together are at most 1) or which clips, counted from 0
            in the order of ``clips``.
        seed: Shuffles the clips before shares are taken; None takes them as they come.
    """
    if not parts:
        raise ArgumentError("There are no parts to split into.", hint="train=0.8 val=0.2")
    shares = {n: float(part) for n, part in parts.items() if isinstance(part, (float, int))}
    chosen = {
        name: [int(n) for n in part]
        for name, part in parts.items()
        if not isinstance(part, (float, int))
    }
    if shares and chosen:
        raise ArgumentError("Parts are shares or ranges, not some of each.")
    if shares:
        chosen = _by_share(len(clips), shares, seed)
    _check_parts(chosen, len(clips))
    return {name: tuple(clips[n] for n in numbers) for name, numbers in chosen.items()}


def _by_share(total: int, parts: Mapping[str, float], seed: int | None) -> dict[str, list[int]]:
    if any(not share > 0 for share in parts.values()):
        raise ArgumentError("Every part needs a share above 0.", parts=dict(parts))
    if sum(parts.values()) > 1 + _ROUNDING:
        raise ArgumentError(f"The shares are {sum(parts.values()):g} together, more than 1.")
    order = np.arange(total)
    if seed is not None:
        np.random.default_rng(seed).shuffle(order)
    edges = [0, *(round(total * s + _ROUNDING) for s in itertools.accumulate(parts.values()))]
    return {
        name: sorted(order[begin:end].tolist())
        for name, (begin, end) in zip(parts, itertools.pairwise(edges), strict=True)
    }


def _check_parts(chosen: Mapping[str, Sequence[int]], total: int) -> None:
    owner: dict[int, str] = {}
    for name, numbers in chosen.items():
        if not numbers:
            raise ArgumentError(f"The part {name!r} would be empty.", hint=f"of {total} episodes")
        for number in numbers:
            if not 0 <= number < total:
                raise ArgumentError(
                    f"The part {name!r} names episode {number}.", hint=f"there are {total}"
                )
            if number in owner:
                raise ArgumentError(
                    f"Episode {number} would be twice in {name!r}."
                    if owner[number] == name
                    else f"Episode {number} would be in {owner[number]!r} and in {name!r}."
                )
            owner[number] = name


def by_task(cutlist: CutList) -> dict[str, tuple[Clip, ...]]:
    """Return the clips of each task, by its text; a clip of several goes by its first."""
    found: dict[str, list[Clip]] = {}
    for clip in cutlist.clips:
        source = cutlist.sources[clip.source]
        episodes = open_source(source).episodes
        own = episodes[episodes.position_of(clip.episode)].tasks
        text = clip.task if clip.task is not None else (own[0] if own else "")
        text = text if clip.task is not None else source.tasks.get(text, text)
        found.setdefault(text, []).append(clip)
    return {text: tuple(clips) for text, clips in found.items()}


def moving_part(
    clip: Clip, reader: Reader, key: str | None, *, threshold: float, margin: float
) -> Clip:
    """Return a clip without the spans at its ends in which nothing moves.

    A clip in which nothing moves at all stays as it is: that is not for a threshold to decide.
    """
    if not threshold > 0 or margin < 0:
        raise ArgumentError("threshold must be positive, and margin not negative.")
    keys = _moving_features(reader, key)
    position = reader.episodes.position_of(clip.episode)
    first = int(reader.episodes.start[position])
    rows = np.arange(first + clip.start, first + clip.stop)
    columns = reader.rows(rows, keys)
    parts = [np.asarray(columns[name], np.float64).reshape(len(rows), -1) for name in keys]
    values = np.concatenate(parts, axis=1)
    reach = threshold * (values.max(axis=0) - values.min(axis=0))
    extra, long = round(margin * reader.info.fps), round(_LONG_REST * reader.info.fps)
    begin = _rest(values, reach, extra, long)
    end = _rest(values[begin:][::-1], reach, extra, long)
    return replace(clip, start=clip.start + begin, stop=clip.stop - end)


def _moving_features(reader: Reader, key: str | None) -> list[str]:
    features = reader.info.features
    if key is None:
        found = [name for name in MOVING if name in features and features[name].is_numeric]
        if not found:
            hint = "give key= (--key), the feature that moves"
            raise ArgumentError(f"There is neither {' nor '.join(MOVING)}.", hint=hint)
        return found
    if key not in features:
        raise UnknownKeyError(f"There is no feature {key!r}.", hint=nearest(key, features))
    if not features[key].is_numeric:
        raise ArgumentError(f"{key!r} is not a column of numbers.")
    return [key]


def _rest(values: np.ndarray, reach: np.ndarray, extra: int, long: int) -> int:
    """Return how many rows at the beginning to leave out.

    What creeps is near where it begins for long, and then again near where it is then: so the rest
    is looked at again, as long as nothing moves in it for a long time.

    Args:
        values: The rows.
        reach: How far each dimension may be from where it begins, and rest.
        extra: Rows before the movement that are kept.
        long: Rows of a long time.
    """
    begin = 0
    while True:
        away = (np.abs(values[begin:] - values[begin]) > reach).any(axis=1)
        still = int(np.argmax(away))
        if not away.any() or still - 1 <= extra or (begin and still < long):
            return begin
        begin += still - 1 - extra
