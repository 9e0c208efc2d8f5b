"""Appending to the lance-video layout; all of it is shared, in ``lance_append.py``."""

from __future__ import annotations

from pathlib import Path

from demoreel.layouts.lance_append import LanceAppender, LanceFormat
from demoreel.layouts.lance_out import BYTES_COLUMN, named_after
from demoreel.layouts.lance_video import writer
from demoreel.model import Info
from demoreel.storage.lance_write import commit_table, with_blobs


def lance_video_appender(root: Path, table: str) -> LanceAppender:
    """Open a lance-video dataset for appending.

    Args:
        root: The dataset's folder.
        table: Name of the table of rows, without its ending.

    Raises:
        DatasetBusyError: Another process is appending to it.
        MetadataError: No episode can follow.
    """
    form = LanceFormat(
        frames=f"{table}.lance",
        videos=f"{table}_videos.lance",
        video_schema=writer.VIDEOS,
        rows_batch=writer.rows_batch,
        video_rows=writer.video_rows,
    )
    return LanceAppender(root, form)


def write_empty_tables(folder: Path, info: Info, *, name: str) -> None:
    """Write the tables of a dataset without episodes.

    Args:
        folder: The dataset's folder.
        info: What it is to be.
        name: What the dataset is called; its table of rows is named after it.

    Raises:
        MetadataError: Two features would share a column.
        ArgumentError: A feature has a shape or dtype that no table can hold.
    """
    table = named_after(name)
    commit_table(folder / f"{table}.lance", writer.rows_schema(info), ())
    videos = with_blobs(writer.VIDEOS, BYTES_COLUMN, ranges=False)
    commit_table(folder / f"{table}_videos.lance", videos, ())
