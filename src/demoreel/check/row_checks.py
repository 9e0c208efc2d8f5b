"""Checks of rows: is each where it belongs (``RowPlaces``), are its numbers sound (``RowValues``).

Both see all rows in one pass (``rows.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from demoreel.check.look import EACH, WHOLE, Look
from demoreel.check.quantiles import Quantiles
from demoreel.check.recorded_stats import (
    EpisodeStats,
    Rounding,
    read_episode_stats,
    rows_summed,
)
from demoreel.check.row_tasks import check_named_tasks, named_tasks
from demoreel.check.rows import Portion
from demoreel.model import DEFAULT_FEATURES, Stats, combine_stats

_CLOCK = 1e6  # seconds: no episode is so long that its first row is that late
_FLOAT_SLACK = 2.0**-22  # of a float32 timestamp
_SHOWN = 8
_KINDS = ("min", "max", "mean", "std")


class _Runs(NamedTuple):
    """Rows side by side of one episode each, in one table."""

    file: str
    episodes: np.ndarray
    lengths: np.ndarray


class RowPlaces:
    """Counts the rows of every episode, by table.

    Attributes:
        claimed: Tables that no episode names, but that hold rows of one all the same.
    """

    def __init__(self, look: Look) -> None:
        self._look = look
        self._expected: dict[str, np.ndarray] | None = None
        self.claimed: set[str] = set()

    def expect(self, named: dict[str, np.ndarray]) -> None:
        """Say which table should hold which episodes, by position; else one holds them all."""
        self._expected = named

    def take(self, portion: Portion) -> _Runs:
        """Return the portion's runs of rows."""
        return _Runs(portion.file, portion.run_episodes, portion.run_lengths)

    def finish(self, parts: list[_Runs]) -> None:
        """Compare the rows that were seen with those that the metadata name."""
        look, episodes = self._look, self._look.episodes
        names = list(dict.fromkeys(part.file for part in parts))
        numbers = {name: number for number, name in enumerate(names)}
        episode = np.concatenate([np.zeros(0, np.int64), *(part.episodes for part in parts)])
        length = np.concatenate([np.zeros(0, np.int64), *(part.lengths for part in parts)])
        held = np.array([numbers[part.file] for part in parts], np.int64)
        file = np.repeat(held, [len(part.episodes) for part in parts])
        look.facts["rows"] = int(length.sum())
        if episodes is None or len(episodes) == 0:
            return
        position = episodes.positions_of(episode)
        self._report_unknown(episode, length, position, file, names)
        wanted = self._wanted(numbers, len(episodes))
        known = position >= 0
        right = known & (wanted[position] == file)
        in_place = np.bincount(position[right], length[right], len(episodes)).astype(np.int64)
        elsewhere = known & ~right
        astray = np.bincount(position[elsewhere], length[elsewhere], len(episodes)).astype(np.int64)
        self._report_counts(in_place, astray, wanted, position, file, names)
        self._report_order(episode, file, names, position)

    def _wanted(self, numbers: dict[str, int], count: int) -> np.ndarray:
        """Return for each episode the number of its table; -1 if that was not read."""
        if self._expected is None:  # what cannot be read is a finding of its own
            return np.full(count, 0 if numbers else -1, np.int64)
        wanted = np.full(count, -1, np.int64)
        for name, positions in self._expected.items():
            wanted[positions] = numbers.get(name, -1)
        return wanted

    def _report_unknown(
        self,
        episode: np.ndarray,
        length: np.ndarray,
        position: np.ndarray,
        file: np.ndarray,
        names: list[str],
    ) -> None:
        assert self._look.episodes is not None
        if not self._look.episodes.is_whole:
            return  # the metadata of those rows may be what could not be read
        strange = np.flatnonzero(position < 0)
        if self._expected is not None:  # tables that no episode names are other findings
            named = np.array([name in self._expected for name in names], dtype=bool)
            strange = strange[named[file[strange]]]
        for number in np.unique(episode[strange])[:50].tolist():
            runs = strange[episode[strange] == number]
            self._look.found(
                "rows-orphan",
                f"{length[runs].sum()} rows are of episode {number}, which the metadata lack.",
                episode=number,
                file=names[file[runs[0]]],
            )

    def _report_counts(
        self,
        in_place: np.ndarray,
        astray: np.ndarray,
        wanted: np.ndarray,
        position: np.ndarray,
        file: np.ndarray,
        names: list[str],
    ) -> None:
        look, episodes = self._look, self._look.episodes
        assert episodes is not None
        elsewhere = np.flatnonzero(astray > 0)
        if len(elsewhere):
            self._report_elsewhere(elsewhere, in_place, astray, wanted, position, file, names)
        # A table that is missing or unreadable is a finding of its own.
        wrong = np.flatnonzero((in_place != episodes.length) & (astray == 0) & (wanted >= 0))
        for place in wrong.tolist():
            there, length = int(in_place[place]), int(episodes.length[place])
            where = {"episode": episodes.index[place], "file": names[wanted[place]]}
            if there == 0 and look.is_lance:
                look.found("lance-meta-behind", f"None of its {length} rows is there.", **where)
            else:
                code = "rows-missing" if there < length else "rows-extra"
                look.found(code, f"It has {there} rows; the metadata say {length}.", **where)

    def _report_elsewhere(
        self,
        elsewhere: np.ndarray,
        in_place: np.ndarray,
        astray: np.ndarray,
        wanted: np.ndarray,
        position: np.ndarray,
        file: np.ndarray,
        names: list[str],
    ) -> None:
        """Report episodes with rows in a table that is not theirs."""
        look, episodes = self._look, self._look.episodes
        assert episodes is not None
        strays = np.flatnonzero((position >= 0) & (wanted[position] != file))
        self.claimed.update(names[number] for number in np.unique(file[strays]).tolist())
        if None in look.misplaced:
            return
        _, first = np.unique(position[strays], return_index=True)
        for place, run in zip(elsewhere.tolist(), strays[first].tolist(), strict=True):
            is_whole = in_place[place] >= episodes.length[place]
            look.found(
                "rows-extra" if is_whole else "rows-elsewhere",
                f"{astray[place]} of its rows lie in {names[int(file[run])]}.",
                episode=episodes.index[place],
                file=names[wanted[place]] if wanted[place] >= 0 else None,
            )

    def _report_order(
        self, episode: np.ndarray, file: np.ndarray, names: list[str], position: np.ndarray
    ) -> None:
        same = np.diff(file) == 0
        backwards = np.flatnonzero(same & (np.diff(episode) < 0))
        if len(backwards):
            at = int(backwards[0]) + 1
            self._look.found(
                "rows-order",
                f"Rows of episode {episode[at]} stand behind rows of episode {episode[at - 1]}.",
                count=len(backwards),
                episode=episode[at],
                file=names[int(file[at])],
            )


