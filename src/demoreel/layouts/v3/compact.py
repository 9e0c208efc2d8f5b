"""Merging the small files of a v3.0 dataset into larger ones, while it grows.

Packets and rows are copied, nothing is encoded again. Files are merged by eights, then eights of
those, up to the sizes in ``info.json``: every byte is copied a few times at most, however many
episodes come. Each merge is a commit of its own.

Readers that opened the dataset before a merge are right or get an error, never another picture:

- A merged **video** gets a number that no video had before; the old files stay for a while, then
  go. Their positions are thus never looked up in another file.
- A merged **table** takes the place of its first part, whose rows stay where they were; the others
  go. lerobot reads every table that it finds, in order, and must not find rows twice: so the later
  parts go first. One that opens just then finds rows missing, and says so.
- **Metadata** are merged only at their end, from the last file backwards, for lerobot finds
  episodes by counting rows: at every instant it sees the first so many of them.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.errors import FrameMismatchError, VideoError
from demoreel.layouts.v3.files import Files, Place, Run
from demoreel.layouts.v3.resume import Book
from demoreel.layouts.writing import write_json
from demoreel.media.remux import join, probe
from demoreel.storage.journal import Transaction, transaction
from demoreel.storage.no_room import says_no_room
from demoreel.storage.writer_lock import HIDDEN

_FAN = 8
_MOST_FILES = 64
_MOST_ROWS = 256  # of metadata: a merge goes on while appends wait
_STALE_S = 60.0
_STALE = f"{HIDDEN}/stale.json"


class Merger:
    """Merges the files that an appender has written.

    Args:
        root: The dataset's folder.
        book: What the appender knows; kept up to date here.
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
        self._stale = dict.fromkeys(stale, -math.inf)

    def step(self, *, finish: bool) -> bool:
        """Make one merge; return whether there is another to make."""
        with self.alone:
            self._forget(time.monotonic() - _STALE_S)
            for files in self._book.files:
                group = next_group(files.runs, files.limit, finish=finish)
                if group is not None:
                    merge = self._merge_tables if files is self._book.tables else self._merge_videos
                    merge(files, group)
                    return True
            return self._merge_metadata(finish)

    def forget_stale(self) -> None:
        """Delete every video that was merged into another."""
        self._forget(math.inf)
        (self._root / _STALE).unlink(missing_ok=True)

    def _forget(self, before: float) -> None:
        named = {
            files.name_of(run.place) for files in self._book.videos.values() for run in files.runs
        }
        for name in [name for name, since in self._stale.items() if since <= before]:
            if name not in named:
                (self._root / name).unlink(missing_ok=True)
            del self._stale[name]

    def _merge_videos(self, files: Files, group: slice) -> None:
        runs = self._same_kind(files, group)
        if len(runs) < 2:
            return
        with self._turn:
            place = files.skip()
        old = [files.name_of(run.place) for run in runs]
        with transaction(self._root) as changes:
            target = changes.new(files.name_of(place))
            try:
                frames = join([self._root / name for name in old], target, fps=self._book.info.fps)
            except VideoError as error:
                if says_no_room(error):
                    raise
                self._seal(files, runs)
                return
            merged = _united(runs, place, target.stat().st_size)
            self._check_frames(frames, merged, target)
            with self._turn:
                self._rewrite(changes, self._moved(files, merged, timed=True), merged)
                write_json(changes.new(_STALE), [*self._stale, *old])
                self._commit(changes)
                _replace(files, runs, merged)
        self._stale |= dict.fromkeys(old, time.monotonic())

    def _same_kind(self, files: Files, group: slice) -> list[Run]:
        """Return the first videos of a group that can be joined; remember what was found out."""
        for number in range(group.start, group.stop):
            run = files.runs[number]
            if run.signature is None:
                try:
                    signature, frames = probe(self._root / files.name_of(run.place))
                    whole = frames == sum(self._book.lengths[run.first : run.stop])
                except VideoError:
                    signature, whole = None, False
                files.runs[number] = replace(run, signature=signature, sealed=not whole)
        runs = files.runs[group]
        alike = 0
        while alike < len(runs) and _alike(runs[0], runs[alike]):
            alike += 1
        return runs[:alike]

    def _seal(self, files: Files, runs: list[Run]) -> None:
        """Leave videos alone that did not join, whatever the reason."""
        begin = files.runs.index(runs[0])
        files.runs[begin : begin + len(runs)] = [replace(run, sealed=True) for run in runs]

    def _check_frames(self, frames: int, merged: Run, target: Path) -> None:
        expected = sum(self._book.lengths[merged.first : merged.stop])
        if frames != expected:
            raise FrameMismatchError(
                f"The joined video has {frames} frames; its episodes have {expected} rows.",
                hint="a video was changed by someone else; the dataset is as it was",
                dataset=self._root,
                file=target,
            )

    def _merge_tables(self, files: Files, group: slice) -> None:
        runs = files.runs[group]
        with transaction(self._root) as changes:
            for run in reversed(runs[1:]):
                changes.delete(files.name_of(run.place))
            target = changes.new(files.name_of(runs[0].place))
            _copy_row_groups([self._root / files.name_of(run.place) for run in runs], target)
            merged = _united(runs, runs[0].place, target.stat().st_size)
            with self._turn:
                self._rewrite(changes, self._moved(files, merged, timed=False), merged)
                self._commit(changes)
                _replace(files, runs, merged)

    def _moved(self, files: Files, merged: Run, *, timed: bool) -> dict[str, np.ndarray]:
        """Return the metadata columns that say where the episodes of a merged file lie now."""
        lengths = np.array(self._book.lengths[merged.first : merged.stop])
        columns = {
            name: np.full(len(lengths), value)
            for name, value in files.columns(merged.place).items()
        }
        if timed:
            ends = np.cumsum(lengths)
            columns[f"{files.prefix}/from_timestamp"] = (ends - lengths) / self._book.info.fps
            columns[f"{files.prefix}/to_timestamp"] = ends / self._book.info.fps
        return columns

    def _rewrite(
        self, changes: Transaction, columns: Mapping[str, np.ndarray], merged: Run
    ) -> None:
        """Announce the metadata of these episodes with other values; no row comes or goes."""
        metadata = self._book.metadata
        for run in metadata.runs:
            first, stop = max(run.first, merged.first), min(run.stop, merged.stop)
            if first >= stop:
                continue
            name = metadata.name_of(run.place)
            table = _read(self._root / name)
            rows = slice(first - run.first, stop - run.first)
            values = slice(first - merged.first, stop - merged.first)
            fresh = {column: array[values] for column, array in columns.items()}
            table = _with_values(table, rows, fresh)
            pq.write_table(table, changes.new(name), compression="snappy")

    def _merge_metadata(self, finish: bool) -> bool:
        """Merge the last metadata files, if that is due; return whether it was."""
        metadata = self._book.metadata
        with self._turn:
            begin = _first_to_merge(metadata, finish=finish)
            if begin is None:
                return False
            runs = metadata.runs[begin:]
            with transaction(self._root) as changes:
                for run in reversed(runs[1:]):
                    changes.delete(metadata.name_of(run.place))
                merged = []
                places = iter([runs[0].place, *self._fresh_places(metadata, len(runs))])
                for part in _packed(runs, metadata.limit):
                    place = next(places)
                    target = changes.new(metadata.name_of(place))
                    self._write_rows(part, place, target)
                    merged.append(_united(part, place, target.stat().st_size))
                self._commit(changes)
            metadata.runs[begin:] = merged
            metadata.upcoming = max(
                metadata.upcoming, *(metadata.after(run.place) for run in merged)
            )
        return True

    def _fresh_places(self, files: Files, count: int) -> list[Place]:
        places = [files.upcoming]
        for _ in range(count):
            places.append(files.after(places[-1]))
        return places

    def _write_rows(self, runs: Sequence[Run], place: Place, target: Path) -> None:
        metadata = self._book.metadata
        writer: pq.ParquetWriter | None = None
        try:
            for batch in _batches(runs):
                table = pa.concat_tables(
                    [_read(self._root / metadata.name_of(run.place)) for run in batch]
                )
                own = {
                    name: np.full(len(table), value)
                    for name, value in metadata.columns(place).items()
                }
                table = _with_values(table, slice(0, len(table)), own).combine_chunks()
                writer = writer or pq.ParquetWriter(target, table.schema, compression="snappy")
                writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()


