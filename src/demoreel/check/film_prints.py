"""Fingerprints of films: what their packets are, and what a deep check saw of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from demoreel.check.fingerprints import Prints, mixed, odd
from demoreel.check.footage import footage_of
from demoreel.check.look import Look
from demoreel.check.matching import alike_in_order, equal_groups
from demoreel.errors import DemoreelError
from demoreel.media.video import Video

_LEAST_FRAMES = 8  # of a video, to be compared by its packets' sizes
_LEAST_SIZES = 4  # of its packets; with fewer, nothing moves in it, and many a film is like it
_SAMPLED_PACKETS = (0.0, 0.5, 1.0)
_LARGEST_SAMPLE = 1 << 20


@dataclass(frozen=True, slots=True)
class Filmed:
    """An episode's pictures, by the sizes of their packets."""

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
            except (DemoreelError, OSError):
                return None
        return b"".join(found)


def filmed_episodes(look: Look, prints: Prints, camera: str) -> Iterator[Filmed]:
    """Yield the episodes whose rows are known and whose pictures are in videos."""
    assert look.episodes is not None
    place_of = dict(zip(prints.episode.tolist(), range(len(prints.episode)), strict=True))
    for footage in footage_of(look, camera):
        index = footage.video.index
        sizes = mixed(index.size[index.packet_of].astype(np.uint64) + np.uint64(1))
        for position, first in zip(footage.positions.tolist(), footage.first.tolist(), strict=True):
            frames = int(look.episodes.length[position])
            place = place_of.get(int(look.episodes.index[position]))
            if first < 0 or place is None or frames < _LEAST_FRAMES:
                continue
            numbers = range(first, first + footage.step * frames, footage.step)
            part = sizes[first : numbers.stop : footage.step]
            if len(part) == frames and len(np.unique(part)) >= _LEAST_SIZES:
                total = (part * odd(np.arange(frames))).sum(dtype=np.uint64)
                yield Filmed(place, int(total), footage.video, numbers)


def same_packets(filmed: Iterator[Filmed] | Sequence[Filmed]) -> Iterator[tuple[int, int]]:
    """Yield (first, other) places of episodes whose packets are the same."""
    every = list(filmed)
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
    prints = look.prints
    assert prints is not None
    seen = look.appearances.get(camera, {})
    return [
        (place + offset, int(prints.length[place]), seen[episode])
        for place, episode in enumerate(prints.episode.tolist())
        if episode in seen
    ]


def alike_pairs(
    seen: list[tuple[int, int, np.ndarray]], most_apart: float
) -> Iterator[tuple[int, int]]:
    """Yield pairs of places that look the same; only films of the same length can be the same."""
    groups: dict[int, list[tuple[int, np.ndarray]]] = {}
    for place, rows, appearance in seen:
        groups.setdefault(rows, []).append((place, appearance))
    for group in groups.values():
        if len(group) > 1:
            signatures = np.stack([appearance for _, appearance in group]).astype(np.float32)
            for one, other in alike_in_order(signatures, most_apart=most_apart):
                yield group[one][0], group[other][0]
