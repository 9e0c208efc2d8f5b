"""Finding equal and nearly equal fingerprints without comparing every two of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

LEAST_ROWS_CHANGING = 4
"""With fewer rows that differ from the one before, episodes are equal because nothing happens."""

LEAST_SHARED_ROWS = 16
"""With fewer rows in common, episodes are no near duplicates."""


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

    Args:
        shingles: Hashes.
        owner: Whose each is.
        owners: How many owners there are.

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