def next_group(runs: Sequence[Run], limit: int, *, finish: bool) -> slice | None:
    """Return neighbouring files that are to be merged next, or None.

    A file above half the limit is full. Others are packed from the left; a pack is merged when
    nothing more fits, or at the finish, or where it has eight neighbours of the same tier.
    """
    begin = 0
    while begin < len(runs):
        end, size = begin, 0
        while (
            end < len(runs)
            and end - begin < _MOST_FILES
            and size + runs[end].size <= limit
            and runs[end].size <= limit / 2
            and _alike(runs[begin], runs[end])
        ):
            size += runs[end].size
            end += 1
        if end - begin >= 2:
            if finish or end < len(runs):
                return slice(begin, end)
            return _tier(runs, begin, end)
        begin = max(end, begin + 1)
    return None


def _tier(runs: Sequence[Run], begin: int, end: int) -> slice | None:
    """Return the first eight neighbours that were made of about as many episodes each."""
    tiers = [_tier_of(run) for run in runs[begin:end]]
    edges = [0, *(at for at in range(1, len(tiers)) if tiers[at] != tiers[at - 1]), len(tiers)]
    for first, stop in pairwise(edges):
        if stop - first >= _FAN:
            return slice(begin + first, begin + first + _FAN)
    return None


def _tier_of(run: Run) -> int:
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
    return None if group is None else group.start


