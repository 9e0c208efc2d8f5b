"""Which files of a repository belong to a dataset, and what they are for."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from demoreel.errors import DatasetNotFoundError
from demoreel.layouts.lance_history import KEPT
from demoreel.storage.hub_calls import HubFile
from demoreel.storage.names import is_hidden

INFO = "meta/info.json"

_TABLES = re.compile(r"[^/]+\.lance/")
_ROWS = re.compile(r"data/[^/]+/[^/]+\.parquet")


def files_to_fetch(files: Mapping[str, HubFile], repo_id: str) -> dict[str, HubFile]:
    """Return the files of a repository that are put into a dataset's folder.

    Hidden ones are not, but for the metadata of older versions.

    Raises:
        DatasetNotFoundError: It holds no dataset.
    """
    if INFO not in files:
        raise DatasetNotFoundError(
            f"The repository {repo_id!r} holds no LeRobot dataset: there is no {INFO}.",
            hint="check the name and the revision",
        )
    return {path: file for path, file in files.items() if not is_hidden(path)}


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
