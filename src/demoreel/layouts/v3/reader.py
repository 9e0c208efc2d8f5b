"""Reading LeRobot v3.0 where it lies."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.errors import FrameMismatchError, MetadataError
from demoreel.layouts.base import Clip, Column
from demoreel.layouts.rows import ParquetRows, rows_of
from demoreel.layouts.spans import Spans, resolve_spans
from demoreel.media.video import Video, open_video
from demoreel.model import Episodes, Info, Stats, Tasks, stats_from_json
from demoreel.storage.arrow import as_numpy
from demoreel.storage.json_files import read_json
from demoreel.storage.lru import ByteCache

_SPAN_BYTES = 16 << 20


class V3Reader:
    """A v3.0 dataset on this machine's disk.

    Opening reads ``info.json``, the tasks and the number columns of ``meta/episodes``; tables and
    videos are opened when a frame of theirs is asked for.
    """

    layout = "v3.0"

    def __init__(self, root: Path, info: Info) -> None:
        self.root = root
        self.info = info
        self.tasks = read_tasks(root / "meta" / "tasks.parquet")
        self._meta = _EpisodeTable(root, info)
        self.episodes = Episodes(
            self._meta.column("episode_index"),
            self._meta.column("length"),
            details=self._details,
            where=str(root / "meta" / "episodes"),
        )
        self._spans: ByteCache[object, tuple[np.ndarray, Spans]] = ByteCache(_SPAN_BYTES)

    @cached_property
    def stats(self) -> Stats | None:
        """Statistics of the whole dataset; None where there is no ``stats.json``."""
        path = self.root / "meta" / "stats.json"
        return stats_from_json(read_json(path), where=str(path)) if path.exists() else None

    @cached_property
    def _rows(self) -> ParquetRows:
        return ParquetRows(
            self.root,
            self.info,
            self.episodes,
            self.data_file,
            self._meta.column("data/chunk_index") << 32 | self._meta.column("data/file_index"),
            (os.path.realpath(self.root), *self._meta.identity),
        )

    def rows(self, rows: np.ndarray, keys: Sequence[str]) -> dict[str, Column]:
        """Return columns of these rows, by position in the dataset."""
        return rows_of(self._rows, self.info, rows, keys)

    def encoded(self, rows: np.ndarray, camera: str) -> list[bytes]:
        """Return the encoded pictures of an image camera."""
        return self._rows.objects(rows, self.info.features[camera])

    def data_file(self, position: int) -> str:
        """Return the table of the episode at ``position``."""
        return self.info.data_path.format(
            chunk_index=int(self._meta.column("data/chunk_index")[position]),
            file_index=int(self._meta.column("data/file_index")[position]),
        )

    def video_file(self, position: int, camera: str) -> str:
        """Return the video of the episode at ``position``."""
        assert self.info.video_path is not None
        return self.info.video_path.format(
            video_key=camera,
            chunk_index=int(self._meta.column(f"videos/{camera}/chunk_index")[position]),
            file_index=int(self._meta.column(f"videos/{camera}/file_index")[position]),
        )

    def clip(self, position: int, camera: str) -> Clip:
        """Return where the episode lies in its video, checked against its neighbours there."""
        name = self.video_file(position, camera)
        video = open_video(self.root / name)
        positions, spans = self._spans.get(
            (camera, name, video.file.identity),
            lambda: self._resolve(position, camera, video),
        )
        place = int(np.searchsorted(positions, position))
        if place in spans.problem:
            raise FrameMismatchError(
                f"Metadata and video disagree: {spans.problem[place]}.",
                hint="leave the episode out with episodes=, or restore the file",
                dataset=self.root,
                episode=int(self.episodes.episode_index[position]),
                camera=camera,
                file=name,
                metadata=self._said(position, camera),
                video=f"{video.index.frames} frames",
            )
        return Clip(video, int(spans.first[place]))

    def _resolve(
        self, position: int, camera: str, video: Video
    ) -> tuple[tuple[np.ndarray, Spans], int]:
        positions = self._meta.sharing(position, camera)
        spans = resolve_spans(
            length=self.episodes.length[positions],
            from_timestamp=self._meta.column(f"videos/{camera}/from_timestamp")[positions],
            to_timestamp=self._meta.column(f"videos/{camera}/to_timestamp")[positions],
            seconds=video.index.seconds,
            fps=self.info.fps,
        )
        return (positions, spans), 2 * positions.nbytes + 1024

    def _said(self, position: int, camera: str) -> str:
        begin = self._meta.column(f"videos/{camera}/from_timestamp")[position]
        end = self._meta.column(f"videos/{camera}/to_timestamp")[position]
        return f"{self.episodes.length[position]} frames from {begin:g} s to {end:g} s"

    def _details(self, position: int) -> dict[str, Any]:
        return {
            "tasks": self._meta.tasks(position),
            "data_file": self.data_file(position),
            "video_files": {key: self.video_file(position, key) for key in self.info.video_keys},
        }

    def episode_columns(self) -> Mapping[str, np.ndarray]:
        """Return the number columns of ``meta/episodes``, by LeRobot's names."""
        return self._meta.columns


