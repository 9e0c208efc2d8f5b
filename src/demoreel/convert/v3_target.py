"""v3.0 as a target: videos become files again, rows become parquet."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.convert.compare import compare_copy
from demoreel.convert.metadata import write_meta
from demoreel.convert.plan import Plan, RowPart, VideoPart
from demoreel.convert.progress import Meter
from demoreel.convert.source import Rows
from demoreel.layouts.columns import table_schema, to_arrow
from demoreel.storage.atomic import sync_path
from demoreel.storage.lance_write import copy_bytes

_PICTURES_AT_ONCE = 256


class V3Target:
    """Writes a v3.0 dataset into a folder.

    Args:
        plan: What to write.
        folder: Where.
        meter: Counts what was written.

    Raises:
        ArgumentError: A feature has a shape or dtype that no table can hold.
    """

    def __init__(self, plan: Plan, folder: Path, meter: Meter) -> None:
        self._plan = plan
        self._folder = folder
        self._meter = meter
        self._schema = table_schema(plan.info.features.values())

    def clear_unfinished(self, done: Mapping[str, Any]) -> None:
        """Files are written over from their start; nothing has to be cleared."""

    def write_videos(self, part: VideoPart) -> list[str]:
        """Write one part of the videos and return the files' names."""
        template = self._plan.info.video_path
        assert template is not None
        names = []
        for video in part.videos:
            name = template.format(
                video_key=video.camera, chunk_index=video.chunk, file_index=video.file
            )
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                source = video.open(self._plan.reader).video.file
                copy_bytes(source, handle, watch=self._meter.add_bytes)
                if self._plan.verify == "full":
                    compare_copy(source, handle, 0)
                os.fsync(handle)
            finally:
                os.close(handle)
            names.append(name)
        return names

    def write_rows(self, part: RowPart) -> list[str]:
        """Write one table and return its name."""
        assert part.number is not None
        chunk, file = part.number
        name = self._plan.info.data_path.format(chunk_index=chunk, file_index=file)
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(path, self._schema, compression="snappy") as writer:
            for first, stop in part.runs:
                self._write_run(writer, first, stop)
        sync_path(path)
        return [name]

    def _write_run(self, writer: pq.ParquetWriter, first: int, stop: int) -> None:
        """Write a stretch of episodes: a row group for each, or several if there are pictures."""
        plan = self._plan
        rows = Rows(plan.reader, first, stop)
        cameras = plan.info.image_keys
        for length in plan.reader.episodes.length[first:stop].tolist():
            at_once = _PICTURES_AT_ONCE if cameras else length
            for count in _steps(length, at_once):
                self._meter.check()
                numbers = np.arange(rows.row, rows.row + count)
                columns = rows.take(count)
                columns |= {key: plan.reader.encoded(numbers, key) for key in cameras}
                arrays = [
                    to_arrow(columns[key], plan.info.features[key], length=count)
                    for key in self._schema.names
                ]
                table = pa.Table.from_arrays(arrays, schema=self._schema)
                writer.write_table(table, row_group_size=count)
                self._meter.add_frames(count)

    def finish(self, done: Mapping[str, list[str]]) -> None:
        """Write ``meta/``; the parts are files already."""
        plan = self._plan
        write_meta(plan.reader, plan.raw_info, plan.numbers, self._folder)
        shutil.rmtree(self._folder / "meta.lance", ignore_errors=True)

    def add_indices(self) -> None:
        """There are none."""


def _steps(total: int, step: int) -> list[int]:
    return [min(step, total - at) for at in range(0, total, step)]
