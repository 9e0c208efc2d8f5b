"""Which texts name something far away, and the store behind them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from demoreel.errors import ArgumentError
from demoreel.storage.far.folder import FarFolder, FarStore, open_folder
from demoreel.storage.lance_places import SCHEMES, remote_place


def is_far(path: object) -> bool:
    """Whether this names a dataset in an object store or on the Hub: ``s3://...``, ``hf://...``."""
    return isinstance(path, str) and "://" in path and not path.startswith("file://")


def open_far(
    uri: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_size: int | str | None = None,
    with_versions: bool = False,
) -> FarFolder:
    """Open the folder that a URI names; see ``open_folder``.

    Raises:
        ArgumentError: Nothing is read from such a URI.
        DatasetNotFoundError: There is no dataset.
        StoreError: The store does not answer.
    """
    return open_folder(
        store_of(uri, storage_options),
        cache_dir=cache_dir,
        cache_size=cache_size,
        with_versions=with_versions,
    )


def store_of(uri: str, storage_options: Mapping[str, Any] | None = None) -> FarStore:
    """Return the store behind a URI; nothing is asked yet.

    Raises:
        ArgumentError: Nothing is read from such a URI, or it holds credentials.
    """
    scheme = urlsplit(uri).scheme
    if scheme == "hf":
        from demoreel.storage.far.hub_files import hub_store

        return hub_store(uri, storage_options)
    if scheme not in SCHEMES:
        raise ArgumentError(
            f"Datasets are not read from {scheme}://.",
            hint=f"there are: {', '.join(f'{name}://' for name in (*SCHEMES, 'hf'))}",
        )
    from demoreel.storage.far.stores import ObjectStore

    return ObjectStore(remote_place(uri, storage_options))
