"""The ``info.json`` of a result: features, splits, and keys of other programs.

What sources state and the result does not is said: ``dropped`` gets a sentence for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from demoreel.edit.clips import CutList
from demoreel.edit.form import LAYOUTS, Form, Layout
from demoreel.errors import ArgumentError
from demoreel.layouts.base import Reader
from demoreel.model import DEFAULT_FEATURES, Feature, Info

ENCODER_KEYS = tuple(
    f"video.{name}"
    for name in ("g", "crf", "preset", "fast_decode", "video_backend", "extra_options")
)
"""What ``info.json`` says of the settings that a camera's videos were encoded with."""

_V2_ONLY = ("total_videos", "total_chunks")
_NOT_INHERITED = (*_V2_ONLY, "storage_format")
_HAS_AUDIO, _AUDIO = "has_audio", "audio."
_OLD_INFO = "video_info"
_MOST_RANGES = 8  # that one split is written as
_NO_END = 10**18 - 1


def target_info(
    readers: Sequence[Reader],
    features: Mapping[str, Feature],
    cutlist: CutList,
    positions: np.ndarray,
    form: Form,
    *,
    frames: int,
    unchanged: bool,
    dropped: list[str],
) -> Info:
    """Return the result's info; its number of tasks is not known yet.

    Args:
        readers: The sources.
        features: The result's features, without the default ones.
        cutlist: The cut list.
        positions: Where each clip's episode stands in its source.
        form: How the result is stored.
        frames: How many it will have.
        unchanged: Whether its episodes are those of its only source.
        dropped: Takes a sentence for what sources state and the result will not.
    """
    if form.layout not in LAYOUTS:
        raise ArgumentError(
            f"A cut is not written as {form.layout!r}.", hint=f"one of {', '.join(LAYOUTS)}"
        )
    _refuse_impossible(form.layout, features)
    first = readers[0].info
    defaults = {key: first.features[key] for key in DEFAULT_FEATURES if key in first.features}
    every = {**features, **defaults}
    is_v3, to_v3 = first.version.startswith("v3"), form.layout != "v2.1"
    fps = first.fps if form.fps is None else _plain(form.fps)
    if (to_v3 and not is_v3) or fps != first.fps:
        every = {key: _with_rate(f, fps, to_v3) for key, f in every.items()}
    if not to_v3:
        every = {key: _without_rate(f) for key, f in every.items()}
    if not is_v3:
        every = {key: _as_written_today(f) for key, f in every.items()}
    total = len(cutlist.clips)
    bounds = {
        "chunks_size": form.chunks_size or (first.chunks_size if is_v3 == to_v3 else 1000),
        "data_files_size_in_mb": form.data_files_size_in_mb
        or (first.data_files_size_in_mb if is_v3 else 100),
        "video_files_size_in_mb": form.video_files_size_in_mb
        or (first.video_files_size_in_mb if is_v3 else 200),
    }
    for name, value in bounds.items():
        if not value > 0:
            raise ArgumentError(f"{name} must be positive, not {value}.")
    return Info.new(
        version="v3.0" if to_v3 else form.layout,
        fps=fps,
        features=every,
        robot_type=_one_robot(readers),
        total_episodes=total,
        total_frames=frames,
        splits=merged_splits(
            [reader.info.splits for reader in readers],
            np.array([clip.source for clip in cutlist.clips]),
            positions,
            unchanged=unchanged,
            dropped=dropped,
        ),
        extra=_extra(readers, form, dropped),
        **bounds,
    )


def _extra(readers: Sequence[Reader], form: Form, dropped: list[str]) -> dict[str, Any]:
    kept = merged_keys(readers, _NOT_INHERITED, dropped)
    return {**kept, "storage_format": "lance"} if form.layout == "lance-native" else kept


def _refuse_impossible(layout: Layout, features: Mapping[str, Feature]) -> None:
    """Refuse a layout that cannot hold the cameras as they are."""
    video_cameras = [key for key, feature in features.items() if feature.is_video]
    imaged = [key for key, feature in features.items() if feature.is_image]
    if layout == "lance-frames" and video_cameras:
        raise ArgumentError(
            f"The images of {video_cameras[0]!r} are in videos: lance-frames would need "
            "them encoded one by one.",
            hint="cut into lance-video, or convert the result: demoreel convert --to lance-frames",
        )
    if layout == "lance-video" and imaged and not video_cameras:
        raise ArgumentError(
            "The images are in tables; there are no videos for lance-video to keep.",
            hint="cut into lance-frames",
        )


def _plain(fps: float) -> float:
    """Return whole numbers as such: other programs compare them as text."""
    return int(fps) if float(fps).is_integer() else float(fps)


def _with_rate(feature: Feature, fps: float, to_v3: bool) -> Feature:
    """v3.0 says the frame rate of every feature; cameras say it in their ``info``."""
    if feature.is_video or not (to_v3 or "fps" in feature.extra):
        return feature
    return replace(feature, extra={**feature.extra, "fps": fps})


