"""Deep: every picture of every camera is decoded once, and looked at.

Pictures that do not decode are errors. What else shows (black, frozen, repeated pictures, cameras
that jump) is judged per episode (``deep_judge.py``), and what episodes look like is left for the
search for duplicates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from demoreel.check.deep_decode import Damage, Job, Run, in_threads, picture_job, video_runs
from demoreel.check.deep_judge import Film, judge_film
from demoreel.check.deep_watch import MOMENTS, Levels, Watched, joined
from demoreel.check.footage import Footage, footage_of
from demoreel.check.look import Look
from demoreel.check.rows import cores
from demoreel.errors import DemoreelError, PictureError
from demoreel.media.pictures import decode_depth_picture, decode_picture

_PICTURES_AT_ONCE = 128  # from tables


@dataclass
class _Reel:
    """A video, or an episode's pictures in a table, while its runs come back.

    Attributes:
        camera: The camera.
        file: The video; None for pictures in tables.
        positions: Its episodes.
        first: First frame of each; -1 where that cannot be told.
        step: Frames from one of an episode's frames to the next.
        parts: What has come back.
    """

    camera: str
    file: str | None
    positions: np.ndarray
    first: np.ndarray
    step: int = 1
    parts: list[Watched] = field(default_factory=list)
    decoded: int = 0
    lost: int = 0


def check_deep(look: Look) -> None:
    """Decode every picture of every camera, once.

    Cost: that of decoding, on every core; nothing else to speak of. Memory is that of some hundred
    frames' packets and a few numbers a frame of one video.
    """
    if look.info is None or look.episodes is None:
        return
    seen: _Reel | None = None
    frames = 0
    for reel, run in in_threads(_jobs(look), cores()):
        assert isinstance(reel, _Reel)
        if seen is not None and reel is not seen:
            frames += _finish(look, seen)
        seen = reel
        _note(look, reel, run)
    if seen is not None:
        frames += _finish(look, seen)
    look.facts["decoded"] = frames


def _jobs(look: Look) -> Iterator[tuple[_Reel, Job]]:
    assert look.info is not None
    levels = _levels(look)
    for camera in look.info.cameras:
        if camera in look.filmed:
            for footage in footage_of(look, camera):
                reel = _Reel(camera, footage.name, footage.positions, footage.first, footage.step)
                wanted = _moments(look, footage)
                for job in video_runs(footage.video, wanted, levels):
                    yield reel, job
        else:
            yield from _jobs_of_tables(look, camera, levels)


def _levels(look: Look) -> Levels:
    values = look.thresholds
    return Levels(same=values["same_levels"], spread=values["camera_jump_levels"] / 2)


def _moments(look: Look, footage: Footage) -> Iterator[int]:
    assert look.episodes is not None
    for position, first in zip(footage.positions.tolist(), footage.first.tolist(), strict=True):
        if first >= 0:
            length = int(look.episodes.length[position])
            yield from (first + footage.step * frame for frame in moments_of(length))


def moments_of(length: int) -> list[int]:
    """Return the frames of an episode whose appearance is noted."""
    return [round(moment * (length - 1)) for moment in MOMENTS]


def _jobs_of_tables(look: Look, camera: str, levels: Levels) -> Iterator[tuple[_Reel, Job]]:
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
        except DemoreelError:
            continue
        reel = _Reel(camera, file, np.array([position]), np.array([0]))
        for first in range(0, length, _PICTURES_AT_ONCE):
            rows = np.arange(start + first, start + min(first + _PICTURES_AT_ONCE, length))
            try:
                encoded = reader.encoded(rows, camera)
            except DemoreelError:
                break  # its table is broken, which the checks of tables report
            if first == 0 and reader.info.features[camera].is_depth and encoded:
                _check_depth(look, camera, episode, file, encoded[0])
            yield reel, picture_job(first, encoded, moments_of(length), levels)


def _check_depth(look: Look, camera: str, episode: int, file: str, data: bytes) -> None:
    """Report a depth camera whose pictures are no depth, though they are pictures."""
    try:
        decode_picture(data)
    except PictureError:
        return  # that it does not decode is another finding
    try:
        channels = np.atleast_3d(decode_depth_picture(data)).shape[2]
        said = f"A picture has {channels} channels; depth has one."
    except PictureError as error:
        channels, said = 0, error.what
    if channels != 1:
        look.found("picture-kind", said, camera=camera, episode=episode, file=file)


def _note(look: Look, reel: _Reel, run: Run) -> None:
    reel.parts.append(run.watched)
    reel.decoded += len(run.watched.number)
    for damage in run.damage:
        reel.lost += len(damage.lost)
        episode, frame = _place(look, reel, damage)
        lost = f"; {len(damage.lost)} frames are lost with it" if len(damage.lost) > 1 else ""
        look.found(
            "video-decodes-short" if damage.is_missing else "picture-undecodable",
            f"{damage.what.removesuffix('.')}{lost}.",
            count=len(damage.lost),
            camera=reel.camera,
            file=reel.file,
            episode=episode,
            frame=frame,
        )


def _place(look: Look, reel: _Reel, damage: Damage) -> tuple[int | None, int]:
    """Return the episode and its frame that a damage hits; the video's frame if there is none."""
    assert look.episodes is not None
    length = look.episodes.length[reel.positions]
    away = damage.frame - reel.first
    hit = np.flatnonzero((reel.first >= 0) & (away >= 0) & (away < length * reel.step))
    if len(hit) == 0:
        return None, damage.frame
    return int(look.episodes.index[reel.positions[hit[0]]]), int(away[hit[0]] // reel.step)


def _finish(look: Look, reel: _Reel) -> int:
    """Judge a reel when all of it has come back; return how many pictures it had."""
    assert look.episodes is not None
    watched = joined(reel.parts, _levels(look))
    film = Film(reel.camera, reel.file, reel.positions, reel.first, reel.step, watched)
    judge_film(look, film)
    seen = look.appearances.setdefault(reel.camera, {})
    for position, first in zip(reel.positions.tolist(), reel.first.tolist(), strict=True):
        frames = [first + reel.step * n for n in moments_of(int(look.episodes.length[position]))]
        if first >= 0 and all(frame in watched.appearance for frame in frames):
            blocks = np.concatenate([watched.appearance[frame] for frame in frames])
            seen[int(look.episodes.index[position])] = blocks
    return reel.decoded
