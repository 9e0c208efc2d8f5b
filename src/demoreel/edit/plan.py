"""The plan of a cut: every file and row of the result, before a byte is written.

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

from demoreel.edit.clips import Clip, CutList, Frames, frames_of
from demoreel.edit.features import View, times_beside, together, view_of
from demoreel.edit.form import EncodePolicy, Form, Layout, as_encoded, policies_of
from demoreel.edit.in_place.plan import kept_videos, lance_layout, refuse_in_place
from demoreel.edit.labels import refuse_outside, with_labels
from demoreel.edit.packing import plan_camera
from demoreel.edit.sources import open_unchanged
from demoreel.edit.target_info import (
    refuse_other_rates,
    target_info,
    with_audio,
    with_common_encoding,
)
from demoreel.edit.verbatim import Verbatim, plan_verbatim
from demoreel.edit.video_plan import CameraClip, VideoOut, VideoPlan, videos_of
from demoreel.errors import ArgumentError, OutOfRangeError
from demoreel.layouts.base import Reader
from demoreel.layouts.columns import table_schema
from demoreel.model import Feature, Info
from demoreel.storage.folder import refuse_links_out

_MB = 1024 * 1024
_PLANNER = 4  # changes when the same cut list would be written differently
_FILES_LOOKED_AT = 64
_IMAGE_BYTES = 40_000  # a guess, where no file says how large images are


@dataclass(frozen=True, slots=True)
class TableOut:
    """One table to be written: the clips ``first`` to ``stop`` - 1.

    Attributes:
        chunk: Its ``chunk_index``.
        file: Its ``file_index``.
        first: Its first clip.
        stop: One past its last.
        size: About how many bytes it will have.
        clips: Its clips, in order, where others stand between the first and the last.
    """

    chunk: int
    file: int
    first: int
    stop: int
    size: int
    clips: tuple[int, ...] = ()

    @property
    def numbers(self) -> Sequence[int]:
        """Its clips, in order."""
        return self.clips or range(self.first, self.stop)

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
        form: How it is stored.
        positions: Where each clip's episode stands in its source.
        frames: The frames of that episode which become each clip.
        start: The first row of each clip in the result, and their number at the end.
        tasks: All texts that may occur, in the order of their new numbers.
        tables: The tables to be written.
        video_plans: The videos to be written, by camera.
        fingerprint: Equal for two plans only if they write the same.
        dropped: What the sources hold or state, and the result will not, a sentence each.
        verbatim: What a result that is to be verbatim takes from its source.
    """

    cutlist: CutList
    readers: Sequence[Reader]
    views: Sequence[View]
    missing: Mapping[str, Feature]
    info: Info
    form: Form
    positions: np.ndarray
    frames: Sequence[Frames]
    start: np.ndarray
    tasks: Sequence[str]
    tables: Sequence[TableOut]
    video_plans: Mapping[str, VideoPlan]
    fingerprint: str
    dropped: Sequence[str] = ()
    verbatim: Verbatim | None = None

    @property
    def layout(self) -> Layout:
        """How the result is stored."""
        return self.form.layout

    @property
    def clips(self) -> tuple[Clip, ...]:
        """The clips, each of which becomes an episode."""
        return self.cutlist.clips

    @property
    def videos(self) -> list[VideoOut]:
        """The videos to be written."""
        return list(videos_of(list(self.video_plans.values())))

    @property
    def size(self) -> int:
        """About how many bytes will be written."""
        videos = sum(video.size for video in self.videos if video.whole != "linked")
        return sum(table.size for table in self.tables) + videos

    @property
    def is_unchanged(self) -> bool:
        """Whether the episodes are those of the only source: all of them, whole, in order."""
        return _is_unchanged(self.readers, self.positions, self.frames)

    @property
    def has_same_features(self) -> bool:
        """Whether the features are those of every source, by the same names."""
        return all(
            set(reader.info.features) == set(self.info.features)
            and all(key == origin for key, origin in view.origin.items())
            for reader, view in zip(self.readers, self.views, strict=True)
        )

    @property
    def has_whole_episodes(self) -> bool:
        """Whether every clip is all of an episode."""
        lengths = np.concatenate([[0], *(reader.episodes.length for reader in self.readers)])
        before = np.cumsum([1, *(len(reader.episodes) for reader in self.readers)])
        return all(
            numbers == range(int(lengths[before[clip.source] + position]))
            for clip, position, numbers in zip(
                self.clips, self.positions.tolist(), self.frames, strict=True
            )
        )

    def encodes(self, camera: str, clip: int) -> bool:
        """Whether images of a clip are re-encoded."""
        return camera in self.video_plans and clip in self.video_plans[camera].encoded

    def summary(self) -> dict[str, Any]:
        """Return the plan in numbers, as ``--dry-run`` shows it."""
        encoded = {
            camera: sum(video.encoded for video in of_camera.videos)
            for camera, of_camera in self.video_plans.items()
        }
        return {
            "episodes": len(self.clips),
            "frames": int(self.start[-1]),
            "fps": self.info.fps,
            "tables": len(self.tables),
            "videos": len(self.videos),
            "bytes": self.size,
            "carried_frames": sum(self._carried(f) for f in self.video_plans.values()),
            "encoded_frames": {camera: frames for camera, frames in encoded.items() if frames},
            "whole_clips": {c: len(f.whole) for c, f in self.video_plans.items() if f.whole},
            "black_clips": {c: len(f.blank) for c, f in self.video_plans.items() if f.blank},
            "cameras": list(self.info.cameras),
            "dropped": list(self.dropped),
            "fingerprint": self.fingerprint,
        }

    def _carried(self, of_camera: VideoPlan) -> int:
        """Return how many frames of a camera's new videos belong to no episode."""
        if not of_camera.videos:
            return 0
        step = np.rint(of_camera.rate / self.info.fps).astype(np.int64)
        spans = step * (np.diff(self.start) - 1) + 1
        return sum(video.frames for video in of_camera.videos) - int(spans.sum())


