"""Statistics of a result's frames: inherited from its sources, episode by episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from demoreel.edit.plan import Plan
from demoreel.layouts.beside import Histogram, HistogramWriter
from demoreel.model import Feature
from demoreel.model.feature import MASK
from demoreel.model.stats import MERGED, combine_stats, combined
from demoreel.stats.files import nested_columns, quiet_stats
from demoreel.stats.inherited import Inherited
from demoreel.stats.levels import CameraLevels, camera_stats, is_in_metres, validated_histograms
from demoreel.stats.running import LevelCounts
from demoreel.storage.arrow import as_numpy

_BYTE_LEVELS = 256
_COMPLETE = {*MERGED, "count"}


def filled_clips(facts: pa.Table, camera: str) -> np.ndarray:
    """Return for each episode whether its frames of a camera are filled, by what its rows say.

    None is where all are: then black frames are all there is to say something of.
    """
    name = f"stats/{MASK.format(camera)}/min"
    if name not in facts.column_names:
        return np.zeros(len(facts), bool)
    least = as_numpy(facts.column(name).combine_chunks().flatten()).astype(np.float64)
    return least > 0 if len(least) == len(facts) and not least.all() else np.zeros(len(facts), bool)


def inherit_levels(
    plan: Plan, inherited: Sequence[Inherited], path: Path, facts: pa.Table
) -> dict[str, CameraLevels]:
    """Inherit the counts of clips that are whole episodes, and write them to a file.

    Cost: reads the sources' histograms once; memory for a few of them. Where there are none, no
    file is made.

    Args:
        plan: The plan.
        inherited: What the sources' metadata say.
        path: The file of histograms to make.
        facts: What rows say of each of the result's episodes.

    Returns:
        What is known of each camera.
    """
    clips = len(plan.clips)
    found = {
        camera: CameraLevels(np.zeros(clips, bool), filled_clips(facts, camera))
        for camera in plan.info.cameras
    }
    with HistogramWriter(path) as writer:
        for source in range(len(plan.readers)):
            whole = _whole_episodes(plan, source)
            names = {str(plan.views[source].origin.get(camera)): camera for camera in found}
            for counted in validated_histograms(plan.readers[source], inherited[source].cameras):
                histogram = counted.histogram
                camera = names.get(histogram.camera)
                if camera is None:
                    continue
                for clip in whole.get(counted.position, ()):
                    if plan.encodes(camera, clip):
                        continue  # its frames are not quite those that were counted
                    own = LevelCounts.counted(histogram.counts, histogram.frames)
                    if found[camera].add(clip, own, counted.stats):
                        writer.add(replace(histogram, episode=clip, camera=camera))
            for camera in found:
                if plan.views[source].origin.get(camera) is None:
                    _add_black(plan, source, camera, found[camera], writer)
    return found


def _whole_episodes(plan: Plan, source: int) -> dict[int, list[int]]:
    """Return the clips that show all frames of an episode, by its position in the source."""
    found: dict[int, list[int]] = {}
    reader = plan.readers[source]
    lengths = np.diff(plan.start)
    if reader.info.fps != plan.info.fps:
        return found
    for number, clip in enumerate(plan.clips):
        position = int(plan.positions[number])
        if clip.source == source and int(lengths[number]) == int(reader.episodes.length[position]):
            found.setdefault(position, []).append(number)
    return found


def _add_black(
    plan: Plan, source: int, camera: str, levels: CameraLevels, writer: HistogramWriter
) -> None:
    """Count the black frames of clips whose source has no such camera."""
    feature = plan.info.features[camera]
    if feature.is_depth:
        return
    for number, clip in enumerate(plan.clips):
        if clip.source == source:
            frames = int(plan.start[number + 1] - plan.start[number])
            counts = _black(feature, frames)
            counted = LevelCounts.counted(counts, frames)
            if levels.add(number, counted, camera_stats(counted, feature)):
                writer.add(Histogram(number, camera, frames, counts))


def _black(feature: Feature, frames: int) -> np.ndarray:
    height, width, channels = feature.image_shape
    counts = np.zeros((channels, _BYTE_LEVELS), np.int64)
    counts[:, 0] = frames * height * width
    return counts


@dataclass(frozen=True)
class FrameStats:
    """What is known of one camera's frames.

    Attributes:
        columns: ``stats/CAMERA/KIND`` of each episode; empty where a source does not say.
        whole: Statistics of all; None where no source says anything.
        approximate: Kinds that are not exactly what the frames would give.
    """

    columns: Mapping[str, pa.Array]
    whole: Mapping[str, np.ndarray] | None
    approximate: Sequence[str]


def frame_stats(
    plan: Plan,
    camera: str,
    inherited: Sequence[Inherited],
    levels: CameraLevels,
    dropped: list[str],
) -> FrameStats:
    """Return the statistics of a camera.

    Where the levels of all clips were counted, they are exact. Otherwise they are combined from
    what the sources say of each episode, and all of them are approximate: other programs look at
    some frames only, and what is left of an episode that was cut shorter has the statistics of all
    of it. Where sources say something of all their frames only, so does the result.

    Args:
        plan: The plan.
        camera: The camera.
        inherited: What the sources say.
        levels: What was counted.
        dropped: Takes a sentence for what they say and the result does not.
    """
    if levels.known.all():
        whole = camera_stats(levels.total, plan.info.features[camera])
        rounded = is_in_metres(plan.info.features[camera])
        rough = [kind for kind in whole if kind != "count"] if rounded else []
        return FrameStats(nested_columns(camera, levels.values), whole, rough)
    values = _stated(plan, camera, inherited, levels)
    if not values.keys() >= _COMPLETE:
        keys = [str(view.origin.get(camera)) for view in plan.views]
        if any(key in part.partial for key, part in zip(keys, inherited, strict=True)):
            dropped.append(f"meta/episodes: statistics of {camera}, which only some episodes have")
        return _from_wholes(plan, camera, dropped)
    lengths = np.diff(plan.start).reshape(-1, 1)
    values["count"] = np.minimum(values["count"], lengths)
    data = {kind: rows[~levels.filled] for kind, rows in values.items()}
    if not data["count"].any():
        return FrameStats({}, None, ())  # all of them are black, and were never looked at
    whole = {
        kind: value if kind == "count" else value.reshape(-1, 1, 1)
        for kind, value in combined(data).items()
    }
    return FrameStats(nested_columns(camera, values), whole, list(values))


def _stated(
    plan: Plan, camera: str, inherited: Sequence[Inherited], levels: CameraLevels
) -> dict[str, np.ndarray]:
    """Return one row for each clip: counted, or what its source says of the whole episode."""
    source = np.array([clip.source for clip in plan.clips])
    keys = [view.origin.get(camera) for view in plan.views]
    parts = {
        number: inherited[number].cameras.get(str(keys[number]), {})
        for number in np.unique(source[~levels.known]).tolist()
        if keys[number] is not None
    }
    found: dict[str, np.ndarray] = {}
    for kind in next(iter(parts.values()), {}):
        widths = {part[kind].shape[1] if kind in part else 0 for part in parts.values()}
        if levels.known.any():
            widths.add(levels.values[kind].shape[1] if kind in levels.values else 0)
        if len(widths) > 1:
            continue
        counted = levels.values.get(kind)
        rows = np.zeros((len(source), widths.pop())) if counted is None else counted.copy()
        for number, part in parts.items():
            own = (source == number) & ~levels.known
            rows[own] = part[kind][plan.positions[own]]
        found[kind] = rows
    return found


def _from_wholes(plan: Plan, camera: str, dropped: list[str]) -> FrameStats:
    """Return what sources say of all their frames, where they say nothing of each episode."""
    parts: list[dict[str, np.ndarray]] = []
    silent = False
    for reader, view in zip(plan.readers, plan.views, strict=True):
        key = view.origin.get(camera)
        if key is None:
            continue
        stats = quiet_stats(reader)
        if stats is None or not stats.get(key):
            silent = True
            continue
        frames = np.array([reader.episodes.total_frames])
        parts.append({"count": frames, **stats[key]})
    if not parts:
        return FrameStats({}, None, ())
    if silent or not all(part.keys() >= _COMPLETE for part in parts):
        if len(parts) > 1 or silent:
            dropped.append(
                f"stats.json: {camera}, which not all datasets say; `demoreel stats --recompute`"
                " takes it from the frames"
            )
            return FrameStats({}, None, ())
        whole = {kind: value for kind, value in parts[0].items() if kind != "count"}
    else:
        whole = (combine_stats([{camera: part} for part in parts], quantiles=True) or {})[camera]
        whole["count"] = np.minimum(whole["count"], int(plan.start[-1]))
    if not plan.is_unchanged:
        dropped.append(
            f"stats.json: the exactness of {camera}: it has the statistics of all episodes of its "
            "sources, marked approximate; `demoreel stats --recompute` takes them from the frames"
        )
    return FrameStats({}, whole, list(whole))
