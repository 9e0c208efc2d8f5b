"""Labels of clips, written into the columns that LeRobot has for them.

Success is ``next.success``: its maximum over an episode. Where only some episodes have been judged,
``next.success_is_missing`` says of which nothing is known. Language is ``language_persistent`` (the
same rows at every frame of an episode, each with the time from which it holds) and
``language_events`` (said at one frame). Scores and flags are beside the data (``edit/scores.py``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from demoreel.edit.clips import Clip, Frames, Labels, LanguageRow
from demoreel.edit.features import View
from demoreel.edit.resample import events_of, frame_at, moved
from demoreel.edit.scores import read_labels
from demoreel.errors import ArgumentError
from demoreel.layouts.base import Column, Reader
from demoreel.model import Feature
from demoreel.model.feature import LANGUAGE_KEYS, MASK
from demoreel.read.dataset import Dataset

SUCCESS = "next.success"
UNKNOWN = MASK.format(SUCCESS)
PERSISTENT, EVENTS = LANGUAGE_KEYS


def labelled_keys(labels: Labels | None) -> set[str]:
    """Return the columns that labels change."""
    said = {
        SUCCESS: labels is not None and labels.success is not None,
        UNKNOWN: labels is not None and labels.success is not None,
        PERSISTENT: labels is not None and labels.persistent is not None,
        EVENTS: labels is not None and labels.events is not None,
    }
    return {key for key, changes in said.items() if changes}


def with_labels(
    features: Mapping[str, Feature],
    missing: Mapping[str, Feature],
    clips: Sequence[Clip],
    views: Sequence[View],
) -> tuple[dict[str, Feature], dict[str, Feature]]:
    """Return a result's features and those that some source lacks, with those that labels need."""
    found, lacking = dict(features), dict(missing)
    keys = set().union(*(labelled_keys(clip.labels) for clip in clips))
    unknown = any(
        SUCCESS not in labelled_keys(clip.labels) and SUCCESS not in views[clip.source].features
        for clip in clips
    )
    needed = {key: Feature(key, "language", (1,)) for key in LANGUAGE_KEYS if key in keys}
    if SUCCESS in keys:
        needed[SUCCESS] = Feature(SUCCESS, "bool", (1,))
        if unknown or UNKNOWN in features:
            needed[UNKNOWN] = Feature(UNKNOWN, "bool", (1,))
    for key, feature in needed.items():
        if key not in found:
            found[key] = feature
        elif key == SUCCESS and not (found[key].is_numeric and found[key].shape == (1,)):
            raise ArgumentError(
                f"The feature {key!r} is no column of one truth a frame: {found[key].dtype}.",
                hint="rename or remove it in the same cut",
            )
        if any(key not in view.features for view in views):
            lacking.setdefault(key, found[key])
    return found, lacking


def labelled(
    clip: Clip,
    features: Mapping[str, Feature],
    columns: Mapping[str, Column],
    old: np.ndarray,
    frames: Frames,
    new: np.ndarray,
) -> dict[str, Column]:
    """Return the columns of a clip that its labels change.

    Args:
        clip: The clip.
        features: The result's features.
        columns: The clip's columns as they would be without.
        old: The time of each frame of its episode.
        frames: The frames of the episode that become the clip's.
        new: The time of each of those.
    """
    labels = clip.labels or Labels()
    found: dict[str, Column] = {}
    if labels.success is not None:
        before = np.asarray(columns[SUCCESS])
        values = np.zeros_like(before)
        if labels.success:
            # Where an environment has said when, that stays.
            values = before.copy() if before.any() else values
            values[-1] = True
        found[SUCCESS] = values
        if UNKNOWN in features:
            found[UNKNOWN] = np.zeros_like(np.asarray(columns[UNKNOWN]))
    if labels.persistent is not None:
        rows = [
            {**language_row(row), "timestamp": float(old[row.frame])} for row in labels.persistent
        ]
        found[PERSISTENT] = [moved(rows, old, clip, frames, new)] * len(frames)
    if labels.events is not None:
        said: list[list[dict[str, Any]]] = [[] for _ in old]
        for row in labels.events:
            said[row.frame].append(language_row(row))
        found[EVENTS] = events_of(said, clip, frames)
    return found


def language_row(row: LanguageRow) -> dict[str, Any]:
    """Return a row as language columns have it, but for its time."""
    calls = None if row.tool_calls is None else [json.loads(call) for call in row.tool_calls]
    return {
        "role": row.role,
        "content": row.content,
        "style": row.style,
        "camera": row.camera,
        "tool_calls": calls,
    }


def episode_times(stored: Column | None, begin: int, end: int, reader: Reader) -> np.ndarray:
    """Return the time of each frame of an episode, as stored in its rows ``begin`` to ``end``."""
    if stored is None:
        return (np.arange(end - begin) / reader.info.fps).astype(np.float32)
    return np.asarray(stored[begin:end])


def refuse_outside(clips: Sequence[Clip], lengths: Sequence[int], cameras: Sequence[str]) -> None:
    """Refuse language rows at frames that an episode does not have, or of cameras that are none."""
    for clip, length in zip(clips, lengths, strict=True):
        if clip.labels is None:
            continue
        for row in (*(clip.labels.persistent or ()), *(clip.labels.events or ())):
            if row.frame >= length:
                raise ArgumentError(
                    f"A label is at frame {row.frame} of episode {clip.episode}.",
                    hint=f"the episode has {length} frames",
                )
            if row.camera is not None and row.camera not in cameras:
                raise ArgumentError(f"A label speaks of {row.camera!r}, which is no camera.")


def labels_of(dataset: Dataset, episode: int) -> Labels:
    """Return what a dataset says of an episode: success, language, score and flag.

    Cost: reads these columns of the episode, and the score file.
    """
    view, features = dataset.episode(episode), dataset.features
    success = None
    if SUCCESS in features and features[SUCCESS].is_numeric:
        unknown = UNKNOWN in features and np.asarray(view.column(UNKNOWN)).any()
        success = None if unknown else bool(np.asarray(view.column(SUCCESS)).any())
    language = language_of(dataset, episode)
    position = dataset.reader.episodes.position_of(episode)
    rated = read_labels(dataset.reader, [position]).get(position, Labels())
    return replace(language, success=success, score=rated.score, flag=rated.flag)


def language_of(dataset: Dataset, episode: int) -> Labels:
    """Return what the columns of language say of an episode, at the frames where they say it.

    Cost: reads these columns of the episode.
    """
    view, features = dataset.episode(episode), dataset.features
    persistent = events = None
    if PERSISTENT in features:
        times = np.asarray(view.column("timestamp"), np.float32).reshape(-1)
        first = next(iter(view.column(PERSISTENT)), None) or ()
        persistent = tuple(_stored_row(row, _frame(times, row)) for row in first)
    if EVENTS in features:
        column = view.column(EVENTS)
        events = tuple(_stored_row(row, at) for at, rows in enumerate(column) for row in rows or ())
    return Labels(persistent=persistent, events=events)


def _frame(times: np.ndarray, row: Mapping[str, Any]) -> int:
    at = row.get("timestamp")
    return 0 if at is None or np.isnan(at) else frame_at(times, float(at))[0]


def _stored_row(row: Mapping[str, Any], frame: int) -> LanguageRow:
    calls = row.get("tool_calls")
    return LanguageRow(
        frame,
        row.get("style"),
        row.get("content"),
        str(row.get("role")),
        row.get("camera"),
        None if calls is None else tuple(json.dumps(call, ensure_ascii=False) for call in calls),
    )