def make_plan(
    cutlist: CutList,
    *,
    form: Form | None = None,
    in_place: bool = False,
    readers: Sequence[Reader] | None = None,
) -> Plan:
    """Plan a cut list. Nothing is written.

    Cost: reads the sources' metadata, and the table of packets of each video that clips are in.

    Args:
        cutlist: The cut list.
        form: How the result is stored; None is v3.0.
        in_place: Whether the result is to be a new version of its only source, a Lance dataset:
            its layout and its videos stay.
        readers: The sources, if they were just opened by ``open_unchanged``.
    """
    if not cutlist.clips:
        raise ArgumentError("There are no clips: the result would have no episodes.")
    form = form or Form()
    readers = readers or open_unchanged(cutlist.sources)
    for reader in readers:
        refuse_links_out(reader.root)
    views = [view_of(r, s) for r, s in zip(readers, cutlist.sources, strict=True)]
    if form.verbatim:
        return _verbatim_plan(cutlist, readers, views, form)
    if in_place:
        form = replace(form, layout=lance_layout(cutlist, readers[0]))
        refuse_in_place(cutlist, readers[0], views[0])
    if form.fps is None:
        refuse_other_rates(readers)
    paths = [source.path for source in cutlist.sources]
    features, missing = together(views, paths, cutlist.features)
    features, missing = with_labels(features, missing, cutlist.clips, views)
    positions = _positions(cutlist.clips, readers)
    frames = _frames(cutlist.clips, readers, form.fps)
    lengths = [
        int(readers[clip.source].episodes.length[position])
        for clip, position in zip(cutlist.clips, positions.tolist(), strict=True)
    ]
    refuse_outside(cutlist.clips, lengths, [key for key, f in features.items() if f.is_camera])
    start = np.concatenate([[0], np.cumsum([len(numbers) for numbers in frames])]).astype(np.int64)
    policies = policies_of(features, form)
    fps = form.fps or readers[0].info.fps
    dropped = [
        f"{key}: as a column, which not all datasets have; its times are beside the data"
        for key in times_beside(views)
    ]
    anew = [key for key, policy in policies.items() if policy.settings is not None]
    features = with_common_encoding(features, [v.features for v in views], anew, dropped)
    features = {key: as_encoded(f, policies.get(key), fps) for key, f in features.items()}
    info = target_info(
        readers,
        features,
        cutlist,
        positions,
        form,
        frames=int(start[-1]),
        unchanged=_is_unchanged(readers, positions, frames),
        dropped=dropped,
    )
    table_schema(info.features.values())  # refuses what no table can hold
    camera_clips = [
        CameraClip(clip.source, position, numbers)
        for clip, position, numbers in zip(cutlist.clips, positions.tolist(), frames, strict=True)
    ]
    if in_place:
        video_plans = kept_videos(camera_clips, readers[0], views[0], info)
    else:
        video_plans = _video_plans(camera_clips, readers, views, info, policies, form)
        dropped += [said for one in video_plans.values() for said in one.dropped]
        heard = {key: one.has_audio for key, one in video_plans.items()}
        info = with_audio(info, heard, [view.features for view in views], dropped)
    tables = _tables(camera_clips, readers, info, joined=form.join_tables)
    tasks = _task_texts(cutlist, readers, positions)
    return Plan(
        cutlist=cutlist,
        readers=readers,
        views=views,
        missing=missing,
        info=replace(info, total_tasks=len(tasks)),
        form=form,
        positions=positions,
        frames=frames,
        start=start,
        tasks=tasks,
        tables=tables,
        video_plans=video_plans,
        fingerprint=_fingerprint(cutlist, info, form, video_plans, tables),
        dropped=tuple(dropped),
    )