def _without_rate(feature: Feature) -> Feature:
    """v2.1 says the frame rate once."""
    return replace(feature, extra={n: v for n, v in feature.extra.items() if n != "fps"})


def _as_written_today(feature: Feature) -> Feature:
    """Return a v2.x feature as later programs expect it: ``info``, and cameras with names.

    Older ones wrote ``video_info``, and some left the names of a camera's dimensions out, which
    lerobot does not forgive.
    """
    if not feature.is_camera:
        return feature
    extra = {name: value for name, value in feature.extra.items() if name != _OLD_INFO}
    old = feature.extra.get(_OLD_INFO)
    info = {**old, **feature.info} if isinstance(old, Mapping) else feature.info
    return replace(feature, extra=extra, info=info, names=feature.names or _dimensions(feature))


def _dimensions(feature: Feature) -> list[str] | None:
    if len(feature.shape) != 3:
        return None
    order = ["height", "width", "channels"]
    return order if feature.shape == feature.image_shape else [order[2], *order[:2]]


def with_common_encoding(
    features: Mapping[str, Feature],
    sources: Sequence[Mapping[str, Feature]],
    encoded: Collection[str],
    dropped: list[str],
) -> dict[str, Feature]:
    """Return features whose videos say of their encoding only what all sources say alike.

    The rest is null, as lerobot has it in a merged dataset: frames of one video may be encoded in
    several ways.

    Args:
        features: The result's, without the default ones.
        sources: The sources' features, by the result's names.
        encoded: Cameras that are re-encoded, of which one thing is true.
        dropped: Takes a sentence for what is null.
    """
    found = dict(features)
    for key, feature in features.items():
        stated = [one[key].info for one in sources if key in one]
        if not feature.is_video or key in encoded or len(stated) < 2:
            continue
        names = [n for n in ENCODER_KEYS if any(info.get(n) != stated[0].get(n) for info in stated)]
        if names:
            nothing: dict[str, Any] = dict.fromkeys(names)
            if "video.extra_options" in nothing:
                nothing["video.extra_options"] = {}
            found[key] = replace(feature, info={**feature.info, **nothing})
            dropped.append(
                f"{key}: {', '.join(names)}, which are heterogeneous or incomplete in the datasets"
            )
    return found


def _one_robot(readers: Sequence[Reader]) -> str | None:
    robots = {reader.info.robot_type for reader in readers}
    return robots.pop() if len(robots) == 1 else None


def with_audio(
    info: Info,
    heard: Mapping[str, bool],
    sources: Sequence[Mapping[str, Feature]],
    dropped: list[str],
) -> Info:
    """Return the info with what is true of the audio of its cameras' videos.

    Args:
        info: What the result will be.
        heard: For each camera, whether its videos will have audio.
        sources: The sources' features, by the result's names.
        dropped: Takes a sentence for what is stated and is not true of the result.
    """
    features = dict(info.features)
    for key, has_audio in heard.items():
        stated = [one[key].info for one in sources if key in one]
        features[key] = said_of_audio(features[key], has_audio, stated, dropped)
    return replace(info, features=features)


def said_of_audio(
    feature: Feature,
    has_audio: bool,
    stated: Sequence[Mapping[str, Any]] = (),
    dropped: list[str] | None = None,
) -> Feature:
    """Return a camera with ``has_audio`` and ``audio.*`` as they are true of its videos.

    Args:
        feature: The camera.
        has_audio: Whether its videos have audio.
        stated: What the sources say of the camera.
        dropped: Takes a sentence for what they say and is not true any more.
    """
    said = [info for info in stated or [feature.info] if info.get("has_audio")]
    details: dict[str, Any] = {}
    for name in dict.fromkeys(n for info in said for n in info if n.startswith(_AUDIO)):
        values = [info.get(name) for info in said]
        if has_audio and all(value == values[0] for value in values):
            details[name] = values[0]
        elif has_audio and dropped is not None:
            dropped.append(f"{feature.key}: {name}, which the sources say differently")
    if said and not has_audio and dropped is not None:
        dropped.append(f"{feature.key}: has_audio is false now, and audio.* is gone from info.json")
    if not has_audio and not any(n == _HAS_AUDIO or n.startswith(_AUDIO) for n in feature.info):
        return feature  # nothing is said of audio, and there is none

    def corrected(info: Mapping[str, Any]) -> dict[str, Any]:
        kept = {n: v for n, v in info.items() if not n.startswith(_AUDIO)}
        return {**kept, _HAS_AUDIO: has_audio, **details}

    extra = dict(feature.extra)
    if isinstance(extra.get(_OLD_INFO), Mapping):
        extra[_OLD_INFO] = corrected(extra[_OLD_INFO])
    return replace(feature, info=corrected(feature.info), extra=extra)


