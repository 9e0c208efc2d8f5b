"""What is odd about pictures that decode: black, frozen, repeated, or changed all at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from demoreel.check.deep_watch import Watched
from demoreel.check.look import Look
from demoreel.check.motion_measure import as_signal
from demoreel.errors import DemoreelError

_MOVED = 0.05  # of an episode's range
_NOISE = 4  # times the usual step: less than that is noise
_LEAST_MOVING = 10  # frames, before a share of them means anything
_WHOLE_PICTURE = 0.5  # of its pixels
_ORDINARY = 0.9  # quantile of changes
_FEW_CHANGES = 10
_LOOK_AHEAD = 0.5  # seconds in which a robot that moves gets somewhere


@dataclass(frozen=True, slots=True)
class Film:
    """What was seen of a video, or of an episode's pictures in a table.

    Attributes:
        camera: The camera.
        file: The video.
        positions: Its episodes.
        first: First frame of each; -1 where that cannot be told.
        step: Frames from one of an episode's frames to the next.
        watched: What was seen.
    """

    camera: str
    file: str | None
    positions: np.ndarray
    first: np.ndarray
    step: int
    watched: Watched


@dataclass(frozen=True, slots=True)
class _Scene:
    """One episode of a film: numbers a frame, by the episode's frames."""

    episode: int
    bright: np.ndarray
    same: np.ndarray
    change: np.ndarray
    spread: np.ndarray
    flat: np.ndarray


def judge_film(look: Look, film: Film) -> None:
    """Report what is odd about a film."""
    _sizes(look, film)
    scenes = list(_scenes(look, film))
    for scene in scenes:
        dark = _black(look, film, scene)
        _still(look, film, scene, dark)
        # Into the dark and out of it is no jump of its own.
        scene.spread[dark] = 0
        scene.spread[1:][dark[:-1]] = 0
    _jumps(look, film, scenes)


def _sizes(look: Look, film: Film) -> None:
    usual, *others = film.watched.sizes.items() if film.watched.sizes else (None,)
    for size, frame in others:
        assert usual is not None
        look.found(
            "picture-size",
            f"Frame {frame} is {size[0]} x {size[1]}; the first one is {usual[0][0]} x "
            f"{usual[0][1]}.",
            camera=film.camera,
            file=film.file,
            frame=frame,
        )


def _scenes(look: Look, film: Film) -> Iterator[_Scene]:
    """Yield the episodes of which every frame was seen."""
    assert look.episodes is not None
    seen = film.watched
    for position, first in zip(film.positions.tolist(), film.first.tolist(), strict=True):
        length = int(look.episodes.length[position])
        begin = int(np.searchsorted(seen.number, first))
        stop = begin + (length - 1) * film.step + 1
        whole = first >= 0 and stop <= len(seen.number) and seen.number[begin] == first
        if not whole or seen.number[stop - 1] - first != stop - 1 - begin:
            continue
        part = slice(begin, stop, film.step)
        same, change, spread = (a[part].copy() for a in (seen.same, seen.change, seen.spread))
        same[0], change[0] = False, np.nan  # the frame before is another episode's
        yield _Scene(
            int(look.episodes.index[position]),
            seen.bright[part], same, change, spread, seen.flat[part],
        )  # fmt: skip


def _black(look: Look, film: Film, scene: _Scene) -> np.ndarray:
    """Report black pictures; return which frames are."""
    assert look.info is not None
    level = look.thresholds["black_level"]
    dark = scene.bright <= level
    if look.info.features[film.camera].is_depth:
        dark &= scene.flat  # near is dark, too: only a depth of nothing at all is black
    least = _frames(look, "black_seconds")
    for first, stop in _runs(dark, min(least, len(dark))):
        look.found(
            "picture-black",
            f"{stop - first} frames from {first} on are black, up to level {level:g} of 255 "
            f"(from {look.thresholds['black_seconds']:g} s on).",
            count=stop - first,
            camera=film.camera,
            file=film.file,
            episode=scene.episode,
            frame=first,
        )
    return dark


def _still(look: Look, film: Film, scene: _Scene, dark: np.ndarray) -> None:
    """Report pictures that stay the same while the robot moves."""
    same = scene.same & ~dark
    least, share = _frames(look, "frozen_seconds"), look.thresholds["repeated_share"]
    runs = list(_runs(same, least))
    if not runs and same.mean() <= share / 2:
        return
    moving = _moving(look, scene.episode, len(same))
    if moving is None:
        return
    for first, stop in runs:
        if moving[first - 1 : stop].mean() >= 0.5:
            look.found(
                "picture-frozen",
                f"The picture is the same for {stop - first + 1} frames from {first - 1} on, while "
                f"the robot moves (from {look.thresholds['frozen_seconds']:g} s on).",
                camera=film.camera,
                file=film.file,
                episode=scene.episode,
                frame=first - 1,
            )
        same[first:stop] = False
        moving[first:stop] = False
    repeated, all_moving = int((same & moving).sum()), int(moving.sum())
    if all_moving >= _LEAST_MOVING and repeated > share * all_moving:
        look.found(
            "picture-repeated",
            f"{repeated} of {all_moving} frames in which the robot moves are the same as the one "
            f"before (more than {share:.0%}).",
            count=repeated,
            camera=film.camera,
            file=film.file,
            episode=scene.episode,
            frame=int(np.flatnonzero(same & moving)[0]),
        )


def _jumps(look: Look, film: Film, scenes: list[_Scene]) -> None:
    """Report changes far beyond the film's own distribution."""
    changes = [scene.change[1:] for scene in scenes]
    every = np.concatenate(changes) if changes else np.zeros(0)
    if len(every) < _FEW_CHANGES:
        return
    times, levels = look.thresholds["camera_jump_times"], look.thresholds["camera_jump_levels"]
    usual = float(np.quantile(every, _ORDINARY))
    for scene in scenes:
        leaps = (scene.change > max(times * usual, levels)) & (scene.spread >= _WHOLE_PICTURE)
        for frame in np.flatnonzero(leaps).tolist():
            look.found(
                "picture-jump",
                f"The picture changes by {scene.change[frame]:.0f} of 255 levels at once; "
                f"{usual:.1f} is usual here (from {times:g} times that and {levels:g} on).",
                camera=film.camera,
                file=film.file,
                episode=scene.episode,
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
    except (DemoreelError, OSError, ValueError):
        return None  # why is somebody else's finding
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


def _runs(marked: np.ndarray, least: int) -> Iterator[tuple[int, int]]:
    """Yield (first, stop) of runs of marked frames that are long enough."""
    padded = np.concatenate([[False], marked, [False]])
    borders = np.flatnonzero(padded[1:] != padded[:-1])
    for first, stop in zip(borders[::2].tolist(), borders[1::2].tolist(), strict=True):
        if stop - first >= least:
            yield first, stop
