"""What a result's ``info.json`` will say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from demoreel.edit.clips import CutList
from demoreel.errors import ArgumentError
from demoreel.layouts.base import Reader
from demoreel.model import DEFAULT_FEATURES, Feature, Info

Layout = Literal["v3.0", "v2.1"]
LAYOUTS: tuple[Layout, ...] = ("v3.0", "v2.1")

_V2_ONLY = ("total_videos", "total_chunks")
_NOT_INHERITED = (*_V2_ONLY, "storage_format")


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How a result is to lie on disk.

    Attributes:
        layout: ``v3.0``, or ``v2.1``: a table and a video per camera for each episode.
        data_files_size_in_mb: Size at which a new table is begun (v3.0); None takes the first
            source's, as below.
        video_files_size_in_mb: Size at which a new video is begun (v3.0).
        chunks_size: Files (v3.0) or episodes (v2.1) in a chunk folder.
    """

    layout: Layout = "v3.0"
    data_files_size_in_mb: float | None = None
    video_files_size_in_mb: float | None = None
    chunks_size: int | None = None


def target_info(
    readers: Sequence[Reader],
    features: Mapping[str, Feature],
    cutlist: CutList,
    positions: np.ndarray,
    form: Form,
) -> Info:
    """Return the result's info; its number of tasks is not known yet.

    Args:
        readers: The sources.
        features: The result's features, without the default ones.
        cutlist: The cut list.
        positions: Where each clip's episode stands in its source.
        form: How the result is to lie on disk.

    Raises:
        ArgumentError: The layout is unknown, or a size makes no sense.
    """
    if form.layout not in LAYOUTS:
        raise ArgumentError(
            f"A cut is written as {' or '.join(LAYOUTS)}, not as {form.layout!r}.",
            hint="convert the result: demoreel convert",
        )
    first = readers[0].info
    defaults = {key: first.features[key] for key in DEFAULT_FEATURES if key in first.features}
    every = {**features, **defaults}
    is_v3, to_v3 = first.version.startswith("v3"), form.layout == "v3.0"
    if to_v3 and not is_v3:
        every = {key: _with_rate(f, first.fps) for key, f in every.items()}
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
        version=form.layout,
        fps=first.fps,
        features=every,
        robot_type=_one_robot(readers),
        total_episodes=total,
        total_frames=sum(clip.length for clip in cutlist.clips),
        splits=_splits(readers, cutlist, positions),
        extra={name: value for name, value in first.extra.items() if name not in _NOT_INHERITED},
        **bounds,
    )


def _with_rate(feature: Feature, fps: float) -> Feature:
    """v3.0 says the frame rate of every feature; cameras say it in their ``info``."""
    if feature.is_video or "fps" in feature.extra:
        return feature
    return replace(feature, extra={**feature.extra, "fps": fps})


def _one_robot(readers: Sequence[Reader]) -> str | None:
    robots = {reader.info.robot_type for reader in readers}
    return robots.pop() if len(robots) == 1 else None


def _splits(readers: Sequence[Reader], cutlist: CutList, positions: np.ndarray) -> dict[str, str]:
    """Return the sources' splits as ranges of the result, or one where they are no ranges there."""
    total = len(cutlist.clips)
    whole = {"train": f"0:{total}"}
    names: list[str | None] = []
    for clip, position in zip(cutlist.clips, positions.tolist(), strict=True):
        names.append(_split_of(readers[clip.source].info.splits, position))
    ranges: dict[str, str] = {}
    at = 0
    while at < total:
        stop = next((n for n in range(at, total) if names[n] != names[at]), total)
        name = names[at]
        if name is None or name in ranges:
            return whole
        ranges[name] = f"{at}:{stop}"
        at = stop
    return ranges


def _split_of(splits: Mapping[str, str], position: int) -> str | None:
    for name, text in splits.items():
        first, _, last = str(text).partition(":")
        if first.isdigit() and last.isdigit() and int(first) <= position < int(last):
            return name
    return None


def refuse_other_rates(readers: Sequence[Reader]) -> None:
    """Refuse sources of different frame rates.

    Raises:
        ArgumentError: There are such.
    """
    rates = [reader.info.fps for reader in readers]
    if len(set(rates)) > 1:
        raise ArgumentError(
            "The datasets have different frame rates.",
            hint="merge those of one rate; another rate means other frames",
            **{str(reader.root): f"{reader.info.fps:g} fps" for reader in readers},
        )
