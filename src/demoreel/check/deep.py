"""Deep checks: every frame of every camera is decoded once.

Frames that do not decode are errors. Black, frozen and repeated frames and cameras that jump are
judged for each episode; what episodes look like is kept for the search for duplicates.

Frames are decoded in runs of a few hundred that begin with a keyframe: long enough that codecs are
not started anew all the time, short enough that two threads share one video. A run returns a few
numbers a frame, so memory does not grow with the dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from demoreel.check.clips import LocatedVideo, located_videos
from demoreel.check.codes import code_for
from demoreel.check.deep_watch import MOMENTS, Levels, Watch, Watched, joined, luma_of
from demoreel.check.look import Look
from demoreel.check.motion_measure import as_signal, runs
from demoreel.check.rows import cores
from demoreel.errors import DemoreelError, PictureError, refuse_shortage
from demoreel.media.decode import Decoder, GopSpan, group_frames
from demoreel.media.images import decode_depth_image, decode_image
from demoreel.media.video import Video
from demoreel.read.in_order import one_by_one, runs_of
from demoreel.storage.amounts import ShareDone

_FRAMES_OF_A_RUN = 256
_BYTES_OF_A_RUN = 16 << 20
_IMAGES_OF_A_RUN = 128  # from tables

# What broken bytes can do to a decoder, beside the errors that it foresees.
_BROKEN = (DemoreelError, ValueError, IndexError, OSError, MemoryError, OverflowError)

_MOVED = 0.05  # of an episode's range
_NOISE = 4  # times the usual step: less than that is noise
_LEAST_MOVING = 10  # frames, before a share of them means anything
_WHOLE_FRAME = 0.5  # of its pixels
_ORDINARY = 0.9  # quantile of changes
_FEW_CHANGES = 10
_LOOK_AHEAD = 0.5  # seconds in which a robot that moves gets somewhere


@dataclass(frozen=True, slots=True)
class _Damage:
    """Frames that do not decode.

    Attributes:
        frame: The first of them, or the one that the codec stumbled over.
        lost: All of them.
        what: What the codec says.
        code: The finding's code; ``video-decodes-short`` where the codec gave no error, but fewer
            frames than packets.
    """

    frame: int
    lost: tuple[int, ...]
    what: str
    code: str = "picture-undecodable"


@dataclass(slots=True)
class _FrameRun:
    """What one run brought back."""

    watched: Watched
    damage: list[_Damage] = field(default_factory=list)


_Job = Callable[[Decoder], _FrameRun]


def _video_runs(video: Video, wanted: Iterable[int], levels: Levels) -> Iterator[_Job]:
    """Yield the jobs that decode all of a video, in order."""
    chosen = np.unique(np.fromiter(wanted, np.int64))
    every = np.arange(video.index.frames)
    for first, stop in runs_of(
        video.index, every, least=_FRAMES_OF_A_RUN, most_bytes=_BYTES_OF_A_RUN
    ):
        begin, end = np.searchsorted(chosen, [first, stop])
        yield _video_job(video, every[first:stop], chosen[begin:end].tolist(), levels)


def _video_job(video: Video, frames: np.ndarray, wanted: list[int], levels: Levels) -> _Job:
    def watch(decoder: Decoder, groups: list[tuple[int, ...]]) -> _FrameRun:
        seen = Watch(wanted, levels)
        damage = []
        for group in groups:
            shown: set[int] = set()
            try:
                span = GopSpan(video.index, video.file, video.name, group)
                for number, frame in decoder.frames(span):
                    shown.add(number)
                    seen.add(number, *luma_of(frame))
            except _BROKEN as error:
                lost = tuple(n for n in group if n not in shown) or group[-1:]
                damage.append(_damage(error, lost))
        return _FrameRun(seen.seen(), damage)

    def decode(decoder: Decoder) -> _FrameRun:
        whole = watch(decoder, [tuple(frames.tolist())])
        if not whole.damage:
            return whole
        # Once more, GOP by GOP, so that damage costs no more than its own.
        return watch(decoder, group_frames(video.index, frames))

    return decode


def _damage(error: Exception, lost: tuple[int, ...]) -> _Damage:
    what = error.what if isinstance(error, DemoreelError) else f"{type(error).__name__}: {error}."
    said = error.where.get("frame") if isinstance(error, DemoreelError) else None
    frame = said if isinstance(said, int) else lost[0]
    return _Damage(frame, lost, what, code_for(error, "picture-undecodable"))


def _image_job(first: int, encoded: list[bytes], wanted: Iterable[int], levels: Levels) -> _Job:
    """Return the job that decodes images from a table."""

    def decode(decoder: Decoder) -> _FrameRun:
        watch = Watch(wanted, levels)
        damage = []
        for number, data in enumerate(encoded, first):
            try:
                watch.add(number, decode_image(data, on_desk=True))
            except PictureError as error:
                damage.append(_damage(error, (number,)))
        return _FrameRun(watch.seen(), damage)

    return decode


@dataclass
class _FrameSource:
    """A video, or an episode's images in a table, while its runs are decoded.

    Attributes:
        camera: The camera.
        file: The video, or the table.
        positions: Its episodes.
        first: First frame of each; -1 where that cannot be told.
        step: Frames from one of an episode's frames to the next.
        parts: What was decoded so far.
        damage: What did not decode.
    """

    camera: str
    file: str
    positions: np.ndarray
    first: np.ndarray
    step: int = 1
    parts: list[Watched] = field(default_factory=list)
    damage: list[_Damage] = field(default_factory=list)

    def found(self, look: Look, code: str, what: str, **where: Any) -> None:
        """Report a finding of these frames."""
        look.found(code, what, camera=self.camera, file=self.file, **where)


@dataclass(frozen=True, slots=True)
class _EpisodeFrames:
    """Measures of one episode, one number per frame."""

    episode: int
    bright: np.ndarray
    same: np.ndarray
    change: np.ndarray
    spread: np.ndarray
    flat: np.ndarray


def check_deep(look: Look) -> None:
    """Decode every frame of every camera, once.

    Cost: that of decoding, on every core; the rest is small. Memory: that of some hundred
    frames' packets and a few numbers a frame of one video.
    """
    if look.info is None or look.episodes is None:
        return
    seen: _FrameSource | None = None
    frames = decoded = 0
    of = int(look.episodes.length.sum()) * len(look.info.cameras)
    jobs = (partial(_run, source, job) for source, job in _jobs(look))
    for source, run in one_by_one(jobs, threads=cores()):
        if seen is not None and source is not seen:
            frames += _finish(look, seen)
        seen = source
        source.parts.append(run.watched)
        source.damage += run.damage
        decoded += len(run.watched.number)
        look.progress(ShareDone(min(decoded, of), of, "frame"))
    if seen is not None:
        frames += _finish(look, seen)
    look.facts["decoded"] = frames


def _run(source: _FrameSource, job: _Job, decoder: Decoder) -> list[tuple[_FrameSource, _FrameRun]]:
    return [(source, job(decoder))]


def _jobs(look: Look) -> Iterator[tuple[_FrameSource, _Job]]:
    assert look.info is not None
    levels = _levels(look)
    for camera in look.info.cameras:
        if camera in look.video_cameras:
            for located in located_videos(look, camera):
                source = _FrameSource(
                    camera, located.name, located.positions, located.first, located.step
                )
                wanted = _moments(look, located)
                for job in _video_runs(located.video, wanted, levels):
                    yield source, job
        else:
            yield from _jobs_of_tables(look, camera, levels)


def _levels(look: Look) -> Levels:
    values = look.thresholds
    return Levels(same=values["same_levels"], spread=values["camera_jump_levels"] / 2)


def _moments(look: Look, located: LocatedVideo) -> Iterator[int]:
    assert look.episodes is not None
    for position, first in zip(located.positions.tolist(), located.first.tolist(), strict=True):
        if first >= 0:
            length = int(look.episodes.length[position])
            yield from (first + located.step * frame for frame in moments_of(length))


def moments_of(length: int) -> list[int]:
    """Return the frames of an episode whose appearance is noted."""
    return [round(moment * (length - 1)) for moment in MOMENTS]


def _jobs_of_tables(look: Look, camera: str, levels: Levels) -> Iterator[tuple[_FrameSource, _Job]]:
    assert look.episodes is not None
    reader = look.reader
    if reader is None or camera not in reader.info.features or not reader.in_tables(camera):
        return
    for position, (episode, length) in enumerate(
        zip(look.episodes.index.tolist(), look.episodes.length.tolist(), strict=True)
    ):
        try:
            place = reader.episodes.position_of(episode)
            start = int(reader.episodes.start[place])
            file = reader.data_file(place)
        except DemoreelError as error:
            refuse_shortage(error)
            continue
        source = _FrameSource(camera, file, np.array([position]), np.array([0]))
        for first in range(0, length, _IMAGES_OF_A_RUN):
            rows = np.arange(start + first, start + min(first + _IMAGES_OF_A_RUN, length))
            try:
                encoded = reader.encoded(rows, camera)
            except DemoreelError as error:
                refuse_shortage(error)
                break  # its table is broken, which the checks of tables report
            if first == 0 and reader.info.features[camera].is_depth and encoded:
                _check_depth(look, camera, episode, file, encoded[0])
            yield source, _image_job(first, encoded, moments_of(length), levels)


def _check_depth(look: Look, camera: str, episode: int, file: str, data: bytes) -> None:
    """Report a depth camera whose images decode, but not as depth."""
    try:
        decode_image(data)
    except PictureError:
        return  # that it does not decode is another finding
    try:
        channels = np.atleast_3d(decode_depth_image(data)).shape[2]
        said = f"An image has {channels} channels; depth has one."
    except PictureError as error:
        channels, said = 0, error.what
    if channels != 1:
        look.found("picture-kind", said, camera=camera, episode=episode, file=file)


def _report_damage(look: Look, source: _FrameSource) -> None:
    """Report what did not decode, an episode at a time: it may be thousands of frames."""
    found: dict[tuple[str, int | None], list[tuple[int, _Damage]]] = {}
    for damage in source.damage:
        episode, frame = _place(look, source, damage)
        found.setdefault((damage.code, episode), []).append((frame, damage))
    for (code, episode), several in found.items():
        frame, first = min(several, key=lambda pair: pair[0])
        lost = len({number for _, damage in several for number in damage.lost})
        more = f"; {lost:,} frames are lost" if lost > 1 else ""
        what = f"{first.what.removesuffix('.')}{more}."
        source.found(look, code, what, episode=episode, frame=frame)


def _place(look: Look, source: _FrameSource, damage: _Damage) -> tuple[int | None, int]:
    """Return the episode and its frame that a damage hits; the video's frame if there is none."""
    assert look.episodes is not None
    length = look.episodes.length[source.positions]
    away = damage.frame - source.first
    hit = np.flatnonzero((source.first >= 0) & (away >= 0) & (away < length * source.step))
    if len(hit) == 0:
        return None, damage.frame
    return int(look.episodes.index[source.positions[hit[0]]]), int(away[hit[0]] // source.step)


def _finish(look: Look, source: _FrameSource) -> int:
    """Judge a source when all of it was decoded; return how many frames decoded."""
    assert look.episodes is not None
    _report_damage(look, source)
    watched = joined(source.parts, _levels(look))
    _judge(look, source, watched)
    seen = look.appearances.setdefault(source.camera, {})
    for position, first in zip(source.positions.tolist(), source.first.tolist(), strict=True):
        frames = [first + source.step * n for n in moments_of(int(look.episodes.length[position]))]
        if first >= 0 and all(frame in watched.appearance for frame in frames):
            blocks = np.concatenate([watched.appearance[frame] for frame in frames])
            seen[int(look.episodes.index[position])] = blocks
    return len(watched.number)


def _judge(look: Look, source: _FrameSource, watched: Watched) -> None:
    """Report what is odd about frames that decode."""
    _sizes(look, source, watched)
    every = list(_episodes_of(look, source, watched))
    for seen in every:
        dark = _black(look, source, seen)
        _still(look, source, seen, dark)
        # Into the dark and out of it is no jump of its own.
        seen.spread[dark] = 0
        seen.spread[1:][dark[:-1]] = 0
    _jumps(look, source, every)


def _sizes(look: Look, source: _FrameSource, watched: Watched) -> None:
    wanted = _declared_size(look, source.camera) or next(iter(watched.sizes), None)
    for size, frame in watched.sizes.items():
        if wanted is None or size == wanted:
            continue
        source.found(
            look,
            "picture-size",
            f"Frame {frame} is {size[0]} x {size[1]}; the camera's are {wanted[0]} x {wanted[1]}.",
            frame=frame,
        )


def _declared_size(look: Look, camera: str) -> tuple[int, int] | None:
    """Return the declared size of a camera in tables; of videos, their header was compared."""
    reader = look.reader
    if reader is None or camera not in reader.info.features or not reader.in_tables(camera):
        return None
    return reader.info.features[camera].image_shape[:2]


def _episodes_of(look: Look, source: _FrameSource, seen: Watched) -> Iterator[_EpisodeFrames]:
    """Yield the episodes of which every frame was seen."""
    assert look.episodes is not None
    for position, first in zip(source.positions.tolist(), source.first.tolist(), strict=True):
        length = int(look.episodes.length[position])
        begin = int(np.searchsorted(seen.number, first))
        stop = begin + (length - 1) * source.step + 1
        whole = first >= 0 and stop <= len(seen.number) and seen.number[begin] == first
        if not whole or seen.number[stop - 1] - first != stop - 1 - begin:
            continue
        part = slice(begin, stop, source.step)
        same, change, spread = (a[part].copy() for a in (seen.same, seen.change, seen.spread))
        same[0], change[0] = False, np.nan  # the frame before is another episode's
        yield _EpisodeFrames(
            int(look.episodes.index[position]),
            seen.bright[part], same, change, spread, seen.flat[part],
        )  # fmt: skip


def _black(look: Look, source: _FrameSource, seen: _EpisodeFrames) -> np.ndarray:
    """Report black frames; return which are."""
    assert look.info is not None
    level = look.thresholds["black_level"]
    dark = seen.bright <= level
    if look.info.features[source.camera].is_depth:
        dark &= seen.flat  # near is dark, too: only a depth of nothing at all is black
    least = _frames(look, "black_seconds")
    for first, stop in _runs(dark, min(least, len(dark))):
        source.found(
            look,
            "picture-black",
            f"{stop - first} frames from {first} on are black, up to level {level:g} of 255 "
            f"(from {look.thresholds['black_seconds']:g} s on).",
            episode=seen.episode,
            frame=first,
        )
    return dark


def _still(look: Look, source: _FrameSource, seen: _EpisodeFrames, dark: np.ndarray) -> None:
    """Report frames that stay the same while the robot moves."""
    same = seen.same & ~dark
    least, share = _frames(look, "frozen_seconds"), look.thresholds["repeated_share"]
    still = _runs(same, least)
    if not still and same.mean() <= share / 2:
        return
    moving = _moving(look, seen.episode, len(same))
    if moving is None:
        return
    for first, stop in still:
        if moving[first - 1 : stop].mean() >= 0.5:
            source.found(
                look,
                "picture-frozen",
                f"The image is the same for {stop - first + 1} frames from {first - 1} on, while "
                f"the robot moves (from {look.thresholds['frozen_seconds']:g} s on).",
                episode=seen.episode,
                frame=first - 1,
            )
        same[first:stop] = False
        moving[first:stop] = False
    repeated, all_moving = int((same & moving).sum()), int(moving.sum())
    if all_moving >= _LEAST_MOVING and repeated > share * all_moving:
        source.found(
            look,
            "picture-repeated",
            f"{repeated} of {all_moving} frames in which the robot moves are the same as the one "
            f"before (more than {share:.0%}).",
            episode=seen.episode,
            frame=int(np.flatnonzero(same & moving)[0]),
        )


def _jumps(look: Look, source: _FrameSource, every: list[_EpisodeFrames]) -> None:
    """Report changes far beyond the distribution of the source."""
    changes = [seen.change[1:] for seen in every]
    steps = np.concatenate(changes) if changes else np.zeros(0)
    if len(steps) < _FEW_CHANGES:
        return
    times, levels = look.thresholds["camera_jump_times"], look.thresholds["camera_jump_levels"]
    usual = float(np.quantile(steps, _ORDINARY))
    for seen in every:
        leaps = (seen.change > max(times * usual, levels)) & (seen.spread >= _WHOLE_FRAME)
        for frame in np.flatnonzero(leaps).tolist():
            source.found(
                look,
                "picture-jump",
                f"The image changes by {seen.change[frame]:.0f} of 255 levels at once; "
                f"{usual:.1f} is usual here (from {times:g} times that and {levels:g} on).",
                episode=seen.episode,
                frame=frame,
            )


def _moving(look: Look, episode: int, length: int) -> np.ndarray | None:
    """Return in which frames the robot moves; None where that cannot be told."""
    reader = look.reader
    if reader is None or look.info is None:
        return None
    features = reader.info.features
    keys = [k for k in ("observation.state", "action") if k in features and features[k].is_numeric]
    try:
        start = int(reader.episodes.start[reader.episodes.position_of(episode)])
        columns = reader.rows(np.arange(start, start + length), keys[:1]) if keys else {}
    except (DemoreelError, OSError, ValueError) as error:
        refuse_shortage(error)
        return None  # reported by the checks of tables
    if not columns:
        return None
    values = columns[keys[0]]
    assert isinstance(values, np.ndarray)
    ahead = max(1, round(_LOOK_AHEAD * look.info.fps))
    return moving_frames(as_signal(values), ahead)


def moving_frames(signal: np.ndarray, ahead: int) -> np.ndarray:
    """Return in which frames a signal (dimensions, frames) is on its way to somewhere else.

    Args:
        signal: The signal; noise in it is no movement.
        ahead: After how many frames it must be elsewhere.
    """
    with np.errstate(all="ignore"):
        steps = np.abs(np.diff(signal))
        usual = np.median(steps, axis=1) if steps.shape[1] else np.zeros(len(signal))
        least = np.maximum(_MOVED * np.ptp(signal, axis=1), _NOISE * usual)
        places = np.arange(signal.shape[1])
        later = np.minimum(places + ahead, signal.shape[1] - 1)
        way = np.abs(signal[:, later] - signal[:, later - np.minimum(ahead, later)])
        return np.asarray(((way > least[:, None]) & (least > 0)[:, None]).any(axis=0))


def _frames(look: Look, name: str) -> int:
    assert look.info is not None
    return max(1, round(min(look.thresholds[name] * look.info.fps, 1e9)))


def _runs(marked: np.ndarray, least: int) -> list[tuple[int, int]]:
    """Return (first, stop) of runs of marked frames that are long enough."""
    first, stop = runs(marked, least)
    return list(zip(first.tolist(), stop.tolist(), strict=True))
