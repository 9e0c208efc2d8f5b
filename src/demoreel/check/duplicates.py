"""Episodes that are there twice in one dataset; ``leaks.py`` compares several.

Rows are compared by their fingerprints (``fingerprints.py``), videos by the sizes of their packets
and, where those agree, by the bytes of three of them: cutting and converting copy packets as they
are. Pictures that were encoded again are only compared by a deep check, which has decoded them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from demoreel.check.film_prints import alike_pairs, appearances_of, filmed_episodes, same_packets
from demoreel.check.fingerprints import Prints
from demoreel.check.look import Look
from demoreel.check.matching import (
    LEAST_ROWS_CHANGING,
    LEAST_SHARED_ROWS,
    equal_groups,
    overlapping,
)


def check_duplicates(look: Look) -> None:
    """Look for episodes that are there twice in one dataset.

    Cost: some sorts of the fingerprints, and a look at the videos' tables of packets.
    """
    if look.prints is None:
        return
    prints = look.prints
    twins: set[tuple[int, int]] = set()
    for first, others in _same_rows(prints, prints.combined(prints.keys)):
        for other in others:
            twins.add((first, other))
            look.found(
                "episode-duplicate",
                f"All its {prints.length[other]} rows are those of episode "
                f"{prints.episode[first]}; only their numbers and times may differ.",
                episode=prints.episode[other],
            )
    _near(look, prints, twins)
    for camera in look.filmed:
        _same_videos(look, prints, camera, twins)
    _alike(look, prints, twins)


def _same_rows(prints: Prints, hashes: np.ndarray) -> Iterator[tuple[int, list[int]]]:
    """Yield the first of each group of episodes with the same rows, and the others."""
    for group in equal_groups(hashes):
        if prints.changes[group[0]] >= LEAST_ROWS_CHANGING:
            first, *others = group.tolist()
            yield first, others


def _near(look: Look, prints: Prints, twins: set[tuple[int, int]]) -> None:
    least = look.thresholds["near_share"]
    known = {second for _, second in twins}
    pairs = overlapping(prints.shingles, prints.shingle_of, len(prints.episode))
    for one, other, share in zip(*(values.tolist() for values in pairs), strict=True):
        if share < least or one in known or other in known:
            continue
        shorter, longer = sorted((one, other), key=lambda place: (prints.length[place], -place))
        if share * prints.length[shorter] >= LEAST_SHARED_ROWS:
            look.found(
                "episode-near-duplicate",
                f"About {share:.0%} of its {prints.length[shorter]} rows are in episode "
                f"{prints.episode[longer]} (from {least:.0%} on).",
                episode=prints.episode[shorter],
            )


def _same_videos(look: Look, prints: Prints, camera: str, twins: set[tuple[int, int]]) -> None:
    for first, other in same_packets(filmed_episodes(look, prints, camera)):
        if (first, other) in twins or _are_twins(prints, first, other):
            continue
        look.found(
            "pictures-duplicate",
            f"Its pictures are those of episode {prints.episode[first]}, but its rows are not.",
            episode=prints.episode[other],
            camera=camera,
        )


def _are_twins(prints: Prints, one: int, other: int) -> bool:
    return bool((prints.hashes[one] == prints.hashes[other]).all())


def _alike(look: Look, prints: Prints, twins: set[tuple[int, int]]) -> None:
    """Compare what a deep check saw."""
    most = look.thresholds["alike_levels"]
    reported = set(twins)
    for camera in look.appearances:
        for first, second in alike_pairs(appearances_of(look, camera), most):
            if (first, second) in reported or _are_twins(prints, first, second):
                continue
            reported.add((first, second))
            look.found(
                "pictures-alike",
                f"At every moment that was compared it looks like episode "
                f"{prints.episode[first]}: within {most:g} of 255 levels.",
                episode=prints.episode[second],
                camera=camera,
            )
