"""Which files of a repository belong to a dataset, and which of them some episodes need."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from demoreel.errors import DatasetNotFoundError, MetadataError
from demoreel.layouts.base import Reader
from demoreel.layouts.lance_history import KEPT
from demoreel.storage.hub_calls import HubFile

INFO = "meta/info.json"

_TABLES = re.compile(r"[^/]+\.lance/")
_ROWS = re.compile(r"data/[^/]+/[^/]+\.parquet")


def files_to_fetch(files: Mapping[str, HubFile], repo_id: str) -> dict[str, HubFile]:
    """Return the files of a repository that are put into a dataset's folder.

    Hidden ones are not: they are git's, or what a program has left while it worked; a journal that
    a stranger wrote must not be taken for our own. The metadata of older versions are hidden, too,
    and belong to the dataset.

    Raises:
        DatasetNotFoundError: It holds no dataset.
    """
    if INFO not in files:
        raise DatasetNotFoundError(
            f"The repository {repo_id!r} holds no LeRobot dataset: there is no {INFO}.",
            hint="check the name and the revision",
        )
    return {path: file for path, file in files.items() if not _is_hidden(path)}


def metadata_files(files: Iterable[str]) -> list[str]:
    """Return the files that must be there to open a dataset, ``info.json`` last.

    Whoever finds ``info.json`` takes the dataset for one that is there.
    """
    found = sorted(path for path in files if path.startswith("meta/") and path != INFO)
    return [*found, INFO]


def table_files(files: Collection[str]) -> list[str]:
    """Return the files of a dataset that lies in Lance tables; none if it does not."""
    tables = [path for path in files if _TABLES.match(path)]
    if not tables:
        return []
    names = {path.split("/", 1)[0] for path in tables}
    native = {"frames.lance", "videos.lance"} <= names
    if not native and any(_ROWS.fullmatch(path) for path in files):
        return []
    return tables + [path for path in files if path.startswith(f"{KEPT}/")]


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


def _is_hidden(path: str) -> bool:
    first, *rest = path.split("/")
    return (first.startswith(".") and first != KEPT) or any(part.startswith(".") for part in rest)
