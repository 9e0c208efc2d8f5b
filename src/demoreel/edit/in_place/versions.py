"""Versions of a Lance dataset: lists them, tags them, and restores an old one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from demoreel.edit.in_place.run import replace_metadata
from demoreel.errors import ArgumentError, MetadataError
from demoreel.layouts.appending import no_room_is_an_error, only_writer
from demoreel.layouts.detect import open_reader
from demoreel.layouts.lance import versions as lance_versions
from demoreel.layouts.lance.history import (
    copy_metadata,
    copy_scores,
    keep_metadata,
    keep_settled,
    metadata_of,
    note_version,
    notes,
)
from demoreel.layouts.lance.reader import LanceReader
from demoreel.layouts.lance.tables import versions_of
from demoreel.layouts.lance.versions import GrowingTable
from demoreel.layouts.v3.reader import EpisodeTable
from demoreel.storage.commit.journal import carry_out, transaction
from demoreel.storage.folder import refuse_links_out, score_files

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a Lance dataset: of its table of rows, and the metadata that belong to it.

    Attributes:
        number: Its number.
        time: When it was made.
        episodes: How many it has; None where its metadata were not kept.
        frames: How many it has.
        done: What was done to make it, as far as that is known.
        tags: Its names.
    """

    number: int
    time: datetime
    episodes: int | None
    frames: int
    done: str
    tags: tuple[str, ...]


def versions(path: PathLike) -> list[Version]:
    """Return the versions of a Lance dataset, oldest first; each can be opened, and gone back to.

    Cost: a read of every manifest, and of the metadata that were kept.

    Args:
        path: The dataset's folder.

    Raises:
        DatasetNotFoundError: There is no dataset.
        ArgumentError: It is not in Lance.
        TableError: Its table does not open.
    """
    root, table = _rows_table(path)
    names: dict[int, list[str]] = {}
    for name, number in sorted(lance_versions.list_tags(table).items()):
        names.setdefault(number, []).append(name)
    did = notes(root)
    lengths: dict[Path, np.ndarray] = {}
    return [
        Version(
            number=each.number,
            time=each.time,
            episodes=_episodes(metadata_of(root, each.number), each.rows, lengths),
            frames=each.rows,
            done=did.get(each.number, each.done),
            tags=tuple(names.get(each.number, ())),
        )
        for each in lance_versions.list_versions(table)
    ]


def _episodes(meta: Path, rows: int, lengths: dict[Path, np.ndarray]) -> int | None:
    """Return how many of the episodes that metadata name make so many rows."""
    if meta not in lengths:
        try:
            lengths[meta] = np.cumsum(EpisodeTable(meta.parent, ()).column("length"))
        except MetadataError:
            lengths[meta] = np.zeros(0, np.int64)  # a dataset that has no episodes yet
    ends = lengths[meta]
    at = int(np.searchsorted(ends, rows))
    return at + 1 if at < len(ends) and ends[at] == rows else 0 if rows == 0 else None


def tag(path: PathLike, name: str, *, version: int | None = None, delete: bool = False) -> int:
    """Give a version of a Lance dataset a name, or take one away.

    A version with a name is never cleaned up, and its metadata are kept from now on.

    Args:
        path: The dataset's folder.
        name: Letters, digits, ``-``, ``_`` and ``.``.
        version: Which one; the newest if None.
        delete: Take the name away.

    Returns:
        The version's number.

    Raises:
        DatasetNotFoundError: There is no dataset.
        ArgumentError: It is not in Lance, the name is taken or not known, or there is no
            such version.
    """
    root, table = _rows_table(path)
    refuse_links_out(root)
    if delete:
        if version is not None:
            raise ArgumentError("A tag is deleted by its name alone.", hint="leave version out")
        return lance_versions.remove_tag(table, name)
    there = versions_of(table)
    number = max(there) if version is None else version
    if number not in there:
        raise _no_version(root, str(number), max(there))
    lance_versions.refuse_odd_name(name)
    with no_room_is_an_error(root):
        keep_settled(root, lambda: max(versions_of(table)))
        lance_versions.add_tag(table, name, number)
    return number


def checkout(path: PathLike, version: int | str, *, dry_run: bool = False) -> Version:
    """Make a Lance dataset what it was in an older version.

    That makes a new version, and no row or video is copied for it; all that came between stays, and
    can be gone back to as well. Killed at any instant, the dataset is what it was, or what it is to
    be.

    Args:
        path: The dataset's folder.
        version: A version's number, or its name.
        dry_run: Only look; nothing changes.

    Returns:
        The version that was gone back to.

    Raises:
        DatasetNotFoundError: There is no dataset.
        ArgumentError: It is not in Lance, there is no such version, or it is the newest.
        DatasetBusyError: Another process records to the dataset, or edits it.
        DiskFullError: There is no room; nothing changed.
    """
    root, table = _rows_table(path)
    number = _number(root, table, version)
    known = {each.number: each for each in versions(root)}
    if number == max(known):
        raise ArgumentError(f"Version {number} is the newest one.", dataset=root)
    open_reader(root, version=number)  # what cannot be read is not gone back to
    if not dry_run:
        with only_writer(root, "edited"):
            _restore(root, table, number)
    return known[number]


def _restore(root: Path, table: Path, number: int) -> None:
    rows = GrowingTable(table)
    meta = metadata_of(root, number)
    with no_room_is_an_error(root), transaction(root) as changes:
        stand_in = rows.stand_in(changes.folder)
        stand_in.restore(number)
        keep_metadata(root, rows.version)
        made = stand_in.move_into(changes, root)
        note_version(changes, made, f"went back to version {number}")
        copy_metadata(meta, changes.folder / "meta")  # not the very files: others write into them
        if meta != root / "meta":
            back = copy_scores(meta.parent, changes.folder / "beside")
            for name in set(score_files(root)) - set(back):
                changes.delete(name)  # kept with the newest version; its rows are of other frames
            for name in back:
                changes.take(changes.folder / "beside" / name, name)
        replace_metadata(root, changes.folder / "meta", changes)
        changes.record()
        carry_out(root)


def _rows_table(path: PathLike) -> tuple[Path, Path]:
    reader = open_reader(Path(path), pending=False)  # those that wait are of no version yet
    if not isinstance(reader, LanceReader):
        raise ArgumentError(
            f"This dataset's layout is {reader.layout}; only Lance datasets have versions.",
            hint=f"demoreel convert {reader.root} TARGET --to lance-video makes one of it",
            dataset=reader.root,
        )
    return reader.root, reader.root / reader.data_file(0)


def _number(root: Path, table: Path, version: int | str) -> int:
    there = versions_of(table)
    if isinstance(version, str) and not version.isdigit():
        tags = lance_versions.list_tags(table)
        if version not in tags:
            known = f"there are: {', '.join(sorted(tags))}" if tags else "it has none"
            raise ArgumentError(f"The dataset has no tag {version!r}.", hint=known, dataset=root)
        return tags[version]
    if int(version) not in there:
        raise _no_version(root, str(version), max(there))
    return int(version)


def _no_version(root: Path, version: str, newest: int) -> ArgumentError:
    return ArgumentError(
        f"The dataset has no version {version}.",
        hint=f"the newest is {newest}; demoreel versions {root} lists all",
        dataset=root,
    )