class _PortionValues(NamedTuple):
    """What a portion's numbers are.

    Attributes:
        stats: Their statistics.
        sample: Some rows of features that have recorded quantiles.
        tasks: Pairs of ``episode_index`` and ``task_index``.
    """

    stats: Stats
    sample: dict[str, np.ndarray]
    tasks: np.ndarray


class RowValues:
    """Checks that rows count up, numbers are finite, and the recorded statistics are theirs."""

    def __init__(self, look: Look) -> None:
        self._look = look
        tasks = look.tasks
        self._tasks = np.unique(np.array(tasks.indices, np.int64)) if tasks is not None else None
        self._each: dict[str, EpisodeStats] = read_episode_stats(look)
        self._quantiles = Quantiles(look)

    def take(self, portion: Portion) -> _PortionValues:
        """Check a portion's rows, and return the statistics of its columns."""
        known = self._known_runs(portion)
        number = self._check_frames(portion, known)
        self._check_index(portion, number)
        self._check_timestamps(portion, number, known)
        self._check_tasks(portion)
        found = {}
        for key, values in portion.columns.items():
            if len(values):
                found[key] = self._stats_of(portion, key, values.reshape(len(values), -1))
        return _PortionValues(found, self._quantiles.sampled(portion), named_tasks(portion))

    def finish(self, values: list[_PortionValues]) -> None:
        """Compare the statistics of all rows, and their tasks, with the recorded ones."""
        look = self._look
        if not values or look.info is None:
            return
        check_named_tasks(look, [part.tasks for part in values])
        self._quantiles.check([part.sample for part in values])
        parts = [part.stats for part in values]
        with np.errstate(invalid="ignore", over="ignore"):
            every = combine_stats(parts, quantiles=True) or {}
        frames = int(look.episodes.start[-1]) if look.episodes is not None else -1
        for key, data in every.items():
            _report_constant(look, key, data)
            # Where rows are missing, the statistics are of others, which is a finding already.
            if data["count"][0] == frames and key not in DEFAULT_FEATURES:
                self._compare(key, data)

    def _known_runs(self, portion: Portion) -> np.ndarray:
        """Return for each run whether it is of a known episode; others are findings as they are."""
        episodes = self._look.episodes
        if episodes is None or not episodes.is_whole:
            return np.ones(len(portion.run_lengths), dtype=bool)
        return episodes.positions_of(portion.run_episodes) >= 0

    def _check_frames(self, portion: Portion, known: np.ndarray) -> np.ndarray:
        """Check that ``frame_index`` counts from 0; return the frame of each row."""
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
            backwards = bool(falls[begin:stop].any())
            at = int(np.flatnonzero((falls if backwards else off)[begin:stop])[0])
            said = f"Row {at} is at {seconds[begin + at]:.6f} s"
            if abs(seconds[begin]) > _CLOCK:
                what = f"It begins at {seconds[begin]:.0f} s, by another clock, and not at 0."
                backwards = False
            elif backwards:
                what = f"{said}, the row before at {seconds[begin + at - 1]:.6f} s."
            else:
                what = f"{said}; at {info.fps:g} fps it is {expected[begin + at]:.6f} s."
            self._look.found(
                "timestamp-order" if backwards else "timestamp-off-grid",
                what,
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
            for episode in np.unique(portion.episode[rows]).tolist():
                own = int((portion.episode[rows] == episode).sum())
                self._look.found(
                    "task-index-unknown",
                    f"There is no task {number}; {own:,} of its rows name it.",
                    episode=episode,
                    file=portion.file,
                )

    def _stats_of(self, portion: Portion, key: str, values: np.ndarray) -> dict[str, np.ndarray]:
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
        return {
            "count": np.array([len(values)]),
            "min": low.min(axis=0),
            "max": high.max(axis=0),
            "mean": mean,
            "std": np.sqrt(spread / len(values)),
        }

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

    def _compare(self, key: str, found: Mapping[str, np.ndarray]) -> None:
        """Compare a feature's recorded statistics with those of all rows."""
        stats = self._look.stats
        recorded = stats.get(key) if stats is not None else None
        if recorded is None or not all(kind in recorded for kind in _KINDS):
            return
        assert self._look.info is not None
        shape = self._look.info.features[key].shape
        data = _like_recorded(found, recorded["min"].size, shape)
        if data is None or not all(np.isfinite(part).all() for part in data.values()):
            return
        said = {kind: recorded[kind].astype(np.float64).reshape(-1) for kind in _KINDS}
        if any(said[kind].shape != data[kind].shape for kind in _KINDS):
            return
        self._report_difference(key, said, data, float(found["count"][0]))

    def _report_difference(
        self, key: str, said: dict[str, np.ndarray], data: dict[str, np.ndarray], frames: float
    ) -> None:
        look, limits = self._look, self._look.thresholds
        where: dict[str, Any] = {
            "feature": key,
            "file": EACH if look.is_v2 and EACH in look.files else WHOLE,
        }
        assert look.info is not None
        data = {kind: values.astype(np.float64) for kind, values in data.items()}
        rows = rows_summed(look, look.info.features[key])
        rounding = Rounding.of(look.info.features[key], data["min"], data["max"], rows)
        slack = limits["range_slack"] * (data["max"] - data["min"]) + rounding.extreme
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
        # Some divide by one less than the number of rows.
        share = 2 * limits["std_slack"] + 1 / max(1.0, frames - 1)
        variance, recorded = data["std"] ** 2, said["std"] ** 2
        fits = {
            "min": np.abs(data["min"] - said["min"]) <= slack,
            "max": np.abs(data["max"] - said["max"]) <= slack,
            "mean": np.abs(data["mean"] - said["mean"])
            <= limits["mean_slack"] * data["std"] + rounding.mean,
            "std": np.abs(variance - recorded) <= share * variance + rounding.variance,
        }
        for kind, is_right in fits.items():
            off = np.flatnonzero(~is_right)
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


def _like_recorded(
    found: Mapping[str, np.ndarray], size: int, shape: tuple[int, ...]
) -> dict[str, np.ndarray] | None:
    """Return statistics in the form of the recorded ones: of all places, or of the last axis."""
    data = {kind: found[kind] for kind in _KINDS}
    if size == len(data["min"]):
        return data
    if not shape or size != shape[-1]:
        return None
    low, high, mean, std = (part.reshape(-1, size) for part in data.values())
    whole = mean.mean(axis=0)
    variance = (std**2 + (mean - whole) ** 2).mean(axis=0)
    return {"min": low.min(axis=0), "max": high.max(axis=0), "mean": whole, "std": variance**0.5}


def _report_constant(look: Look, key: str, data: Mapping[str, np.ndarray]) -> None:
    if not key.startswith(("action", "observation")) or data["count"][0] < 2:
        return  # of what is not normalised, it means nothing
    still = np.flatnonzero(data["min"] == data["max"])
    if len(still) == 0:
        return
    said = ", ".join(map(str, still[:_SHOWN].tolist())) + (", ..." if len(still) > _SHOWN else "")
    value = data["min"][still[0]]
    look.found(
        "constant-dimension",
        f"{len(still)} of {len(data['min'])} dimensions of {key} never change ({said}); "
        f"the first is always {value:.6g}.",
        feature=key,
    )
