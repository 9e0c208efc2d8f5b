"""Reads LeRobot v2.0 and v2.1 in place."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from demoreel.errors import DemoreelWarning, TableError, refuse_shortage
from demoreel.layouts.base import Column
from demoreel.layouts.columns import read_numbers
from demoreel.layouts.file_reader import FileReader
from demoreel.layouts.meta import read_episode_lines, read_tasks, read_v2_stats, texts_of
from demoreel.layouts.spans import require_frames
from demoreel.media.video import VideoClip
from demoreel.model import Episodes, Feature, Info, Stats
from demoreel.storage.arrow import UNREADABLE, as_numpy
from demoreel.storage.folder import DatasetFolder
from demoreel.storage.local import refuse_special
from demoreel.storage.parquet import open_parquet

_WHICH_ROW = ("episode_index", "frame_index")
_SMALL = 1 << 24  # bytes of a file that is read whole


class V2Reader(FileReader):
    """A v2.0 or v2.1 dataset: one table and one video per episode."""

    def __init__(self, folder: DatasetFolder, info: Info) -> None:
        self._lie_in(folder)
        root = self.root = folder.local
        self.meta = root / "meta"
        self.info = info
        self._video_cameras = tuple(info.video_keys)
        self.layout = info.version
        self.tasks = read_tasks(root / "meta" / "tasks.jsonl")
        table, _ = read_episode_lines(root / "meta" / "episodes.jsonl")
        number = as_numpy(table.column("episode_index"))
        self._order = np.argsort(number, kind="stable")
        self._table = table
        self.episodes = Episodes(
            number[self._order],
            as_numpy(table.column("length"))[self._order],
            details=self._details,
            where=str(root / "meta" / "episodes.jsonl"),
        )

    @cached_property
    def stats(self) -> Stats | None:
        """Statistics of the whole dataset: stored (v2.0) or combined from its episodes (v2.1).

        What no episode of v2.1 says, and ``stats.json`` does, is taken from there.
        """
        numbers = (self.episodes.episode_index.tolist(), self.episodes.length.tolist())
        found = read_v2_stats(self.meta, lengths=dict(zip(*numbers, strict=True)))
        if found is not None:
            return found.whole
        warnings.warn(
            f"{self.root} has no statistics (neither episodes_stats.jsonl nor stats.json); "
            "stats is None.",
            DemoreelWarning,
            stacklevel=2,
        )
        return None

    def _tables(self) -> tuple[np.ndarray, Sequence[object]]:
        status = (self.root / "meta" / "episodes.jsonl").stat()
        fingerprint = (os.path.realpath(self.root), status.st_mtime_ns, status.st_size)
        return self.episodes.episode_index, fingerprint

    def rows_once(self, first: int, stop: int) -> dict[str, Column]:
        """Return every column but the cameras' of the episodes at ``first`` to ``stop`` - 1."""
        features = self.info.features.values()
        plain = all(feature.is_numeric or feature.is_video for feature in features)
        if plain and not self.folder.waits:
            numeric = [feature for feature in features if feature.is_numeric]
            files = (self.root / self.data_file(position) for position in range(first, stop))
            found = numbers_at_once(files, numeric, self.episodes, first, stop)
            if found is not None:
                return dict(found)
        return super().rows_once(first, stop)

    def data_file(self, position: int) -> str:
        """Return the table of the episode at ``position``."""
        return self.info.data_path.format(**self._numbers(position))

    def video_file(self, position: int, camera: str) -> str:
        """Return the video of the episode at ``position``."""
        assert self.info.video_path is not None
        return self.info.video_path.format(video_key=camera, **self._numbers(position))

    def _numbers(self, position: int) -> dict[str, int]:
        index = int(self.episodes.episode_index[position])
        return {"episode_chunk": index // self.info.chunks_size, "episode_index": index}

    def clip(self, position: int, camera: str) -> VideoClip:
        """Return the episode's own video; it must hold exactly the episode's frames."""
        name = self.video_file(position, camera)
        video = self._videos.open(name)
        length = int(self.episodes.length[position])
        require_frames(
            video.index.frames,
            length,
            hint="leave the episode out with episodes=, or restore the file",
            dataset=self.root,
            episode=int(self.episodes.episode_index[position]),
            camera=camera,
            file=name,
            metadata=f"{length} frames",
        )
        return VideoClip(video, 0)

    def _details(self, position: int) -> dict[str, Any]:
        line = self._table.slice(int(self._order[position]), 1).to_pylist()[0]
        if "line" in line:
            line = json.loads(line["line"])
        known = ("episode_index", "length", "tasks")
        return {
            "tasks": texts_of(line.get("tasks")),
            "data_file": self.data_file(position),
            "video_files": {key: self.video_file(position, key) for key in self.info.video_keys},
            "extra": {n: v for n, v in line.items() if n not in known and v is not None},
        }

    def episode_columns(self) -> Mapping[str, np.ndarray]:
        """Return what v3.0 would have in ``meta/episodes``, by LeRobot's names."""
        return {"episode_index": self.episodes.episode_index, "length": self.episodes.length}


def numbers_at_once(
    files: Iterable[Path], features: Iterable[Feature], episodes: Episodes, first: int, stop: int
) -> dict[str, np.ndarray] | None:
    """Return columns of the episodes at ``first`` to ``stop`` - 1; None where any file is unusual.

    An episode's table is small: finding out which row is which, file by file, takes longer than
    reading it. So tables that follow one another are read, put together and looked at as one.
    Each table must hold its episode's rows, all of them and no others, in the order of frames, and
    all tables must have columns of the same types. For others the slower way finds what can be
    found, and says what is wrong.

    Cost: one read of each file, one copy of the columns.
    """
    wanted = list(features)
    keys = list(dict.fromkeys([*_WHICH_ROW, *(feature.key for feature in wanted)]))
    lengths = episodes.length[first:stop]
    try:
        tables = [_columns_of(path, keys) for path in files]
        if [table.num_rows for table in tables] != lengths.tolist():
            return None
        together = pa.concat_tables(tables).combine_chunks()
        frame = np.arange(together.num_rows)
        frame -= np.repeat(episodes.start[first:stop] - episodes.start[first], lengths)
        episode = np.repeat(episodes.episode_index[first:stop], lengths)
        for key, expected in zip(_WHICH_ROW, (episode, frame), strict=True):
            if not _says(together.column(key), expected):
                return None
        return {
            feature.key: read_numbers(_array(together, feature.key), feature, where="")
            for feature in wanted
        }
    except (TableError, KeyError, *UNREADABLE) as error:
        refuse_shortage(error)
        return None


def _columns_of(path: Path, keys: list[str]) -> pa.Table:
    refuse_special(path)
    if path.stat().st_size > _SMALL:
        with open_parquet(path) as parquet:
            return parquet.read(keys)
    # One read of the file, and no thread: a few kilobytes are decoded before one has woken up.
    return open_parquet(path.read_bytes()).read(keys, use_threads=False)


def _says(column: pa.ChunkedArray, expected: np.ndarray) -> bool:
    """Whether a column that says which row is which says so."""
    if not pa.types.is_integer(column.type) or column.null_count:
        return False
    return np.array_equal(as_numpy(column), expected)


def _array(table: pa.Table, key: str) -> pa.Array:
    return table.column(key).chunk(0)
