"""Reading the lance-video layout where it lies.

::

    NAME.lance          one row per frame: numbers, text, no pictures of video cameras
    NAME_videos.lance   one row per mp4: video_key, chunk_index, file_index, video_bytes
    meta/               as in v3.0

The tool that invented it (lerobot-lancedb before 0.3) makes float32 of all numbers but the default
columns, and flattens them: they are given back the dtype and shape that ``info.json`` declares.
"""

from __future__ import annotations

from pathlib import Path

from demoreel.layouts.lance_reader import LanceReader, Place, tables_of
from demoreel.model import Info


class LanceVideoReader(LanceReader):
    """A lance-video dataset.

    Args:
        root: The dataset's folder.
        info: Its info.
        table: Name of the table of rows, without its ending.
        version: A version of that table; None is the newest.
        tag: A version's name.
        tables: The folder of the tables, if not ``root``; it may lie in an object store.

    Raises:
        MetadataError: Metadata are missing, unreadable or contradictory.
        ArgumentError: There is no such version or tag.
    """

    layout = "lance-video"

    def __init__(
        self,
        root: Path,
        info: Info,
        table: str,
        *,
        version: int | None = None,
        tag: str | None = None,
        tables: Place | None = None,
    ) -> None:
        folder = tables or root
        frames, videos = folder / f"{table}.lance", folder / f"{table}_videos.lance"
        super().__init__(root, info, *tables_of(frames, videos, version=version, tag=tag))