class _EpisodeTable:
    """The number columns of ``meta/episodes``, in order of episode index; the rest on demand."""

    def __init__(self, root: Path, info: Info) -> None:
        self._folder = root / "meta" / "episodes"
        self._paths = sorted(self._folder.glob("*/*.parquet"))
        if not self._paths:
            raise MetadataError(
                "There are no episodes in meta/episodes.",
                hint="an unfinished recording has none; finish or restore it",
                dataset=root,
            )
        table = self._read(info)
        order = np.argsort(as_numpy(table.column("episode_index")), kind="stable")
        self._order = order
        self.columns: dict[str, np.ndarray] = {
            name: as_numpy(table.column(name))[order] for name in table.column_names
        }
        self.identity = [
            (path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in self._paths
        ]
        self._sorted: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def _read(self, info: Info) -> pa.Table:
        names = ["episode_index", "length", "data/chunk_index", "data/file_index"]
        optional = ["dataset_from_index", "dataset_to_index"]
        for camera in info.video_keys:
            fields = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
            names += [f"videos/{camera}/{field}" for field in fields]
        with ThreadPoolExecutor(8) as pool:  # Arrow reads without the GIL; files may be many
            parts = list(pool.map(lambda path: _read_columns(path, names, optional), self._paths))
        shared = [
            name for name in (*names, *optional) if all(name in p.column_names for p in parts)
        ]
        return pa.concat_tables([part.select(shared) for part in parts])

    def column(self, name: str) -> np.ndarray:
        return self.columns[name]

    @cached_property
    def _tasks(self) -> pa.ChunkedArray | None:
        try:
            parts = [_read_parquet(path, columns=["tasks"]) for path in self._paths]
            return pa.concat_tables(parts).column("tasks")
        except (KeyError, pa.ArrowInvalid, OSError):
            return None  # a courtesy column: rows name their tasks by task_index

    def tasks(self, position: int) -> tuple[str, ...]:
        if self._tasks is None:
            return ()
        return tuple(self._tasks[int(self._order[position])].as_py() or ())

    def sharing(self, position: int, camera: str) -> np.ndarray:
        """Return the positions of the episodes in the same video, ascending."""
        if camera not in self._sorted:
            chunk = self.column(f"videos/{camera}/chunk_index")
            ids = chunk << 32 | self.column(f"videos/{camera}/file_index")
            self._sorted[camera] = (ids, np.argsort(ids, kind="stable"))
        ids, order = self._sorted[camera]
        begin, end = np.searchsorted(ids, [ids[position], ids[position] + 1], sorter=order)
        return np.asarray(np.sort(order[begin:end]))


def _read_parquet(path: Path, columns: list[str] | None = None) -> pa.Table:
    # Not ``read_table``: that imports pyarrow.dataset and, where it is installed, pandas with it,
    # which takes longer than everything else in opening a dataset.
    with pq.ParquetFile(path) as parquet:
        return parquet.read(columns=columns)


def _read_columns(path: Path, names: list[str], optional: list[str]) -> pa.Table:
    try:
        with pq.ParquetFile(path) as parquet:
            present = set(parquet.schema_arrow.names)
            absent = [name for name in names if name not in present]
            if absent:
                raise MetadataError(
                    f"The episodes' metadata lacks the column {absent[0]!r}.",
                    hint="info.json and meta/episodes were not written together",
                    file=path,
                )
            wanted = names + [name for name in optional if name in present]
            table = parquet.read(columns=wanted)
    except (pa.ArrowInvalid, OSError) as error:
        raise MetadataError(
            f"The episodes' metadata cannot be read ({str(error).splitlines()[0]}).",
            hint="the file is cut off or was never finished; restore it from a copy",
            file=path,
        ) from error
    return _as_numbers(table.select(wanted), path)


def _as_numbers(table: pa.Table, path: Path) -> pa.Table:
    columns = []
    for name in table.column_names:
        column = table.column(name)
        kind = pa.float64() if name.endswith("_timestamp") else pa.int64()
        if column.null_count:
            raise MetadataError(f"The column {name!r} has missing values.", file=path)
        try:
            columns.append(column.cast(kind))
        except pa.ArrowInvalid as error:
            raise MetadataError(f"The column {name!r} does not hold numbers.", file=path) from error
    return pa.table(columns, names=table.column_names)


def read_tasks(path: Path) -> Tasks:
    """Read ``meta/tasks.parquet``: a text column (or pandas index) and ``task_index``."""
    try:
        table = _read_parquet(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise MetadataError(
            f"The tasks cannot be read ({str(error).splitlines()[0]}).",
            hint="restore the file from a copy",
            file=path,
        ) from error
    texts = next(
        (name for name in ("task", "__index_level_0__") if name in table.column_names), None
    )
    if texts is None or "task_index" not in table.column_names:
        raise MetadataError("The tasks file has no task and task_index columns.", file=path)
    return Tasks(dict(zip(table["task_index"].to_pylist(), table[texts].to_pylist(), strict=True)))
