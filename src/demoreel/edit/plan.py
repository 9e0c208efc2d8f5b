"""The plan: what a cut list becomes, file by file and row by row, before a byte is written.

Pure but for reading metadata and tables of packets: every machine that plans the same cut list gets
the same plan, with the same fingerprint and the same tasks.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from demoreel.edit.clips import Clip, CutList
from demoreel.edit.features import View, together, view_of
from demoreel.edit.footage import Footage, Shot, VideoOut, videos_of
from demoreel.edit.in_place.plan import kept_footage, lance_layout, refuse_in_place
from demoreel.edit.pace import Frames, frames_of
from demoreel.edit.packing import plan_camera
from demoreel.edit.sources import open_unchanged
from demoreel.edit.target_info import Form, Layout, refuse_other_rates, target_info
from demoreel.edit.ways import Way, as_encoded, ways_of
from demoreel.errors import ArgumentError, OutOfRangeError
from demoreel.layouts.base import Reader
from demoreel.layouts.columns import table_schema
from demoreel.model import Feature, Info

_MB = 1024 * 1024
_PLANNER = 2  # changes when the same cut list would be written differently
_FILES_LOOKED_AT = 64
_PICTURE_BYTES = 40_000  # a guess, where no file says how large pictures are


@dataclass(frozen=True, slots=True)
class TableOut:
    """One table to be written: the clips ``first`` to ``stop`` - 1.

    Attributes:
        chunk: Its ``chunk_index``.
        file: Its ``file_index``.
        first: Its first clip.
        stop: One past its last.
        size: About how many bytes it will have.
    """

    chunk: int
    file: int
    first: int
    stop: int
    size: int

    def path(self, info: Info) -> str:
        """Return where it goes, relative to the dataset."""
        if info.version.startswith("v2"):
            chunk = self.first // info.chunks_size
            return info.data_path.format(episode_chunk=chunk, episode_index=self.first)
        return info.data_path.format(chunk_index=self.chunk, file_index=self.file)


@dataclass(frozen=True)
class Plan:
    """What a cut list becomes.

    Attributes:
        cutlist: The cut list.
        readers: Its sources, open.
        views: Their features, as the result sees them.
        missing: Features that some sources lack, and that are filled there.
        info: The result's ``info.json``.
        layout: How it is to lie on disk.
        positions: Where each clip's episode stands in its source.
        frames: The frames of that episode which become each clip.
        start: The first row of each clip in the result, and their number at the end.
        tasks: All texts that may occur, in the order of their new numbers.
        tables: The tables to be written.
        footage: The videos to be written, by camera.
        fingerprint: Equal for two plans only if they write the same.
    """

    cutlist: CutList
    readers: Sequence[Reader]
    views: Sequence[View]
    missing: Mapping[str, Feature]
    info: Info
    layout: Layout
    positions: np.ndarray
    frames: Sequence[Frames]
    start: np.ndarray
    tasks: Sequence[str]
    tables: Sequence[TableOut]
    footage: Mapping[str, Footage]
    fingerprint: str

    @property
    def clips(self) -> tuple[Clip, ...]:
        """The clips, each of which becomes an episode."""
        return self.cutlist.clips

    @property
    def videos(self) -> list[VideoOut]:
        """The videos to be written."""
        return list(videos_of(list(self.footage.values())))

    @property
    def size(self) -> int:
        """About how many bytes will be written."""
        return sum(t.size for t in self.tables) + sum(v.size for v in self.videos)

    def encodes(self, camera: str, clip: int) -> bool:
        """Whether pictures of a clip are encoded anew."""
        return camera in self.footage and clip in self.footage[camera].encoded

    def summary(self) -> dict[str, Any]:
        """Return the plan in numbers, as ``--dry-run`` shows it."""
        encoded = {
            camera: sum(video.encoded for video in footage.videos)
            for camera, footage in self.footage.items()
        }
        return {
            "episodes": len(self.clips),
            "frames": int(self.start[-1]),
            "fps": self.info.fps,
            "tables": len(self.tables),
            "videos": len(self.videos),
            "bytes": self.size,
            "carried_frames": sum(self._carried(f) for f in self.footage.values()),
            "encoded_frames": {camera: frames for camera, frames in encoded.items() if frames},
            "black_clips": {c: len(f.blank) for c, f in self.footage.items() if f.blank},
            "cameras": list(self.info.cameras),
            "fingerprint": self.fingerprint,
        }

    def _carried(self, footage: Footage) -> int:
        """Return how many frames of a camera's new videos belong to no episode."""
        if not footage.videos:
            return 0
        step = np.rint(footage.rate / self.info.fps).astype(np.int64)
        spans = step * (np.diff(self.start) - 1) + 1
        return sum(video.frames for video in footage.videos) - int(spans.sum())


