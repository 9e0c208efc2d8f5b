"""Reading LeRobot v2.0 and v2.1 where they lie."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from demoreel.errors import DemoreelWarning, FrameMismatchError, MetadataError
from demoreel.layouts.base import Clip, Column
from demoreel.layouts.rows import ParquetRows, Rows, rows_of, rows_once
from demoreel.layouts.v2.tables import numbers_at_once
from demoreel.media.video import Video, open_video
from demoreel.model import Episodes, Info, Stats, Tasks, combine_stats, stats_from_json
from demoreel.storage.arrow import as_numpy, is_number
from demoreel.storage.json_files import read_json, read_json_lines, read_json_table

_NUMBERS = ("episode_index", "length")


class V2Reader:
    """A v2.0 or v2.1 dataset on this machine's disk: one table and one video per episode."""

    def __init__(self, root: Path, info: Info) -> None:
        self.root = root
        self.meta = root / "meta"
        self.info = info
        self.layout = info.version
        self.tasks = self._read_tasks()
        table = self._read_episodes()
        number = as_numpy(table.column("episode_index"))
        self._order = np.argsort(number, kind="stable")
        self._table = table
        self.episodes = Episodes(
            number[self._order],
            as_numpy(table.column("length"))[self._order],
            details=self._details,
            where=str(root / "meta" / "episodes.jsonl"),
        )

    def _read_tasks(self) -> Tasks:
        path = self.root / "meta" / "tasks.jsonl"
        lines = read_json_lines(path)
        try:
            return Tasks({int(line["task_index"]): str(line["task"]) for line in lines})
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise MetadataError(f"A task has no {error}.", file=path) from error

    def _read_episodes(self) -> pa.Table:
        path = self.root / "meta" / "episodes.jsonl"
        table = read_json_table(path)
        if table is not None and _is_regular(table):
            return table
        lines = read_json_lines(path)
        for number, line in enumerate(lines, 1):
            for name in _NUMBERS:
                if not isinstance(line.get(name), int) or not 0 <= int(line[name]) < 1 << 62:
                    raise MetadataError(f"An episode has no {name}.", file=path, line=number)
        # Regular in what matters, irregular in the rest: the rest stays as it is, line by line.
        numbers = {
            name: pa.array([int(line[name]) for line in lines], pa.int64()) for name in _NUMBERS
        }
        return pa.table({**numbers, "line": pa.array([json.dumps(line) for line in lines])})

    @cached_property
    def stats(self) -> Stats | None:
        """Statistics of the whole dataset: stored (v2.0) or combined from its episodes (v2.1)."""
        whole = self.root / "meta" / "stats.json"
        each = self.root / "meta" / "episodes_stats.jsonl"
        if each.exists():
            lines = read_json_lines(each)
            parts = [stats_from_json(line.get("stats"), where=str(each)) for line in lines]
            return combine_stats(parts)
        if whole.exists():
            return stats_from_json(read_json(whole), where=str(whole))
        warnings.warn(
            f"{self.root} has no statistics (neither episodes_stats.jsonl nor stats.json); "
            "stats is None.",
            DemoreelWarning,
            stacklevel=2,
        )
        return None

    @cached_property
    def _rows(self) -> Rows:
        status = (self.root / "meta" / "episodes.jsonl").stat()
        return ParquetRows(
            self.root,
            self.info,
            self.episodes,
            self.data_file,
            self.episodes.episode_index,
            (os.path.realpath(self.root), status.st_mtime_ns, status.st_size),
        )

    def rows(self, rows: np.ndarray, keys: Sequence[str]) -> dict[str, Column]:
        """Return columns of these rows, by position in the dataset."""
        return rows_of(self._rows, self.info, rows, keys)

    def rows_once(self, first: int, stop: int) -> dict[str, Column]:
        """Return every column but the cameras' of the episodes at ``first`` to ``stop`` - 1."""
        features = self.info.features.values()
        if all(feature.is_numeric or feature.is_video for feature in features):
            numeric = [feature for feature in features if feature.is_numeric]
            files = (self.root / self.data_file(position) for position in range(first, stop))
            found = numbers_at_once(files, numeric, self.episodes, first, stop)
            if found is not None:
                return dict(found)
        return rows_once(self._rows, self.info, self.episodes, first, stop)

    def in_tables(self, camera: str) -> bool:
        """Whether a camera's pictures lie encoded in the tables, and not in videos."""
        return self.info.features[camera].is_image

    def encoded(self, rows: np.ndarray, camera: str) -> list[bytes]:
        """Return the encoded pictures of an image camera."""
        return self._rows.objects(rows, self.info.features[camera])

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

    def clip(self, position: int, camera: str) -> Clip:
        """Return the episode's own video; it must hold exactly the episode's frames."""
        name = self.video_file(position, camera)
        video = self._video(name)
        length = int(self.episodes.length[position])
        if video.index.frames != length:
            raise FrameMismatchError(
                "Metadata and video disagree about the number of frames: which picture belongs "
                "to which row cannot be told.",
                hint="leave the episode out with episodes=, or restore the file",
                dataset=self.root,
                episode=int(self.episodes.episode_index[position]),
                camera=camera,
                file=name,
                metadata=f"{length} frames",
                video=f"{video.index.frames} frames",
            )
        return Clip(video, 0)

    def _video(self, name: str) -> Video:
        return open_video(self.root / name)

    def _details(self, position: int) -> dict[str, Any]:
        line = self._table.slice(int(self._order[position]), 1).to_pylist()[0]
        if "line" in line:
            line = json.loads(line["line"])
        known = (*_NUMBERS, "tasks")
        return {
            "tasks": _texts(line.get("tasks")),
            "data_file": self.data_file(position),
            "video_files": {key: self.video_file(position, key) for key in self.info.video_keys},
            "extra": {n: v for n, v in line.items() if n not in known and v is not None},
        }

    def episode_columns(self) -> Mapping[str, np.ndarray]:
        """Return what v3.0 would have in ``meta/episodes``, by LeRobot's names."""
        return {"episode_index": self.episodes.episode_index, "length": self.episodes.length}


def _is_regular(table: pa.Table) -> bool:
    """Whether the numbers are whole, and the rest is what the lines say."""
    return all(_is_whole_column(table, name) for name in _NUMBERS) and all(
        _is_as_stored(field.type) for field in table.schema
    )


def _is_as_stored(kind: pa.DataType) -> bool:
    # Arrow takes texts that look like dates for dates, and fills objects up with nulls.
    if pa.types.is_list(kind):
        return _is_as_stored(kind.value_type)
    return is_number(kind) or pa.types.is_string(kind) or pa.types.is_null(kind)


def _is_whole_column(table: pa.Table, name: str) -> bool:
    if name not in table.column_names:
        return False
    column = table.column(name)
    return bool(pa.types.is_integer(column.type)) and column.null_count == 0


def _texts(tasks: object) -> tuple[str, ...]:
    """Return an episode's tasks: a courtesy in this file, so anything odd is shown as it is."""
    if isinstance(tasks, list):
        return tuple(str(task) for task in tasks)
    return () if tasks is None else (str(tasks),)
