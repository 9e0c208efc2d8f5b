"""``demoreel.repair``: look, decide, write, check."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from demoreel.check.run import check
from demoreel.errors import (
    ArgumentError,
    DatasetNotFoundError,
    DemoreelError,
    DiskFullError,
)
from demoreel.layouts.pending import refuse_waiting
from demoreel.layouts.persisted_files import persisted_folders
from demoreel.layouts.v3.resume import read_book
from demoreel.repair.report import Repaired
from demoreel.repair.work import Work
from demoreel.run.anywhere import is_here, made_anywhere, refuse_remote
from demoreel.storage.commit.files import refuse_existing, refuse_overlap, says_no_room
from demoreel.storage.commit.hidden_folder import passing_folder
from demoreel.storage.commit.replace import place_of_old, replacing_dataset
from demoreel.storage.external import AllowExternal
from demoreel.storage.external import allow_external as allow
from demoreel.storage.folder import refuse_links_out
from demoreel.storage.remote.fetch import part_of
from demoreel.storage.scratch import scratch_folder

_FETCHING = 0.4  # of all the work, where files are fetched first, or sent afterwards
_CHECKING = 0.2


def repair(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    deep: bool = False,
    picture_stats: bool = True,
    drop_audio: bool = False,
    drop_cameras: Sequence[str] = (),
    drop_episodes: bool = False,
    in_place: bool = False,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    allow_external: AllowExternal | None = None,
    report: Callable[[float], None] | None = None,
) -> Repaired:
    """Repair a dataset into another folder. The source is only read, unless it is to be replaced.

    Metadata are rebuilt from tables and packets where those tell the truth; finished episodes are
    recovered from tables that never got their footer; files that lie under another name than
    ``info.json`` says are found; rows and statistics are numbered and computed again. Where an
    episode or a camera cannot be kept, nothing is written, unless they are to be left out. Files
    in which nothing is wrong are copied as they are; where episodes are left out, packets are. A
    v2.0 dataset becomes v2.1.

    Cost: reads all tables twice and copies the videos once. Images are decoded if ``deep``, and
    where nothing says what their statistics are. A remote source is fetched first, a
    remote target is made here and then sent, ``meta/info.json`` last.

    Args:
        source: The dataset's folder, or its URI.
        target: The folder to make, or a URI; not needed for a dry run.
        deep: Decode every image first, and leave out episodes that have undecodable ones.
        picture_stats: Decode the images of cameras whose statistics are lost, to compute them.
        drop_audio: Leave the audio of videos out; it is copied otherwise.
        drop_cameras: Leave these cameras out.
        drop_episodes: Leave out the episodes that cannot be kept, e.g. because a file is missing or
            damaged; they are ``lost`` in what is returned.
        in_place: Instead of ``target``: put the repaired dataset in the source's place, which is
            called ``NAME_old`` then.
        dry_run: Only say what would be done.
        storage_options: Of what is remote: as for ``demoreel.open``.
        allow_external: Folders or URIs outside the dataset that its Lance tables may point into; as
            for ``demoreel.open``.
        report: Called with the share that is done.

    Returns:
        What was done, and what ``check`` says of the result.

    Raises:
        DatasetNotFoundError: There is no such folder.
        ArgumentError: There is no target, or it is the source, or lies in it; a link leads out of
            the source; there is no such camera; or audio cannot be copied, and is not to be
            dropped.
        TargetExistsError: There is something at the target, or at ``NAME_old``.
        DatasetBusyError: In place, and another process records to the dataset.
        UnfinishedError: Saved episodes of the source wait to be encoded, and ``demoreel.finish``
            can do that; else they are named in the report.
        RepairError: Files were not fetched (Git LFS pointers lie in their place); a camera has no
            videos, or an episode cannot be kept, and they are not to be left out; or no episode can
            be saved.
        DiskFullError: There is no room.
        StoreError: A store does not answer.
    """
    allow(source, allow_external)
    how = _How(deep, picture_stats, drop_audio, tuple(dict.fromkeys(drop_cameras)), drop_episodes)
    if in_place:
        refuse_remote(
            [source, target],
            "A remote dataset cannot be repaired in place.",
            hint="give a target, which may be a URI, too",
        )
        if target is not None:
            raise ArgumentError("A repair in place has no target.", hint="leave the target out")

    def make(folders: list[Path], place: Path | None) -> Repaired:
        (root,) = folders
        if not root.is_dir():
            raise DatasetNotFoundError(
                "There is no folder to repair.", hint="give a dataset's folder", path=root
            )
        _refuse_waiting(root)
        if in_place and not dry_run:
            return _in_place(Path(os.path.abspath(root)), how, repairing)
        place = _checked_target(root, place, dry_run)
        return _repair(root, place, how, repairing)

    fetched = _FETCHING if not is_here(source) else 0.0
    sent = 1 - _FETCHING if target is not None and not is_here(target) else 1.0
    repairing = part_of(report, fetched, sent)

    return made_anywhere(
        [source],
        target,
        make,
        work=("repair",),
        dry_run=dry_run,
        storage_options=storage_options,
        fetching=part_of(report, 0.0, fetched),
        sending=part_of(report, sent, 1.0),
    )[0]


def _refuse_waiting(root: Path) -> None:
    """Refuse to leave saved episodes out that could be committed first.

    Where the dataset is too broken for that, they are named among what could not be read.
    """
    if not persisted_folders(root):
        return
    try:
        read_book(root)
    except (DemoreelError, OSError):
        return
    refuse_waiting(root, "repaired")


@dataclass(frozen=True, slots=True)
class _How:
    """What the user has said of a repair: see ``repair``."""

    deep: bool
    picture_stats: bool
    drop_audio: bool
    drop_cameras: tuple[str, ...]
    drop_episodes: bool


def _repair(
    root: Path, place: Path | None, how: _How, report: Callable[[float], None] | None
) -> Repaired:
    refuse_links_out(root)
    before = check(root, deep=how.deep, report=part_of(report, 0.0, _CHECKING))
    with _no_room_is_said(place), _working_folder(place) as folder:
        work = Work(
            root,
            folder,
            before,
            drop_audio=how.drop_audio,
            drop_cameras=how.drop_cameras,
            drop_episodes=how.drop_episodes,
        )
        if place is None:
            return work.look_only()
        writing = part_of(report, _CHECKING, 1.0)
        return work.write(place, picture_stats=how.picture_stats, report=writing)


def _in_place(root: Path, how: _How, report: Callable[[float], None] | None) -> Repaired:
    old = place_of_old(root)
    with replacing_dataset(root, old) as new:
        done = _repair(root, new, how, report)
    return replace(done, source=old, target=root)


@contextmanager
def _no_room_is_said(place: Path | None) -> Iterator[None]:
    """Say what a full disk means: nothing was written."""
    try:
        yield
    except OSError as error:
        if isinstance(error, DiskFullError) or not says_no_room(error):
            raise
        raise DiskFullError(
            "There is no room for the repaired dataset.",
            hint="nothing was kept; make room, or choose a folder on another disk",
            path=place,
        ) from error


def _checked_target(
    root: Path, target: str | os.PathLike[str] | None, dry_run: bool
) -> Path | None:
    if target is None:
        if dry_run:
            return None
        raise ArgumentError(
            "Where is the repaired dataset to go?",
            hint="give a target, or in_place=True (--in-place)",
        )
    place = Path(os.path.abspath(target))
    refuse_overlap(root, place)
    refuse_existing(place)
    return None if dry_run else place


@contextmanager
def _working_folder(place: Path | None) -> Iterator[Path]:
    """Yield a folder for what does not last: on the target's disk, where links may work.

    A killed repair leaves it; the next write beside it removes it.
    """
    if place is None:
        with scratch_folder() as folder:
            yield folder
        return
    parent = next(parent for parent in place.parents if parent.is_dir())
    with passing_folder(parent / place.name, "repair") as folder:
        yield folder
