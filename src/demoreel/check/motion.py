"""Motion: what the movements show of how they were recorded. Hints, never errors.

Everything is measured while the rows pass by, an episode at a time, and judged at the end against
the dataset's own distribution (``motion_judge.py``).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from demoreel.check.look import Look
from demoreel.check.motion_judge import Measured, Signal, judge
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
from demoreel.model import Feature

ACTION, STATE = "action", "observation.state"
CAPTURE_TIME = "capture_time_ns"
"""The column in which demoreel's recorder notes when rows were captured."""

_ROWS_AT_ONCE = 4096
_SAMPLED = 100_000  # rows
_COMPARED = 64  # episodes whose state is compared with their action
_SETTLING = 0.3  # seconds that an arm may take to arrive where it was told to be
_OF_RANGE = 0.15  # of an episode's range; less than that is no movement to speak of
_HELD_BY_NATURE = 0.3  # of the rows; then actions are commands that stay until the next one
_MOVING = 0.1  # of the range of the dimension that moves most
_NO_STEP = np.zeros(0, np.int64)


@dataclass(slots=True)
class _Part:
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
    """Looks at movements while the rows pass by; see ``rows.RowCheck``.

    Args:
        look: The dataset.
    """

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

    def take(self, portion: Portion) -> list[_Part]:
        """Measure a portion's movements; about 0.2 us a row of two signals of 26."""
        with np.errstate(all="ignore"):  # NaN and infinity are somebody else's findings
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

    def _measured(self, portion: Portion) -> _Part:
        edges = portion.edges
        signals = {
            key: as_signal(portion.columns[key]) for key in self._features if key in portion.columns
        }
        sampled = self._sampled(portion)
        steps = {key: measure_steps(signal, edges, sampled) for key, signal in signals.items()}
        part = _Part(
            portion.run_episodes.copy(), portion.run_lengths, steps,
            *self._still(signals, steps, edges),
        )  # fmt: skip
        captured = portion.columns.get(CAPTURE_TIME)
        if captured is not None and captured.ndim == 1 and captured.dtype.kind in "iu":
            part.capture_step, part.capture_at, part.capture_back = _capture(captured, edges)
        if self._are_alike and len(signals) == 2:
            part.following = self._follow(signals, portion)
        if ACTION in signals:
            part.dropouts = self._dropouts(signals, steps, edges)
        for measured in steps.values():
            object.__setattr__(measured, "repeats", _NO_STEP)  # as long as the rows: let go of it
        return part

    def _sampled(self, portion: Portion) -> slice:
        """Return which rows to keep: spread evenly, and as many however large the dataset is."""
        chance = zlib.crc32(f"{portion.file} {portion.first_row}".encode())
        return slice(chance % self._every, None, self._every)

    def _still(
        self, signals: dict[str, np.ndarray], steps: dict[str, Steps], edges: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return how many frames each episode rests at its beginning, and at its end."""
        key = STATE if STATE in signals else ACTION
        least = _frames(self._look.thresholds["idle_seconds"], self._fps)
        if key not in signals:
            nothing = np.zeros(len(edges) - 1, np.int64)
            return nothing, nothing
        reach = (steps[key].high - steps[key].low) * self._look.thresholds["idle_reach"]
        head = still_frames(signals[key], edges, reach, least, at_end=False)
        return head, still_frames(signals[key], edges, reach, least, at_end=True)

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

    def finish(self, parts: list[list[_Part]]) -> None:
        """Judge what was measured."""
        seen = [part for several in parts for part in several]
        with np.errstate(all="ignore"):
            judge(self._look, self._gathered(seen))

    def _gathered(self, parts: list[_Part]) -> Measured:
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
