"""Bringing freshly encoded packets beside a video's own, into one file with one header."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from demoreel.edit.encode.headers import hevc_header, joined_header
from demoreel.edit.encode.hevc import Renumbering
from demoreel.errors import VideoError
from demoreel.media.mp4 import Description, read_description
from demoreel.media.mp4_write import PacketRun
from demoreel.media.packets import PacketIndex
from demoreel.media.video import Video
from demoreel.storage.local import open_file


def beside(
    source: Description, joined: Description, made: PacketRun, path: Path
) -> tuple[PacketRun, Description]:
    """Return packets that can stand beside a video's, and the header of a file that holds both.

    Args:
        source: The video's own header.
        joined: The file's header, so far.
        made: What was encoded.
        path: Where it lies; packets that must be changed are put beside it.

    Raises:
        VideoError: They cannot lie in one file.
    """
    own = read_description(made.video.file, name=made.video.name)
    if own is None:
        raise VideoError("What was encoded cannot be read again.", file=made.video.name)
    try:
        if source.kind not in (b"hvc1", b"hev1"):
            return made, joined_header(joined, own)
        header, encoded = hevc_header(source), hevc_header(own)
        if set(encoded.sets) <= set(header.sets):
            return made, joined
        number = header.free_number()
        if number is None:
            raise VideoError("A video's header has no room for others' frames.", file=path)
        renumbering = Renumbering(encoded, number)
        run = _renumbered(made, renumbering, path.with_suffix(".hevc"))
        return run, joined_header(joined, own, renumbering.sets)
    except ValueError as error:
        raise VideoError(f"A video's header makes no sense ({error}).", file=path) from error


def _renumbered(made: PacketRun, renumbering: Renumbering, path: Path) -> PacketRun:
    """Write all packets anew, each of which is a picture that leans on no other."""
    index = made.video.index
    numbers = np.arange(len(made.packets), dtype=np.int32)
    if not np.array_equal(index.start_of, numbers) or not np.array_equal(index.frame_of, numbers):
        raise VideoError("Frames that lean on others cannot be renumbered.", file=made.video.name)
    sizes = []
    with path.open("wb") as file:
        for offset, size in zip(index.offset.tolist(), index.size.tolist(), strict=True):
            sizes.append(file.write(renumbering.packet(made.video.file.read(offset, size))))
    size_of = np.array(sizes, np.int64)
    moved = PacketIndex(
        codec=index.codec,
        offset=np.cumsum(size_of) - size_of,
        size=size_of,
        frame_of=numbers,
        start_of=numbers,
        packet_of=numbers,
        seconds=index.seconds,
    )
    return PacketRun(Video(str(path), open_file(str(path)), moved), numbers)
