"""Detects the layout of a folder, and opens its reader."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from demoreel.errors import (
    ArgumentError,
    DatasetNotFoundError,
    MetadataError,
    UnsupportedVersionError,
    refuse_shortage,
)
from demoreel.layouts.base import Reader
from demoreel.layouts.meta import listing_files, read_info
from demoreel.layouts.persisted_files import persisted_folders
from demoreel.model import Info
from demoreel.model.feature import quoted
from demoreel.model.problems import Note, Problem, refuse
from demoreel.storage.commit.consistent import FolderState, consistent_read
from demoreel.storage.commit.replace import wait_for_replacing
from demoreel.storage.folder import DatasetFolder
from demoreel.storage.place import RemotePlace

_OLD_HUB_TABLES = ("frames", "videos", "episodes")


def open_reader(
    place: Path | DatasetFolder,
    *,
    version: int | None = None,
    tag: str | None = None,
    tables: Path | RemotePlace | None = None,
    pending: bool = True,
) -> Reader:
    """Open the dataset in this folder, whatever its layout. Nothing is written.

    Cost: reads the metadata, no table and no video; with a version or a tag, or where the tables
    are in an object store, a table's manifest. Where saved episodes wait to be encoded, their rows.

    Args:
        place: The dataset's folder.
        version: Of a Lance dataset, the version to read; None is the newest.
        tag: Of a Lance dataset, the tagged version to read.
        tables: Where the Lance tables are if not in ``root``: their folder, or the table of rows
            (``NAME.lance``), which also says which one it is if there are several. In an object
            store, the table of rows.
        pending: Whether saved episodes that wait for their encoders are part of it. They are of no
            version that is named. Writers, which commit them, leave them out.
    """
    if version is not None and tag is not None:
        raise ArgumentError("version= and tag= both name a version.", hint="give one of them")
    folder = place if isinstance(place, DatasetFolder) else DatasetFolder(place)
    root = folder.local
    if not root.exists():
        wait_for_replacing(root)
    overlay = pending and version is None and tag is None and folder.grows

    def read() -> Reader:
        state = FolderState(root)  # before the metadata: what changes meanwhile must show
        reader = _open_as_it_lies(folder, version, tag, tables, overlay)
        reader.state = state if folder.grows else None
        return reader

    try:
        return consistent_read(root, read)
    except (OSError, RuntimeError) as error:
        refuse_shortage(error)
        raise


def _open_as_it_lies(
    folder: DatasetFolder,
    version: int | None,
    tag: str | None,
    tables: Path | RemotePlace | None,
    overlay: bool,
) -> Reader:
    root = folder.local
    if _lance_tables(root / "data").issuperset(_OLD_HUB_TABLES):
        raise UnsupportedVersionError(
            "This dataset is in the older Lance layout of the Hub (data/frames.lance, "
            "data/videos.lance, data/episodes.lance), which demoreel does not read.",
            hint="fetch the dataset that it was made from, and open or convert that",
            dataset=root,
        )
    info_path = root / "meta" / "info.json"
    if not info_path.is_file():
        raise not_a_dataset(root)
    waits = bool(folder.deferred("meta/episodes/"))
    info = read_info(info_path, is_whole=not waits)
    persisted = persisted_folders(root)
    no_episodes = MetadataError(
        f"The dataset has no episodes yet{' that are committed' * bool(persisted)}.",
        hint=f"demoreel finish {quote(str(root))}" if persisted else "record one, then open it",
        dataset=root,
    )
    if overlay and persisted:
        return _with_waiting(folder, info, tables, no_episodes)
    if not waits and is_new(root, info):
        raise no_episodes
    if tables is None:
        layout, table = layout_and_table(root, info)
        reader = _reader_for(folder, info, layout, table, folder.tables, version=version, tag=tag)
    else:
        lie_in: Path | RemotePlace
        if isinstance(tables, RemotePlace):
            lie_in, (layout, table) = tables.parent, _layout_in_store(tables, root, info)
        else:
            lie_in, layout, table = _layout_of_tables(tables, root, info)
        reader = _reader_for(folder, info, layout, table, lie_in, version=version, tag=tag)
    if not waits and len(reader.episodes) == 0:
        raise no_episodes
    return reader


def _with_waiting(
    folder: DatasetFolder, info: Info, tables: Path | RemotePlace | None, no_episodes: MetadataError
) -> Reader:
    """Return a reader that has the saved episodes which wait for their encoders, too."""
    from demoreel.layouts.pending import PendingReader, find_waiting, warn_of_damaged

    base, root = None, folder.local
    if not is_new(root, info):
        base = _open_as_it_lies(folder, None, None, tables, overlay=False)
    waiting = find_waiting(root, info)
    warn_of_damaged(root, waiting.damaged)
    if not waiting.episodes:
        if base is None:
            raise no_episodes
        return base
    return PendingReader(
        base,
        root=root,
        info=info,
        layout=base.layout if base is not None else layout_and_table(root, info)[0],
        waiting=waiting,
    )


def layout_of(root: Path, info: Info) -> str:
    """Return the name of the layout that is in this folder."""
    return layout_and_table(root, info)[0]


def is_new(root: Path, info: Info) -> bool:
    """Whether the dataset is as a recorder begins it: nothing but an info.json."""
    if info.version != "v3.0" or info.total_episodes or (root / "meta" / "tasks.parquet").exists():
        return False
    return not listing_files(root / "meta" / "episodes")


def _reader_for(
    folder: DatasetFolder,
    info: Info,
    layout: str,
    table: str,
    tables: Path | RemotePlace | None,
    *,
    version: int | None,
    tag: str | None,
) -> Reader:
    root = folder.local
    if layout.startswith("lance"):
        meta = root / "meta"
        if version is not None or tag is not None:
            meta, info = _of_version(folder, info, table, version, tag, tables)
        from demoreel.layouts.lance.reader import LanceReader

        reader = LanceReader(
            root,
            info,
            layout,
            table,
            version=version,
            tag=tag,
            tables=tables,
            meta=meta,
            cache=folder.cache,
            before_episodes=folder.later(f"{meta.relative_to(root).as_posix()}/episodes/"),
        )
        reader.folder = folder
        return reader
    if version is not None or tag is not None:
        raise ArgumentError(
            f"This dataset's layout is {layout}; only Lance datasets have versions and tags.",
            hint="leave version= and tag= out",
            dataset=root,
        )
    if layout.startswith("v2"):
        from demoreel.layouts.v2.reader import V2Reader

        return V2Reader(folder, info)
    from demoreel.layouts.v3.reader import V3Reader

    return V3Reader(folder, info)


def _of_version(
    folder: DatasetFolder,
    info: Info,
    table: str,
    version: int | None,
    tag: str | None,
    tables: Path | RemotePlace | None,
) -> tuple[Path, Info]:
    """Return the metadata that belong to a version: their folder, and its ``info.json``."""
    from demoreel.layouts.lance.history import has_history, metadata_of

    root = folder.local
    if not has_history(root):
        return root / "meta", info
    if version is None:
        from demoreel.layouts.lance.tables import LanceTable

        version = LanceTable((tables or root) / f"{table}.lance", tag=tag).version
    meta = metadata_of(root, version)
    under = f"{meta.relative_to(root).as_posix()}/"
    folder.fetch(under, leaving=f"{under}episodes/")
    path = meta / "info.json"
    return meta, read_info(path)


def layout_and_table(root: Path, info: Info, note: Note = refuse) -> tuple[str, str]:
    """Return the layout's name, and the Lance table's where it has a name of its own.

    Args:
        root: The dataset's folder.
        info: Its info.
        note: Takes the problem where the layout cannot be told; the names are then empty.
    """
    storage = info.extra.get("storage_format", "lerobot")
    if storage not in ("lerobot", "lance"):
        error = MetadataError(
            f"This dataset's storage_format is {quoted(storage)}; demoreel reads 'lerobot' and "
            "'lance'.",
            hint="a newer format needs a newer demoreel",
            file=root / "meta" / "info.json",
        )
        note(Problem("storage-unknown", error))
        return "", ""
    tables = _lance_tables(root)
    # lerobot-lancedb 0.3.0 did not yet write storage_format.
    if storage == "lance" or {"frames", "videos"} <= tables:
        return "lance-native", "frames"
    if info.version.startswith("v2") or not tables or any(root.glob("data/*/*.parquet")):
        return info.version, ""
    return _named_by_its_table(root, tables, note)


def _layout_of_tables(tables: Path, root: Path, info: Info) -> tuple[Path, str, str]:
    """Return the folder of tables that are elsewhere, their layout, and the table's name."""
    named = tables.suffix == ".lance"
    folder = tables.parent if named else tables
    found = _lance_tables(folder)
    if not found or (named and tables.stem not in found):
        raise DatasetNotFoundError(
            f"There is no Lance table {tables.name!r}."
            if named
            else "There is no Lance table in this folder.",
            hint=f"there are: {', '.join(sorted(found))}" if found else "give the folder of one",
            path=tables,
            dataset=root,
        )
    native = info.extra.get("storage_format") == "lance" or {"frames", "videos"} <= found
    if native and (not named or tables.stem == "frames"):
        return folder, "lance-native", "frames"
    if not named:
        return folder, *_named_by_its_table(folder, found, refuse)
    with_videos = f"{tables.stem}_videos" in found
    return folder, "lance-video" if with_videos else "lance-frames", tables.stem


