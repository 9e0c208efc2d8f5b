"""Where a Lance dataset lies: a folder, a table and ``meta/`` apart, or a ``repo_id``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from demoreel.errors import ArgumentError
from demoreel.hub.pull import pull
from demoreel.storage.far.folder import FarFolder
from demoreel.storage.far.uris import is_far, open_far
from demoreel.storage.lance_places import RemotePlace, is_remote, remote_place
from demoreel.torch.home import bring_up_to_date, is_there, metadata_root

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a dataset lies.

    Attributes:
        repo_id: What it is called.
        root: The folder that holds ``meta/``.
        tables: The folder of the Lance tables, or the table of rows, which may lie in an object
            store; None if they lie in ``root``.
        far: The folder far away that ``root`` is a copy of the metadata of.
    """

    repo_id: str
    root: Path
    tables: Path | RemotePlace | None
    far: FarFolder | None = None

    @classmethod
    def at(cls, repo_id: str | None, far: FarFolder) -> Place:
        """Return the place of a dataset that lies far away."""
        return cls(repo_id or far.uri.rpartition("/")[2].partition("@")[0], far.local, None, far)


def far_uri(
    repo_id: str, root: PathLike | None, revision: str | None, *, stream: bool
) -> str | None:
    """Return where a dataset is read that is not to be fetched; None if it is on this machine.

    Raises:
        ArgumentError: ``stream`` makes no sense here.
    """
    if is_far(root) or (root is None and is_far(repo_id)):
        return str(root if root is not None else repo_id)
    if not stream:
        return None
    if root is not None:
        raise ArgumentError(
            "root= is a folder on this machine; stream=True reads what lies on the Hub.",
            hint="leave one of them out",
        )
    return f"hf://datasets/{repo_id}" + (f"@{revision}" if revision else "")


def find_place(
    repo_id: str | None,
    root: PathLike | None,
    *,
    uri: str | None,
    meta_root: PathLike | None,
    table_name: str | None,
    revision: str | None,
    storage_options: Mapping[str, Any] | None = None,
    sync: bool = False,
) -> Place:
    """Return where the arguments of a Lance class point.

    Args:
        repo_id: ``me/my_task``, looked for as lerobot does, and fetched from the Hub if it is not
            on this machine; or, alone, a folder or its URI.
        root: The folder of tables and ``meta/``, or the table in it. With ``repo_id``, it is
            pulled from the Hub if there is nothing.
        uri: The table of rows, ``.../NAME.lance``: a path, or a ``file://``, ``s3://``, ``gs://``
            or ``az://`` URI.
        meta_root: The folder that holds ``meta/``, if not beside the tables.
        table_name: Which table, where a folder holds several.
        revision: Of ``repo_id``.
        storage_options: What Lance is told of the object store.
        sync: Ask the Hub for something newer.

    Raises:
        ArgumentError: They name no place, or one that cannot be read from here.
        DatasetNotFoundError: ``repo_id`` is neither on this machine nor on the Hub.
        DemoreelError: As ``demoreel.pull``.
    """
    if root is not None and uri is not None:
        raise ArgumentError("root= and uri= both name a place.", hint="give one of them")
    if repo_id is None and root is None and uri is None:
        raise ArgumentError("No dataset was named.", hint="give root=, repo_id=, or uri=")
    named = uri if uri is not None else root
    if named is None and is_far(repo_id):
        named, repo_id = repo_id, None
    if is_far(named):
        return _far_place(str(named), repo_id, meta_root, table_name, storage_options)
    if uri is not None:
        given = _local_path(uri)
    elif root is not None:
        given = _local_path(os.fspath(root))
        if repo_id is not None and not is_there(given):
            pull(repo_id, given, revision=revision)
        elif sync:
            bring_up_to_date(repo_id or given.name, given, revision)
    else:
        assert repo_id is not None
        if Path(repo_id).is_dir():
            given, repo_id = Path(repo_id), None
        else:
            given = metadata_root(repo_id, None, revision, sync=sync)
    tables = _table(given, table_name)
    folder = tables.parent if tables.suffix == ".lance" else tables
    home = folder if meta_root is None else Path(meta_root)
    if uri is not None and meta_root is None and not (folder / "meta" / "info.json").is_file():
        raise ArgumentError(
            "There is no meta/ beside this table.",
            hint="say where it is: meta_root= names the folder that contains meta/",
            uri=uri,
        )
    return Place(repo_id or home.name, home, None if tables == home else tables)


def _far_place(
    uri: str,
    repo_id: str | None,
    meta_root: PathLike | None,
    table_name: str | None,
    storage_options: Mapping[str, Any] | None,
) -> Place:
    """Return a place in a store: a dataset's folder, or a table of rows."""
    if table_name is None and not uri.rstrip("/").endswith(".lance") and meta_root is None:
        return Place.at(repo_id, open_far(uri, storage_options=storage_options))
    if not is_remote(uri):
        folder = uri.rpartition("/")[0] if uri.endswith(".lance") else uri
        return Place.at(repo_id, open_far(folder, storage_options=storage_options))
    table = _remote_table(remote_place(uri, storage_options), table_name)
    if meta_root is not None:
        home = Path(meta_root)
        return Place(repo_id or home.name or table.stem, home, table)
    far = open_far(table.parent.uri, storage_options=storage_options)
    far.bring("meta/")
    return Place(repo_id or table.stem, far.local, table)


def _remote_table(given: RemotePlace, name: str | None) -> RemotePlace:
    if not given.is_table:
        if name is not None:
            return given / f"{name}.lance"
        raise ArgumentError(
            "This URI names no table.",
            hint="name the table of rows, .../NAME.lance, or add table_name=",
            uri=given,
        )
    if name is not None and name != given.stem:
        raise ArgumentError(f"table_name={name!r} is not the table that the URI names: {given}.")
    return given


def _table(given: Path, name: str | None) -> Path:
    if given.suffix == ".lance":
        if name is not None and name != given.stem:
            raise ArgumentError(
                f"table_name={name!r} is not the table that the path names: {given}."
            )
        return given
    return given if name is None else given / f"{name}.lance"


def _local_path(place: str) -> Path:
    parts = urlsplit(place)
    if "://" not in place:
        return Path(place)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path))
    raise ArgumentError(f"Datasets are not read from {parts.scheme}://{parts.netloc}.")
