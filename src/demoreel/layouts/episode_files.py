"""Which files hold which episodes, by what the metadata say."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from demoreel.errors import MetadataError
from demoreel.layouts.base import Reader


def episode_files(
    reader: Reader, positions: Sequence[int], *, cameras: Collection[str]
) -> list[str]:
    """Return the tables and videos that hold episodes of a dataset in LeRobot's own layouts.

    Cost: looks at metadata only; nothing but these need be on this machine.

    Args:
        reader: The dataset.
        positions: Positions of the episodes.
        cameras: Those whose videos are wanted; others, and such as are no videos, cost nothing.
    """
    columns = reader.episode_columns()
    chosen = np.asarray(positions, np.int64)
    found = dict.fromkeys(
        reader.data_file(position) for position in _one_of_each(columns, "data", chosen)
    )
    for camera in (key for key in reader.info.video_keys if key in cameras):
        for position in _one_of_each(columns, f"videos/{camera}", chosen):
            try:
                found[reader.video_file(position, camera)] = None
            except MetadataError:
                continue  # reading the episode says what is wrong with it
    return list(found)


def _one_of_each(
    columns: Mapping[str, np.ndarray], what: str, positions: np.ndarray
) -> Iterator[int]:
    """Yield one position for each file that episodes share; all where they share none."""
    numbers = [columns.get(f"{what}/{name}_index") for name in ("chunk", "file")]
    if len(positions) and all(column is not None for column in numbers):
        pairs = np.stack([column[positions] for column in numbers if column is not None])
        positions = positions[np.sort(np.unique(pairs, axis=1, return_index=True)[1])]
    yield from positions.tolist()