def _packed(runs: Sequence[Run], limit: int) -> list[list[Run]]:
    packs: list[list[Run]] = []
    size = 0
    for run in runs:
        if not packs or size + run.size > limit:
            packs.append([])
            size = 0
        packs[-1].append(run)
        size += run.size
    return packs


def _batches(runs: Sequence[Run]) -> list[list[Run]]:
    """Return runs in groups of some hundred rows: as much as is read at once."""
    batches: list[list[Run]] = [[]]
    for run in runs:
        if batches[-1] and sum(one.episodes for one in batches[-1]) >= 2 * _MOST_ROWS:
            batches.append([])
        batches[-1].append(run)
    return batches


def _alike(one: Run, other: Run) -> bool:
    if one.sealed or other.sealed:
        return False
    return None in (one.signature, other.signature) or one.signature == other.signature


def _united(runs: Sequence[Run], place: Place, size: int) -> Run:
    return Run(runs[0].first, runs[-1].stop, place, size, runs[0].signature)


def _replace(files: Files, runs: Sequence[Run], merged: Run) -> None:
    begin = files.runs.index(runs[0])
    files.runs[begin : begin + len(runs)] = [merged]


def _copy_row_groups(sources: Sequence[Path], target: Path) -> None:
    """Copy tables into one, a row group after the other: an episode keeps a group of its own."""
    writer: pq.ParquetWriter | None = None
    try:
        for source in sources:
            with pq.ParquetFile(source, memory_map=False) as parquet:
                writer = writer or pq.ParquetWriter(
                    target, parquet.schema_arrow, compression="snappy"
                )
                for group in range(parquet.num_row_groups):
                    table = parquet.read_row_group(group)
                    writer.write_table(table, row_group_size=max(1, len(table)))
    finally:
        if writer is not None:
            writer.close()


def _read(path: Path) -> pa.Table:
    with pq.ParquetFile(path, memory_map=False) as parquet:
        return parquet.read()


def _with_values(table: pa.Table, rows: slice, columns: Mapping[str, np.ndarray]) -> pa.Table:
    """Return the table with other values in some rows of some number columns."""
    for name, values in columns.items():
        at = table.schema.get_field_index(name)
        if at < 0:
            continue
        whole = table.column(at).to_numpy().copy()
        whole[rows] = values
        table = table.set_column(at, table.field(at), pa.array(whole, table.field(at).type))
    return table


def read_stale(root: Path) -> list[str]:
    """Return the videos that a merge had left behind when its process ended."""
    try:
        found: Any = json.loads((root / _STALE).read_bytes())
    except (OSError, ValueError):
        return []
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []
