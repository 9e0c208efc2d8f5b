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

from demoreel.layouts.lance_reader import LanceReader
from demoreel.model import Info


class LanceFramesReader(LanceReader):
    """A lance-frames dataset."""

    layout = "lance-frames"

    @staticmethod
    def videos_of(table: str, info: Info) -> str | None:
        """Return the name of the table of videos; None if pictures lie with the rows."""
        return None
