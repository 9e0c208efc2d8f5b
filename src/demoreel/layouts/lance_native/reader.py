"""Reading the lance-native layout where it lies: the one that lerobot reads itself.

::

    frames.lance   one row per frame, in the dtypes and shapes that info.json declares
    videos.lance   one row per mp4: video_key, chunk_index, file_index, video_bytes, and where its
                   moov box and keyframes lie
    meta.lance     a copy of meta/, for datasets that lie elsewhere
    meta/          as in v3.0, with "storage_format": "lance" in info.json
"""

from __future__ import annotations

from pathlib import Path

from demoreel.layouts.lance_reader import LanceReader, Place, tables_of
from demoreel.model import Info

FRAMES, VIDEOS = "frames.lance", "videos.lance"


class LanceNativeReader(LanceReader):
    """A lance-native dataset.

    Args:
        root: The dataset's folder.
        info: Its info.
        version: A version of ``frames.lance``; None is the newest.
        tag: A version's name.
        tables: The folder of the tables, if not ``root``; it may lie in an object store.

    Raises:
        MetadataError: Metadata are missing, unreadable or contradictory.
        ArgumentError: There is no such version or tag.
    """

    layout = "lance-native"

    def __init__(
        self,
        root: Path,
        info: Info,
        *,
        version: int | None = None,
        tag: str | None = None,
        tables: Place | None = None,
    ) -> None:
        folder = tables or root
        videos = folder / VIDEOS if info.video_keys else None
        super().__init__(root, info, *tables_of(folder / FRAMES, videos, version=version, tag=tag))
