"""Checks of the numbers in rows: do they count up, are they finite, are the statistics theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from demoreel.check.episode_stats import EpisodeStats, read_episode_stats
from demoreel.check.look import Look
from demoreel.check.look_stats import EACH, WHOLE
from demoreel.check.rows import Portion
from demoreel.model import DEFAULT_FEATURES

_FLOAT_SLACK = 2.0**-22  # of a float32 timestamp
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Moments:
    """Statistics of a column's values, by place in a frame's value, flattened.

    Attributes:
        count: Frames.
        low: Minima.
        high: Maxima.
        mean: Means.
        spread: Sums of squared differences from the mean.
    """

    count: int
    low: np.ndarray
    high: np.ndarray
    mean: np.ndarray
    spread: np.ndarray


class RowValues:
    """Looks at every number once."""

    def __init__(self, look: Look) -> None:
        self._look = look
        tasks = look.tasks
        self._tasks = np.unique(np.array(tasks.indices, np.int64)) if tasks is not None else None
        self._each: dict[str, EpisodeStats] = read_episode_stats(look)

    def take(self, portion: Portion) -> dict[str, Moments]:
        """Check a portion's rows, and return the statistics of its columns."""
        known = self._known_runs(portion)
        number = self._check_frames(portion, known)
        self._check_index(portion, number)
        self._check_timestamps(portion, number, known)
        self._check_tasks(portion)
        found = {}
        for key, values in portion.columns.items():
            if len(values):
                found[key] = self._moments(portion, key, values.reshape(len(values), -1))
        return found

    def finish(self, parts: list[dict[str, Moments]]) -> None:
        """Compare the statistics of all rows with the recorded ones."""
        look = self._look
        if not parts or look.info is None:
            return
        keys = [key for key in parts[0] if all(key in part for part in parts)]
        every = {key: _merged([part[key] for part in parts]) for key in keys}
        frames = int(look.episodes.start[-1]) if look.episodes is not None else -1
        for key, moments in every.items():
            _report_constant(look, key, moments)
            # Where rows are missing, the statistics are of others, which is a finding already.
            if moments.count == frames and key not in DEFAULT_FEATURES:
                self._compare(key, moments)

    def _known_runs(self, portion: Portion) -> np.ndarray:
        """Return for each run whether it is of a known episode; others are findings as they are."""
        episodes = self._look.episodes
        if episodes is None or not episodes.is_whole:
            return np.ones(len(portion.run_lengths), dtype=bool)
        return episodes.positions_of(portion.run_episodes) >= 0

    def _check_frames(self, portion: Portion, known: np.ndarray) -> np.ndarray:
        """Check that ``frame_index`` counts from 0; return which frame each row is taken for."""
        frame = portion.columns.get("frame_index")
        number = _row_numbers(portion)
        if frame is None:
            return number
        if portion.continues and len(frame):
            number[: portion.edges[1]] += frame[0]
        for run in _runs_where(portion, frame != number):
            begin, stop = portion.edges[run], portion.edges[run + 1]
            there, expected = frame[begin:stop], number[begin:stop]
            at = int(np.flatnonzero(there != expected)[0])
            shuffled = np.array_equal(np.sort(there), expected)
            if known[run]:
                self._look.found(
                    "rows-order" if shuffled else "frame-index-jump",
                    f"Row {at} of the episode has the frame_index {there[at]}.",
                    episode=portion.episode[begin],
                    file=portion.file,
                    frame=at,
                )
            if shuffled:
                number[begin:stop] = there
        return number

    def _check_index(self, portion: Portion, number: np.ndarray) -> None:
        """``index`` counts the rows of the dataset, as the metadata number them."""
        index, episodes = portion.columns.get("index"), self._look.episodes
        if index is None or episodes is None or len(episodes) == 0 or portion.continues:
            return
        position = np.repeat(episodes.positions_of(portion.run_episodes), portion.run_lengths)
        wrong = (position >= 0) & (index != episodes.start[position] + number)
        said = episodes.columns.get("dataset_from_index")
        if said is not None and wrong.any():
            wrong &= index != said[position] + number
        for run in _runs_where(portion, wrong):
            begin = int(portion.edges[run])
            at = int(np.flatnonzero(wrong[begin : portion.edges[run + 1]])[0])
            expected = episodes.start[position[begin]] + number[begin + at]
            self._look.found(
                "index-jump",
                f"Row {at} of the episode has the index {index[begin + at]}; it is row {expected} "
                "of the dataset.",
                episode=portion.episode[begin],
                file=portion.file,
                frame=at,
            )

    def _check_timestamps(self, portion: Portion, number: np.ndarray, known: np.ndarray) -> None:
        seconds, info = portion.columns.get("timestamp"), self._look.info
        if seconds is None or info is None or portion.continues or seconds.ndim != 1:
            return
        seconds = seconds.astype(np.float64)
        steps = np.diff(seconds)
        inside = np.ones(len(steps), dtype=bool)
        inside[portion.edges[1:-1] - 1] = False
        falls = np.zeros(len(seconds), dtype=bool)
        falls[1:] = inside & ~(steps > 0) & (np.diff(number) > 0)
        expected = number / info.fps
        slack = self._look.thresholds["timestamp_slack_s"] + _FLOAT_SLACK * np.abs(expected)
        off = ~(np.abs(seconds - expected) <= slack)
        for run in _runs_where(portion, off | falls):
            if not known[run]:
                continue
            begin, stop = int(portion.edges[run]), int(portion.edges[run + 1])
            backwards = falls[begin:stop].any()
            at = int(np.flatnonzero((falls if backwards else off)[begin:stop])[0])
            said = f"Row {at} is at {seconds[begin + at]:.6f} s"
            self._look.found(
                "timestamp-order" if backwards else "timestamp-off-grid",
                f"{said}, the row before at {seconds[begin + at - 1]:.6f} s."
                if backwards
                else f"{said}; at {info.fps:g} fps it is {expected[begin + at]:.6f} s.",
                episode=portion.episode[begin],
                file=portion.file,
                frame=at,
            )

    def _check_tasks(self, portion: Portion) -> None:
        task = portion.columns.get("task_index")
        if task is None or self._tasks is None:
            return
        unknown = np.setdiff1d(np.unique(task), self._tasks)
        for number in unknown[:_SHOWN].tolist():
            rows = np.flatnonzero(task == number)
            self._look.found(
                "task-index-unknown",
                f"{len(rows)} rows have the task_index {number}; there is no such task.",
                count=len(rows),
                episode=portion.episode[rows[0]],
                file=portion.file,
            )

    def _moments(self, portion: Portion, key: str, values: np.ndarray) -> Moments:
        starts = portion.edges[:-1]
        numbers = values.view(np.uint8) if values.dtype == np.bool_ else values
        low, high = np.minimum.reduceat(numbers, starts), np.maximum.reduceat(numbers, starts)
        wide = numbers.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            mean = wide.mean(axis=0)
            wide -= mean
            sums = np.add.reduceat(wide, starts)
            spread = np.einsum("ij,ij->j", wide, wide)
            each = sums / portion.run_lengths[:, None] + mean
        if numbers.dtype.kind == "f" and not (np.isfinite(low).all() and np.isfinite(high).all()):
            self._report_not_finite(portion, key, numbers)
        elif key in self._each and not portion.continues:
            self._each[key].compare(self._look, portion, low, high, each)
        return Moments(len(values), low.min(axis=0), high.max(axis=0), mean, spread)

    def _report_not_finite(self, portion: Portion, key: str, values: np.ndarray) -> None:
        for code, mask, what in (
            ("not-a-number", np.isnan(values), "NaN"),
            ("infinite", np.isinf(values), "infinite"),
        ):
            rows = np.flatnonzero(mask.any(axis=1))
            for run in _runs_where(portion, mask.any(axis=1)):
                begin, stop = int(portion.edges[run]), int(portion.edges[run + 1])
                inside = rows[(rows >= begin) & (rows < stop)]
                dimension = int(np.flatnonzero(mask[inside[0]])[0])
                self._look.found(
                    code,
                    f"{int(mask[begin:stop].sum())} numbers of {key} are {what}, the first in "
                    f"dimension {dimension}.",
                    episode=portion.episode[begin],
                    feature=key,
                    file=portion.file,
                    frame=inside[0] - begin,
                )

    def _compare(self, key: str, moments: Moments) -> None:
        """Compare a feature's recorded statistics with those of all rows."""
        stats = self._look.stats
        recorded = stats.get(key) if stats is not None else None
        kinds = ("min", "max", "mean", "std")
        if recorded is None or not all(kind in recorded for kind in kinds):
            return
        assert self._look.info is not None
        shape = self._look.info.features[key].shape
        data = _like_recorded(moments, recorded["min"].size, shape)
        if data is None or not all(np.isfinite(part).all() for part in data.values()):
            return
        said = {kind: recorded[kind].astype(np.float64).reshape(-1) for kind in kinds}
        if any(said[kind].shape != data[kind].shape for kind in kinds):
            return
        self._report_difference(key, said, data)

    def _report_difference(
        self, key: str, said: dict[str, np.ndarray], data: dict[str, np.ndarray]
    ) -> None:
        look, limits = self._look, self._look.thresholds
        where: dict[str, Any] = {
            "feature": key,
            "file": EACH if look.is_v2 and EACH in look.files else WHOLE,
        }
        size = np.maximum(np.abs(data["min"]), np.abs(data["max"]))
        slack = limits["range_slack"] * (data["max"] - data["min"]) + 1e-6 * size + 1e-9
        outside = (data["min"] < said["min"] - slack) | (data["max"] > said["max"] + slack)
        if outside.any():
            at = int(np.flatnonzero(outside)[0])
            look.found(
                "outside-range",
                f"Dimension {at} of {key} runs from {data['min'][at]:.6g} to "
                f"{data['max'][at]:.6g}; recorded are {said['min'][at]:.6g} and "
                f"{said['max'][at]:.6g}.",
                **where,
            )
            return
        limit = {
            "min": slack,
            "max": slack,
            "mean": limits["mean_slack"] * data["std"] + slack,
            "std": limits["std_slack"] * data["std"] + slack,
        }
        for kind, most in limit.items():
            off = np.flatnonzero(~(np.abs(data[kind] - said[kind]) <= most))
            if len(off):
                at = int(off[0])
                look.found(
                    "stats-differ",
                    f"The {kind} of dimension {at} of {key} is {data[kind][at]:.6g}; recorded is "
                    f"{said[kind][at]:.6g}.",
                    **where,
                )
                return


