"""Which part of a mixture a sample comes from, and which of the part's samples it is.

The sequence of parts is Tijdeman's solution of the chairman assignment problem: of all parts that
are behind by at least 1 / (2P - 2) of a sample, the one whose deadline comes first. Over any first
n steps, every one of P parts has been drawn within 1 - 1 / (2P - 2) of n times its probability; no
sequence can do better in general. It is computed in whole numbers, from probabilities alone.

All ranks draw from the same part in the same step, and take neighbouring places of its walk. So the
bound holds in every rank, and a step costs all ranks the same.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from demoreel.errors import ArgumentError
from demoreel.read.order import FrameOrder, frames_of_orders
from demoreel.read.part import Part

Weights = Literal["length", "sqrt", "equal"] | Sequence[float]

_SEGMENT = 4096  # steps that are computed together: some milliseconds
_SEGMENTS_KEPT = 64
_FINEST = 1 << 40  # probabilities are multiples of one in so many
_COMPUTED = 1 << 20  # of those that are computed, the largest weight


class Interleave:
    """An endless sequence of parts, each as often as its weight says.

    Cost: about 2 µs a step, once; from the nearest step before it that is known. What is known is
    every 4,096th step that was passed, where a cycle of all weights begins, and what was given.

    Args:
        weights: How often each part is drawn, relative to the others; whole numbers.
        step: A step that is known.
        drawn: How often each part was drawn before it.
    """

    def __init__(
        self, weights: Sequence[int], *, step: int = 0, drawn: Sequence[int] | None = None
    ) -> None:
        shared = math.gcd(*weights)
        self.weights = tuple(weight // shared for weight in weights)
        self.cycle = sum(self.weights)
        """Steps after which every part was drawn exactly as often as its weight."""
        self._active = [part for part, weight in enumerate(self.weights) if weight]
        self._known = [0]
        self._drawn = {0: (0,) * len(self.weights)}
        self._segments: OrderedDict[int, np.ndarray] = OrderedDict()
        if drawn is not None:
            cycles, place = divmod(step, self.cycle)
            self._learn(
                place,
                tuple(n - cycles * w for n, w in zip(drawn, self.weights, strict=True)),
            )

    def drawn(self, step: int) -> list[int]:
        """Return how often each part is drawn before a step."""
        cycles, place = divmod(step, self.cycle)
        begin, parts = self._segment(place)
        within = np.bincount(parts[: place - begin], minlength=len(self.weights))
        return [
            before + int(more) + cycles * weight
            for before, more, weight in zip(self._drawn[begin], within, self.weights, strict=True)
        ]

    def at(self, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the part that each step draws from, and how often it was drawn before."""
        parts = np.empty(len(steps), np.int64)
        before = np.empty(len(steps), np.int64)
        cycles, places = np.divmod(steps, self.cycle)
        order = np.argsort(places, kind="stable")
        at = 0
        while at < len(order):
            begin, segment = self._segment(int(places[order[at]]))
            stop = int(np.searchsorted(places[order], begin + len(segment)))
            chosen = order[at:stop]
            parts[chosen] = segment[places[chosen] - begin]
            before[chosen] = _earlier(segment)[places[chosen] - begin]
            before[chosen] += np.array(self._drawn[begin], np.int64)[parts[chosen]]
            at = stop
        before += cycles * np.array(self.weights, np.int64)[parts]
        return parts, before

    def _segment(self, place: int) -> tuple[int, np.ndarray]:
        """Return the segment with a place of the cycle: where it begins, and its parts."""
        begin = self._known[bisect_right(self._known, place) - 1]
        while True:
            parts = self._segments.get(begin)
            if parts is None:
                parts = self._computed(begin)
            self._segments.move_to_end(begin)
            if place < begin + len(parts):
                return begin, parts
            begin += len(parts)

    def _computed(self, begin: int) -> np.ndarray:
        end = min((begin // _SEGMENT + 1) * _SEGMENT, self.cycle)
        following = bisect_right(self._known, begin)
        if following < len(self._known):
            end = min(end, self._known[following])
        parts = self._simulated(begin, end)
        self._segments[begin] = parts
        while len(self._segments) > _SEGMENTS_KEPT:
            self._segments.popitem(last=False)
        if end < self.cycle:
            within = np.bincount(parts, minlength=len(self.weights)).tolist()
            drawn = zip(self._drawn[begin], within, strict=True)
            self._learn(end, tuple(before + more for before, more in drawn))
        return parts

    def _learn(self, place: int, drawn: tuple[int, ...]) -> None:
        if place not in self._drawn:
            insort(self._known, place)
            self._drawn[place] = drawn

    def _simulated(self, begin: int, end: int) -> np.ndarray:
        """Return the parts of the steps from ``begin`` to ``end``."""
        if len(self._active) == 1:
            return np.full(end - begin, self._active[0], np.int32)
        total, share = self.cycle, 2 * len(self._active) - 2
        drawn = list(self._drawn[begin])

        def release(part: int) -> int:
            """Return the first step, from 1, that finds the part behind by 1 / share."""
            return -(-(share * drawn[part] + 1) * total // (share * self.weights[part]))

        def deadline(part: int) -> float:
            return (share * (drawn[part] + 1) - 1) * total / (share * self.weights[part])

        waiting = [(release(part), part) for part in self._active]
        heapq.heapify(waiting)
        ready: list[tuple[float, int]] = []
        found = np.empty(end - begin, np.int32)
        for step in range(begin + 1, end + 1):
            while waiting and waiting[0][0] <= step:
                part = heapq.heappop(waiting)[1]
                heapq.heappush(ready, (deadline(part), part))
            part = heapq.heappop(ready)[1]
            found[step - begin - 1] = part
            drawn[part] += 1
            heapq.heappush(waiting, (release(part), part))
        return found


def _earlier(parts: np.ndarray) -> np.ndarray:
    """Return for each place how often its part occurs at earlier places."""
    order = np.argsort(parts, kind="stable")
    ordered = parts[order]
    first = np.flatnonzero(np.diff(ordered, prepend=-1))
    starts = np.repeat(first, np.diff(np.append(first, len(ordered))))
    earlier = np.empty(len(parts), np.int64)
    earlier[order] = np.arange(len(parts)) - starts
    return earlier


@dataclass(frozen=True, slots=True)
class MixturePosition:
    """A place in a mixture's order, from which any number of ranks can go on.

    Attributes:
        step: Samples that every rank has been given.
        drawn: How often each part was drawn in these steps.
        taken: Samples of each part that all ranks together have been given.
    """

    step: int
    drawn: tuple[int, ...]
    taken: tuple[int, ...]


class MixtureOrder:
    """Which sample of which part comes at each step of a rank.

    Every part is walked in an order of its own, a new one in each of its epochs: all of its samples
    come once, then all of them again. Ranks take neighbouring places of the walk in every step.

    Args:
        sizes: Samples of each part.
        weights: How often each part is drawn, relative to the others.
        seed: A whole number.
        rank: Which of the ranks.
        world_size: How many there are.
        begin: Where it begins; the steps before are not known then. None is the very first step.
        shuffle: Whether parts are walked in a random order, or as their samples lie.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        weights: Sequence[int],
        *,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        begin: MixturePosition | None = None,
        shuffle: bool = True,
    ) -> None:
        none = (0,) * len(sizes)
        self.sizes = np.array(sizes, np.int64)
        self.begin = begin or MixturePosition(0, none, none)
        self._interleave = Interleave(weights, step=self.begin.step, drawn=self.begin.drawn)
        self._seed, self._rank, self._world_size = seed, rank, world_size
        self._shuffle = shuffle

    def at(self, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the part and the part's sample of each step of this rank."""
        parts, drawn = self._interleave.at(steps)
        since = drawn - np.array(self.begin.drawn)[parts]
        walked = np.array(self.begin.taken)[parts] + since * self._world_size + self._rank
        epochs, places = np.divmod(walked, self.sizes[parts])
        walks = list(zip(parts.tolist(), epochs.tolist(), strict=True))
        numbers = {walk: number for number, walk in enumerate(dict.fromkeys(walks))}
        which = np.array([numbers[walk] for walk in walks], np.intp)
        if not numbers:
            return parts, places
        return parts, frames_of_orders([self._walk(*walk) for walk in numbers], which, places)

    def position(self, step: int) -> MixturePosition:
        """Return where all ranks stand when each of them has been given so many samples."""
        drawn = self._interleave.drawn(step)
        taken = (
            before + (now - then) * self._world_size
            for before, now, then in zip(self.begin.taken, drawn, self.begin.drawn, strict=True)
        )
        return MixturePosition(step, tuple(drawn), tuple(taken))

    def _walk(self, part: int, epoch: int) -> FrameOrder:
        text = f"demoreel mixture 1: seed {self._seed}, part {part}"
        seed = int.from_bytes(hashlib.shake_256(text.encode()).digest(7))
        return FrameOrder(int(self.sizes[part]), seed, epoch, self._shuffle)


def refuse_mixed_kinds(
    parts: Sequence[Part], weights: Weights | None, temperature: float | None
) -> None:
    """Refuse parts whose share is said in several ways, or not for all of them."""
    kinds = {
        "probability=": [p.probability is not None for p in parts],
        "repeat=": [p.repeat is not None for p in parts],
        "samples=": [p.samples is not None for p in parts],
        "weights=": [weights is not None],
        "temperature=": [temperature is not None],
    }
    used = {kind: given for kind, given in kinds.items() if any(given)}
    if len(used) > 1:
        raise ArgumentError(
            f"How often parts are drawn is said in several ways: {' and '.join(used)}.",
            hint="choose one of them for the whole mixture",
        )
    for kind, given in used.items():
        if not all(given):
            raise ArgumentError(
                f"{kind} is missing for part {given.index(False)}: all parts have it, or none."
            )


def weights_of(
    asked: Sequence[Part],
    sizes: Sequence[int],
    weights: Weights | None,
    temperature: float | None,
) -> tuple[list[int], int]:
    """Return how often each part is drawn, in whole numbers, and the samples of an epoch."""
    total = sum(sizes)
    if asked[0].probability is not None:
        shares = [_share(part.probability, "probability") for part in asked]
        if abs(sum(shares, Fraction(0)) - 1) > Fraction(1, 10**6):
            raise ArgumentError(
                f"The probabilities add up to {float(sum(shares)):g}, not to 1.",
                hint="weights=[...] takes numbers that are relative to one another",
            )
        return _whole(shares), total
    if asked[0].repeat is not None:
        often = [_share(p.repeat, "repeat") * n for p, n in zip(asked, sizes, strict=True)]
        return _whole(often), math.ceil(sum(often))
    if asked[0].samples is not None:
        often = [_share(part.samples, "samples") for part in asked]
        return _whole(often), math.ceil(sum(often))
    if temperature is not None:
        if not 0 <= temperature < 100:
            raise ArgumentError(f"temperature must be from 0 to 100, not {temperature}.")
        powers = [(size / max(sizes)) ** temperature for size in sizes]
        return [max(1, round(power * _COMPUTED)) for power in powers], total
    if weights is None or weights == "length":
        return list(sizes), total
    if weights == "sqrt":
        return weights_of(asked, sizes, None, 0.5)
    if weights == "equal":
        return [1] * len(asked), total
    given: object = weights
    if isinstance(given, str) or len(weights) != len(asked):
        raise ArgumentError(
            f"weights must be 'length', 'sqrt', 'equal' or {len(asked)} numbers, not {weights!r}."
        )
    return _whole([_share(weight, "weights") for weight in weights]), total


def _share(value: object, name: str) -> Fraction:
    try:
        share = Fraction(str(value))
    except ValueError:
        share = Fraction(-1)
    if share < 0:
        raise ArgumentError(f"{name} must be a number from 0, not {value!r}.")
    return share


def _whole(shares: list[Fraction]) -> list[int]:
    """Return whole numbers in the same ratios."""
    if not sum(shares):
        raise ArgumentError("No part is ever drawn: all are given as 0.")
    scale = math.lcm(*(share.denominator for share in shares))
    found = [int(share * scale) for share in shares]
    if sum(found) <= _FINEST:
        return found
    total = sum(shares)
    return [round(share / total * _FINEST) for share in shares]
