"""The episodes of a dataset as columns (a million of them are a few arrays), and its tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np

from demoreel.errors import MetadataError, OutOfRangeError, count
from demoreel.model.problems import Note, Problem, refuse

LONGEST = 1 << 36  # frames of all episodes; more is a mistake, and sums would run over
MISSING = np.iinfo(np.int64).min
"""What stands for a number that a list of episodes lacks, which is a problem of its own."""

_NAMED = 20  # problems of one kind that have a place each


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode.

    Attributes:
        index: Its ``episode_index``.
        length: Frames in it.
        start: Its first frame's position in the dataset.
        stop: One past its last frame's position.
        tasks: The tasks that occur in it.
        data_file: Its table, relative to the dataset's root.
        video_files: Its video per camera, relative to the root.
        extra: Other per-episode metadata, as stored.
    """

    index: int
    length: int
    start: int
    stop: int
    tasks: tuple[str, ...] = ()
    data_file: str | None = None
    video_files: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


def usable_episodes(
    index: np.ndarray, length: np.ndarray, *, file_of: Callable[[int], object], note: Note = refuse
) -> np.ndarray:
    """Return the places of the episodes that can be told apart and read, by ``episode_index``.

    Args:
        index: ``episode_index`` of each, as listed.
        length: Frames of each.
        file_of: Returns the file that lists the episode in a place, for errors.
        note: Takes the problems: episodes that are listed twice, or whose numbers are impossible.
    """

    def noted(code: str, places: np.ndarray, what: Callable[[int], str]) -> None:
        for number, place in enumerate(places[:_NAMED].tolist(), 1):
            times = len(places) - _NAMED + 1 if number == _NAMED else 1
            file, episode = file_of(place), int(index[place])
            error = MetadataError(what(place), file=file, episode=episode)
            note(Problem(code, error, count=times))

    places = np.arange(len(index))
    is_sound = not len(index) or (length.min() > 0 and length.sum(dtype=np.float64) < LONGEST)
    if is_sound and np.array_equal(index, places):
        return places  # as almost everywhere: nothing to note, nothing to sort
    known = (index != MISSING) & (length != MISSING)
    possible = (length > 0) & (length < LONGEST)
    noted(
        "episode-length",
        np.flatnonzero(~possible & (length != MISSING)),
        lambda place: f"An episode's length is not positive, or impossible: {length[place]}.",
    )
    noted(
        "episodes-value-missing",
        np.flatnonzero((index < 0) & (index != MISSING)),
        lambda place: f"An episode_index is negative: {index[place]}.",
    )
    places = np.flatnonzero(known & possible & (index >= 0))
    chosen = places[np.argsort(index[places], kind="stable")]
    ordered = index[chosen]
    again = np.flatnonzero(ordered[1:] == ordered[:-1]) + 1
    noted("episode-twice", chosen[again], lambda _: "Two episodes have the same episode_index.")
    chosen = np.delete(chosen, again)
    too_many = np.cumsum(length[chosen], dtype=np.float64) >= LONGEST
    noted("episode-length", chosen[too_many], lambda _: f"There are more than {LONGEST} frames.")
    return chosen[~too_many]


