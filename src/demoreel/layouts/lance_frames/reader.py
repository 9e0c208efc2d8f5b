"""Reading the lance-frames layout where it lies.

::

    NAME.lance   one row per frame: numbers, text, and each camera's picture, encoded
    meta/        as in v3.0; it may call a camera a video if it was one before

The tool that invented it (lerobot-lancedb before 0.3) makes float32 of all numbers but the default
columns, and flattens them, and its own reader hands them out so. Here they are given back the dtype
and shape that ``info.json`` declares: a reward is a number and not an array of one, a flag is a
bool, an array of (4, 3) has that shape.
"""

from __future__ import annotations

from pathlib import Path

from demoreel.layouts.lance_reader import LanceReader, Place, tables_of
from demoreel.model import Info


class LanceFramesReader(LanceReader):
    """A lance-frames dataset.

    Args:
        root: The dataset's folder.
        info: Its info.
        table: Name of the table, without its ending.
        version: A version of the table; None is the newest.
        tag: A version's name.
        tables: The folder of the tables, if not ``root``; it may lie in an object store.

    Raises:
        MetadataError: Metadata are missing, unreadable or contradictory.
        ArgumentError: There is no such version or tag.
    """

    layout = "lance-frames"

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
        frames = (tables or root) / f"{table}.lance"
        super().__init__(root, info, *tables_of(frames, None, version=version, tag=tag))
