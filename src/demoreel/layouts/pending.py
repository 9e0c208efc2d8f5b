"""Reads saved episodes that are not encoded yet as if they were committed.

``open_reader`` lays them over the episodes of the dataset: their rows come from the recorder's
file, their frames are decoded as far as they were encoded, and read raw where not. Nothing is
encoded and nothing is written. Their numbers are those that they get when they are committed.

What such an episode's files hold is checked when the dataset is opened. One that is damaged is left
out and said; the others stay readable.
"""

from __future__ import annotations

import os
import shlex
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from demoreel.errors import (
    DemoreelError,
    DemoreelWarning,
    TableError,
    UnfinishedError,
    VideoError,
    refuse_shortage,
)
from demoreel.layouts.base import Column, Reader
from demoreel.layouts.persisted import Identity, PersistedEpisode
from demoreel.layouts.persisted_files import (
    is_persisted,
    packets_path,
    persisted_folders,
    spill_path,
)
from demoreel.media.video import VideoClip
from demoreel.model import Episodes, Info, Stats, Tasks
from demoreel.storage.commit.consistent import FolderState

_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Damaged:
    """A saved episode that cannot be read.

    Attributes:
        folder: Where its files are; they stay there.
        why: What is wrong, and with which camera, frame and file.
    """

    folder: Path
    why: str

    @classmethod
    def by(cls, folder: Path, error: Exception) -> Damaged:
        """Return what an error says of it."""
        if not isinstance(error, DemoreelError):
            return cls(folder, str(error))
        where = {name: error.where.get(name) for name in ("camera", "frame", "file")}
        if where["file"] is not None:
            where["file"] = os.path.basename(str(where["file"]))
        said = ", ".join(f"{name} {value}" for name, value in where.items() if value is not None)
        return cls(folder, f"{error.what.removesuffix('.')} ({said})." if said else error.what)


@dataclass(frozen=True, slots=True)
class Waiting:
    """The episodes of a dataset that are saved and not committed, oldest first.

    Attributes:
        episodes: Those that can be read.
        damaged: Those that cannot.
    """

    episodes: tuple[PersistedEpisode, ...] = ()
    damaged: tuple[Damaged, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.episodes or self.damaged)

    @property
    def frames(self) -> int:
        """Frames of those that can be read."""
        return sum(len(episode) for episode in self.episodes)


def find_waiting(root: Path, info: Info) -> Waiting:
    """Look for saved episodes that are not committed; costs a stat where none ever was.

    Each of them is read as far as rows go, and checked.
    """
    folders = persisted_folders(root)
    if not folders:
        return Waiting()
    from demoreel.layouts.appending import APPENDABLE
    from demoreel.layouts.detect import layout_of  # which opens this module's readers

    layout = layout_of(root, info)
    if layout not in APPENDABLE:
        why = f"No episode can be appended to a dataset in the layout {layout!r}."
        return Waiting(damaged=tuple(Damaged(folder, why) for folder in folders))
    episodes, damaged = [], []
    for folder in folders:
        try:
            episodes.append(PersistedEpisode(folder, info))
        except (DemoreelError, OSError) as error:
            refuse_shortage(error)
            if not is_persisted(folder):
                continue  # committed just now; who opens the dataset reads again
            damaged.append(Damaged.by(folder, error))
    return Waiting(tuple(episodes), tuple(damaged))


def finish_command(root: Path) -> str:
    """Return the command that finishes a dataset."""
    return f"demoreel finish {shlex.quote(os.fspath(root))}"


def refuse_waiting(root: Path, doing: str) -> None:
    """Refuse to continue where saved episodes wait: what is made would silently lack them."""
    waiting = len(persisted_folders(root))
    if waiting:
        raise UnfinishedError(
            f"{waiting} saved {'episode waits' if waiting == 1 else 'episodes wait'} to be encoded "
            f"and committed; without {'it' if waiting == 1 else 'them'} the dataset is not "
            f"{doing}.",
            hint=f"{finish_command(root)}, or end the recording that is going on; of an episode "
            "that is damaged, finish says what is wrong, and deleting its folder gives it up",
            dataset=root,
        )


