"""Data of other programs in a dataset: columns of its tasks, files in and beside ``meta/``.

What is still true of a result is kept. What is not, or cannot be told, is left out and said:
functions take a list that gets a sentence for it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from demoreel.errors import DemoreelError, MetadataError
from demoreel.layouts.base import Reader
from demoreel.storage.arrow import UNREADABLE
from demoreel.storage.folder import OWN_FOLDERS, copy_inside
from demoreel.storage.json_files import read_json_lines
from demoreel.storage.parquet import open_parquet

_MADE = {
    "info.json",
    "episodes.jsonl",
    "tasks.jsonl",
    "stats.json",
    "episodes_stats.jsonl",
    "tasks.parquet",
    "demoreel.json",
}
_MADE_FOLDERS = {"episodes", "demoreel"}
_OF_FEATURES = {"modality.json"}  # refers to features, not to episodes
_TEXTS = ("task", "__index_level_0__")


def task_details(
    readers: Sequence[Reader], renamed: Sequence[Mapping[str, str]]
) -> dict[str, dict[str, Any]]:
    """Return what sources say of tasks besides text and number, by text; the first one's stays.

    Args:
        readers: The sources.
        renamed: For each, the new texts of tasks, by their old ones.
    """
    found: dict[str, dict[str, Any]] = {}
    for reader, texts in zip(readers, renamed, strict=True):
        for text, more in details_in(reader.meta).items():
            for name, value in more.items():
                found.setdefault(texts.get(text, text), {}).setdefault(name, value)
    return found


def details_in(meta: Path) -> dict[str, dict[str, Any]]:
    """Return what a folder of metadata says of tasks besides text and number, by text."""
    found: dict[str, dict[str, Any]] = {}
    for row in _task_rows(meta):
        text = next((row[name] for name in _TEXTS if name in row), None)
        more = {n: v for n, v in row.items() if n != "task_index" and n not in _TEXTS}
        if more:
            found[str(text)] = more
    return found


def _task_rows(meta: Path) -> list[dict[str, Any]]:
    path = meta / "tasks.parquet"
    try:
        if not path.exists():
            lines = read_json_lines(meta / "tasks.jsonl")
            return [line for line in lines if isinstance(line, dict)]
        with open_parquet(path, kind=MetadataError) as parquet:
            if len(parquet.schema_arrow.names) <= 2:
                return []
            return list(parquet.read().to_pylist())
    except (DemoreelError, *UNREADABLE):
        return []  # a reader of the dataset says so


def carry_files(
    readers: Sequence[Reader],
    meta: Path,
    *,
    unchanged: bool,
    same_features: bool,
    dropped: list[str],
    known: Collection[str] = (),
) -> None:
    """Copy the files of other programs into a result's ``meta/``, if they are still true of it.

    Nothing says what is in them. They are copied where episodes and their numbers are those of the
    only source, and left out otherwise, as are links, and what is no file.

    Args:
        readers: The sources.
        meta: The result's folder of metadata.
        unchanged: Whether the result's episodes are those of its only source.
        same_features: Whether its features are.
        dropped: Takes a sentence for what is not kept.
        known: Files that are written elsewhere.
    """
    for reader in readers:
        for place in (name for name in other_files(reader.meta) if name not in known):
            of_features = place in _OF_FEATURES and same_features
            kept = unchanged or (of_features and _same_everywhere(readers, place))
            carry_file(reader.root, reader.meta, place, meta, kept=kept, dropped=dropped)


def carry_file(
    root: Path, source: Path, place: str, meta: Path, *, kept: bool, dropped: list[str]
) -> None:
    """Copy a file of another program, or say that it is left out.

    Args:
        root: The dataset's folder.
        source: Its folder of metadata.
        place: The file's name below ``source``.
        meta: The result's folder of metadata; a file that is there stays.
        kept: Whether it is still true.
        dropped: Takes a sentence if it is not copied.
    """
    if not kept or not (source / place).is_file():
        dropped.append(f"meta/{place}: nothing says whether it is still true")
    elif not (meta / place).exists():
        (meta / place).parent.mkdir(parents=True, exist_ok=True)
        copy_inside(root, source / place, meta / place)


def other_files(meta: Path) -> list[str]:
    """Return the files of other programs below ``meta/``."""
    found = []
    for folder, _, files in os.walk(meta):
        for name in files:
            place = (Path(folder) / name).relative_to(meta)
            known = place.as_posix() in _MADE or place.parts[0] in _MADE_FOLDERS
            if not known and not place.parts[0].startswith("."):
                found.append(place.as_posix())
    return sorted(found)


def files_beside(root: Path, known: Collection[str] = ()) -> list[str]:
    """Return a sentence for each thing beside a dataset's own files, but for hidden ones.

    Args:
        root: The dataset's folder.
        known: Files, relative to it, of which something else is said.
    """
    found = []
    with os.scandir(root) as entries:
        for entry in entries:
            name = entry.name
            if name in OWN_FOLDERS or name.startswith(".") or name.endswith(".lance"):
                continue
            if not any(one.startswith(f"{name}/") for one in known):
                found.append(f"{name}/" if entry.is_dir() else name)
                continue
            for folder, _, files in os.walk(entry.path):
                found += [(Path(folder) / file).relative_to(root).as_posix() for file in files]
    rest = sorted(name for name in found if name not in known)
    return [f"{name}: it is beside the dataset's own files" for name in rest]


def _same_everywhere(readers: Sequence[Reader], place: str) -> bool:
    paths = [reader.meta / place for reader in readers]
    if not all(path.is_file() and not path.is_symlink() for path in paths):
        return False
    return len({path.read_bytes() for path in paths}) == 1
