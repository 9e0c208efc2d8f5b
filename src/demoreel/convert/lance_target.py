"""The Lance layouts as targets: rows and videos become fragments, and fragments become tables."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from demoreel.convert.compare import compare_copy
from demoreel.convert.metadata import write_meta
from demoreel.convert.plan import Plan, RowPart, VideoPart
from demoreel.convert.progress import Meter
from demoreel.convert.source import Rows
from demoreel.errors import ArgumentError
from demoreel.layouts.lance_frames import writer as lance_frames
from demoreel.layouts.lance_native import writer as lance_native
from demoreel.layouts.lance_out import BYTES_COLUMN, FiledVideo
from demoreel.layouts.lance_video import writer as lance_video
from demoreel.read.transcode import MOST_ROWS, encoded_pictures
from demoreel.storage import lance_write
from demoreel.storage.local import LocalFile

_ROWS_AT_ONCE = 1 << 16

Pictures = Generator[tuple[int, dict[str, list[bytes]]], None, None]


class LanceTarget:
    """Writes one of the Lance layouts into a folder.

    Args:
        plan: What to write.
        folder: Where.
        meter: Counts what was written.
        threads: How many decode and encode pictures.

    Raises:
        MetadataError: Two features would share a column.
        ArgumentError: A feature has a shape or dtype that no table can hold.
    """

    def __init__(self, plan: Plan, folder: Path, meter: Meter, *, threads: int) -> None:
        self._plan = plan
        self._meter = meter
        self._threads = threads
        self._folder = folder
        native = plan.to == "lance-native"
        self._writer = lance_native if native else lance_video
        self._frames = folder / ("frames.lance" if native else f"{plan.table}.lance")
        self._videos = folder / ("videos.lance" if native else f"{plan.table}_videos.lance")
        self._schema = row_schema(plan)

    def clear_unfinished(self, done: Mapping[str, Any]) -> None:
        """Remove what parts have left that did not come to their end."""
        for table, kind in ((self._frames, "rows-"), (self._videos, "videos-")):
            notes = [note for name, note in done.items() if name.startswith(kind)]
            lance_write.clear_unnamed(table, [text for note in notes for text in note])

    def write_videos(self, part: VideoPart) -> list[str]:
        """Write one part of the videos and return what to note of it."""
        if self._plan.link:
            return self._link(part)
        blobs = lance_write.BlobPart(
            self._videos,
            BYTES_COLUMN,
            watch=self._meter.add_bytes,
            check=compare_copy if self._plan.verify == "full" else None,
        )
        try:
            opened = []
            for video in part.videos:
                entry = video.open(self._plan.reader)
                blobs.add(entry.video.file)
                opened.append(entry)
            return blobs.finish(self._writer.video_rows(opened))
        except BaseException:
            blobs.abandon()
            raise

    def _link(self, part: VideoPart) -> list[str]:
        opened = []
        for video in part.videos:
            self._meter.check()
            opened.append(video.open(self._plan.reader))
        places: list[lance_write.Place] = [
            (linkable(entry, self._plan).as_uri(), None, None) for entry in opened
        ]
        rows = self._writer.video_rows(opened)
        return lance_write.write_links(self._videos, BYTES_COLUMN, rows, places)

    def write_rows(self, part: RowPart) -> list[str]:
        """Write one part of the rows and return what to note of it."""
        ((first, stop),) = part.runs
        return lance_write.write_rows(self._frames, self._schema, self._batches(first, stop))

    def _batches(self, first: int, stop: int) -> Iterator[pa.RecordBatch]:
        rows = Rows(self._plan.reader, first, stop)
        # Closed at once if something fails: threads that encode pictures wait to be told.
        with closing(self._pictures(first, stop)) as pictures:
            for count, held in pictures:
                self._meter.check()
                if self._plan.codec is not None:
                    yield lance_frames.frames_batch(self._schema, rows.take(count), held)
                else:
                    yield self._writer.rows_batch(self._schema, rows.take(count), held)
                self._meter.add_frames(count)

    def _pictures(self, first: int, stop: int) -> Pictures:
        """Yield how many rows come next, and the pictures that lie with them."""
        plan = self._plan
        begin, end = (int(plan.reader.episodes.start[p]) for p in (first, stop))
        if plan.codec is not None and plan.info.cameras:
            encoded = encoded_pictures(
                plan.reader, first=first, stop=stop, codec=plan.codec, threads=self._threads
            )
            with closing(encoded) as portions:
                for held in portions:
                    yield len(next(iter(held.values()))), held
            return
        cameras = plan.info.image_keys
        step = MOST_ROWS if cameras else _ROWS_AT_ONCE
        for at in range(begin, end, step):
            rows = np.arange(at, min(at + step, end))
            yield len(rows), {key: plan.reader.encoded(rows, key) for key in cameras}

    def finish(self, done: Mapping[str, list[str]]) -> None:
        """Make the tables of the parts, and write ``meta/``.

        Args:
            done: What was noted of each part.
        """
        plan = self._plan
        rows = [text for part in plan.row_parts for text in done[part.name]]
        lance_write.commit_table(self._frames, self._schema, rows)
        if plan.to == "lance-video" or plan.video_parts:
            videos = [text for part in plan.video_parts for text in done[part.name]]
            native = plan.to == "lance-native"
            schema = lance_write.with_blobs(self._writer.VIDEOS, BYTES_COLUMN, ranges=native)
            lance_write.commit_table(self._videos, schema, videos)
        write_meta(plan.reader, plan.raw_info, plan.numbers, self._folder)
        if plan.to == "lance-native":
            self._copy_meta()

    def add_indices(self) -> None:
        """Index the tables, for queries; they are whole without that."""
        lance_write.add_index(self._frames, "episode_index", "BTREE")
        lance_write.add_index(self._frames, "task_index", "BITMAP")
        if self._plan.video_parts:
            lance_write.add_index(self._videos, "video_key", "BITMAP")

    def _copy_meta(self) -> None:
        table = self._folder / "meta.lance"
        lance_write.clear_unnamed(table, ())
        files = lance_native.meta_rows(self._folder / "meta")
        written = lance_write.write_rows(table, files.schema, files.to_batches())
        lance_write.commit_table(table, files.schema, written)


def row_schema(plan: Plan) -> pa.Schema:
    """Return the schema of a Lance target's table of rows.

    Raises:
        MetadataError: Two features would share a column.
        ArgumentError: A feature has a shape or dtype that no table can hold.
    """
    if plan.codec is not None:
        return lance_frames.frames_schema(plan.info, plan.codec)
    writer = lance_native if plan.to == "lance-native" else lance_video
    return writer.rows_schema(plan.info)


def linkable(entry: FiledVideo, plan: Plan) -> Path:
    """Return the file that a table can point at for this video.

    Raises:
        ArgumentError: It lies inside a Lance table, or in the folder that will be replaced.
    """
    file = entry.video.file
    path = Path(file.path).resolve() if isinstance(file, LocalFile) else None
    if path is None or any(part.endswith(".lance") for part in path.parts):
        raise ArgumentError(
            "A video lies inside a Lance table, and cannot be pointed at from another.",
            hint="leave link out, or link the dataset that this one was made from",
            dataset=plan.reader.root,
            camera=entry.camera,
        )
    if path.is_relative_to(plan.target.resolve()):
        raise ArgumentError("A video to be linked lies in the folder to be replaced.", file=path)
    return path
