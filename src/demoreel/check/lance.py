"""Checks of Lance tables: are they there, whole, and does each video's row hold its bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from demoreel.check.lance_videos import check_lance_videos
from demoreel.check.look import Look
from demoreel.errors import DemoreelError, TableError
from demoreel.layouts.lance_reader import VIDEOS_VERSION
from demoreel.storage import lance_calls
from demoreel.storage.lance_process import may_use_lance
from demoreel.storage.lance_tables import LanceTable
from demoreel.storage.lance_versions import versions_of

_LARGEST_META = 256 << 20


def check_lance(look: Look) -> None:
    """Check the tables of a Lance dataset; others are passed over.

    Cost: manifests, a look at the size of every data file, and each video's table of packets.
    """
    if not look.is_lance or look.info is None:
        return
    for name in _needed(look):
        table = _opened(look, name)
        if table is None:
            look.broken.add(name)
        else:
            _check_files(look, name, table)
            _check_tags(look, name, table)
    rows = f"{look.table}.lance"
    videos = videos_table(look)
    if rows not in look.broken:
        _check_columns(look, rows, videos)
        _check_noted_version(look, rows, videos)
    if videos is not None and videos not in look.broken and look.episodes is not None:
        check_lance_videos(look, LanceTable(str(look.root / videos)))
    _check_copy(look)


def videos_table(look: Look) -> str | None:
    """Return the name of the table of videos; None where there is none."""
    if look.layout == "lance-native":
        return "videos.lance" if look.filmed else None
    return f"{look.table}_videos.lance" if look.layout == "lance-video" else None


def _needed(look: Look) -> list[str]:
    names = [f"{look.table}.lance"]
    videos = videos_table(look)
    return [*names, videos] if videos is not None else names


def _opened(look: Look, name: str) -> LanceTable | None:
    path = look.root / name
    if not path.is_dir():
        look.found("lance-table-missing", f"There is no {name}.", file=name)
        return None
    if not versions_of(path):
        look.found("lance-no-version", "It has no manifest in _versions.", file=name)
        return None
    table = LanceTable(str(path))
    try:
        _ = table.version, table.columns
        return table
    except DemoreelError as error:
        look.found("lance-unreadable", error.what, file=name)
        return None


def _check_files(look: Look, name: str, table: LanceTable) -> None:
    """Check that every data file and every note of deleted rows is there, in its size."""
    if not may_use_lance():
        return  # a forked process: scanning, which asks a helper, will tell
    try:
        with table.errors():
            fragments = [
                f.metadata for f in lance_calls.dataset(table.place, table.version).get_fragments()
            ]
    except TableError as error:
        look.found("lance-unreadable", error.what, file=name)
        look.broken.add(name)
        return
    folder = look.root / name
    for fragment in fragments:
        for file in fragment.files:
            if file.base_id is None:
                _check_data_file(look, name, folder, file)
        if fragment.deletion_file is not None:
            noted = list((folder / "_deletions").glob(f"{fragment.id}-*"))
            if not noted:
                look.found(
                    "lance-deletion-missing",
                    f"Fragment {fragment.id} has deleted rows, and nothing says which.",
                    file=name,
                )
                look.broken.add(name)


def _check_data_file(look: Look, name: str, folder: Path, file: Any) -> None:
    path = folder / "data" / file.path
    size = path.stat().st_size if path.is_file() else None
    if size is not None and (not file.file_size_bytes or size == file.file_size_bytes):
        return
    said = "is not there" if size is None else f"has {size} bytes of {file.file_size_bytes}"
    look.found("lance-fragment-missing", f"A data file {said}.", file=f"{name}/data/{file.path}")
    look.broken.add(name)


def _check_tags(look: Look, name: str, table: LanceTable) -> None:
    there = versions_of(look.root / name)
    try:
        tags = table.tags()
    except TableError as error:
        look.found("lance-tag-broken", error.what, file=name)
        return
    for tag, version in tags.items():
        if version not in there:
            look.found("lance-tag-broken", f"The tag {tag!r} names version {version}.", file=name)


def _check_columns(look: Look, rows: str, videos: str | None) -> None:
    """Where pictures lie neither with the rows nor in videos, a table is missing."""
    assert look.info is not None
    columns = LanceTable(str(look.root / rows)).columns
    if videos is None and look.layout == "lance-frames":
        absent = [k for k in look.info.video_keys if k.replace(".", "_") not in columns]
        if absent:
            look.found(
                "lance-table-missing",
                f"There are no pictures of {absent[0]} in {rows}, and there is no "
                f"{look.table}_videos.lance.",
                camera=absent[0],
                file=f"{look.table}_videos.lance",
            )
    if "episode_index" not in columns:
        look.found(
            "lance-table-missing",
            f"{rows} has no episode_index: it is not a table of rows.",
            file=rows,
        )
        look.broken.add(rows)


def _check_noted_version(look: Look, rows: str, videos: str | None) -> None:
    noted = LanceTable(str(look.root / rows)).metadata.get(VIDEOS_VERSION)
    if videos is None or noted is None:
        return
    there = versions_of(look.root / videos)
    if not noted.isdigit() or int(noted) not in there:
        look.found(
            "lance-videos-version",
            f"{rows} belongs to version {noted[:20]} of {videos}; there are "
            f"{', '.join(map(str, sorted(there)[-5:]))}.",
            file=rows,
        )


def _check_copy(look: Look) -> None:
    """``meta.lance`` of lance-native holds the files of ``meta/``, for readers of stores."""
    if look.layout != "lance-native" or not (look.root / "meta.lance").is_dir():
        return
    table = LanceTable(str(look.root / "meta.lance"))
    try:
        copies = table.scan(["path", "data"])
    except DemoreelError as error:
        look.found("lance-meta-copy", f"It cannot be read: {error.what}", file="meta.lance")
        return
    if copies.nbytes > _LARGEST_META:
        return
    for path, data in zip(*(copies.column(n).to_pylist() for n in ("path", "data")), strict=True):
        name = str(path) if str(path).startswith("meta/") else f"meta/{path}"
        size = look.files.get(name)
        same = size == len(data or b"") and (look.root / name).read_bytes() == bytes(data)
        if not same:
            said = "is not in meta/" if size is None else "differs"
            look.found("lance-meta-copy", f"Its copy of {name} {said}.", file=name)