def refuse_other_rates(readers: Sequence[Reader]) -> None:
    """Refuse sources of different frame rates, where none is asked for."""
    rates = [reader.info.fps for reader in readers]
    if len(set(rates)) > 1:
        raise ArgumentError(
            "The datasets have different frame rates.",
            hint="say which rate the result is to have: fps=30 (--fps 30)",
            **{str(reader.root): f"{reader.info.fps:g} fps" for reader in readers},
        )


def merged_keys(
    readers: Sequence[Reader], not_inherited: Sequence[str], dropped: list[str]
) -> dict[str, Any]:
    """Return the keys of ``info.json`` that demoreel does not use, of all sources.

    Args:
        readers: The sources; where two differ, the first one's word stays.
        not_inherited: Keys that a result has, or has not, by itself.
        dropped: Takes a sentence for what is not kept.
    """
    kept: dict[str, Any] = {}
    differing: dict[str, None] = {}
    for reader in readers:
        for name, value in reader.info.extra.items():
            if name in not_inherited:
                continue
            first = kept.setdefault(name, value)
            if first != value and repr(first) != repr(value):  # NaN != NaN
                differing[name] = None
    dropped += [f"info.json: {name} of other datasets than the first" for name in differing]
    return kept


def split_places(
    sources: Sequence[Mapping[str, Any]], source: np.ndarray, position: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the episodes of a result that belong to each split, ascending.

    Args:
        sources: The sources' splits.
        source: For each episode of the result, the number of its source.
        position: Its position there.
    """
    found: dict[str, list[np.ndarray]] = {}
    for number, splits in enumerate(sources):
        own = source == number
        for name, text in splits.items():
            wanted = _range_of(text)
            if wanted is not None:
                inside = own & (position >= wanted.start) & (position < wanted.stop)
                found.setdefault(name, []).append(np.flatnonzero(inside))
    places = {name: np.sort(np.concatenate(parts)) for name, parts in found.items()}
    return {name: numbers for name, numbers in places.items() if len(numbers)}


def split_column(
    places: Mapping[str, np.ndarray], splits: Mapping[str, Any], episodes: int
) -> list[str | None] | None:
    """Return the split of each episode, where ranges of the result do not say all of it."""
    ranges = {name: _range_of(splits.get(name, "")) for name in places}
    if all(
        one is not None and np.array_equal(places[name], np.arange(one.start, one.stop))
        for name, one in ranges.items()
    ):
        return None
    column: list[str | None] = [None] * episodes
    for name, numbers in reversed(list(places.items())):
        for number in numbers.tolist():
            column[number] = name
    return column


def _range_of(text: object) -> range | None:
    """Return the episodes that a split names; ``3:`` are all from that one on."""
    first, colon, last = str(text).partition(":")
    first, last = first or "0", last or str(_NO_END)
    if not (colon and all(n.isdecimal() and len(n) < 19 for n in (first, last))):
        return None
    return range(int(first), int(last))


def merged_splits(
    sources: Sequence[Mapping[str, Any]],
    source: np.ndarray,
    position: np.ndarray,
    *,
    unchanged: bool,
    dropped: list[str],
) -> dict[str, str]:
    """Return the splits of a result: every episode stays in those that it was in.

    A split that is one range no more becomes several, ``train``, ``train_2`` and so on: LeRobot's
    form has one range for a name. Where no source has a split, all episodes are ``train``.

    Args:
        sources: The sources' splits.
        source: For each episode of the result, the number of its source.
        position: Its position there.
        unchanged: Whether the result's episodes are those of its only source.
        dropped: Takes a sentence for what is not kept.
    """
    places = split_places(sources, source, position)
    ranges: dict[str, str] = {}
    taken = {name for splits in sources for name in splits}
    for name, numbers in places.items():
        runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
        if len(runs) > _MOST_RANGES:
            dropped.append(f"splits: {name!r}, now {len(runs)} ranges; see the column 'split'")
            continue
        names = [name, *_free_names(name, taken, len(runs) - 1)]
        taken.update(names)
        ranges |= {n: f"{run[0]}:{run[-1] + 1}" for n, run in zip(names, runs, strict=True)}
        if len(runs) > 1:
            dropped.append(f"splits: {name!r} as one range; it is {', '.join(names)} now")
    for splits in sources:
        for name, text in splits.items():
            if _range_of(text) is None and unchanged:
                ranges[name] = text
            elif _range_of(text) is None:
                dropped.append(f"splits: {name!r}, which is no range of episodes: {str(text)[:40]}")
            elif name not in places:
                dropped.append(f"splits: {name!r}, of which no episode is left")
    # Not one of all where a source says otherwise: what was kept apart would be mixed.
    return ranges if ranges or any(sources) else {"train": f"0:{len(source)}"}


def _free_names(name: str, taken: set[str], count: int) -> list[str]:
    numbered = (f"{name}_{number}" for number in range(2, len(taken) + count + 2))
    return list(islice((one for one in numbered if one not in taken), count))
