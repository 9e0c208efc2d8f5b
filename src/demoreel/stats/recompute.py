"""``demoreel.recompute_stats``: statistics computed again from the data, in one commit.

Those of numbers come from the columns, those of cameras from every frame. Nothing else in the
dataset changes. A process that is killed leaves the old statistics or the new ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pyarrow as pa

from demoreel.errors import ArgumentError
from demoreel.layouts.appending import no_room_is_an_error, only_writer
from demoreel.layouts.base import Reader
from demoreel.layouts.beside import (
    NOTE,
    Histogram,
    HistogramWriter,
    approximate_stats,
    histogram_files,
    histograms_name,
    write_note,
)
from demoreel.layouts.detect import open_reader
from demoreel.layouts.pending import refuse_waiting
from demoreel.layouts.v3.files import FilePlace
from demoreel.model import Stats
from demoreel.stats.files import (
    keeps_episodes,
    nested_columns,
    quiet_stats,
    stats_file_names,
    write_stats,
)
from demoreel.stats.inherited import inherited_from
from demoreel.stats.levels import (
    CameraLevels,
    camera_stats,
    count_levels,
    filled_episodes,
    has_fractions,
    validated_histograms,
)
from demoreel.stats.rows import all_numbers
from demoreel.stats.running import LevelCounts
from demoreel.storage.amounts import ShareDone
from demoreel.storage.commit.consistent import finish_commit
from demoreel.storage.commit.journal import (
    Transaction,
    carry_out,
    transaction,
)

Which = Literal["all", "missing", "none"]
"""Frames of all episodes, of those whose levels were never counted, or none."""

Report = Callable[[float], None]
"""Called with the share that is done, from 0 to 1."""

_SECONDS_A_ROW = 2e-6  # about, to weigh one part of the work against the other
_SECONDS_A_FRAME = 1e-3
_HISTOGRAMS = histograms_name(FilePlace(0, 0))


@dataclass(frozen=True, slots=True)
class Recomputed:
    """What was computed, or would be.

    Attributes:
        path: The dataset.
        layout: Its layout.
        episodes: How many it has.
        frames: How many it has.
        features: Columns of numbers whose statistics are new.
        cameras: Cameras whose statistics are new, and how many of their frames were decoded.
        left_out: Cameras whose frames cannot be counted by level: depth in fractions.
        files: The files that were written, or deleted, relative to the dataset.
        committed: Whether that has happened.
    """

    path: Path
    layout: str
    episodes: int
    frames: int
    features: list[str]
    cameras: dict[str, int]
    left_out: list[str]
    files: list[str]
    committed: bool


def recompute(
    path: str | os.PathLike[str],
    *,
    numbers: bool = True,
    pictures: Which = "all",
    cameras: Collection[str] | None = None,
    threads: int | None = None,
    dry_run: bool = False,
    report: Report | None = None,
) -> Recomputed:
    """Compute a dataset's statistics from its data, and put them in the place of those it has.

    ``stats.json`` (v2.1: ``episodes_stats.jsonl``), each episode's statistics and the histograms of
    its frames are replaced together. v2.0 has a place for the whole dataset's only.

    Cost: reads the columns of numbers a few times; decodes the frames that are asked for,
    once. Memory for some frames and 100,000 rows. Recording to the dataset is refused
    meanwhile; reading continues.

    Args:
        path: The dataset's folder.
        numbers: Whether to compute those of numbers.
        pictures: Of which episodes to decode the frames; ``missing`` leaves out those whose
            levels were counted before.
        cameras: Of which cameras; None is all of them.
        threads: How many decode; None is every core.
        dry_run: Find out what there is to do, and change nothing.
        report: Called with the share that is done.
    """
    if pictures not in get_args(Which):
        raise ArgumentError(f"pictures must be one of {', '.join(get_args(Which))}.")
    if not numbers and pictures == "none":
        raise ArgumentError("There is nothing to compute: neither numbers nor images.")
    if threads is not None and threads < 1:
        raise ArgumentError(f"threads must be at least 1, not {threads}.")
    root = Path(path)
    refuse_waiting(root, "counted anew")
    if not dry_run:
        finish_commit(root)
    reader = open_reader(root)
    if dry_run:
        return _RecomputeWork(reader, numbers, pictures, cameras).plan()
    with only_writer(root, "counted anew"):
        reader = open_reader(root)  # it may have grown before the lock was there
        with no_room_is_an_error(root):
            work = _RecomputeWork(reader, numbers, pictures, cameras)
            return work.do(threads, report or (lambda share: None))


class _RecomputeWork:
    def __init__(
        self, reader: Reader, numbers: bool, pictures: Which, cameras: Collection[str] | None
    ) -> None:
        self._reader = reader
        self._numbers = numbers
        every = reader.info.cameras if pictures != "none" else ()
        wanted = [key for key in every if cameras is None or key in cameras]
        self._left_out = [key for key in wanted if has_fractions(reader, key)]
        self._levels = {
            key: CameraLevels(np.zeros(len(reader.episodes), bool), filled_episodes(reader, key))
            for key in wanted
            if key not in self._left_out
        }
        self._stated = (
            inherited_from(reader, list(self._levels)).cameras if pictures == "missing" else {}
        )
        self._decoded: dict[str, int] = {}

    def plan(self) -> Recomputed:
        for counted in validated_histograms(self._reader, self._stated) if self._stated else ():
            levels = self._levels.get(counted.histogram.camera)
            if levels is not None:
                levels.known[counted.position] = True
        self._decoded = {key: self._to_decode(key) for key in self._levels}
        return self._result(committed=False)

    def do(self, threads: int | None, report: Report) -> Recomputed:
        reader = self._reader
        whole: Stats = {}
        columns: dict[str, pa.Array] = {}
        frames = None if self._levels else 0  # how many, is known when their histograms are read
        progress = _RecomputeProgress(reader, self._numbers, report, frames)
        if self._numbers:
            found = all_numbers(reader, report=progress.numbers)
            whole |= found.whole
            columns |= found.columns
        with transaction(reader.root) as changes:
            changed: dict[str, Path | None] = {}

            def new(name: str) -> Path:
                changed[name.removeprefix("meta/")] = fresh = changes.new(name)
                return fresh

            if self._levels:
                self._count_frames(changes, new, changed, threads, progress)
                for key, levels in self._levels.items():
                    whole[key] = camera_stats(levels.total, reader.info.features[key])
                    columns |= nested_columns(key, levels.values)
            stats = write_stats(reader, new, whole=whole, columns=columns)
            write_note(new(f"meta/{NOTE}"), self._approximate(whole), stats=stats)
            if reader.layout == "lance-native":
                from demoreel.layouts.lance.append import renew_copy

                renew_copy(reader.root, changes, reader.root / "meta", changed=changed)
            # Last, with the bytes it has: a reader notices at this moment, and reads again.
            new("meta/info.json").write_bytes((reader.meta / "info.json").read_bytes())
            changes.record()
            carry_out(reader.root)
        return self._result(committed=True)

    def _count_frames(
        self,
        changes: Transaction,
        new: Callable[[str], Path],
        changed: dict[str, Path | None],
        threads: int | None,
        progress: _RecomputeProgress,
    ) -> None:
        reader = self._reader
        kept = keeps_episodes(reader)  # without an episode's statistics none would be used
        target = changes.folder / "histograms.parquet"
        with HistogramWriter(target) as writer:

            def take(position: int, histogram: Histogram, stats: Mapping[str, np.ndarray]) -> None:
                own = LevelCounts.counted(histogram.counts, histogram.frames)
                if not self._levels[histogram.camera].add(position, own, stats):
                    raise ArgumentError(
                        "A camera's images have different numbers of channels.",
                        dataset=reader.root,
                        camera=histogram.camera,
                    )
                if kept:
                    writer.add(histogram)

            for counted in validated_histograms(reader, self._stated) if self._stated else ():
                if counted.histogram.camera in self._levels:
                    take(counted.position, counted.histogram, counted.stats)

            self._decoded = {key: self._to_decode(key) for key in self._levels}
            progress.frames = sum(self._decoded.values())
            for camera, position, levels in count_levels(
                reader, self._parts(), threads=threads, report=progress.decoded
            ):
                number = int(reader.episodes.episode_index[position])
                histogram = Histogram(number, camera, levels.count, levels.histogram())
                take(position, histogram, camera_stats(levels, reader.info.features[camera]))
        old = [
            f"meta/{p.relative_to(reader.meta).as_posix()}" for p in histogram_files(reader.meta)
        ]
        if target.exists():
            os.rename(target, new(_HISTOGRAMS))
        for name in old:
            if name != _HISTOGRAMS or not kept:
                changes.delete(name)
                changed[name.removeprefix("meta/")] = None

    def _parts(self) -> list[tuple[str, int]]:
        """Return what is to be decoded, episode by episode: a table is then read once."""
        return [
            (key, position)
            for position in range(len(self._reader.episodes))
            for key, levels in self._levels.items()
            if not levels.known[position]
        ]

    def _to_decode(self, camera: str) -> int:
        return int(self._reader.episodes.length[~self._levels[camera].known].sum())

    def _approximate(self, whole: Stats) -> dict[str, list[str]]:
        reader = self._reader
        before = quiet_stats(reader) or {}
        known = approximate_stats(reader.meta, reader.info.features, before)
        return {key: kinds for key, kinds in known.items() if key not in whole}

    def _result(self, *, committed: bool) -> Recomputed:
        reader = self._reader
        features = reader.info.features.values() if self._numbers else ()
        files = stats_file_names(reader)
        if self._levels and keeps_episodes(reader):
            files.append(_HISTOGRAMS)
        return Recomputed(
            path=reader.root,
            layout=reader.layout,
            episodes=len(reader.episodes),
            frames=reader.episodes.total_frames,
            features=[feature.key for feature in features if feature.is_numeric],
            cameras=self._decoded,
            left_out=self._left_out,
            files=[*files, f"meta/{NOTE}"],
            committed=committed,
        )


@dataclass
class _RecomputeProgress:
    reader: Reader
    with_numbers: bool
    report: Report
    frames: int | None = None
    _done: int = field(default=0)

    def numbers(self, share: float) -> None:
        self._say(share * self._rows)

    def decoded(self, frames: int) -> None:
        self._done += frames
        self._say(self._rows + self._done * _SECONDS_A_FRAME)

    @property
    def _rows(self) -> float:
        return self.reader.episodes.total_frames * _SECONDS_A_ROW * self.with_numbers

    def _say(self, seconds: float) -> None:
        rows = self.reader.episodes.total_frames
        frames = rows * len(self.reader.info.cameras) if self.frames is None else self.frames
        share = seconds / (self._rows + frames * _SECONDS_A_FRAME or 1.0)
        of, unit = (frames, "frame") if frames else (rows, "row")
        self.report(ShareDone(share * of, of, unit))
