"""Does each episode have its rows, all of them, in the table that the metadata name."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from demoreel.check.look import Look
from demoreel.check.rows import Portion


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
        self._report_strangers(episode, length, position, file, names)
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

    def _report_strangers(
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
        if self._expected is not None:  # tables that nobody names are findings of their own
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
