"""Fingerprints of episodes, by what they hold and not by where they lie.

Of every column an episode has one number, a hash of its rows; the columns that count or tell time
(index, episode_index, timestamp, ...) are left out, so an episode that was renumbered, moved to
another file or converted to another layout keeps its fingerprint. Numbers are hashed as 32-bit
floats, because some layouts keep no others.

For episodes that are parts of one another there are shingles: hashes of eight rows in a row, over
some dimensions of action and state, rounded. Of large datasets those are kept whose hash falls
below a bound, about four million in all: which ones depends on the rows alone, so the same rows are
kept of every copy.

Videos are compared by the sizes of their packets and, where those agree, by the bytes of three of
them: cutting and converting copy packets as they are. Frames that were encoded again are only
compared by a deep check, which has decoded them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from demoreel.check.clips import located_videos
from demoreel.check.look import Look
from demoreel.check.motion import whole_runs
from demoreel.check.rows import Portion
from demoreel.errors import DemoreelError, refuse_shortage
from demoreel.media.video import Video
from demoreel.model.clocks import clock_of
from demoreel.model.feature import DEFAULT_FEATURES

_SHINGLE = 8  # rows
_LEAST_CHANGES = 4  # between the rows of a shingle; with fewer, it could be from anywhere
_MOST_SHINGLES = 4_000_000
_DIMENSIONS = 8  # of action, and of state, that shingles are made of
_MOVEMENTS = ("action", "observation.state")
_LARGEST_HASH = (1 << 64) - 1

_LEAST_FRAMES = 8  # of a video, to be compared by its packets' sizes
_LEAST_SIZES = 4  # of its packets; with fewer, nothing moves in it, and many videos are alike
_SAMPLED_PACKETS = (0.0, 0.5, 1.0)
_LARGEST_SAMPLE = 1 << 20

LEAST_ROWS_CHANGING = 4
"""With fewer rows that differ from the one before, episodes are equal because nothing moves."""

LEAST_SHARED_ROWS = 16
"""With fewer rows in common, episodes are no near duplicates."""


@dataclass(frozen=True, slots=True)
class Fingerprints:
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
class _PortionHashes:
    episode: np.ndarray
    length: np.ndarray
    hashes: np.ndarray
    changes: np.ndarray
    shingles: np.ndarray
    shingle_of: np.ndarray


class FingerprintRows:
    """Takes fingerprints while the rows pass by; see ``rows.RowCheck``.

    Leaves them as ``look.fingerprints``.
    """

    def __init__(self, look: Look) -> None:
        self._look = look
        features = look.info.features if look.info is not None else {}
        self._keys = tuple(
            sorted(
                key
                for key, feature in features.items()
                if feature.is_numeric and key not in DEFAULT_FEATURES and clock_of(key) is None
            )
        )
        rows = int(look.episodes.start[-1]) if look.episodes is not None else 0
        self._share = min(1.0, _MOST_SHINGLES / max(1, rows))

    def take(self, portion: Portion) -> _PortionHashes | None:
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
        return _PortionHashes(
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

    def finish(self, parts: list[_PortionHashes | None]) -> None:
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
        self._look.fingerprints = Fingerprints(
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


@dataclass(frozen=True, slots=True)
class EpisodePackets:
    """An episode's frames, by the sizes of their packets."""

    place: int
    size_hash: int
    video: Video
    numbers: range

    def sampled(self) -> bytes | None:
        """Return the bytes of three packets; None where they cannot be read."""
        index = self.video.index
        found = []
        for share in _SAMPLED_PACKETS:
            packet = int(index.packet_of[self.numbers[round(share * (len(self.numbers) - 1))]])
            size = min(int(index.size[packet]), _LARGEST_SAMPLE)
            try:
                found.append(self.video.file.read(int(index.offset[packet]), size))
            except (DemoreelError, OSError) as error:
                refuse_shortage(error)
                return None
        return b"".join(found)


def episode_packets(look: Look, camera: str) -> Iterator[EpisodePackets]:
    """Yield the episodes whose rows are known and whose frames are in videos."""
    assert look.episodes is not None
    assert look.fingerprints is not None
    place_of = {episode: n for n, episode in enumerate(look.fingerprints.episode.tolist())}
    for located in located_videos(look, camera):
        index = located.video.index
        sizes = mixed(index.size[index.packet_of].astype(np.uint64) + np.uint64(1))
        for position, first in zip(located.positions.tolist(), located.first.tolist(), strict=True):
            frames = int(look.episodes.length[position])
            place = place_of.get(int(look.episodes.index[position]))
            if first < 0 or place is None or frames < _LEAST_FRAMES:
                continue
            numbers = range(first, first + located.step * frames, located.step)
            part = sizes[first : numbers.stop : located.step]
            if len(part) == frames and len(np.unique(part)) >= _LEAST_SIZES:
                total = (part * odd(np.arange(frames))).sum(dtype=np.uint64)
                yield EpisodePackets(place, int(total), located.video, numbers)


