"""Reading the lance-native layout where it lies: the one that lerobot reads itself.

::

    frames.lance   one row per frame, in the dtypes and shapes that info.json declares
    videos.lance   one row per mp4: video_key, chunk_index, file_index, video_bytes, and where its
                   moov box and keyframes lie
    meta.lance     a copy of meta/, for datasets that lie elsewhere
    meta/          as in v3.0, with "storage_format": "lance" in info.json
"""

from __future__ import annotations

from demoreel.layouts.lance_reader import LanceReader
from demoreel.model import Info

FRAMES, VIDEOS = "frames.lance", "videos.lance"


class LanceNativeReader(LanceReader):
    """A lance-native dataset; its tables have no other names."""

    layout = "lance-native"

    @staticmethod
    def videos_of(table: str, info: Info) -> str | None:
        """Return the name of the table of videos; None if pictures lie with the rows."""
        return VIDEOS.removesuffix(".lance") if info.video_keys else None
