"""Results in the Lance layouts: tasks write fragments, and the end makes tables of them.

Fragments are data files that no reader sees before a table names them, so tasks may run anywhere,
twice, or in vain. Videos go straight from their sources' packets into the table of videos.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.edit.plan import Plan
from demoreel.edit.statistics.facts import Facts
from demoreel.edit.table_work import TableJob, numbered_clips
from demoreel.edit.video_work import VideoJob, packets_of, refuse_other_length
from demoreel.layouts.base import Column
from demoreel.layouts.lance_frames import writer as lance_frames
from demoreel.layouts.lance_native import writer as lance_native
from demoreel.layouts.lance_out import BYTES_COLUMN, FiledVideo, named_after
from demoreel.layouts.lance_video import writer as lance_video
from demoreel.media.mp4_write import SplicedVideo
from demoreel.media.picture_encode import PictureCodec
from demoreel.media.video import index_video
from demoreel.model import Info
from demoreel.run.staging import write_whole
from demoreel.storage import lance_write
from demoreel.storage.atomic import sync_tree

COPY = "meta.lance"
"""The table with a copy of ``meta/`` that lance-native has."""

INDICES = {"episode_index": "BTREE", "task_index": "BITMAP"}
"""The scalar indices of a table of rows."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The Lance tables of a result.

    Attributes:
        layout: Its layout.
        frames: Name of the table of rows.
        videos: Name of the table of videos; None if it has none.
    """

    layout: str
    frames: str
    videos: str | None

    @property
    def writer(self) -> ModuleType:
        """What puts rows together for this layout; ``lance-frames`` has no videos to put."""
        return lance_native if self.layout == "lance-native" else lance_video

    def schema(self, info: Info) -> pa.Schema:
        """Return the columns of the table of rows.

        Raises:
            MetadataError: Two features would share a column.
            ArgumentError: A feature has a shape or dtype that no table can hold.
        """
        if self.layout == "lance-frames":
            return lance_frames.frames_schema(info, PictureCodec("source"))
        schema: pa.Schema = self.writer.rows_schema(info)
        return schema

    def batch(self, schema: pa.Schema, columns: Mapping[str, Column]) -> pa.RecordBatch:
        """Put rows together; encoded pictures stand among the columns."""
        rows: pa.RecordBatch = self.writer.rows_batch(schema, columns, columns)
        return rows


def tables_for(layout: str, name: str, info: Info) -> Tables | None:
    """Return the tables of a result; None where it does not lie in Lance.

    Args:
        layout: Its layout.
        name: The name of its folder, which tables are named after.
        info: What it will be.
    """
    if layout == "lance-native":
        return Tables(layout, "frames.lance", "videos.lance" if info.video_keys else None)
    if layout == "lance-video":
        table = named_after(name)
        return Tables(layout, f"{table}.lance", f"{table}_videos.lance")
    return Tables(layout, f"{named_after(name)}.lance", None) if layout == "lance-frames" else None


def write_lance_rows(job: TableJob, tables: Tables, info: Info) -> dict[str, Any]:
    """Write rows as fragments, and beside them what the commit must know of their episodes.

    Memory: the numbers of 65,536 rows, and the pictures of one clip.

    Raises:
        TableError: A source's table is missing or damaged.
        MetadataError: A row names a task that does not exist.
    """
    folder = Path(job.folder)
    facts = Facts(job.features, list(job.tasks))
    schema = tables.schema(info)
    batches = _batches(tables, schema, numbered_clips(job, facts))
    fragments = lance_write.write_rows(folder / "dataset" / tables.frames, schema, batches)
    part = f"parts/{job.name}.parquet"
    write_whole(folder / part, lambda path: pq.write_table(facts.table(), path))
    files = {part: os.path.getsize(folder / part)}
    return {"files": files | _files(folder, tables.frames, fragments), "fragments": fragments}


def _batches(
    tables: Tables, schema: pa.Schema, clips: Iterator[dict[str, Column]]
) -> Iterator[pa.RecordBatch]:
    for columns in clips:
        yield tables.batch(schema, columns)


def write_lance_videos(job: VideoJob, tables: Tables) -> dict[str, Any]:
    """Write videos into a fragment of the table of videos.

    Cost: a copy of their bytes; what is encoded takes the time of its codec.

    Raises:
        VideoError: A source's video is missing, broken, or not what it was when planned.
    """
    assert tables.videos is not None
    folder = Path(job.folder)
    blobs = lance_write.BlobPart(folder / "dataset" / tables.videos, BYTES_COLUMN)
    try:
        filed = []
        for name, video in job.videos:
            with packets_of(video, job.sources, job.keys, folder) as (runs, description):
                mp4 = SplicedVideo(runs, description=description, fps=video.fps)
                refuse_other_length(video, mp4.frames)
                blobs.add(mp4)
                indexed = index_video(mp4, name)
                filed.append(FiledVideo(video.camera, video.chunk, video.file, indexed))
        fragments = blobs.finish(tables.writer.video_rows(filed))
    except BaseException:
        blobs.abandon()
        raise
    return {"files": _files(folder, tables.videos, fragments), "fragments": fragments}


def _files(folder: Path, table: str, fragments: Sequence[str]) -> dict[str, int]:
    """Return the files of fragments, with their blobs, and their sizes."""
    names = [file["path"] for text in fragments for file in json.loads(text)["files"]]
    data = folder / "dataset" / table / "data"
    found = [data / name for name in names]
    for name in names:
        found += sorted((data / name.removesuffix(".lance")).glob("*.blob"))
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in found}


def make_rows_table(plan: Plan, tables: Tables, dataset: Path, fragments: Sequence[str]) -> Path:
    """Make the table of rows, with its indices, and return its folder.

    May be repeated. Nothing is forced to disk but the fragments.
    """
    if tables.videos is not None:
        (dataset / tables.videos).mkdir(parents=True, exist_ok=True)  # it tells the layout
    table = dataset / tables.frames
    lance_write.clear_unnamed(table, fragments)
    lance_write.commit_table(table, tables.schema(plan.info), fragments)
    for column, kind in INDICES.items():
        lance_write.add_index(table, column, kind)
    return table


def make_videos_table(tables: Tables, dataset: Path, fragments: Sequence[str]) -> None:
    """Make the table of videos, with its index, if the layout has one. May be repeated."""
    if tables.videos is None:
        return
    table = dataset / tables.videos
    native = tables.layout == "lance-native"
    schema = lance_write.with_blobs(tables.writer.VIDEOS, BYTES_COLUMN, ranges=native)
    lance_write.clear_unnamed(table, fragments)
    lance_write.commit_table(table, schema, fragments)
    if fragments:
        lance_write.add_index(table, "video_key", "BITMAP")


def copy_metadata(tables: Tables, dataset: Path) -> None:
    """Make the table with a copy of ``meta/``, if the layout has one. May be repeated."""
    if tables.layout != "lance-native":
        return
    lance_write.clear_unnamed(dataset / COPY, ())
    files = lance_native.meta_rows(dataset / "meta")
    written = lance_write.write_rows(dataset / COPY, files.schema, files.to_batches())
    lance_write.commit_table(dataset / COPY, files.schema, written)


def sync_tables(dataset: Path) -> None:
    """Force all that is not in fragments to disk: they are there already."""
    for table in dataset.glob("*.lance"):
        for name in ("_versions", "_transactions", "_indices"):
            if (table / name).is_dir():
                sync_tree(table / name)