def warn_of_damaged(root: Path, damaged: Sequence[Damaged]) -> None:
    """Say which saved episodes cannot be read; they stay where they are."""
    if not damaged:
        return
    named = "; ".join(
        f"{each.folder.relative_to(root)}: {each.why}" for each in damaged[:_MOST_NAMED]
    )
    warnings.warn(
        f"{root} has {len(damaged)} saved episodes that wait to be committed and cannot be read "
        f"({named}). They are kept as they are; all others are there. `{finish_command(root)}` "
        "says more.",
        DemoreelWarning,
        stacklevel=2,
    )


class PendingReader:
    """A dataset with the saved episodes that wait behind those that are committed.

    Args:
        base: The committed episodes; None where there is none yet.
        root: The dataset's folder.
        info: What the dataset says of itself.
        layout: The layout's name.
        waiting: The episodes that wait.
    """

    is_remote = False

    def __init__(
        self,
        base: Reader | None,
        *,
        root: Path,
        info: Info,
        layout: str,
        waiting: Waiting,
    ) -> None:
        self.base = base
        self.root = root
        self.meta = base.meta if base is not None else root / "meta"
        self.layout = layout
        self.waiting = waiting
        self._state: FolderState | None = None
        self._persisted = waiting.episodes
        self.tasks = self._all_tasks()
        self.info = self._totals(info)

    # Readers of one layout have more to offer than the contract says: ``tables``, ``remote``.
    def __getattr__(self, name: str) -> Any:
        base = self.__dict__.get("base")
        if base is None or name.startswith("_"):
            raise AttributeError(name)
        return getattr(base, name)

    @property
    def state(self) -> FolderState | None:
        """The state of the folder when it was opened."""
        return self._state

    @state.setter
    def state(self, state: FolderState | None) -> None:
        self._state = state
        if self.base is not None:
            self.base.state = state

    @property
    def is_as_opened(self) -> bool:
        """Whether all files that were opened so far belong to the metadata that were read."""
        if self.base is not None and not self.base.is_as_opened:
            return False
        return self._state is None or self._state.is_current()

    def expect(self, images: Mapping[str, np.ndarray]) -> None:
        """Do nothing: local files are opened when they are read."""

    @property
    def committed(self) -> int:
        """Episodes that are committed; those that wait come after them."""
        return len(self.base.episodes) if self.base is not None else 0

    def _all_tasks(self) -> Tasks:
        tasks = dict(self.base.tasks) if self.base is not None else {}
        known = set(tasks.values())
        following = max(tasks, default=-1) + 1
        for episode in self._persisted:
            for task in dict.fromkeys(episode.tasks):
                if task not in known:
                    known.add(task)
                    tasks[following] = task
                    following += 1
        return Tasks(tasks)

    def _totals(self, info: Info) -> Info:
        total, splits = len(self.episodes), dict(info.splits)
        if splits in ({}, {"train": f"0:{self.committed}"}):
            splits = {"train": f"0:{total}"}
        return replace(
            info,
            total_episodes=total,
            total_frames=self.episodes.total_frames,
            total_tasks=len(self.tasks),
            splits=splits,
        )

    @cached_property
    def episodes(self) -> Episodes:
        """All episodes: the committed ones, then those that wait, with the numbers to come."""
        lengths = [len(episode) for episode in self._persisted]
        index, length = np.zeros(0, np.int64), np.zeros(0, np.int64)
        if self.base is not None:
            index, length = self.base.episodes.episode_index, self.base.episodes.length
        first = int(index.max()) + 1 if len(index) else 0
        return Episodes(
            np.concatenate([index, np.arange(first, first + len(lengths))]),
            np.concatenate([length, np.array(lengths, np.int64)]),
            details=self._details,
            where=str(self.meta / "episodes"),
        )

    @property
    def stats(self) -> Stats | None:
        """Statistics of the committed episodes, as they are stored."""
        if self.base is not None:
            return self.base.stats
        warnings.warn(
            f"{self.root} has no statistics before its first episode is committed "
            f"(`{finish_command(self.root)}`); stats is None.",
            DemoreelWarning,
            stacklevel=2,
        )
        return None

    def waiting_times(self, position: int) -> Mapping[str, np.ndarray]:
        """Return when the frames of an episode that waits were captured, by clock."""
        place = self._place(position)
        return {} if place is None else self._persisted[place].times

    def _place(self, position: int) -> int | None:
        """Return which of the waiting episodes stands at a position; None for committed ones."""
        return position - self.committed if position >= self.committed else None

    def _edge(self) -> int:
        """Return the row with which the waiting episodes begin."""
        return int(self.episodes.start[self.committed])

    def rows(self, rows: np.ndarray, keys: Sequence[str]) -> dict[str, Column]:
        """Return columns of these rows, by position in the dataset, in the order asked for."""
        waits = rows >= self._edge()
        if not waits.any():
            assert self.base is not None
            return self.base.rows(rows, keys)
        found = self._waiting_rows(rows[waits], keys)
        if waits.all():
            return found
        assert self.base is not None
        return _merged(waits, found, self.base.rows(rows[~waits], keys))

    def _waiting_rows(self, rows: np.ndarray, keys: Sequence[str]) -> dict[str, Column]:
        positions = self.episodes.positions_of_rows(rows)
        found: dict[str, Column] = {}
        for key in keys:
            feature = self.info.features[key]
            values: list[Any] = [None] * len(rows)
            if feature.is_numeric:
                column = np.empty((len(rows), *feature.item_shape), feature.numpy_dtype)
            for position in np.unique(positions).tolist():
                places = np.flatnonzero(positions == position)
                at = rows[places] - int(self.episodes.start[position])
                whole = self._columns[position - self.committed][key]
                if feature.is_numeric:
                    column[places] = whole[at]
                else:
                    for place, row in zip(places.tolist(), at.tolist(), strict=True):
                        values[place] = whole[row]
            found[key] = column if feature.is_numeric else values
        return found

    @cached_property
    def _columns(self) -> list[dict[str, Any]]:
        """Every column but the cameras' of each waiting episode, with those that a commit adds."""
        number_of = {text: number for number, text in self.tasks.items()}
        found = []
        for place, episode in enumerate(self._persisted):
            position = self.committed + place
            frames = np.arange(len(episode))
            made = {
                "timestamp": frames / self.info.fps,
                "frame_index": frames,
                "episode_index": np.full(len(episode), self.episodes.episode_index[position]),
                "index": int(self.episodes.start[position]) + frames,
                "task_index": np.array([number_of[task] for task in episode.tasks]),
            }
            features = self.info.features
            made = {
                key: np.asarray(value, features[key].numpy_dtype).reshape(
                    len(episode), *features[key].item_shape
                )
                for key, value in made.items()
                if key in features
            }
            found.append({**made, **episode.columns})
        return found

    def rows_once(self, first: int, stop: int) -> dict[str, Column]:
        """Return every column but the cameras' of the episodes at ``first`` to ``stop`` - 1."""
        edge = min(max(first, self.committed), stop)
        parts = []
        if first < edge:
            assert self.base is not None
            parts.append(self.base.rows_once(first, edge))
        if edge < stop:
            rows = np.arange(int(self.episodes.start[edge]), int(self.episodes.start[stop]))
            keys = [key for key, f in self.info.features.items() if not f.is_camera]
            parts.append(self._waiting_rows(rows, keys))
        if len(parts) == 1:
            return parts[0]
        return {key: _joined(parts[0][key], parts[1][key]) for key in parts[0]}

    def in_tables(self, camera: str) -> bool:
        """Whether a camera's images are encoded in the tables, and not in videos."""
        if self.base is not None:
            return self.base.in_tables(camera)
        return camera not in self.info.video_keys

    def encoded(self, rows: np.ndarray, camera: str) -> list[bytes]:
        """Return the encoded images of a camera whose images are in the tables."""
        waits = rows >= self._edge()
        positions = self.episodes.positions_of_rows(rows)
        found: list[Any] = [None] * len(rows)
        if not waits.all():
            assert self.base is not None
            known = self.base.encoded(rows[~waits], camera)
            for place, data in zip(np.flatnonzero(~waits).tolist(), known, strict=True):
                found[place] = data
        for place in np.flatnonzero(waits).tolist():
            found[place] = self._waiting_image(int(rows[place]), int(positions[place]), camera)
        return found

    def _waiting_image(self, row: int, position: int, camera: str) -> bytes:
        persisted = self._persisted[position - self.committed]
        try:
            return persisted.images[camera][row - int(self.episodes.start[position])]
        except (TableError, OSError) as error:
            raise self._located(error, position, camera) from error

    def clip(self, position: int, camera: str) -> VideoClip:
        """Return where the episode at ``position`` is in a camera's videos."""
        place = self._place(position)
        if place is None:
            assert self.base is not None
            return self.base.clip(position, camera)
        try:
            return VideoClip(self._persisted[place].cameras[camera].video(self.info.fps), 0)
        except (VideoError, OSError) as error:
            raise self._located(error, position, camera) from error

    @property
    def places(self) -> dict[Identity, int]:
        """The positions of the episodes that wait, by what tells their manifests."""
        return {each.identity: self.committed + n for n, each in enumerate(self._persisted)}

    def _located(self, error: Exception, position: int, camera: str) -> DemoreelError:
        what = error.what if isinstance(error, DemoreelError) else str(error)
        where = error.where if isinstance(error, DemoreelError) else {}
        kind = TableError if isinstance(error, TableError) else VideoError
        return kind(
            what,
            hint=f"leave the episode out with episodes=; `{finish_command(self.root)}` keeps it",
            **{
                "dataset": self.root,
                "episode": int(self.episodes.episode_index[position]),
                "camera": camera,
                **where,
            },
        )

    def episode_columns(self) -> Mapping[str, np.ndarray]:
        """Return per-episode numbers by the names that LeRobot v3.0 gives them.

        An episode that waits has no file yet: the numbers of its files are -1.
        """
        episodes, more = self.episodes, len(self._persisted)
        own: dict[str, np.ndarray] = {
            "episode_index": episodes.episode_index,
            "length": episodes.length,
            "dataset_from_index": episodes.start[:-1],
            "dataset_to_index": episodes.start[1:],
        }
        if self.base is None:
            names = ["episode_index", "length", "data/chunk_index", "data/file_index"]
            names += ["dataset_from_index", "dataset_to_index"]
            fields = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
            names += [f"videos/{key}/{field}" for key in self.info.video_keys for field in fields]
            stored: dict[str, np.ndarray] = {name: np.zeros(0, _kind_of(name)) for name in names}
        else:
            stored = dict(self.base.episode_columns())
        found = {}
        for name, column in stored.items():
            if name in own:
                found[name] = np.concatenate([column, own[name][self.committed :]])
                continue
            rest = np.full(more, -1 if column.dtype.kind in "iu" else 0, column.dtype)
            if name.endswith("/to_timestamp"):
                rest = episodes.length[self.committed :] / self.info.fps
            found[name] = np.concatenate([column, rest])
        return found

    def data_file(self, position: int) -> str:
        """Return the table of the episode at ``position``, relative to the root."""
        place = self._place(position)
        if place is None:
            assert self.base is not None
            return self.base.data_file(position)
        return self._persisted[place].manifest.rows.relative_to(self.root).as_posix()

    def video_file(self, position: int, camera: str) -> str:
        """Return the video of the episode at ``position``, relative to the root."""
        place = self._place(position)
        if place is None:
            assert self.base is not None
            return self.base.video_file(position, camera)
        kept = self._persisted[place].cameras[camera]
        path = packets_path(kept.base) if kept.safe else spill_path(kept.base)
        return path.relative_to(self.root).as_posix()

    def _details(self, position: int) -> dict[str, Any]:
        place = self._place(position)
        if place is None:
            assert self.base is not None
            episode = self.base.episodes[position]
            names = ("tasks", "data_file", "video_files", "extra")
            return {name: getattr(episode, name) for name in names}
        cameras = self._persisted[place].cameras
        return {
            "tasks": tuple(dict.fromkeys(self._persisted[place].tasks)),
            "data_file": self.data_file(position),
            "video_files": {key: self.video_file(position, key) for key in cameras},
        }


def _merged(
    waits: np.ndarray, waiting: Mapping[str, Column], committed: Mapping[str, Column]
) -> dict[str, Column]:
    """Return columns whose rows come from two sources, in their order."""
    found: dict[str, Column] = {}
    for key, mine in waiting.items():
        theirs = committed[key]
        if isinstance(mine, np.ndarray):
            column = np.empty((len(waits), *mine.shape[1:]), mine.dtype)
            column[waits], column[~waits] = mine, theirs
            found[key] = column
        else:
            parts = iter(mine), iter(theirs)
            found[key] = [next(parts[0] if wait else parts[1]) for wait in waits.tolist()]
    return found


def _joined(first: Column, second: Column) -> Column:
    if isinstance(first, np.ndarray):
        return np.concatenate([first, np.asarray(second)])
    return [*first, *second]


def _kind_of(name: str) -> type:
    return np.float64 if name.endswith("_timestamp") else np.int64
