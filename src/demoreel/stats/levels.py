"""Statistics of frames from histograms of levels, which are decoded or read from files.

All frames are counted, no sample of them. Counts that files hold are used only where they agree
with what the episodes' metadata state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from demoreel.errors import ArgumentError, PictureError
from demoreel.layouts.base import Reader
from demoreel.layouts.beside import Histogram, read_histograms
from demoreel.media.decode import Decoder, default_threads
from demoreel.media.images import decode_depth_image, decode_image
from demoreel.model import Feature
from demoreel.model.depth import depth_table
from demoreel.model.feature import MASK
from demoreel.model.stats import MERGED
from demoreel.read.in_order import FrameRuns, ImageRun, VideoRun, one_by_one
from demoreel.stats.running import LevelCounts, finish_alike, stats_of_levels

_LARGEST = 65535
_MILLIMETRES = np.arange(_LARGEST + 1) / 1000  # in metres


def cameras_stats(
    counts: Mapping[str, Sequence[LevelCounts]], features: Mapping[str, Feature]
) -> dict[str, list[dict[str, np.ndarray]]]:
    """Return what ``camera_stats`` says of each of several counts of several cameras.

    Cost: little more than one of them, where the cameras are alike.
    """
    alike: dict[tuple[int, ...], list[str]] = {}
    found = {}
    for key, parts in counts.items():
        if parts and _depths_of(features[key]) is None:
            alike.setdefault(parts[0].shape, []).append(key)
        else:
            found[key] = [camera_stats(part, features[key]) for part in parts]
    for keys in alike.values():
        finished = iter(finish_alike([part for key in keys for part in counts[key]]))
        found |= {key: [next(finished) for _ in counts[key]] for key in keys}
    return found


def camera_stats(counted: LevelCounts, feature: Feature) -> dict[str, np.ndarray]:
    """Return a camera's statistics; those of depth in the unit that it was recorded in."""
    depths = _depths_of(feature)
    if depths is None:
        return counted.finish()
    found = stats_of_levels(counted.histogram()[:1, : len(depths)], depths.astype(np.float64))
    shaped = {name: value.reshape(1, 1, 1) for name, value in found.items()}
    return {**shaped, "count": np.array([counted.count])}


def _depths_of(feature: Feature) -> np.ndarray | None:
    """Return the depth that each level stands for; None where levels are the values themselves."""
    code = feature.depth_code
    if code is None:
        return None
    if feature.is_video:
        return depth_table(code, unit=code.unit)
    return _MILLIMETRES if is_in_metres(feature) else None


def is_in_metres(feature: Feature) -> bool:
    """Whether a camera's images are depths in metres: they are counted to the millimetre."""
    return feature.is_depth and feature.is_image and feature.info.get("depth_unit") == "m"


@dataclass
class CameraLevels:
    """Counts of one camera's levels, over some episodes of a dataset, by position.

    Attributes:
        known: Which episodes they are of.
        filled: Which episodes are black because there was no such camera: they are not in
            ``total``.
        total: All of them together.
        values: The statistics of each of those episodes: a row an episode, others empty.
    """

    known: np.ndarray
    filled: np.ndarray
    total: LevelCounts = field(default_factory=LevelCounts)
    values: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, position: int, counted: LevelCounts, stats: Mapping[str, np.ndarray]) -> bool:
        """Take an episode's counts; False where they are not of the kind of those before."""
        flat = {kind: value.reshape(-1) for kind, value in stats.items()}
        if any(rows.shape[1] != flat[kind].size for kind, rows in self.values.items()):
            return False
        for kind, value in flat.items():
            if kind not in self.values:
                self.values[kind] = np.full((len(self.known), value.size), np.nan)
            self.values[kind][position] = value
        if not self.filled[position]:
            self.total.merge(counted)
        self.known[position] = True
        return True


def filled_episodes(reader: Reader, camera: str) -> np.ndarray:
    """Return for each episode whether its frames of a camera are filled.

    None is where all are: then black frames are all there is.

    Cost: where it has a mask for the camera, reads that column.
    """
    mask, episodes = MASK.format(camera), reader.episodes
    feature = reader.info.features.get(mask)
    if feature is None or feature.dtype != "bool" or feature.item_shape or not len(episodes):
        return np.zeros(len(episodes), bool)
    column = np.asarray(reader.rows(np.arange(episodes.total_frames), [mask])[mask], bool)
    filled = np.minimum.reduceat(column, episodes.start[:-1])
    return np.asarray(filled & (not filled.all()))


@dataclass(frozen=True, slots=True)
class Validated:
    """An episode's histogram that agrees with the episode's metadata.

    Attributes:
        position: Where the episode stands in its dataset.
        histogram: The histogram.
        stats: The statistics that follow from it.
    """

    position: int
    histogram: Histogram
    stats: Mapping[str, np.ndarray]


