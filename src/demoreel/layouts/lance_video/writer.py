"""Rows of the lance-video layout: numbers and text in one table, videos in another.

Types and shapes are those that ``info.json`` declares, except for the default columns, which have
the types that the layout's other tools give them. Cameras that are no videos keep their encoded
pictures beside the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from demoreel.layouts.lance_frames.writer import frames_batch, frames_schema
from demoreel.layouts.lance_out import FiledVideo, videos_table
from demoreel.layouts.lance_rows import column_names
from demoreel.media.packet_bytes import PACKETS_COLUMN
from demoreel.media.picture_encode import PictureCodec
from demoreel.model import Info

VIDEOS = pa.schema(
    [
        ("video_key", pa.string()),
        ("chunk_index", pa.int32()),
        ("file_index", pa.int32()),
        (PACKETS_COLUMN, pa.binary()),
    ]
)
"""The table of videos, without their bytes."""


def rows_schema(info: Info) -> pa.Schema:
    """Return the schema of a dataset's table of rows.

    Raises:
        MetadataError: Two features would share a column.
        ArgumentError: A feature has a shape or dtype that no table can hold.
    """
    names = column_names(info)
    filmed = {names[key] for key in info.video_keys}
    every = frames_schema(info, PictureCodec("source"))
    return pa.schema([field for field in every if field.name not in filmed])


def rows_batch(
    schema: pa.Schema, columns: Mapping[str, Any], pictures: Mapping[str, Sequence[bytes]]
) -> pa.RecordBatch:
    """Put rows together; see ``frames_batch``."""
    return frames_batch(schema, columns, pictures)


def video_rows(videos: Sequence[FiledVideo]) -> pa.Table:
    """Return the rows of some videos, all columns but their bytes."""
    return videos_table(videos, VIDEOS)
