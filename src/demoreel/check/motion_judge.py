"""Which movements are out of the ordinary, by the dataset's own distribution."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from demoreel.check.look import Look
from demoreel.check.motion_measure import Following
from demoreel.model import Feature

_SWITCH = 16  # distinct values; a dimension with fewer is a switch, and switches leap
_USUAL = 0.995  # quantile of steps that is still ordinary
_RARE = 0.1  # of the episodes; what more of them do is how this data is
_FEW_EPISODES = 8  # with fewer, no length is out of the ordinary
_LEAP_OF_RANGE = 0.2  # of the range that an episode usually covers
_AGREES = 0.6  # correlation from which a state is said to follow its action
_MOVING = 0.1  # of the range of the dimension that moves most
_MOST_BINS = 40


@dataclass(frozen=True, slots=True)
class Signal:
    """A feature's movements: arrays of (episodes, dimensions), and a sample of its rows.

    Attributes:
        feature: The feature.
        low: Smallest values.
        high: Largest values.
        largest: Largest steps.
        at: The frames that they lead to.
        sample: Some steps (rows, dimensions), and
        values: the values that they lead to.
    """

    feature: Feature
    low: np.ndarray
    high: np.ndarray
    largest: np.ndarray
    at: np.ndarray
    sample: np.ndarray
    values: np.ndarray

    def name(self, dimension: int) -> str:
        """Return what a dimension is called."""
        names = list(_flat(self.feature.names))
        if len(names) > dimension and len(names) == np.prod(self.feature.shape):
            return names[dimension]
        return f"dimension {dimension}"


@dataclass(frozen=True, slots=True)
class Measured:
    """All that was measured, one entry an episode.

    Attributes:
        episode: ``episode_index``.
        length: Rows.
        signals: By feature.
        head: Frames at rest at the beginning; 0 where they are few.
        tail: Frames at rest at the end.
        capture: Largest step of capture time, the frame it leads to, smallest step; seconds.
        following: How the state of some episodes follows their action.
        dropouts: (episode, first frame, frames).
    """

    episode: np.ndarray
    length: np.ndarray
    signals: dict[str, Signal]
    head: np.ndarray
    tail: np.ndarray
    capture: tuple[np.ndarray, ...] | None = None
    following: list[tuple[int, Following]] = field(default_factory=list)
    dropouts: list[tuple[int, int, int]] = field(default_factory=list)


def judge(look: Look, measured: Measured) -> None:
    """Report what is out of the ordinary."""
    _lengths(look)
    look.facts["lengths"] = _length_facts(look)
    if len(measured.episode) == 0:
        return
    if "action" in measured.signals:
        _jumps(look, measured, measured.signals["action"])
    idle = _idle_episodes(look, measured)
    _rests(look, measured, idle)
    _captures(look, measured)
    _dropouts(look, measured)
    _follows(look, measured)
    look.facts["ranges"] = [_range_facts(measured, signal) for signal in measured.signals.values()]


def _lengths(look: Look) -> None:
    if look.episodes is None or len(look.episodes) < _FEW_EPISODES:
        return
    length = look.episodes.length.astype(np.float64)
    usual = float(np.median(length))
    away = np.abs(np.log(length / usual))
    spread = 6 * 1.4826 * float(np.median(away))
    for code, times, is_far in (
        ("episode-short", look.thresholds["short_times"], length < usual),
        ("episode-long", look.thresholds["long_times"], length > usual),
    ):
        far = is_far & (away > max(np.log(max(times, 1.0)), spread))
        for place in np.flatnonzero(far).tolist():
            look.found(
                code,
                f"It has {int(length[place])} frames, episodes usually have {usual:g} "
                f"(from {times:g} times on).",
                episode=look.episodes.index[place],
            )


def _jumps(look: Look, measured: Measured, action: Signal) -> None:
    steps, values = _finite(action.sample), _finite(action.values)
    if len(steps) == 0:
        return
    times = look.thresholds["jump_times"]
    middle = np.median(steps, axis=0)
    by_median = middle + 10 * 1.4826 * np.median(np.abs(steps - middle), axis=0)
    usual = np.maximum(by_median, np.quantile(steps, _USUAL, axis=0))
    reach = np.median(action.high - action.low, axis=0)
    bound = np.maximum(times * usual, _LEAP_OF_RANGE * reach)
    leaps = (action.largest > bound) & (bound > 0)
    for dimension in np.flatnonzero(leaps.any(axis=0)).tolist():
        episodes = np.flatnonzero(leaps[:, dimension])
        common = len(episodes) > max(1, _RARE * len(measured.episode))
        if common or len(np.unique(values[:, dimension])) <= _SWITCH:
            continue
        for place in episodes.tolist():
            look.found(
                "action-jump",
                f"{action.name(dimension)} leaps by {action.largest[place, dimension]:.4g} in one "
                f"frame; steps are usually up to {usual[dimension]:.4g} (from {times:g} times "
                "that on).",
                episode=measured.episode[place],
                frame=action.at[place, dimension],
                feature=action.feature.key,
            )


def _idle_episodes(look: Look, measured: Measured) -> np.ndarray:
    """Report episodes in which nothing moves; return which."""
    signal = measured.signals.get("observation.state") or measured.signals.get("action")
    idle = np.zeros(len(measured.episode), bool)
    if signal is None or len(measured.episode) < 2:
        return idle
    own = signal.high - signal.low
    usual = np.median(own, axis=0)
    share = look.thresholds["idle_reach"]
    if (usual > 0).any():
        idle = np.asarray((own <= share * usual).all(axis=1))
    for place in np.flatnonzero(idle).tolist():
        look.found(
            "episode-idle",
            f"In all its {measured.length[place]} frames, no dimension of {signal.feature.key} "
            f"moves by more than {share:g} of what episodes usually move.",
            episode=measured.episode[place],
            feature=signal.feature.key,
        )
    return idle


def _rests(look: Look, measured: Measured, idle: np.ndarray) -> None:
    assert look.info is not None
    fps, least = look.info.fps, look.thresholds["idle_seconds"]
    for code, end, frames in (
        ("idle-head", "first", measured.head),
        ("idle-tail", "last", measured.tail),
    ):
        for place in np.flatnonzero((frames > 0) & ~idle).tolist():
            if frames[place] >= measured.length[place]:
                continue
            look.found(
                code,
                f"Nothing moves in the {end} {frames[place] / fps:.1f} s, {frames[place]} of its "
                f"{measured.length[place]} frames (from {least:g} s on).",
                episode=measured.episode[place],
            )


def _captures(look: Look, measured: Measured) -> None:
    if measured.capture is None:
        return
    assert look.info is not None
    step, at, back = measured.capture
    most = look.thresholds["capture_gap"]
    frame = 1 / look.info.fps
    for place in np.flatnonzero((step > most * frame) | (back < 0)).tolist():
        backwards = back[place] < 0
        what = (
            f"Capture times run backwards by {-back[place]:.3f} s."
            if backwards
            else f"{step[place]:.3f} s lie between two rows, that is {step[place] / frame:.1f} "
            f"frames (from {most:g} on)."
        )
        where: dict[str, Any] = {} if backwards else {"frame": at[place]}
        look.found("capture-gap", what, episode=measured.episode[place], **where)


def _dropouts(look: Look, measured: Measured) -> None:
    assert look.info is not None
    least = look.thresholds["dropout_seconds"]
    for episode, first, frames in measured.dropouts:
        look.found(
            "teleop-dropout",
            f"The action is the same for {frames / look.info.fps:.1f} s from frame {first} on, and "
            f"then goes on elsewhere (from {least:g} s on).",
            episode=episode,
            frame=first,
            feature="action",
        )


def _follows(look: Look, measured: Measured) -> None:
    """Report how state follows action, as far as it follows at all."""
    assert look.info is not None
    signal = measured.signals.get("observation.state")
    if signal is None or not measured.following:
        return
    lags = [lag for _, one in measured.following if (lag := _lag_of(one)) is not None]
    bound = look.thresholds["state_lag"]
    if len(lags) * 2 >= len(measured.following):
        seconds = float(np.median(lags)) / look.info.fps
        if abs(seconds) > bound:
            look.found(
                "state-lag",
                f"The state is {abs(seconds):.2f} s {'behind' if seconds > 0 else 'ahead of'} the "
                f"action, in the middle of {len(lags)} episodes (from {bound:g} s on).",
                feature=signal.feature.key,
            )
    _offsets(look, measured, signal)


def _offsets(look: Look, measured: Measured, signal: Signal) -> None:
    share = look.thresholds["state_offset"]
    every = [one for _, one in measured.following]
    agreement, offset, spread, reach = (
        np.stack([getattr(one, name) for one in every])
        for name in ("agreement", "offset", "spread", "reach")
    )
    follows = (agreement >= _AGREES) & (reach >= _MOVING * reach.max(axis=1, keepdims=True))
    for dimension in np.flatnonzero(follows.sum(axis=0) * 2 > len(every)).tolist():
        there = follows[:, dimension]
        middle = float(np.median(offset[there, dimension]))
        moves = float(np.median(reach[there, dimension]))
        steady = np.median(spread[there, dimension]) + np.median(
            np.abs(offset[there, dimension] - middle)
        )
        if abs(middle) > share * moves and steady < abs(middle) / 4:
            look.found(
                "state-offset",
                f"{signal.name(dimension)} is {middle:+.4g} off its action all the time, "
                f"{abs(middle) / moves:.0%} of how far it moves (from {share:.0%} on).",
                feature=signal.feature.key,
            )


def _lag_of(one: Following) -> float | None:
    """Return an episode's lag in frames; None where too few joints agree about it."""
    moving = one.reach >= _MOVING * one.reach.max(initial=0)
    follows = moving & (one.agreement >= _AGREES)
    if follows.sum() < 2 or follows.sum() * 2 < moving.sum():
        return None
    return float(np.median(one.lag[follows]))


