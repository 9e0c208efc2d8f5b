"""Fingerprints of episodes, by what they hold and not by where they lie.

Of every column an episode has one number, a hash of its rows; the columns that count or tell time
(index, episode_index, timestamp, ...) are left out, so an episode that was renumbered, moved to
another file or converted to another layout keeps its fingerprint. Numbers are hashed as 32-bit
floats, because some layouts keep no others.

For episodes that are parts of one another there are shingles: hashes of eight rows in a row, over
some dimensions of action and state, rounded. Of large datasets those are kept whose hash falls
below a bound, about four million in all: which ones depends on the rows alone, so the same rows are
kept of every copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from demoreel.check.look import Look
from demoreel.check.motion import CAPTURE_TIME, whole_runs
from demoreel.check.rows import Portion
from demoreel.model.feature import DEFAULT_FEATURES

_SHINGLE = 8  # rows
_LEAST_CHANGES = 4  # between the rows of a shingle; with fewer, it could be from anywhere
_MOST_SHINGLES = 4_000_000
_DIMENSIONS = 8  # of action, and of state, that shingles are made of
_MOVEMENTS = ("action", "observation.state")
_LARGEST_HASH = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Prints:
    """The fingerprints of a dataset's episodes.

    Attributes:
        episode: ``episode_index`` of each.
        length: Rows of each.
        keys: The columns that were hashed.
        hashes: (episodes, columns).
        changes: In how many rows of an episode anything is other than in the row before.
        shingles: Hashes of shingles.
        shingle_of: For each, the place of its episode.
        share: Which share of all shingles is kept.
    """

    episode: np.ndarray
    length: np.ndarray
    keys: tuple[str, ...]
    hashes: np.ndarray
    changes: np.ndarray
    shingles: np.ndarray
    shingle_of: np.ndarray
    share: float

    def combined(self, keys: tuple[str, ...]) -> np.ndarray:
        """Return one hash an episode, over some of the columns."""
        found = self.length.astype(np.uint64)
        for key in keys:
            found = mixed(found * _GOLDEN + self.hashes[:, self.keys.index(key)])
        return found


@dataclass(frozen=True, slots=True)
class _Part:
    episode: np.ndarray
    length: np.ndarray
    hashes: np.ndarray
    changes: np.ndarray
    shingles: np.ndarray
    shingle_of: np.ndarray


class Fingerprints:
    """Takes fingerprints while the rows pass by; see ``rows.RowCheck``.

    Leaves them as ``look.prints``.

    Args:
        look: The dataset.
    """

    def __init__(self, look: Look) -> None:
        self._look = look
        features = look.info.features if look.info is not None else {}
        self._keys = tuple(
            sorted(
                key
                for key, feature in features.items()
                if feature.is_numeric
                and key not in DEFAULT_FEATURES
                and not key.startswith(CAPTURE_TIME)
            )
        )
        rows = int(look.episodes.start[-1]) if look.episodes is not None else 0
        self._share = min(1.0, _MOST_SHINGLES / max(1, rows))

    def take(self, portion: Portion) -> _Part | None:
        """Take the fingerprints of a portion's episodes; about 0.1 us a row of 52 numbers."""
        if len(portion.episode) == 0 or not self._keys:
            return None
        edges = portion.edges
        begins = edges[:-1]
        frame = np.arange(len(portion.episode)) - np.repeat(begins, portion.run_lengths)
        weights = _weights(frame)
        hashes = np.zeros((len(begins), len(self._keys)), np.uint64)
        together = np.zeros(len(frame), np.uint64)
        for place, key in enumerate(self._keys):
            if key in portion.columns:
                rows = row_hashes(_as_floats(portion.columns[key]))
                hashes[:, place] = np.add.reduceat(rows * weights, begins)
                together += rows * odd(place)
        changed = np.zeros(len(frame), np.int64)
        changed[1:] = together[1:] != together[:-1]
        changed[begins] = 0
        shingles, shingle_of = self._shingles(portion)
        return _Part(
            portion.run_episodes.copy(),
            portion.run_lengths,
            mixed(hashes),
            np.add.reduceat(changed, begins),
            shingles,
            shingle_of,
        )

    def _shingles(self, portion: Portion) -> tuple[np.ndarray, np.ndarray]:
        moving = [portion.columns[key] for key in _MOVEMENTS if key in portion.columns]
        if not moving:
            moving = [portion.columns[key] for key in self._keys[:1] if key in portion.columns]
        if not moving or len(portion.episode) < _SHINGLE:
            return np.zeros(0, np.uint64), np.zeros(0, np.int64)
        rows = row_hashes(np.concatenate([_rounded(_as_floats(c)) for c in moving], axis=1))
        changes = np.concatenate([[0], np.cumsum(rows[1:] != rows[:-1])])
        last = len(rows) - _SHINGLE + 1
        hashes = np.zeros(last, np.uint64)
        for step in range(_SHINGLE):
            hashes += rows[step : step + last] * odd(step)
        hashes = mixed(hashes)
        run = np.repeat(np.arange(len(portion.run_lengths)), portion.run_lengths)
        kept = (run[:last] == run[_SHINGLE - 1 :]) & (
            changes[_SHINGLE - 1 :] - changes[:last] >= _LEAST_CHANGES
        )
        kept &= hashes <= largest_kept(self._share)
        return hashes[kept], run[:last][kept].astype(np.int32)

    def finish(self, parts: list[_Part | None]) -> None:
        """Put the fingerprints together; of an episode's runs the first whole one counts."""
        seen = [part for part in parts if part is not None]
        if not seen:
            return
        episode = np.concatenate([part.episode for part in seen])
        length = np.concatenate([part.length for part in seen])
        chosen = whole_runs(self._look, episode, length)
        place_of = np.full(len(episode), -1)
        place_of[chosen] = np.arange(len(chosen))
        before = np.cumsum([0, *(len(part.episode) for part in seen)])
        shingle_of = place_of[
            np.concatenate([p.shingle_of + n for p, n in zip(seen, before[:-1], strict=True)])
        ]
        shingles = np.concatenate([part.shingles for part in seen])
        self._look.prints = Prints(
            episode[chosen],
            length[chosen],
            self._keys,
            np.concatenate([part.hashes for part in seen])[chosen],
            np.concatenate([part.changes for part in seen])[chosen],
            shingles[shingle_of >= 0],
            shingle_of[shingle_of >= 0],
            self._share,
        )