def same_packets(packets: Iterable[EpisodePackets]) -> Iterator[tuple[int, int]]:
    """Yield (first, other) places of episodes whose packets are the same."""
    every = list(packets)
    for group in equal_groups(np.array([one.size_hash for one in every], np.uint64)):
        firsts: dict[bytes, int] = {}
        for number in group.tolist():
            sample = every[number].sampled()
            if sample is None:
                continue
            first = firsts.setdefault(sample, number)
            if first != number:
                pair = sorted((every[first].place, every[number].place))
                yield pair[0], pair[1]


def appearances_of(look: Look, camera: str, offset: int = 0) -> list[tuple[int, int, np.ndarray]]:
    """Return (place, rows, appearance) of the episodes that a deep check saw."""
    fingerprints = look.fingerprints
    assert fingerprints is not None
    seen = look.appearances.get(camera, {})
    return [
        (place + offset, int(fingerprints.length[place]), seen[episode])
        for place, episode in enumerate(fingerprints.episode.tolist())
        if episode in seen
    ]


def alike_pairs(
    seen: list[tuple[int, int, np.ndarray]], most_apart: float
) -> Iterator[tuple[int, int]]:
    """Yield pairs of places that look the same; only episodes of the same length can be."""
    groups: dict[int, list[tuple[int, np.ndarray]]] = {}
    for place, rows, appearance in seen:
        groups.setdefault(rows, []).append((place, appearance))
    for group in groups.values():
        if len(group) > 1:
            signatures = np.stack([appearance for _, appearance in group]).astype(np.float32)
            for one, other in alike_in_order(signatures, most_apart=most_apart):
                yield group[one][0], group[other][0]


def equal_groups(hashes: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the places of each hash that is there more than once, ascending.

    Cost: one sort.
    """
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    edges = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1], [True]]))
    for group in np.flatnonzero(np.diff(edges) > 1).tolist():
        yield order[edges[group] : edges[group + 1]]


def overlapping(
    shingles: np.ndarray, owner: np.ndarray, owners: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return pairs of owners that share shingles, and how much of the smaller one they share.

    A shingle that many own pairs each with the first and the next of them: the work grows with the
    shingles, not with their square, and copies still meet at the first.

    Returns:
        The first of each pair, the second (the larger number), and ``min(1, shared / smaller)``.
    """
    order = np.lexsort((owner, shingles))
    shingles, owner = shingles[order], owner[order].astype(np.int64)
    if len(shingles):
        fresh = np.concatenate(
            [[True], (shingles[1:] != shingles[:-1]) | (owner[1:] != owner[:-1])]
        )
        shingles, owner = shingles[fresh], owner[fresh]
    sizes = np.bincount(owner, minlength=owners)
    begins = np.concatenate([[True], shingles[1:] != shingles[:-1]]) if len(shingles) else None
    if begins is None or begins.all():
        nothing = np.zeros(0, np.int64)
        return nothing, nothing, np.zeros(0)
    first = owner[np.maximum.accumulate(np.where(begins, np.arange(len(owner)), 0))]
    later = np.flatnonzero(~begins)
    keys = [first[later] * owners + owner[later]]
    before = owner[later - 1]
    chained = before != first[later]
    keys.append(before[chained] * owners + owner[later][chained])
    pair, shared = np.unique(np.concatenate(keys), return_counts=True)
    one, other = pair // owners, pair % owners
    return one, other, shared / np.minimum(sizes[one], sizes[other])


def alike_in_order(
    signatures: np.ndarray, *, most_apart: float, neighbours: int = 32
) -> Iterator[tuple[int, int]]:
    """Yield pairs of rows in which no number is further apart than ``most_apart``.

    Rows are sorted by their mean, and each is compared with those after it whose mean may still
    fit, at most ``neighbours`` of them: among more that are so alike, some pairs are missed.
    """
    means = signatures.mean(axis=1)
    order = np.argsort(means, kind="stable")
    stop = np.searchsorted(means[order], means[order] + most_apart, side="right")
    for place, end in enumerate(np.minimum(stop, np.arange(len(order)) + 1 + neighbours).tolist()):
        others = order[place + 1 : end]
        apart = np.abs(signatures[others] - signatures[order[place]]).max(axis=1, initial=0)
        for other in others[apart <= most_apart].tolist():
            yield min(int(order[place]), other), max(int(order[place]), other)