def make_plan(cutlist: CutList, *, form: Form | None = None, in_place: bool = False) -> Plan:
    """Plan a cut list. Nothing is written.

    Cost: reads the sources' metadata, and the table of packets of each video that clips lie in.

    Args:
        cutlist: The cut list.
        form: How the result is to lie on disk; None is v3.0.
        in_place: Whether the result is to be a new version of its only source, a Lance dataset:
            its layout and its videos stay.

    Raises:
        ArgumentError: There are no clips, a source has changed, sources do not fit together, or
            it cannot be done in place.
        UnknownKeyError: A feature to be changed is not there.
        OutOfRangeError: A clip's episode or frames do not exist.
        VideoError: A video is missing or broken.
    """
    if not cutlist.clips:
        raise ArgumentError("There are no clips: the result would have no episodes.")
    form = form or Form()
    readers = open_unchanged(cutlist.sources)
    views = [view_of(r, s) for r, s in zip(readers, cutlist.sources, strict=True)]
    if in_place:
        form = replace(form, layout=lance_layout(cutlist, readers[0]))
        refuse_in_place(cutlist, readers[0], views[0])
    if form.fps is None:
        refuse_other_rates(readers)
    paths = [source.path for source in cutlist.sources]
    features, missing = together(views, paths, cutlist.features)
    positions = _positions(cutlist.clips, readers)
    frames = _frames(cutlist.clips, readers, form.fps)
    start = np.concatenate([[0], np.cumsum([len(numbers) for numbers in frames])]).astype(np.int64)
    ways = ways_of(features, form)
    fps = form.fps or readers[0].info.fps
    features = {key: as_encoded(f, ways.get(key), fps) for key, f in features.items()}
    info = target_info(readers, features, cutlist, positions, form, frames=int(start[-1]))
    table_schema(info.features.values())  # refuses what no table can hold
    shots = [
        Shot(clip.source, position, numbers)
        for clip, position, numbers in zip(cutlist.clips, positions.tolist(), frames, strict=True)
    ]
    if in_place:
        footage = kept_footage(shots, readers[0], views[0], info)
    else:
        footage = _footage(shots, readers, views, info, ways)
    tables = _tables(shots, readers, info)
    tasks = _task_texts(cutlist, readers, positions)
    return Plan(
        cutlist=cutlist,
        readers=readers,
        views=views,
        missing=missing,
        info=replace(info, total_tasks=len(tasks)),
        layout=form.layout,
        positions=positions,
        frames=frames,
        start=start,
        tasks=tasks,
        tables=tables,
        footage=footage,
        fingerprint=_fingerprint(cutlist, info, form, footage, tables),
    )


def _positions(clips: Sequence[Clip], readers: Sequence[Reader]) -> np.ndarray:
    found = np.empty(len(clips), np.int64)
    for number, clip in enumerate(clips):
        episodes = readers[clip.source].episodes
        position = episodes.position_of(clip.episode)
        length = int(episodes.length[position])
        if not 0 <= clip.start < clip.stop <= length:
            raise OutOfRangeError(
                f"Frames {clip.start} to {clip.stop - 1} of episode {clip.episode} do not exist."
                if clip.start < clip.stop
                else f"A clip of episode {clip.episode} has no frames.",
                hint=f"the episode has {length} frames",
                dataset=readers[clip.source].root,
            )
        found[number] = position
    return found


def _frames(clips: Sequence[Clip], readers: Sequence[Reader], fps: float | None) -> list[Frames]:
    rates = [reader.info.fps for reader in readers]
    return [
        frames_of(clip, rate=rates[clip.source], fps=fps or rates[clip.source]) for clip in clips
    ]


