"""What the movements of episodes look like in numbers; nothing here judges them.

A signal is kept as (dimensions, rows): along rows, numpy takes a difference or a minimum of every
episode at a tenth of the price.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MOST_DIMENSIONS = 64
_LONGEST_COMPARED = 2000  # frames of an episode that state and action are compared over


def as_signal(values: np.ndarray) -> np.ndarray:
    """Return a column as (dimensions, rows; float32), with at most 64 dimensions."""
    flat = values.reshape(len(values), -1)[:, :MOST_DIMENSIONS]
    return np.ascontiguousarray(flat.T, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Steps:
    """How a signal moves from row to row.

    Attributes:
        low: Smallest value of each episode (episodes, dimensions).
        high: Largest value of each.
        largest: Largest step of each.
        at: The frame that it leads to.
        sample: Some steps (rows, dimensions), and
        values: the values they lead to.
        repeats: For each row, whether it is the same as the one before, in the same episode.
    """

    low: np.ndarray
    high: np.ndarray
    largest: np.ndarray
    at: np.ndarray
    sample: np.ndarray
    values: np.ndarray
    repeats: np.ndarray


def measure_steps(signal: np.ndarray, edges: np.ndarray, sampled: slice) -> Steps:
    """Measure a signal.

    Args:
        signal: (dimensions, rows).
        edges: Where each episode begins, and the number of rows.
        sampled: The rows to keep as a sample.
    """
    begins = edges[:-1]
    steps = np.empty_like(signal)
    np.subtract(signal[:, 1:], signal[:, :-1], out=steps[:, 1:])
    steps[:, begins] = 0
    np.abs(steps, out=steps)
    repeats = np.asarray(~steps.any(axis=0))
    repeats[begins] = False
    parts = zip(begins.tolist(), edges[1:].tolist(), strict=True)
    at = np.stack([steps[:, first:stop].argmax(axis=1) for first, stop in parts])
    return Steps(
        low=np.minimum.reduceat(signal, begins, axis=1).T,
        high=np.maximum.reduceat(signal, begins, axis=1).T,
        largest=steps[np.arange(len(steps)), begins[:, None] + at],
        at=at.astype(np.int32),
        sample=steps[:, sampled].T.copy(),
        values=signal[:, sampled].T.copy(),
        repeats=repeats,
    )


def runs(marked: np.ndarray, least: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where runs of at least so many marked places begin, and where they stop."""
    padded = np.concatenate([[False], marked, [False]])
    borders = np.flatnonzero(padded[1:] != padded[:-1])
    first, stop = borders[::2], borders[1::2]
    long = stop - first >= max(least, 1)
    return first[long], stop[long]


def longest_runs(repeats: np.ndarray, edges: np.ndarray, least: int) -> list[tuple[int, int, int]]:
    """Return (episode, first row, stop row) of the longest run of repeats of each episode.

    Args:
        repeats: For each row, whether it repeats the one before.
        edges: Where each episode begins, and the number of rows.
        least: Runs of fewer repeats are passed over.
    """
    first, stop = runs(repeats, least)
    episode = np.searchsorted(edges, first, side="right") - 1
    found: dict[int, tuple[int, int, int]] = {}
    for number, begin, end in zip(episode.tolist(), first.tolist(), stop.tolist(), strict=True):
        known = found.get(number)
        if known is None or end - begin > known[2] - known[1]:
            found[number] = (number, begin, end)
    return list(found.values())


def still_frames(
    signal: np.ndarray, edges: np.ndarray, reach: np.ndarray, least: int, *, at_end: bool
) -> np.ndarray:
    """Return for how many frames each episode stays where it begins, or ends.

    Args:
        signal: (dimensions, rows).
        edges: Where each episode begins, and the number of rows.
        reach: How far each episode may stray in each dimension (episodes, dimensions).
        least: Episodes that are still for fewer frames have 0.
        at_end: Whether the end is looked at, and not the beginning.
    """
    begins, lengths = edges[:-1], np.diff(edges)
    found = np.zeros(len(begins), np.int64)
    anchor = edges[1:] - 1 if at_end else begins
    ahead = np.minimum(least - 1, lengths - 1)
    probe = anchor - ahead if at_end else anchor + ahead
    # Most episodes are elsewhere by then: one look at a single row rules them out.
    away = np.abs(signal[:, probe] - signal[:, anchor]).T
    near = (away <= reach).all(axis=1)
    for episode in np.flatnonzero(near & (lengths >= least)).tolist():
        part = signal[:, edges[episode] : edges[episode + 1]]
        part = part[:, ::-1] if at_end else part
        far = (np.abs(part - part[:, :1]) > reach[episode][:, None]).any(axis=0)
        still = int(np.argmax(far)) if far.any() else part.shape[1]
        found[episode] = still if still >= least else 0
    return found


@dataclass(frozen=True, slots=True)
class Following:
    """How one episode's state follows its action, per dimension.

    Attributes:
        agreement: Correlation of their steps, at the lag where it is largest.
        lag: That lag in frames; negative where the state is ahead.
        offset: Median of state minus action, at that lag.
        spread: Median distance of state minus action from that.
        reach: How far the action moves.
    """

    agreement: np.ndarray
    lag: np.ndarray
    offset: np.ndarray
    spread: np.ndarray
    reach: np.ndarray


def measure_following(state: np.ndarray, action: np.ndarray, most_lag: int) -> Following | None:
    """Compare an episode's state with its action (dimensions, rows); None if it is too short."""
    state, action = state[:, :_LONGEST_COMPARED], action[:, :_LONGEST_COMPARED]
    most_lag = min(most_lag, state.shape[1] // 4)
    if most_lag < 1:
        return None
    moved, told = _centred(np.diff(state)), _centred(np.diff(action))
    lags = np.arange(-most_lag, most_lag + 1)
    agreement = np.stack([_correlation(*_shifted(moved, told, lag)) for lag in lags.tolist()])
    best = np.argmax(agreement, axis=0)
    dimensions = np.arange(len(best))
    offset, spread = np.empty(len(best)), np.empty(len(best))
    for dimension, lag in enumerate(lags[best].tolist()):
        later, earlier = _shifted(state[[dimension]], action[[dimension]], lag)
        difference = later[0] - earlier[0]
        offset[dimension] = np.median(difference)
        spread[dimension] = np.median(np.abs(difference - offset[dimension]))
    return Following(
        agreement[best, dimensions], lags[best], offset, spread, np.ptp(action, axis=1)
    )


def _centred(steps: np.ndarray) -> np.ndarray:
    return np.asarray(steps - steps.mean(axis=1, keepdims=True), dtype=np.float64)


def _shifted(state: np.ndarray, action: np.ndarray, lag: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the parts that face each other when the state is ``lag`` frames behind."""
    if lag >= 0:
        return state[:, lag:], action[:, : action.shape[1] - lag]
    return state[:, :lag], action[:, -lag:]


def _correlation(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    together = (one * other).sum(axis=1)
    alone = np.sqrt((one * one).sum(axis=1) * (other * other).sum(axis=1))
    return np.asarray(np.divide(together, alone, out=np.zeros_like(together), where=alone > 0))
