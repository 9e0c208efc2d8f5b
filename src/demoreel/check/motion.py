"""Motion: what the movements show of how they were recorded. Hints, never errors.

Everything is measured while the rows pass by, an episode at a time (``motion_measure.py``), and
judged at the end against the dataset's own distribution.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from demoreel.check.look import Look
from demoreel.check.motion_measure import (
    Following,
    Steps,
    as_signal,
    longest_runs,
    measure_following,
    measure_steps,
    still_frames,
)
from demoreel.check.rows import Portion
from demoreel.layouts.capture_times import CaptureTimes, agrees, checks_of, stated_times
from demoreel.model import Feature
from demoreel.model.clocks import CAPTURE_TIME, ROWS
from demoreel.model.feature import flat_names

ACTION, STATE = "action", "observation.state"

_ROWS_AT_ONCE = 4096
_SAMPLED = 100_000  # rows
_COMPARED = 64  # episodes whose state is compared with their action
_SETTLING = 0.3  # seconds until an arm reaches its target
_OF_RANGE = 0.15  # of an episode's range; less than that is no movement to speak of
_HELD_BY_NATURE = 0.3  # of the rows; then actions are commands that stay until the next one
_MOVING = 0.1  # of the range of the dimension that moves most
_NO_STEP = np.zeros(0, np.int64)

_SWITCH = 16  # distinct values; a dimension with fewer is a switch, and switches leap
_USUAL = 0.995  # quantile of steps that is still ordinary
_RARE = 0.1  # of the episodes; what more of them do is how this data is
_FEW_EPISODES = 8  # with fewer, no length is out of the ordinary
_LEAP_OF_RANGE = 0.2  # of the range that an episode usually covers
_AGREES = 0.6  # correlation from which a state is said to follow its action
_MOST_BINS = 40


@dataclass(slots=True)
class _PortionMotion:
    """What a portion's rows show."""

    episode: np.ndarray
    length: np.ndarray
    steps: dict[str, Steps]
    head: np.ndarray
    tail: np.ndarray
    capture_step: np.ndarray = field(default_factory=lambda: _NO_STEP)
    capture_at: np.ndarray = field(default_factory=lambda: _NO_STEP)
    capture_back: np.ndarray = field(default_factory=lambda: _NO_STEP)
    following: list[tuple[int, Following]] = field(default_factory=list)
    dropouts: list[tuple[int, int, int]] = field(default_factory=list)


