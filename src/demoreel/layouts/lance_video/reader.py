"""Reading the lance-video layout where it lies.

::

    NAME.lance          one row per frame: numbers, text, no pictures of video cameras
    NAME_videos.lance   one row per mp4: video_key, chunk_index, file_index, video_bytes
    meta/               as in v3.0

The tool that invented it (lerobot-lancedb before 0.3) makes float32 of all numbers but the default
columns, and flattens them: they are given back the dtype and shape that ``info.json`` declares.
"""

from __future__ import annotations

from demoreel.layouts.lance_reader import LanceReader
from demoreel.model import Info


class LanceVideoReader(LanceReader):
    """A lance-video dataset."""

    layout = "lance-video"

    @staticmethod
    def videos_of(table: str, info: Info) -> str | None:
        """Return the name of the table of videos; None if pictures lie with the rows."""
        return f"{table}_videos"
