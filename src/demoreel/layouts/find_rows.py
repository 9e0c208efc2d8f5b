"""Which rows of a table belong to which episode: by what they say, not by where they stand."""

from __future__ import annotations

import itertools

import numpy as np

from demoreel.model import Episodes


def find_rows(
    episodes: Episodes, expected: np.ndarray, episode: np.ndarray, frame: np.ndarray | None
) -> tuple[dict[int, np.ndarray], dict[int, str]]:
    """Find the rows of the expected episodes, in frame order.

    Rows count by ``frame_index``; where a writer got that wrong but the number of rows is right,
    their order in the table is all there is, and it is used.

    Args:
        episodes: The dataset's episodes.
        expected: Positions of the episodes that the table should hold.
        episode: The table's ``episode_index``.
        frame: Its ``frame_index``; None if it has none.

    Returns:
        For each position, the places of its rows; and for those that are not whole, why.
    """
    found: dict[int, np.ndarray] = {}
    problem: dict[int, str] = {}
    order = np.argsort(episode, kind="stable")
    ordered = episode[order]
    for position in expected.tolist():
        number = int(episodes.episode_index[position])
        length = int(episodes.length[position])
        begin, end = np.searchsorted(ordered, [number, number + 1])
        rows = order[begin:end]
        if len(rows) != length:
            problem[position] = (
                f"Episode {number} has {len(rows)} rows in its table; the metadata says {length}."
            )
            continue
        if frame is not None:
            by_frame = np.argsort(frame[rows], kind="stable")
            if np.array_equal(frame[rows][by_frame], np.arange(length)):
                rows = rows[by_frame]
        found[position] = rows.astype(np.int32)
    return found, problem


def runs(target: np.ndarray) -> list[tuple[int, int]]:
    """Return spans of rows that lie side by side in the dataset too."""
    if len(target) == 0:
        return []
    cuts = np.flatnonzero(np.diff(target) != 1) + 1
    edges = [0, *cuts.tolist(), len(target)]
    return list(itertools.pairwise(edges))