class Motion:
    """Looks at movements while the rows pass by; see ``rows.RowCheck``."""

    def __init__(self, look: Look) -> None:
        self._look = look
        features = look.info.features if look.info is not None else {}
        self._features = {
            key: feature
            for key in (ACTION, STATE)
            if (feature := features.get(key)) is not None and feature.is_numeric
        }
        self._fps = look.info.fps if look.info is not None else 1.0
        rows = int(look.episodes.start[-1]) if look.episodes is not None else 1 << 30
        self._every = max(1, rows // _SAMPLED)
        self._are_alike = _are_alike(self._features)
        self._compared = _some_of(look) if self._are_alike else frozenset()
        self._times = {} if CAPTURE_TIME in features else _times_beside(look)

    def take(self, portion: Portion) -> list[_PortionMotion]:
        """Measure a portion's movements; about 0.2 us a row of two signals of 26."""
        with np.errstate(all="ignore"):  # NaN and infinity are findings of other checks
            return [self._measured(part) for part in self._in_parts(portion)]

    def _in_parts(self, portion: Portion) -> Iterator[Portion]:
        """Yield a portion some episodes at a time: what fits a core's cache is turned quickly."""
        begin = 0
        for stop in portion.edges[1:].tolist():
            if stop - begin >= _ROWS_AT_ONCE or stop == len(portion.episode):
                wanted = (key for key in (*self._features, CAPTURE_TIME) if key in portion.columns)
                columns = {key: portion.columns[key][begin:stop] for key in wanted}
                yield Portion(
                    portion.file, portion.first_row + begin, columns, portion.episode[begin:stop]
                )
                begin = stop

    def _measured(self, portion: Portion) -> _PortionMotion:
        edges = portion.edges
        signals = {
            key: as_signal(portion.columns[key]) for key in self._features if key in portion.columns
        }
        sampled = self._sampled(portion)
        steps = {key: measure_steps(signal, edges, sampled) for key, signal in signals.items()}
        part = _PortionMotion(
            portion.run_episodes.copy(), portion.run_lengths, steps,
            *self._still(signals, steps, edges),
        )  # fmt: skip
        captured = portion.columns.get(CAPTURE_TIME)
        if captured is None and self._times:
            captured = self._captured(portion)
        if captured is not None and captured.ndim == 1 and captured.dtype.kind in "iu":
            part.capture_step, part.capture_at, part.capture_back = _capture(captured, edges)
        if self._are_alike and len(signals) == 2:
            part.following = self._follow(signals, portion)
        if ACTION in signals:
            part.dropouts = self._dropouts(signals, steps, edges)
        for measured in steps.values():
            object.__setattr__(measured, "repeats", _NO_STEP)  # as long as the rows: let go of it
        return part

    def _captured(self, portion: Portion) -> np.ndarray:
        """Return the capture times that lie beside the data; 0 in episodes that have none."""
        captured = np.zeros(len(portion.episode), np.int64)
        for place, episode in enumerate(portion.run_episodes.tolist()):
            rows = slice(portion.edges[place], portion.edges[place + 1])
            stated = self._times.get(episode)
            if stated is None or len(stated.times) != len(captured[rows]):
                continue
            own = {key: portion.columns[key][rows] for key in portion.columns}
            if agrees(stated, checks_of(self._features, own)):
                captured[rows] = stated.times
        return captured

    def _sampled(self, portion: Portion) -> slice:
        """Return which rows to keep: spread evenly, and as many however large the dataset is."""
        chance = zlib.crc32(f"{portion.file} {portion.first_row}".encode())
        return slice(chance % self._every, None, self._every)

    def _still(
        self, signals: dict[str, np.ndarray], steps: dict[str, Steps], edges: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return how many frames each episode rests at its beginning, and at its end."""
        least = _frames(self._look.thresholds["idle_seconds"], self._fps)
        head = tail = np.diff(edges) if signals else np.zeros(len(edges) - 1, np.int64)
        for key, signal in signals.items():  # nothing moves where neither of them does
            reach = (steps[key].high - steps[key].low) * self._look.thresholds["idle_reach"]
            head = np.minimum(head, still_frames(signal, edges, reach, least, at_end=False))
            tail = np.minimum(tail, still_frames(signal, edges, reach, least, at_end=True))
        return head, tail

    def _follow(
        self, signals: dict[str, np.ndarray], portion: Portion
    ) -> list[tuple[int, Following]]:
        found = []
        most = _frames(2 * self._look.thresholds["state_lag"] + 0.5, self._fps)
        for place, episode in enumerate(portion.run_episodes.tolist()):
            if episode in self._compared:
                part = slice(portion.edges[place], portion.edges[place + 1])
                one = measure_following(signals[STATE][:, part], signals[ACTION][:, part], most)
                if one is not None:
                    found.append((episode, one))
        return found

    def _dropouts(
        self, signals: dict[str, np.ndarray], steps: dict[str, Steps], edges: np.ndarray
    ) -> list[tuple[int, int, int]]:
        """Return (run, first frame, frames) where an action was lost in the midst of an episode."""
        repeats = steps[ACTION].repeats
        found = []
        for run, first, stop in longest_runs(
            repeats, edges, _frames(self._look.thresholds["dropout_seconds"], self._fps)
        ):
            begin, end = int(edges[run]), int(edges[run + 1])
            others = int(repeats[begin:end].sum()) - (stop - first)
            if first - begin < 2 or stop >= end:
                continue  # heads and tails are idle, not lost
            if others > _HELD_BY_NATURE * (end - begin - (stop - first)):
                continue
            reach = steps[ACTION].high[run] - steps[ACTION].low[run]
            moving = reach > _MOVING * reach.max(initial=0)
            if self._leaps(signals[ACTION], steps[ACTION], run, begin, stop, moving) or (
                self._are_alike
                and STATE in signals
                and self._drifts(signals[STATE], steps[STATE], run, first, stop, moving)
            ):
                found.append((run, first - begin, stop - first))
        return found

    def _leaps(
        self, action: np.ndarray, steps: Steps, run: int, begin: int, stop: int, moving: np.ndarray
    ) -> bool:
        """Whether the action is somewhere else when it comes back."""
        leap = np.abs(action[:, stop] - action[:, stop - 1])
        usual = np.quantile(np.abs(np.diff(action[:, begin:stop])), 0.95, axis=1)
        far = leap > _OF_RANGE * (steps.high[run] - steps.low[run])
        return bool((far & moving & (leap > 3 * usual)).any())

    def _drifts(
        self, state: np.ndarray, steps: Steps, run: int, first: int, stop: int, moving: np.ndarray
    ) -> bool:
        """Whether the robot moves on, although it has had the time to arrive."""
        settled = first + _frames(_SETTLING, self._fps)
        if settled >= stop - 1:
            return False
        way = np.abs(state[:, stop - 1] - state[:, settled])
        far = way > _OF_RANGE * (steps.high[run] - steps.low[run])
        return bool((far & moving).any())

    def finish(self, parts: list[list[_PortionMotion]]) -> None:
        """Judge what was measured."""
        seen = [part for several in parts for part in several]
        with np.errstate(all="ignore"):
            judge(self._look, self._gathered(seen))

    def _gathered(self, parts: list[_PortionMotion]) -> Measured:
        """Put the portions together; of an episode that comes in several runs, the whole one."""
        episode = _joined([part.episode for part in parts])
        length = _joined([part.length for part in parts])
        chosen = whole_runs(self._look, episode, length)
        signals = {}
        for key, feature in self._features.items():
            have = [part.steps[key] for part in parts if key in part.steps]
            if have and len(have) == len(parts):
                names = ("low", "high", "largest", "at", "sample", "values")
                all_of = {n: np.concatenate([getattr(s, n) for s in have]) for n in names}
                rows = {name: all_of.pop(name) for name in ("sample", "values")}
                each = {name: values[chosen] for name, values in all_of.items()}
                signals[key] = Signal(feature, **each, **rows)
        timed = all(len(part.capture_step) for part in parts) and bool(parts)
        captured = ("capture_step", "capture_at", "capture_back")
        known = set(episode[chosen].tolist())
        return Measured(
            episode=episode[chosen],
            length=length[chosen],
            signals=signals,
            head=_joined([part.head for part in parts])[chosen],
            tail=_joined([part.tail for part in parts])[chosen],
            capture=tuple(_joined([getattr(p, n) for p in parts])[chosen] for n in captured)
            if timed
            else None,
            following=[pair for part in parts for pair in part.following if pair[0] in known],
            dropouts=[
                (int(part.episode[run]), first, frames)
                for part in parts
                for run, first, frames in part.dropouts
                if int(part.episode[run]) in known
            ],
        )


def _frames(seconds: float, fps: float) -> int:
    return max(1, round(min(seconds * fps, 1e9)))


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays) if arrays else _NO_STEP


def _are_alike(features: dict[str, Feature]) -> bool:
    """Whether state and action are the same joints."""
    if len(features) < 2:
        return False
    action, state = features[ACTION], features[STATE]
    named = action.names is not None and state.names is not None
    return action.shape == state.shape and (not named or action.names == state.names)


def _some_of(look: Look) -> frozenset[int]:
    """Return the episodes whose state is compared with their action, evenly spread."""
    if look.episodes is None or len(look.episodes) == 0:
        return frozenset()
    places = np.linspace(0, len(look.episodes) - 1, _COMPARED).round().astype(int)
    return frozenset(look.episodes.index[places].tolist())


def _times_beside(look: Look) -> dict[int, CaptureTimes]:
    """Return the capture times that lie beside the data: of no more rows than there are."""
    if look.episodes is None:
        return {}
    lengths = dict(zip(look.episodes.index.tolist(), look.episodes.length.tolist(), strict=True))
    found: dict[int, CaptureTimes] = {}
    for stated in stated_times(look.root / "meta"):
        fits = lengths.get(stated.episode) == len(stated.times)
        if stated.clock == ROWS and fits:
            found.setdefault(stated.episode, stated)
    return found


def _capture(captured: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return each episode's largest step of capture time, where, and its smallest (seconds)."""
    steps = np.zeros(len(captured))
    steps[1:] = np.diff(captured.astype(np.int64)) / 1e9
    steps[edges[:-1]] = 0
    parts = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    at = np.array([int(steps[first:stop].argmax()) for first, stop in parts])
    return steps[edges[:-1] + at], at, np.minimum.reduceat(steps, edges[:-1])


def whole_runs(look: Look, episode: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Return the first run of each listed episode that has as many rows as the list says."""
    if look.episodes is not None and len(episode):
        positions = look.episodes.positions_of(episode)
        listed = np.where(positions >= 0, look.episodes.length[positions], -1)
        fits = np.flatnonzero(listed == length)
    else:
        fits = np.arange(len(episode))
    _, first = np.unique(episode[fits], return_index=True)
    return fits[np.sort(first)]


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
        names = flat_names(self.feature.names)
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
                f"{measured.length[place]} frames (reported from {least:g} s on).",
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
