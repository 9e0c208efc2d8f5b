"""What is known of the result's pictures from counts of their levels, carried from the sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from demoreel.edit.features import MASK
from demoreel.edit.plan import Plan
from demoreel.edit.statistics.believed import believed
from demoreel.edit.statistics.carried import Carried
from demoreel.layouts.base import Reader
from demoreel.layouts.histograms import Histogram, HistogramWriter
from demoreel.model import Feature
from demoreel.stats.levels import camera_stats
from demoreel.stats.running import Pictures
from demoreel.storage.arrow import as_numpy

_BYTE_LEVELS = 256


@dataclass
class Levels:
    """Counts of one camera's levels, over some clips of the result.

    Attributes:
        known: Which clips they are of.
        total: All of them together.
        values: The statistics of each of those clips: a row a clip, others empty.
        filled: Which clips are black because there was no such camera: they are not in ``total``.
    """

    known: np.ndarray
    filled: np.ndarray
    total: Pictures = field(default_factory=Pictures)
    values: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, clip: int, counted: Pictures, stats: Mapping[str, np.ndarray]) -> bool:
        """Take a clip's counts; False where they are not of the kind of those before."""
        flat = {kind: value.reshape(-1) for kind, value in stats.items()}
        if any(rows.shape[1] != flat[kind].size for kind, rows in self.values.items()):
            return False
        for kind, value in flat.items():
            if kind not in self.values:
                self.values[kind] = np.full((len(self.known), value.size), np.nan)
            self.values[kind][clip] = value
        if not self.filled[clip]:
            self.total.merge(counted)
        self.known[clip] = True
        return True


def filled_clips(facts: pa.Table, camera: str) -> np.ndarray:
    """Return for each episode whether its pictures of a camera are filled, by what its rows say.

    None is where all are: then black pictures are all there is to say something of.
    """
    name = f"stats/{MASK.format(camera)}/min"
    if name not in facts.column_names:
        return np.zeros(len(facts), bool)
    least = as_numpy(facts.column(name).combine_chunks().flatten()).astype(np.float64)
    return least > 0 if len(least) == len(facts) and not least.all() else np.zeros(len(facts), bool)


def filled_episodes(reader: Reader, camera: str) -> np.ndarray:
    """Return the same of a dataset.

    Cost: where it has a mask for the camera, reads that column.
    """
    mask, episodes = MASK.format(camera), reader.episodes
    feature = reader.info.features.get(mask)
    if feature is None or feature.dtype != "bool" or feature.item_shape or not len(episodes):
        return np.zeros(len(episodes), bool)
    column = np.asarray(reader.rows(np.arange(episodes.total_frames), [mask])[mask], bool)
    filled = np.minimum.reduceat(column, episodes.start[:-1])
    return np.asarray(filled & (not filled.all()))


def carry_levels(
    plan: Plan, carried: Sequence[Carried], path: Path, facts: pa.Table
) -> dict[str, Levels]:
    """Carry the counts of clips that are whole episodes, and write them to a file.

    Cost: reads the sources' histograms once; memory for a few of them. Where there are none, no
    file is made.

    Args:
        plan: The plan.
        carried: What the sources' metadata say.
        path: The file of histograms to make.
        facts: What rows say of each of the result's episodes.

    Returns:
        What is known of each camera.
    """
    clips = len(plan.clips)
    found = {
        camera: Levels(np.zeros(clips, bool), filled_clips(facts, camera))
        for camera in plan.info.cameras
    }
    with HistogramWriter(path) as writer:
        for source in range(len(plan.readers)):
            whole = _whole_episodes(plan, source)
            names = {str(plan.views[source].origin.get(camera)): camera for camera in found}
            for counted in believed(plan.readers[source], carried[source].pictures):
                histogram = counted.histogram
                camera = names.get(histogram.camera)
                if camera is None:
                    continue
                for clip in whole.get(counted.position, ()):
                    if plan.encodes(camera, clip):
                        continue  # its pictures are not quite those that were counted
                    own = Pictures.counted(histogram.counts, histogram.frames)
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
    plan: Plan, source: int, camera: str, levels: Levels, writer: HistogramWriter
) -> None:
    """Count the black pictures of clips whose source has no such camera."""
    feature = plan.info.features[camera]
    if feature.is_depth:
        return
    for number, clip in enumerate(plan.clips):
        if clip.source == source:
            frames = int(plan.start[number + 1] - plan.start[number])
            counts = _black(feature, frames)
            counted = Pictures.counted(counts, frames)
            if levels.add(number, counted, camera_stats(counted, feature)):
                writer.add(Histogram(number, camera, frames, counts))


def _black(feature: Feature, frames: int) -> np.ndarray:
    height, width, channels = feature.picture_shape
    counts = np.zeros((channels, _BYTE_LEVELS), np.int64)
    counts[:, 0] = frames * height * width
    return counts