def largest_kept(share: float) -> np.uint64:
    """Return the largest hash of a shingle that is kept, to keep this share of all."""
    return np.uint64(min(int(share * _LARGEST_HASH), _LARGEST_HASH))


def row_hashes(values: np.ndarray) -> np.ndarray:
    """Return a hash of each row of an array of 32-bit floats (rows, numbers)."""
    width = values.shape[1]
    words = values.view(np.uint64) if width % 2 == 0 else values.view(np.uint32).astype(np.uint64)
    return mixed(words @ odd(np.arange(words.shape[1])))


def _as_floats(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values.reshape(len(values), -1), dtype=np.float32)


def _rounded(values: np.ndarray) -> np.ndarray:
    """Return some dimensions, rounded to 12 bits after the first."""
    chosen = np.unique(np.linspace(0, values.shape[1] - 1, _DIMENSIONS).round().astype(int))
    bits = np.ascontiguousarray(values[:, chosen]).view(np.uint32)
    return ((bits + np.uint32(0x400)) & np.uint32(0xFFFFF800)).view(np.float32)


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mixed(numbers: np.ndarray) -> np.ndarray:
    """Return numbers whose every bit depends on every bit of these (splitmix64)."""
    numbers = numbers ^ (numbers >> np.uint64(30))
    numbers *= np.uint64(0xBF58476D1CE4E5B9)
    numbers ^= numbers >> np.uint64(27)
    numbers *= np.uint64(0x94D049BB133111EB)
    numbers ^= numbers >> np.uint64(31)
    return numbers


def odd(place: int | np.ndarray) -> np.ndarray:
    """Return an odd factor for each place, always the same."""
    places = np.atleast_1d(np.asarray(place, np.uint64)) + np.uint64(1)
    return mixed(places * _GOLDEN) | np.uint64(1)


def _weights(frame: np.ndarray) -> np.ndarray:
    """Return ``odd`` of each frame's number; made once for the longest episode."""
    return np.asarray(odd(np.arange(int(frame.max(initial=0)) + 1))[frame])
