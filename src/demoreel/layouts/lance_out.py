"""What the writers of the Lance layouts with videos share: the rows of both tables.

Columns before blobs: Lance numbers a table's columns, and blobs that are described to it take fewer
numbers than it will count for them, so that what stands behind them would be lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from demoreel.media.packet_bytes import PACKETS_COLUMN, encode_packets
from demoreel.media.video import Video

BYTES_COLUMN = "video_bytes"
"""The blob column of a table of videos; always the last."""

FEATURE_NOTE = b"demoreel.feature"
"""Where a column notes the key of its feature, which may have dots."""


def named_after(folder: str) -> str:
    """Return the name of the table of rows, without its ending, of a dataset in such a folder."""
    cleaned = re.sub(r"[^\w.-]", "_", folder).lstrip(".-_").removesuffix("_videos")
    return cleaned or "frames"


@dataclass(frozen=True, slots=True)
class FiledVideo:
    """A video and the numbers that ``meta/episodes`` finds it by.

    Attributes:
        camera: Its camera.
        chunk: Its ``chunk_index``.
        file: Its ``file_index``.
        video: The video itself.
    """

    camera: str
    chunk: int
    file: int
    video: Video


def videos_table(
    videos: Sequence[FiledVideo], schema: pa.Schema, more: Iterable[Mapping[str, Any]] = ()
) -> pa.Table:
    """Return the rows of some videos, all columns but their bytes.

    Args:
        videos: The videos.
        schema: The columns.
        more: For each video, values of columns that only one layout has.
    """
    rows = [
        {
            "video_key": entry.camera,
            "chunk_index": entry.chunk,
            "file_index": entry.file,
            PACKETS_COLUMN: encode_packets(entry.video.index, video_bytes=entry.video.file.size),
        }
        for entry in videos
    ]
    for row, others in zip(rows, more, strict=False):
        row.update(others)
    return pa.Table.from_pylist(rows, schema=schema)
