"""Keeps an open dataset valid while another process appends to it.

A recorder adds episodes and merges small files; files that an open reader has seen vanish, or
others take their names. The metadata's files tell (``storage/commit/consistent.py``): where one is
missing, or was opened that may belong to a later state, the dataset is opened again, and what was
asked for is read from there. The sample space stays that of the first opening.

What must not happen is that samples come from other episodes than those that were opened. So the
episodes that were known must be the very same: index, length, features, tasks, and the numbers of
those that were read before. A folder that took another's place, as editing in place has it, is
another dataset.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from demoreel.errors import (
    DatasetChangedError,
    MetadataError,
    PictureError,
    StoreError,
    TableError,
    VideoError,
)
from demoreel.layouts.base import Column, Reader
from demoreel.layouts.pending import PendingReader
from demoreel.layouts.persisted import Identity
from demoreel.layouts.rows import StoredRows
from demoreel.model import Info, Tasks
from demoreel.storage.commit.consistent import Told

MOVED = (TableError, VideoError, PictureError, MetadataError, StoreError, OSError)
"""What is raised where a file has vanished, or is another one."""

ATTEMPTS = 32
"""To read what another process keeps replacing."""

_COMPARED = 8  # episodes whose numbers are read again


class Known(NamedTuple):
    """What tells the episodes that a dataset had, for another process that opens it later.

    Attributes:
        episodes: How many there were.
        digest: Of their numbers and lengths.
        tasks: How many tasks there were, and a digest of them.
        saved: The first row of those that were not committed yet; None if there were none.
        numbers: A digest of the numbers in those rows.
        places: The positions of those, by what tells their manifests.
        state: The folder's state when it was opened.
        kinds: A digest of the features' types and shapes.
        read: Positions of episodes whose numbers were read, and a digest of these.
    """

    episodes: int
    digest: str
    tasks: tuple[int, str]
    saved: int | None = None
    numbers: str = ""
    places: Mapping[Identity, int] = {}
    state: Told | None = None
    kinds: str = ""
    read: tuple[list[int], str] | None = None


def has_changed(reader: Reader) -> bool:
    """Whether something was committed to a dataset since it was opened."""
    return reader.state is not None and not reader.state.is_current()


def first_tasks(reader: Reader, count: int) -> Tasks:
    """Return a dataset's first tasks; new ones get higher numbers."""
    return reader.tasks if len(reader.tasks) <= count else Tasks(_first_tasks(reader, count))


def first_info(reader: Reader, episodes: int, tasks: int) -> Info:
    """Return what a dataset said of itself when it had only its first episodes and tasks."""
    info, total = reader.info, len(reader.episodes)
    if total <= episodes:
        return info
    splits = dict(info.splits)
    if splits == {"train": f"0:{total}"}:
        splits = {"train": f"0:{episodes}"}
    return replace(
        info,
        total_episodes=episodes,
        total_frames=int(reader.episodes.start[episodes]),
        total_tasks=min(tasks, len(reader.tasks)),
        splits=splits,
    )


def known_of(reader: Reader, episodes: int | None = None, tasks: int | None = None) -> Known:
    """Return what tells a dataset's first episodes and tasks; all if no number is given."""
    count = len(reader.episodes) if episodes is None else episodes
    digest = _lengths_of(reader, count)
    told = _tasks_of(reader, len(reader.tasks) if tasks is None else tasks)
    known = Known(
        count,
        digest,
        told,
        state=reader.state.told if reader.state is not None else None,
        kinds=_kinds_of(reader),
    )
    rows, numbers = _read_before(reader)
    if len(rows) and rows[-1] < reader.episodes.start[count]:
        episodes_read = np.unique(reader.episodes.positions_of_rows(rows)).tolist()
        known = known._replace(read=(episodes_read, _digest_of(numbers)))
    if not isinstance(reader, PendingReader) or reader.committed >= count:
        return known
    start = reader.episodes.start
    saved = int(start[reader.committed])
    places = {key: place for key, place in reader.places.items() if place < count}
    waiting = _numbers_of(reader, np.arange(saved, int(start[count])))
    return known._replace(saved=saved, numbers=waiting, places=places)