def _layout_in_store(table: RemotePlace, root: Path, info: Info) -> tuple[str, str]:
    """Return the layout and the name of a table of rows, by what it says of itself.

    Nothing is listed: a bucket may hold anything, and one may be allowed to read but not to list.
    """
    from demoreel.layouts.lance.schemas import column_names
    from demoreel.layouts.lance.tables import LanceTable

    rows = LanceTable(table)
    if not rows.exists():
        raise DatasetNotFoundError(
            f"There is no Lance table {table.name!r} in this place.",
            hint="give the table of rows, .../NAME.lance",
            uri=table,
            dataset=root,
        )
    if table.stem == "frames" and (
        info.extra.get("storage_format") == "lance"
        or LanceTable(table.parent / "videos.lance").exists()
    ):
        return "lance-native", "frames"
    names = column_names(info)
    has_videos = any(names[key] not in rows.columns for key in info.video_keys)
    return "lance-video" if has_videos else "lance-frames", table.stem


def _lance_tables(root: Path) -> set[str]:
    return {place.stem for place in root.glob("*.lance") if place.is_dir()}


def _named_by_its_table(root: Path, tables: set[str], note: Note) -> tuple[str, str]:
    with_videos = {name for name in tables if f"{name}_videos" in tables}
    alone = tables - with_videos - {f"{name}_videos" for name in with_videos}
    if len(with_videos) + len(alone) != 1:
        names = ", ".join(sorted(with_videos | alone))
        error = MetadataError(
            f"This folder holds the Lance tables of several datasets: {names}.",
            hint="give each of them a folder of its own, with its own meta/",
            dataset=root,
        )
        note(Problem("lance-tables-several", error))
        return "", ""
    if with_videos:
        return "lance-video", with_videos.pop()
    return "lance-frames", alone.pop()


def not_a_dataset(root: Path) -> DatasetNotFoundError:
    """Return what there is at a path that holds no dataset, and what to try instead."""
    if not root.exists():
        return DatasetNotFoundError(
            "There is nothing at this path.", hint=_where_else(root), path=root
        )
    if not root.is_dir():
        return DatasetNotFoundError(
            "This is a file, not the folder of a dataset.",
            hint="give the folder that contains meta/, data/ and videos/",
            path=root,
        )
    if (root / "_versions").is_dir():
        return DatasetNotFoundError(
            "This is a Lance table, not a dataset.",
            hint=f"open the folder that holds it and meta/: {root.parent}",
            path=root,
        )
    inside = sorted(place.parent.parent for place in root.glob("*/meta/info.json"))
    if inside:
        names = ", ".join(str(place) for place in inside[:3])
        return DatasetNotFoundError(
            "This folder is not a dataset, but holds some.", hint=f"open {names}", path=root
        )
    hint = "give the folder that contains meta/, data/ and videos/"
    if (root / "data").is_dir():
        hint = "restore meta/info.json from a copy, or let demoreel repair write it"
    return DatasetNotFoundError(
        "This folder holds no dataset: there is no meta/info.json.", hint=hint, path=root
    )


def _where_else(root: Path) -> str:
    """Say where a dataset may be that is not at a path; owner/name may be one of the Hub."""
    hint = "give the folder that contains meta/, data/ and videos/"
    if len(root.parts) == 2 and not root.is_absolute() and root.parts[0] not in (".", ".."):
        return f"{hint}; if it is on the Hub: demoreel pull {root} FOLDER"
    return hint
