"""Where a Lance dataset lies: a folder, a table and ``meta/`` apart, or a ``repo_id``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from demoreel.errors import ArgumentError
from demoreel.storage.lance_places import RemotePlace, is_remote, remote_place
from demoreel.torch.home import local_root

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a dataset lies.

    Attributes:
        repo_id: What it is called.
        root: The folder that holds ``meta/``.
        tables: The folder of the Lance tables, or the table of rows, which may lie in an object
            store; None if they lie in ``root``.
    """

    repo_id: str
    root: Path
    tables: Path | RemotePlace | None


def find_place(
    repo_id: str | None,
    root: PathLike | None,
    *,
    uri: str | None,
    meta_root: PathLike | None,
    table_name: str | None,
    revision: str | None,
    storage_options: Mapping[str, Any] | None = None,
) -> Place:
    """Return where the arguments of a Lance class point.

    Args:
        repo_id: ``me/my_task``, looked for as lerobot does; or, alone, a folder.
        root: The folder of tables and ``meta/``, or the table in it.
        uri: The table of rows, ``.../NAME.lance``: a path, or a ``file://``, ``s3://``, ``gs://``
            or ``az://`` URI.
        meta_root: The folder that holds ``meta/``, if not beside the tables.
        table_name: Which table, where a folder holds several.
        revision: Of ``repo_id``.
        storage_options: What Lance is told of the object store.

    Raises:
        ArgumentError: They name no place, or one that cannot be read from here.
        DatasetNotFoundError: ``repo_id`` is not on this machine.
    """
    if root is not None and uri is not None:
        raise ArgumentError("root= and uri= both name a place.", hint="give one of them")
    if repo_id is None and root is None and uri is None:
        raise ArgumentError("No dataset was named.", hint="give root=, repo_id=, or uri=")
    if uri is not None and is_remote(uri):
        table = _remote_table(remote_place(uri, storage_options), table_name)
        if meta_root is None:
            raise ArgumentError(
                "Of a dataset in an object store, the tables are read where they lie, and meta/ "
                "is read from this machine.",
                hint="fetch meta/; meta_root= names the folder that contains it",
                uri=table,
            )
        home = Path(meta_root)
        return Place(repo_id or home.name or table.stem, home, table)
    if uri is not None:
        given = _local_path(uri)
    elif root is not None:
        given = _local_path(os.fspath(root))
    else:
        assert repo_id is not None
        if Path(repo_id).is_dir():
            given, repo_id = Path(repo_id), None
        else:
            given = local_root(repo_id, None, revision)
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
    if is_remote(place):
        raise ArgumentError(
            "root= is a folder on this machine.",
            hint=f"give uri='{parts.scheme}://.../NAME.lance' and meta_root=",
        )
    raise ArgumentError(
        f"Datasets are not yet read from {parts.scheme}://.",
        hint="fetch the tables and meta/ first, then give root=",
    )