def _row_numbers(portion: Portion) -> np.ndarray:
    """Return for each row which row of its run it is."""
    starts = np.repeat(portion.edges[:-1], portion.run_lengths)
    return np.asarray(np.arange(len(portion.episode)) - starts)


def _runs_where(portion: Portion, wrong: np.ndarray) -> list[int]:
    """Return the runs in which any row is wrong."""
    if not wrong.any():
        return []
    rows = np.flatnonzero(wrong)
    runs: list[int] = np.unique(np.searchsorted(portion.edges, rows, side="right") - 1).tolist()
    return runs


def _merged(parts: list[Moments]) -> Moments:
    """Return the statistics of all parts together."""
    counts = np.array([part.count for part in parts], np.float64)
    means = np.stack([part.mean for part in parts])
    with np.errstate(invalid="ignore", over="ignore"):
        mean = (means * counts[:, None]).sum(axis=0) / counts.sum()
        between = (((means - mean) ** 2) * counts[:, None]).sum(axis=0)
    return Moments(
        int(counts.sum()),
        np.stack([part.low for part in parts]).min(axis=0),
        np.stack([part.high for part in parts]).max(axis=0),
        mean,
        np.stack([part.spread for part in parts]).sum(axis=0) + between,
    )


def _like_recorded(
    moments: Moments, size: int, shape: tuple[int, ...]
) -> dict[str, np.ndarray] | None:
    """Return statistics in the form of the recorded ones: of all places, or of the last axis."""
    low, high = moments.low.astype(np.float64), moments.high.astype(np.float64)
    mean, variance = moments.mean, moments.spread / max(1, moments.count)
    if size != len(low):
        if not shape or size != shape[-1]:
            return None
        rows = [part.reshape(-1, size) for part in (low, high, mean, variance)]
        whole = rows[2].mean(axis=0)
        variance = (rows[3] + (rows[2] - whole) ** 2).mean(axis=0)
        low, high, mean = rows[0].min(axis=0), rows[1].max(axis=0), whole
    return {"min": low, "max": high, "mean": mean, "std": np.sqrt(np.maximum(variance, 0))}


def _report_constant(look: Look, key: str, moments: Moments) -> None:
    if key in DEFAULT_FEATURES or moments.count < 2:
        return
    still = np.flatnonzero(moments.low == moments.high)
    if len(still) == 0:
        return
    said = ", ".join(map(str, still[:_SHOWN].tolist())) + (", ..." if len(still) > _SHOWN else "")
    value: Any = moments.low[still[0]]
    look.found(
        "constant-dimension",
        f"{len(still)} of {len(moments.low)} dimensions of {key} never change ({said}); "
        f"the first is always {value:.6g}.",
        feature=key,
    )