class Episodes(Sequence[Episode]):
    """All episodes, in the dataset's order.

    Position ``p`` (0..n-1) is where an episode stands here; ``episode_index[p]`` is its own number.
    In a sound dataset the two are equal, but nothing here relies on that.

    Args:
        index: ``episode_index`` of each episode.
        length: Frames of each.
        details: Called with a position when an ``Episode`` is asked for; returns the fields
            that are costly to have for all (tasks, files, extra).
        where: The file they came from, for errors.

    Raises:
        MetadataError: Two episodes share an index, or a length is not positive.
    """

    __slots__ = ("_details", "_order", "_where", "episode_index", "length", "start")

    def __init__(
        self,
        index: np.ndarray,
        length: np.ndarray,
        *,
        details: Callable[[int], Mapping[str, Any]] | None = None,
        where: str = "",
    ) -> None:
        self._where = where
        self.episode_index = np.ascontiguousarray(index, dtype=np.int64)
        self.length = np.ascontiguousarray(length, dtype=np.int64)
        self.start = np.concatenate([[0], np.cumsum(self.length)])
        self._details = details
        order = usable_episodes(self.episode_index, self.length, file_of=lambda _: where)
        is_plain = len(order) == 0 or np.array_equal(self.episode_index, order)
        self._order = None if is_plain else order

    @property
    def total_frames(self) -> int:
        """Frames of all episodes together."""
        return int(self.start[-1])

    def position_of(self, episode: int) -> int:
        """Return where the episode with this ``episode_index`` stands.

        Raises:
            OutOfRangeError: There is no such episode.
        """
        if self._order is None:
            if 0 <= episode < len(self.episode_index):
                return int(episode)
        else:
            place = int(np.searchsorted(self.episode_index, episode, sorter=self._order))
            if place < len(self._order) and self.episode_index[self._order[place]] == episode:
                return int(self._order[place])
        raise OutOfRangeError(
            f"There is no episode {episode}.",
            hint=self._range(),
            file=self._where,
        )

    def _range(self) -> str:
        if not len(self.episode_index):
            return "the dataset has no episodes"
        return f"episodes run from {self.episode_index.min()} to {self.episode_index.max()}"

    def positions_of_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return, for dataset positions of frames, the positions of their episodes."""
        return np.searchsorted(self.start, rows, side="right") - 1

    def __len__(self) -> int:
        return len(self.episode_index)

    @overload
    def __getitem__(self, position: int) -> Episode: ...
    @overload
    def __getitem__(self, position: slice) -> list[Episode]: ...
    def __getitem__(self, position: int | slice) -> Episode | list[Episode]:
        if isinstance(position, slice):
            return [self[place] for place in range(*position.indices(len(self)))]
        place = position + len(self) if position < 0 else position
        if not 0 <= place < len(self):
            raise OutOfRangeError(f"There is no episode at {position}.", hint=self._range())
        details = self._details(place) if self._details else {}
        return Episode(
            index=int(self.episode_index[place]),
            length=int(self.length[place]),
            start=int(self.start[place]),
            stop=int(self.start[place + 1]),
            **details,
        )

    def __iter__(self) -> Iterator[Episode]:
        return (self[place] for place in range(len(self)))

    def __repr__(self) -> str:
        return f"<Episodes: {len(self)}, {self.total_frames} frames>"


class Tasks(Mapping[int, str]):
    """Task texts by ``task_index``.

    Indices need not be contiguous nor in order: a text is found by its index, not by its line.
    """

    __slots__ = ("_by_index", "_by_text")

    def __init__(self, texts: Mapping[int, str]) -> None:
        self._by_index = dict(sorted(texts.items()))
        self._by_text = {text: index for index, text in self._by_index.items()}

    @classmethod
    def of(cls, texts: Sequence[str]) -> Tasks:
        """Number these texts from 0."""
        return cls(dict(enumerate(texts)))

    def __getitem__(self, index: int) -> str:
        try:
            return self._by_index[int(index)]
        except KeyError:
            raise MetadataError(
                f"A row names task_index {index}, but the tasks file has no such task.",
                hint="the tasks file and the tables were not written together",
                known=count(len(self), "task"),
            ) from None

    def get(self, index: int, default: Any = None) -> Any:
        """Return the text, or ``default`` where there is no such task."""
        return self._by_index.get(index, default)

    def texts(self, indices: np.ndarray) -> list[str]:
        """Return the text of each index."""
        return [self[index] for index in indices.tolist()]

    def index_of(self, text: str) -> int:
        """Return the index of a text; KeyError if there is none."""
        return self._by_text[text]

    def __contains__(self, index: object) -> bool:
        return index in self._by_index

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_index)

    def __len__(self) -> int:
        return len(self._by_index)

    def __repr__(self) -> str:
        return f"Tasks({self._by_index!r})"