def refuse_unknown(reader: Reader, known: Known) -> None:
    """Refuse a dataset that does not begin with these episodes."""
    count = known.episodes
    if len(reader.episodes) < count or _lengths_of(reader, count) != known.digest:
        raise _changed(reader, "its episodes are others, or of other lengths")
    if _tasks_of(reader, known.tasks[0]) != known.tasks:
        raise _changed(reader, "its tasks are others")
    # One that could not be committed leaves its number to the next.
    if isinstance(reader, PendingReader) and any(
        known.places.get(key, place) != place for key, place in reader.places.items()
    ):
        raise _changed(reader, "saved episodes were committed in another order")
    stop = int(reader.episodes.start[count])
    saved = None if known.saved is None else np.arange(known.saved, stop)
    if saved is not None and _numbers_of(reader, saved) != known.numbers:
        raise _changed(reader, "saved episodes were committed with other numbers")
    if known.kinds and known.kinds != _kinds_of(reader):
        raise _changed(reader, "its features are others")
    if known.state is not None and reader.state is not None:
        if reader.state.told == known.state:
            return
        if not reader.state.grew_from(known.state):
            raise _changed(reader, "another folder has taken its place, or it was edited")
    if known.read is not None:
        start = reader.episodes.start
        spans = [np.arange(start[place], start[place + 1]) for place in known.read[0]]
        if _numbers_of(reader, np.concatenate(spans)) != known.read[1]:
            raise _changed(reader, "it has other values than were read before")


def _lengths_of(reader: Reader, count: int) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for column in (reader.episodes.episode_index, reader.episodes.length):
        digest.update(np.ascontiguousarray(column[:count], np.int64).tobytes())
    return digest.hexdigest()


def _first_tasks(reader: Reader, count: int) -> dict[int, str]:
    return dict(sorted(reader.tasks.items())[:count])


def _tasks_of(reader: Reader, count: int) -> tuple[int, str]:
    first = list(_first_tasks(reader, count).items())
    return len(first), hashlib.blake2b(
        repr(first).encode("utf-8", "replace"), digest_size=16
    ).hexdigest()


def _numbers_of(reader: Reader, rows: np.ndarray) -> str:
    keys = [key for key, feature in reader.info.features.items() if feature.is_numeric]
    return _digest_of(reader.rows(rows, keys))


def _digest_of(columns: Mapping[str, Column]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for key, column in sorted(columns.items()):
        values = np.array(column)
        if values.dtype.kind == "f":
            values[np.isnan(values)] = np.nan  # there are many that differ in their bits
        digest.update(f"{key} {values.dtype.str} {values.shape}".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()


def refuse_other(before: Reader, now: Reader) -> None:
    """Refuse to continue in a dataset that is not the one that was opened, or grown from it."""
    if before.state is not None and not before.state.is_same_folder():
        raise _changed(before, "another folder has taken its place")
    refuse_unknown(now, known_of(before))


def _read_before(reader: Reader) -> tuple[np.ndarray, Mapping[str, Column]]:
    """Return rows that were read before, of a few episodes, and their numbers."""
    committed = reader.base if isinstance(reader, PendingReader) else reader
    read = vars(committed).get("_rows") if committed is not None else None
    if isinstance(read, StoredRows):
        return read.decoded(_COMPARED)
    return np.zeros(0, np.int64), {}


def same_places(before: Reader, now: Reader) -> bool:
    """Whether all episodes of before are in the same files, and at the same places in them."""
    first, count = before.episode_columns(), len(before.episodes)
    later = now.episode_columns()
    places = [name for name in first if name.startswith(("data/", "videos/"))]
    if isinstance(before, PendingReader) or not places:
        return False  # those that waited are elsewhere now
    return all(
        name in later and np.array_equal(first[name], later[name][:count]) for name in places
    )


def _kinds_of(reader: Reader) -> str:
    kinds = {key: (f.dtype, f.shape) for key, f in reader.info.features.items()}
    said = repr((kinds, reader.info.fps, reader.layout))
    return hashlib.blake2b(said.encode("utf-8", "replace"), digest_size=8).hexdigest()


def _changed(reader: Reader, how: str) -> DatasetChangedError:
    return DatasetChangedError(
        f"The dataset was changed after it was opened: {how}.",
        hint="open it again; what was read before belongs to the dataset as it was",
        dataset=reader.root,
    )
