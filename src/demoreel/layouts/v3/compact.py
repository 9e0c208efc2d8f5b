"""Merges the small files of a v3.0 dataset into larger ones, while it is recorded.

Packets and rows are copied, nothing is encoded again. Files are merged by eights, then eights of
those, up to the sizes in ``info.json``: every byte is copied a few times at most, however many
episodes come. At the finish all that is left goes in one pass. Each step is a commit of its own;
appends wait for the commit only, not for the copying.

Readers that opened the dataset before a merge are right or get an error, never another image:

- A merged **video** takes the place of its first part, whose frames stay where they were; the other
  parts stay for a while, then go. Positions in them are thus never looked up in another file.
- A merged **table** takes the place of its first part, too; the others go. lerobot reads every
  table that it finds, in order, and must not find rows twice: so the later parts go first. One that
  opens just then finds rows missing, and says so.
- **Metadata** are merged only at their end, from the last file backwards, for lerobot finds
  episodes by counting rows: at every instant it sees the first so many of them. They are merged
  before the files that they name, so that these find few files of metadata to rewrite.
"""

from __future__ import annotations

import json
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np

from demoreel.errors import DemoreelError, DiskError, VideoError
from demoreel.layouts.spans import require_frames
from demoreel.layouts.v3.copying import (
    BESIDE,
    Copying,
    Moved,
    copy_here,
    join_beside,
    join_metadata,
    join_tables,
    join_videos,
    rewrite_table,
)
from demoreel.layouts.v3.files import FilePlace, FileRun, Files
from demoreel.layouts.v3.resume import Book
from demoreel.media.remux import probe
from demoreel.storage.commit.files import says_no_room
from demoreel.storage.commit.journal import Transaction, transaction
from demoreel.storage.commit.writer_lock import HIDDEN
from demoreel.storage.json_files import read_json
from demoreel.storage.local import refuse_special

_FAN = 8
_MOST_FILES = 64  # in one step; at the finish, as many as fit
_MOST_BYTES = 1 << 30  # in one step at the finish: there is a second copy of them for a while
_ATTEMPTS = 8  # to take in episodes that come while their metadata are merged
_MOST_ROWS = 256  # of metadata; larger files wait for the finish
_STALE_S = 60.0
_STALE = f"{HIDDEN}/stale.json"


@dataclass(frozen=True, slots=True)
class _Merged:
    """Neighbouring files of one kind, and the one that was made of them."""

    files: Files
    runs: list[FileRun]
    run: FileRun


@dataclass(frozen=True, slots=True)
class _MergedRows:
    """A file of metadata that was made of others, and is in the staging folder.

    Attributes:
        runs: The files that it was made of.
        place: Where it goes.
        path: Where it is.
        beside: What goes beside it, by kind.
    """

    runs: list[FileRun]
    place: FilePlace
    path: Path
    beside: Mapping[str, Path]


class Merger:
    """Merges the files that an appender has written.

    Args:
        root: The dataset's folder.
        book: The state of the dataset; kept up to date here.
        turn: Held while the dataset or the book is changed.
        commit: Commits a transaction that adds no episode.
        stale: Videos that were merged before, and may go.
    """

    def __init__(
        self,
        root: Path,
        book: Book,
        turn: threading.RLock,
        commit: Callable[[Transaction], None],
        stale: Iterable[str] = (),
    ) -> None:
        self.alone = threading.Lock()
        self._root = root
        self._book = book
        self._turn = turn
        self._commit = commit
        self._copy: Copying = copy_here
        self._stale = dict.fromkeys(stale, -math.inf)

    def step(self, *, finish: bool, copy: Copying = copy_here) -> bool:
        """Make one step; return whether there is another to make.

        Args:
            finish: Merge all that fits together, however little it is.
            copy: Who does the copying.
        """
        with self.alone:
            self._copy = copy
            self._forget(time.monotonic() - _STALE_S)
            return (
                self._merge_metadata(finish=False)
                or self._merge_content(finish=finish)
                or (finish and self._merge_metadata(finish=True))
            )

    def retire(self) -> None:
        """Commit nothing more: its state of the dataset is out of date."""
        self._commit = refuse_merging

    def forget_stale(self) -> None:
        """Delete every video that was merged into another."""
        self._forget(math.inf)
        (self._root / _STALE).unlink(missing_ok=True)

    def _forget(self, before: float) -> None:
        due = [name for name, since in self._stale.items() if since <= before]
        if not due:
            return
        named = {
            files.name_of(run.place) for files in self._book.videos.values() for run in files.runs
        }
        for name in due:
            if name not in named and self._is_video(name):
                (self._root / name).unlink(missing_ok=True)
            del self._stale[name]

    def _is_video(self, name: str) -> bool:
        """Whether a video of a camera can have this name: the list may be untrusted."""
        numbers = [int(digits) for digits in re.findall(r"\d{1,9}", name)[-3:]]
        places = [FilePlace(chunk, file) for chunk, file in permutations(numbers, 2)]
        return any(
            files.name_of(place) == name for files in self._book.videos.values() for place in places
        )

    # Tables and videos

    def _merge_content(self, *, finish: bool) -> bool:
        """Merge tables and videos, and say in the metadata where their episodes are now."""
        plan = self._plan(finish=finish)
        if not plan:
            return False
        with transaction(self._root) as changes:
            made = [self._merged(changes, files, runs) for files, runs in plan]
            merged = [one for one in made if one is not None]
            if not merged:
                return True  # they are fixed now, and not planned again
            self._rewrite(changes, merged)
            old = self._replaced_videos(merged)
            if old:
                changes.new(_STALE).write_text(json.dumps([*self._stale, *old]))
            changes.force()
            with self._turn:
                self._commit(changes)
                for one in merged:
                    _replace(one)
        self._stale |= dict.fromkeys(old, time.monotonic())
        return True

    def _plan(self, *, finish: bool) -> list[tuple[Files, list[FileRun]]]:
        """Return what this step merges: a group of each kind; at the finish as many as may be."""
        plan: list[tuple[Files, list[FileRun]]] = []
        size = 0
        for files in self._book.files:
            for group in groups_to_merge(files.runs, files.limit, finish=finish):
                plan.append((files, files.runs[group]))
                size += sum(run.size for run in plan[-1][1])
                if size > _MOST_BYTES:
                    return plan
                if not finish:
                    break
        return plan

    def _merged(self, changes: Transaction, files: Files, runs: list[FileRun]) -> _Merged | None:
        if files is self._book.tables:
            return self._merged_tables(changes, files, runs)
        return self._merged_videos(changes, files, runs)

    def _merged_tables(self, changes: Transaction, files: Files, runs: list[FileRun]) -> _Merged:
        for run in reversed(runs[1:]):
            changes.delete(files.name_of(run.place))
        target = changes.new(files.name_of(runs[0].place))
        self._copy(join_tables, self._paths(files, runs), target)
        return _Merged(files, runs, _united(runs, runs[0].place, target.stat().st_size))

    def _merged_videos(
        self, changes: Transaction, files: Files, runs: list[FileRun]
    ) -> _Merged | None:
        runs = self._same_kind(files, runs)
        if len(runs) < 2:
            return None
        joined = changes.folder / f"joined-{runs[0].first}.mp4"
        try:
            frames = self._copy(join_videos, self._paths(files, runs), joined, self._book.info.fps)
        except VideoError as error:
            if says_no_room(error):
                raise
            self._fix(files, runs)
            return None
        run = _united(runs, runs[0].place, joined.stat().st_size)
        self._check_frames(frames, run, joined)
        os.rename(joined, changes.new(files.name_of(run.place)))
        return _Merged(files, runs, run)

    def _replaced_videos(self, merged: Sequence[_Merged]) -> list[str]:
        return [
            one.files.name_of(run.place)
            for one in merged
            if one.files is not self._book.tables
            for run in one.runs[1:]
        ]

    def _same_kind(self, files: Files, runs: list[FileRun]) -> list[FileRun]:
        """Return the first videos of a group that can be joined; remember what was found out."""
        begin = files.runs.index(runs[0])
        for number in range(begin, begin + len(runs)):
            run = files.runs[number]
            if run.signature is None:
                try:
                    signature, frames = probe(self._root / files.name_of(run.place))
                    whole = frames == sum(self._book.lengths[run.first : run.stop])
                    whole = whole and not signature.others  # another tool's audio stays with it
                except VideoError:
                    signature, whole = None, False
                files.runs[number] = replace(run, signature=signature, fixed=not whole)
        known = files.runs[begin : begin + len(runs)]
        alike = 0
        while alike < len(known) and _alike(known[0], known[alike]):
            alike += 1
        return known[:alike]

    def _fix(self, files: Files, runs: list[FileRun]) -> None:
        """Leave videos alone that did not join, whatever the reason."""
        begin = files.runs.index(runs[0])
        files.runs[begin : begin + len(runs)] = [replace(run, fixed=True) for run in runs]

    def _check_frames(self, frames: int, merged: FileRun, target: Path) -> None:
        expected = sum(self._book.lengths[merged.first : merged.stop])
        require_frames(
            frames,
            expected,
            of="joined video",
            shared=True,
            hint="a video was changed by another program; the dataset is as it was",
            dataset=self._root,
            file=target,
        )

    def _rewrite(self, changes: Transaction, merged: Sequence[_Merged]) -> None:
        """Announce the metadata of merged episodes with other values; no row comes or goes."""
        metadata = self._book.metadata
        moved = [(one.run, self._moved(one)) for one in merged]
        for run in list(metadata.runs):
            here = []
            for other, columns in moved:
                first, stop = max(run.first, other.first), min(run.stop, other.stop)
                if first < stop:
                    values = slice(first - other.first, stop - other.first)
                    fresh = {name: array[values] for name, array in columns.items()}
                    here.append(Moved(first - run.first, fresh))
            if here:
                name = metadata.name_of(run.place)
                self._copy(rewrite_table, self._root / name, changes.new(name), here)

    def _moved(self, merged: _Merged) -> dict[str, np.ndarray]:
        """Return the metadata columns that say where the episodes of a merged file are now."""
        files, run = merged.files, merged.run
        lengths = np.array(self._book.lengths[run.first : run.stop])
        columns = {
            name: np.full(len(lengths), value) for name, value in files.columns(run.place).items()
        }
        if files is not self._book.tables:
            ends = np.cumsum(lengths)
            columns[f"{files.prefix}/from_timestamp"] = (ends - lengths) / self._book.info.fps
            columns[f"{files.prefix}/to_timestamp"] = ends / self._book.info.fps
        return columns

    def _paths(self, files: Files, runs: Sequence[FileRun]) -> list[Path]:
        return [self._root / files.name_of(run.place) for run in runs]

    # Metadata

    def _merge_metadata(self, *, finish: bool) -> bool:
        """Merge the last metadata files, if that is due; return whether it was."""
        metadata = self._book.metadata
        with self._turn:
            begin = _first_to_merge(metadata, finish=finish)
            if begin is None:
                return False
            packs = _packed(metadata.runs[begin:], metadata.limit)
            places = [metadata.runs[begin].place, *(metadata.skip() for _ in packs[1:])]
        with transaction(self._root) as changes:
            made = [
                self._joined_rows(changes.folder, pack, place)
                for pack, place in zip(packs, places, strict=True)
            ]
            for _ in range(_ATTEMPTS):
                before, made[-1] = made[-1], self._with_late(changes.folder, made[-1])
                if made[-1] is before:
                    break
            with self._turn:
                # Whatever came meanwhile must be in it: none may stand behind. An append may wait
                # for this by now, so it is not left to a process that others come before.
                self._copy = copy_here
                made[-1] = self._with_late(changes.folder, made[-1])
                self._announce(changes, metadata.runs[begin:], made)
                self._commit(changes)
                metadata.runs[begin:] = [
                    _united(one.runs, one.place, self._size(one)) for one in made
                ]
        return True

    def _with_late(self, folder: Path, rows: _MergedRows) -> _MergedRows:
        """Return the last file with the rows of the episodes that have come since."""
        runs = self._book.metadata.runs
        late = runs[runs.index(rows.runs[-1]) + 1 :]
        return self._joined_rows(folder, late, rows.place, after=rows) if late else rows

    def _joined_rows(
        self,
        folder: Path,
        runs: list[FileRun],
        place: FilePlace,
        *,
        after: _MergedRows | None = None,
    ) -> _MergedRows:
        """Join metadata, and the files beside them, into files of the staging folder."""
        metadata = self._book.metadata
        name = f"rows-{runs[0].first}.parquet"
        paths = self._paths(metadata, runs)
        if after is not None:
            paths = [after.path, *paths]
        self._copy(join_metadata, paths, folder / name, metadata.columns(place))
        beside = {}
        for kind, files in BESIDE.items():
            parts = [self._root / files.path(run.place) for run in runs]
            parts = [path for path in parts if path.exists()]
            if after is not None and kind in after.beside:
                parts = [after.beside[kind], *parts]
            if parts:
                beside[kind] = folder / f"{kind}-{name}"
                self._copy(join_beside, kind, parts, beside[kind])
        return _MergedRows([*(after.runs if after else []), *runs], place, folder / name, beside)

    def _announce(
        self, changes: Transaction, runs: Sequence[FileRun], made: Sequence[_MergedRows]
    ) -> None:
        metadata = self._book.metadata
        for run in reversed(runs[1:]):
            changes.delete(metadata.name_of(run.place))
        for one in made:
            os.rename(one.path, changes.new(metadata.name_of(one.place)))
            for kind, path in one.beside.items():
                os.rename(path, changes.new(BESIDE[kind].path(one.place)))
        kept = {one.place for one in made}
        for name in (
            f.path(run.place) for run in runs if run.place not in kept for f in BESIDE.values()
        ):
            if (self._root / name).exists():
                changes.delete(name)

    def _size(self, rows: _MergedRows) -> int:
        return (self._root / self._book.metadata.name_of(rows.place)).stat().st_size


def refuse_merging(_: Transaction) -> None:
    """Commit no merge that was planned before a failure."""
    raise DiskError(
        "Files were not merged, for the disk failed meanwhile; the dataset is as it was.",
        hint="they are merged with the next episode, or when the recording ends",
    )


def next_group(runs: Sequence[FileRun], limit: int, *, finish: bool) -> slice | None:
    """Return the first group that is to be merged, or None."""
    return next(groups_to_merge(runs, limit, finish=finish), None)


def groups_to_merge(runs: Sequence[FileRun], limit: int, *, finish: bool) -> Iterator[slice]:
    """Yield neighbouring files that are to be merged.

    A file above half the limit is full. Others are packed from the left; a pack is merged when
    nothing more fits, or at the finish, or where it has eight neighbours of the same tier.
    """
    most = len(runs) if finish else _MOST_FILES
    begin = 0
    while begin < len(runs):
        end, size = begin, 0
        while (
            end < len(runs)
            and end - begin < most
            and size + runs[end].size <= limit
            and runs[end].size <= limit / 2
            and _alike(runs[begin], runs[end])
        ):
            size += runs[end].size
            end += 1
        if end - begin >= 2:
            group = slice(begin, end)
            if not finish and end == len(runs):
                group = _tier(runs, begin, end) or slice(0)
            if group.stop:
                yield group
        begin = max(end, begin + 1)


def _tier(runs: Sequence[FileRun], begin: int, end: int) -> slice | None:
    """Return the first eight neighbours that were made of about as many episodes each."""
    tiers = [_tier_of(run) for run in runs[begin:end]]
    edges = [0, *(at for at in range(1, len(tiers)) if tiers[at] != tiers[at - 1]), len(tiers)]
    for first, stop in pairwise(edges):
        if stop - first >= _FAN:
            return slice(begin + first, begin + first + _FAN)
    return None


def _tier_of(run: FileRun) -> int:
    return int(math.log(run.episodes, _FAN) + 1e-9)


def _first_to_merge(metadata: Files, *, finish: bool) -> int | None:
    """Return where the metadata files begin that are to be merged, up to the last; or None."""
    runs = metadata.runs
    if finish:
        packs = _packed(runs, metadata.limit)
        # Those before the first pack of several hold one file each.
        return next((at for at, pack in enumerate(packs) if len(pack) > 1), None)
    small = [run for run in runs if run.episodes < _MOST_ROWS]
    begin = len(runs) - len(small)
    group = _tier(runs, begin, len(runs)) if small == runs[begin:] else None
    if group is None:
        return None
    due = runs[group.start :]
    return group.start if len(_packed(due, metadata.limit)) < len(due) else None


def _packed(runs: Sequence[FileRun], limit: int) -> list[list[FileRun]]:
    packs: list[list[FileRun]] = []
    size = 0
    for run in runs:
        if not packs or size + run.size > limit:
            packs.append([])
            size = 0
        packs[-1].append(run)
        size += run.size
    return packs


def _alike(one: FileRun, other: FileRun) -> bool:
    if one.fixed or other.fixed:
        return False
    return None in (one.signature, other.signature) or one.signature == other.signature


def _united(runs: Sequence[FileRun], place: FilePlace, size: int) -> FileRun:
    return FileRun(runs[0].first, runs[-1].stop, place, size, runs[0].signature)


def _replace(merged: _Merged) -> None:
    files, runs = merged.files, merged.runs
    begin = files.runs.index(runs[0])
    files.runs[begin : begin + len(runs)] = [merged.run]


def read_stale(root: Path) -> list[str]:
    """Return the videos that a merge had left behind when its process ended."""
    try:
        refuse_special(root / _STALE)
        found: Any = read_json(root / _STALE)
    except (OSError, ValueError, DemoreelError):
        return []
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []
