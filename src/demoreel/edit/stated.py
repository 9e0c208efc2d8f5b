"""What sources state beside rows and videos: splits, other keys, columns of tasks, other files.

What is still true of the result is kept. What is not, or cannot be told, is left out and said:
every function takes a list that gets a sentence for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from demoreel.errors import DemoreelError, MetadataError
from demoreel.layouts.base import Reader
from demoreel.storage.arrow import UNREADABLE
from demoreel.storage.json_files import read_json_lines
from demoreel.storage.links import copy_inside
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
_OF_FEATURES = {"modality.json"}  # speaks of features, and of no episode
_BESIDE = {"meta", "data", "videos"}
_MOST_RANGES = 8  # that one split is written as
_NO_END = 10**18 - 1
_TEXTS = ("task", "__index_level_0__")


def merged_keys(
    readers: Sequence[Reader], not_inherited: Sequence[str], dropped: list[str]
) -> dict[str, Any]:
    """Return the keys of ``info.json`` that demoreel does not use, of all sources.

    Args:
        readers: The sources; where two differ, the first one's word stays.
        not_inherited: Keys that a result has, or has not, by itself.
        dropped: Takes a sentence for what is not kept.
    """
    kept: dict[str, Any] = {}
    differing: dict[str, None] = {}
    for reader in readers:
        for name, value in reader.info.extra.items():
            if name in not_inherited:
                continue
            first = kept.setdefault(name, value)
            if first != value and repr(first) != repr(value):  # NaN != NaN
                differing[name] = None
    dropped += [f"info.json: {name} of other datasets than the first" for name in differing]
    return kept


def split_places(
    sources: Sequence[Mapping[str, Any]], source: np.ndarray, position: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the episodes of a result that belong to each split, ascending.

    Args:
        sources: The sources' splits.
        source: For each episode of the result, the number of its source.
        position: Its position there.
    """
    found: dict[str, list[np.ndarray]] = {}
    for number, splits in enumerate(sources):
        own = source == number
        for name, text in splits.items():
            wanted = _range_of(text)
            if wanted is not None:
                inside = own & (position >= wanted.start) & (position < wanted.stop)
                found.setdefault(name, []).append(np.flatnonzero(inside))
    places = {name: np.sort(np.concatenate(parts)) for name, parts in found.items()}
    return {name: numbers for name, numbers in places.items() if len(numbers)}


def split_column(
    places: Mapping[str, np.ndarray], splits: Mapping[str, Any], episodes: int
) -> list[str | None] | None:
    """Return the split of each episode, where ranges of the result do not say all of it.

    Args:
        places: The episodes of each split.
        splits: The result's splits.
        episodes: How many it has.
    """
    ranges = {name: _range_of(splits.get(name, "")) for name in places}
    if all(
        one is not None and np.array_equal(places[name], np.arange(one.start, one.stop))
        for name, one in ranges.items()
    ):
        return None
    column: list[str | None] = [None] * episodes
    for name, numbers in reversed(list(places.items())):
        for number in numbers.tolist():
            column[number] = name
    return column


def _range_of(text: object) -> range | None:
    """Return the episodes that a split names; ``3:`` are all from that one on."""
    first, colon, last = str(text).partition(":")
    first, last = first or "0", last or str(_NO_END)
    if not (colon and all(n.isdecimal() and len(n) < 19 for n in (first, last))):
        return None
    return range(int(first), int(last))


def merged_splits(
    sources: Sequence[Mapping[str, Any]],
    source: np.ndarray,
    position: np.ndarray,
    *,
    unchanged: bool,
    dropped: list[str],
) -> dict[str, str]:
    """Return the splits of a result: every episode stays in those that it was in.

    A split that is one range no more becomes several, ``train``, ``train_2`` and so on: LeRobot's
    form has one range for a name. Where no source has a split, all episodes are ``train``.

    Args:
        sources: The sources' splits.
        source: For each episode of the result, the number of its source.
        position: Its position there.
        unchanged: Whether the result's episodes are those of its only source.
        dropped: Takes a sentence for what is not kept.
    """
    places = split_places(sources, source, position)
    ranges: dict[str, str] = {}
    taken = {name for splits in sources for name in splits}
    for name, numbers in places.items():
        runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
        if len(runs) > _MOST_RANGES:
            dropped.append(f"splits: {name!r}, now {len(runs)} ranges; see the column 'split'")
            continue
        names = [name, *_free_names(name, taken, len(runs) - 1)]
        taken.update(names)
        ranges |= {n: f"{run[0]}:{run[-1] + 1}" for n, run in zip(names, runs, strict=True)}
        if len(runs) > 1:
            dropped.append(f"splits: {name!r} as one range; it is {', '.join(names)} now")
    for splits in sources:
        for name, text in splits.items():
            if _range_of(text) is None and unchanged:
                ranges[name] = text
            elif _range_of(text) is None:
                dropped.append(f"splits: {name!r}, which is no range of episodes: {str(text)[:40]}")
            elif name not in places:
                dropped.append(f"splits: {name!r}, of which no episode is left")
    # Not one of all where a source says otherwise: what was kept apart would be mixed.
    return ranges if ranges or any(sources) else {"train": f"0:{len(source)}"}


def _free_names(name: str, taken: set[str], count: int) -> list[str]:
    numbered = (f"{name}_{number}" for number in range(2, len(taken) + count + 2))
    return list(islice((one for one in numbered if one not in taken), count))


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
) -> None:
    """Copy the files of other programs into a result's ``meta/``, if they are still true of it.

    Nothing says what is in them. They are copied where episodes and their numbers are those of the
    only source, and left out otherwise, as are files beside ``meta/``, links, and what is no file.

    Args:
        readers: The sources.
        meta: The result's folder of metadata.
        unchanged: Whether the result's episodes are those of its only source.
        same_features: Whether its features are.
        dropped: Takes a sentence for what is not kept.
    """
    for reader in readers:
        for place in other_files(reader.meta):
            of_features = place in _OF_FEATURES and same_features
            kept = unchanged or (of_features and _same_everywhere(readers, place))
            carry_file(reader.root, reader.meta, place, meta, kept=kept, dropped=dropped)
        if reader.meta.parent == reader.root:  # else it is a copy, and the dataset lies elsewhere
            dropped += files_beside(reader.root)


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


def files_beside(root: Path) -> list[str]:
    """Return a sentence for each thing beside a dataset's own folders, but for hidden ones."""
    return [
        f"{name}{'/' if (root / name).is_dir() else ''}: it lies beside the dataset's own files"
        for name in names_beside(root)
    ]


def names_beside(root: Path) -> list[str]:
    """Return the files and folders beside a dataset's own folders, but for hidden ones."""
    return sorted(
        name
        for name in os.listdir(root)
        if name not in _BESIDE and not name.startswith(".") and not name.endswith(".lance")
    )


def _same_everywhere(readers: Sequence[Reader], place: str) -> bool:
    paths = [reader.meta / place for reader in readers]
    if not all(path.is_file() and not path.is_symlink() for path in paths):
        return False
    return len({path.read_bytes() for path in paths}) == 1