def _verbatim_plan(
    cutlist: CutList, readers: Sequence[Reader], views: Sequence[View], form: Form
) -> Plan:
    """Plan all episodes of the only source as they are."""
    positions = _positions(cutlist.clips, readers)
    frames = _frames(cutlist.clips, readers, None)
    if not _is_unchanged(readers, positions, frames):
        raise ArgumentError("Only all episodes of one dataset, whole and in order, stay verbatim.")
    start = readers[0].episodes.start
    found = plan_verbatim(readers[0], form)
    per_row = _bytes_of_row(readers[0])
    tables = []
    for chunk, file, runs in found.tables:
        numbers = tuple(number for first, stop in runs for number in range(first, stop))
        size = sum(int(start[stop] - start[first]) for first, stop in runs) * per_row
        clips = numbers if len(runs) > 1 else ()
        tables.append(TableOut(chunk, file, numbers[0], numbers[-1] + 1, int(size), clips))
    return Plan(
        cutlist=cutlist,
        readers=readers,
        views=views,
        missing={},
        info=found.info,
        form=form,
        positions=positions,
        frames=frames,
        start=start,
        tasks=(),
        tables=tables,
        video_plans=found.video_plans,
        fingerprint=_fingerprint(cutlist, found.info, form, {}, (), seen=found.identity),
        dropped=found.dropped,
        verbatim=found,
    )


def _is_unchanged(
    readers: Sequence[Reader], positions: np.ndarray, frames: Sequence[Frames]
) -> bool:
    if len(readers) != 1:
        return False
    lengths = readers[0].episodes.length.tolist()
    return positions.tolist() == list(range(len(lengths))) and all(
        numbers == range(length) for numbers, length in zip(frames, lengths, strict=True)
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


def _video_plans(
    camera_clips: Sequence[CameraClip],
    readers: Sequence[Reader],
    views: Sequence[View],
    info: Info,
    policies: Mapping[str, EncodePolicy],
    form: Form,
) -> dict[str, VideoPlan]:
    return {
        key: plan_camera(
            info.features[key],
            camera_clips,
            readers,
            [view.origin.get(key) for view in views],
            info,
            policies[key],
            drop_audio=form.drop_audio,
            joined=form.join_videos,
        )
        for key in info.video_keys
    }


def _tables(
    camera_clips: Sequence[CameraClip], readers: Sequence[Reader], info: Info, *, joined: bool
) -> list[TableOut]:
    limit = info.data_files_size_in_mb * _MB
    per_row = [_bytes_of_row(reader) for reader in readers]
    tables: list[TableOut] = []
    first, size = 0, 0.0
    for number, camera_clip in enumerate(camera_clips):
        more = len(camera_clip.frames) * per_row[camera_clip.source]
        full = size + more > limit or info.version.startswith("v2")
        if not joined and number > first:
            before = camera_clips[number - 1]
            full = full or _table_of(before, readers) != _table_of(camera_clip, readers)
        if number > first and full:
            tables.append(_table(tables, first, number, size, info))
            first, size = number, 0.0
        size += more
    tables.append(_table(tables, first, len(camera_clips), size, info))
    return tables


def _table_of(camera_clip: CameraClip, readers: Sequence[Reader]) -> tuple[int, str]:
    return camera_clip.source, readers[camera_clip.source].data_file(camera_clip.position)


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
            total += _IMAGE_BYTES
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
    video_plans: Mapping[str, VideoPlan],
    tables: Sequence[TableOut],
    *,
    seen: str = "",
) -> str:
    videos = [
        (v.camera, v.chunk, v.file, v.seen, v.fps, v.audio, [repr(piece) for piece in v.runs])
        for v in videos_of(list(video_plans.values()))
    ]
    added = [os.stat(a.values).st_mtime_ns for s in cutlist.sources for a in s.add.values()]
    listed = [(t.chunk, t.file, t.first, t.stop) for t in tables]
    what = [_PLANNER, cutlist.to_json(), info.to_json(), asdict(form), videos, listed, added, seen]
    text = json.dumps(what, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