def _length_facts(look: Look) -> dict[str, Any] | None:
    """Return how many episodes are how long, for the report's plots."""
    if look.episodes is None or len(look.episodes) == 0:
        return None
    length = look.episodes.length
    bins = int(min(_MOST_BINS, length.max() - length.min() + 1))
    counts, edges = np.histogram(length, bins=bins)
    return {
        "episodes": len(length),
        "shortest": int(length.min()),
        "median": float(np.median(length)),
        "longest": int(length.max()),
        "edges": [float(edge) for edge in edges],
        "counts": counts.tolist(),
        "first_episode": int(look.episodes.index.min()),
        "last_episode": int(look.episodes.index.max()),
    }


def _range_facts(measured: Measured, signal: Signal) -> dict[str, Any]:
    """Return each dimension's range, for the report's plots."""
    values = _finite(signal.values)
    marks = np.quantile(values, [0.01, 0.25, 0.5, 0.75, 0.99], axis=0) if len(values) else None
    entries = []
    for dimension in range(signal.low.shape[1]):
        entry: dict[str, Any] = {
            "name": signal.name(dimension)[:60],
            "low": _number(signal.low[:, dimension].min()),
            "high": _number(signal.high[:, dimension].max()),
        }
        if marks is not None:
            entry["quantiles"] = [_number(mark) for mark in marks[:, dimension]]
        entries.append(entry)
    return {"feature": signal.feature.key, "dimensions": entries}


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _finite(sample: np.ndarray) -> np.ndarray:
    """Return the rows in which every number is one."""
    return np.asarray(sample[np.isfinite(sample).all(axis=1)])


def _flat(names: Any) -> Iterator[str]:
    """Yield the names of dimensions, however the recorder nested them."""
    if isinstance(names, dict):
        names = list(names.values())
    if isinstance(names, (list, tuple)):
        for name in names:
            yield from _flat(name)
    elif names is not None:
        yield str(names)