def validated_histograms(
    reader: Reader, stated: Mapping[str, Mapping[str, np.ndarray]]
) -> Iterator[Validated]:
    """Yield the histograms that agree with the episodes' metadata.

    Another program may have renumbered, replaced or cut episodes, and left the histograms where
    they were. So the statistics that follow from one must be the episode's own, and as many
    frames must have been counted as it has; others are passed over.

    Cost: reads the histograms once, and takes 0.2 ms for each.

    Args:
        reader: The dataset.
        stated: For each camera and kind of statistic, an array: a row an episode, by position.
    """
    place = {int(number): at for at, number in enumerate(reader.episodes.episode_index.tolist())}
    seen: set[tuple[int, str]] = set()
    for histogram in read_histograms(reader.meta):
        position = place.get(histogram.episode)
        if position is None or (position, histogram.camera) in seen:
            continue
        stats = _stats_if_possible(reader, position, histogram)
        said = {k: v[position] for k, v in stated.get(histogram.camera, {}).items()}
        if stats is not None and _agree(stats, said):
            seen.add((position, histogram.camera))
            yield Validated(position, histogram, stats)


def counted_levels(
    reader: Reader, stated: Mapping[str, Mapping[str, np.ndarray]], positions: np.ndarray
) -> dict[str, LevelCounts]:
    """Return the levels of all frames of these episodes, for cameras of which all were counted."""
    wanted = set(positions.tolist())
    found: dict[str, LevelCounts] = {}
    for one in validated_histograms(reader, stated):
        if one.position in wanted:
            own = LevelCounts.counted(one.histogram.counts, one.histogram.frames)
            found.setdefault(one.histogram.camera, LevelCounts()).merge(own)
    frames = int(reader.episodes.length[positions].sum())
    return {camera: levels for camera, levels in found.items() if levels.count == frames}


def _stats_if_possible(
    reader: Reader, position: int, histogram: Histogram
) -> dict[str, np.ndarray] | None:
    feature = reader.info.features.get(histogram.camera)
    if feature is None or not feature.is_camera:
        return None
    if histogram.frames != int(reader.episodes.length[position]):
        return None
    if (histogram.counts < 0).any() or not histogram.counts.any(axis=1).all():
        return None
    return camera_stats(LevelCounts.counted(histogram.counts, histogram.frames), feature)


def _agree(stats: Mapping[str, np.ndarray], said: Mapping[str, np.ndarray]) -> bool:
    return said.keys() >= {*MERGED, "count"} and all(
        # Not all writers keep every digit.
        said[kind].size == value.size
        and np.allclose(said[kind], value.reshape(-1), rtol=1e-6, atol=1e-9)
        for kind, value in stats.items()
        if kind in said
    )


def count_levels(
    reader: Reader,
    parts: Iterable[tuple[str, int]],
    *,
    threads: int | None = None,
    report: Callable[[int], None] | None = None,
) -> Iterator[tuple[str, int, LevelCounts]]:
    """Decode and count all frames of some episodes, each as one camera saw it.

    Cost: see ``FrameRuns``. Memory for a few frames and for the counts of an episode.

    Args:
        reader: The dataset.
        parts: Cameras, and where an episode stands in the dataset; drawn as the work continues.
        threads: How many decode; None is every core.
        report: Called with the number of frames that were counted since the last call.

    Returns:
        The same parts, with their counts.
    """
    if threads is not None and threads < 1:
        raise ArgumentError(f"threads must be at least 1, not {threads}.")
    runs = FrameRuns(reader)
    jobs = (
        partial(_counted, camera, position, run)
        for camera, position in parts
        for run in runs.of(reader.info.features[camera], position, position + 1)
    )
    whole = LevelCounts()
    for camera, position, counted in one_by_one(jobs, threads=threads or default_threads()):
        whole.merge(counted)
        if report is not None:
            report(counted.count)
        if whole.count == int(reader.episodes.length[position]):
            yield camera, position, whole
            whole = LevelCounts()


def _counted(
    camera: str, position: int, run: VideoRun | ImageRun, decoder: Decoder
) -> list[tuple[str, int, LevelCounts]]:
    counted = LevelCounts()

    def image(data: bytes) -> None:
        if run.camera.is_depth:
            counted.add(_whole_depth(data))
        else:
            counted.add(decode_image(data, on_desk=True))

    for _ in run.decode(decoder, image, counted.add):
        pass
    return [(camera, position, counted)]


def _whole_depth(data: bytes) -> np.ndarray:
    depth = decode_depth_image(data)
    whole = depth.astype(np.int64)
    if not np.array_equal(whole, depth) or whole.min() < 0 or whole.max() > _LARGEST:
        raise PictureError(
            "A depth image holds fractions, which cannot be counted by level.",
            hint="leave images out: --no-pictures",
        )
    return whole.astype(np.uint16)


def has_fractions(reader: Reader, camera: str) -> bool:
    """Whether a camera's images are depths in fractions, which have no levels to count.

    Cost: one image of a depth camera that is in tables; nothing for others.
    """
    if not (reader.info.features[camera].is_depth and reader.in_tables(camera)):
        return False
    if is_in_metres(reader.info.features[camera]):
        return True
    depth = decode_depth_image(reader.encoded(np.arange(1), camera)[0])
    return not np.array_equal(depth, np.round(depth))