def _footage(
    shots: Sequence[Shot],
    readers: Sequence[Reader],
    views: Sequence[View],
    info: Info,
    ways: Mapping[str, Way],
) -> dict[str, Footage]:
    return {
        key: plan_camera(
            info.features[key],
            shots,
            readers,
            [view.origin.get(key) for view in views],
            info,
            ways[key],
        )
        for key in info.video_keys
    }


def _tables(shots: Sequence[Shot], readers: Sequence[Reader], info: Info) -> list[TableOut]:
    limit = info.data_files_size_in_mb * _MB
    per_row = [_bytes_of_row(reader) for reader in readers]
    tables: list[TableOut] = []
    first, size = 0, 0.0
    for number, shot in enumerate(shots):
        more = len(shot.frames) * per_row[shot.source]
        if number > first and (size + more > limit or info.version.startswith("v2")):
            tables.append(_table(tables, first, number, size, info))
            first, size = number, 0.0
        size += more
    tables.append(_table(tables, first, len(shots), size, info))
    return tables


def _table(before: Sequence[TableOut], first: int, stop: int, size: float, info: Info) -> TableOut:
    chunk, file = divmod(len(before), info.chunks_size)
    return TableOut(chunk, file, first, stop, int(size))


def _bytes_of_row(reader: Reader) -> float:
    """Return about how many bytes a row takes: by the size of a few tables, or by its columns."""
    columns = reader.episode_columns()
    length = reader.episodes.length
    if "data/file_index" in columns:
        ids = columns["data/chunk_index"] << 32 | columns["data/file_index"]
    else:
        ids = np.arange(len(length))
    _, firsts, which = np.unique(ids, return_index=True, return_inverse=True)
    rows = np.bincount(which, weights=length)
    chosen = np.linspace(0, len(firsts) - 1, min(len(firsts), _FILES_LOOKED_AT)).astype(int)
    size = 0
    for number in chosen.tolist():
        path = reader.root / reader.data_file(int(firsts[number]))
        if not path.is_file():
            return _declared_bytes(reader.info)
        size += path.stat().st_size
    return size / float(rows[chosen].sum())


def _declared_bytes(info: Info) -> float:
    total = 0
    for feature in info.features.values():
        if feature.is_numeric:
            total += feature.numpy_dtype.itemsize * int(np.prod(feature.shape, dtype=np.int64))
        elif feature.is_image:
            total += _PICTURE_BYTES
    return float(max(total, 1))


def _task_texts(cutlist: CutList, readers: Sequence[Reader], positions: np.ndarray) -> list[str]:
    """Return all texts: those that episodes name, in their order, then those that rows might.

    Only rows know for sure; what none of them uses at the end is left out again by the commit.
    """
    texts: dict[str, None] = {}
    used = dict.fromkeys(clip.source for clip in cutlist.clips if clip.task is None)
    for clip, position in zip(cutlist.clips, positions.tolist(), strict=True):
        changes = cutlist.sources[clip.source].tasks
        own = readers[clip.source].episodes[position].tasks
        named = [changes.get(text, text) for text in own] if clip.task is None else [clip.task]
        texts.update(dict.fromkeys(named))
    for source in used:
        changes = cutlist.sources[source].tasks
        every = readers[source].tasks.values()
        texts.update(dict.fromkeys(changes.get(text, text) for text in every))
    return list(texts)


def _fingerprint(
    cutlist: CutList,
    info: Info,
    form: Form,
    footage: Mapping[str, Footage],
    tables: Sequence[TableOut],
) -> str:
    videos = [
        (v.camera, v.chunk, v.file, v.seen, v.fps, [repr(piece) for piece in v.runs])
        for v in videos_of(list(footage.values()))
    ]
    added = [os.stat(a.values).st_mtime_ns for s in cutlist.sources for a in s.add.values()]
    listed = [(t.chunk, t.file, t.first, t.stop) for t in tables]
    what = [_PLANNER, cutlist.to_json(), info.to_json(), asdict(form), videos, listed, added]
    text = json.dumps(what, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
