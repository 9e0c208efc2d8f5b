"""Memory that the control loop and an encoder share: pictures, and how far encoding is.

The memory is a file without a name, so that nothing is left behind however a process ends. It
holds places for pictures, and two records of progress that the encoder writes in turn: which frame
of which episode is the first whose packet is not safe, and the counts of the pictures before it. A
record becomes the current one by a single store of its number, so that an encoder may die at any
instant: the last record is whole, and says from where another is to go on.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass

import numpy as np

from demoreel.record.encoding.plan import CameraPlan
from demoreel.stats.running import Pictures

_NUMBER = np.dtype(np.int64)
_FRAME_BITS = 32
_HEADER = 3  # position, pictures counted, unused


@dataclass(frozen=True, slots=True)
class Progress:
    """How far encoding is.

    Attributes:
        episode: The episode that is being encoded; those before it are done with.
        frames: How many of its frames have their packets in a file.
        stats: Counts of those frames' pictures.
    """

    episode: int
    frames: int
    stats: Pictures


class SharedFrames:
    """Places for pictures of one camera, and the progress of its encoder.

    Args:
        plan: The camera.
        places: How many pictures there is room for.
        handle: The file, if another process made it; None makes one.

    Raises:
        OSError: There is no memory.
    """

    def __init__(self, plan: CameraPlan, places: int, *, handle: int | None = None) -> None:
        levels = int(np.prod(plan.levels))
        record = (_HEADER + levels) * _NUMBER.itemsize
        first = _whole_pages(mmap.PAGESIZE + 2 * record)
        step = _whole_pages(plan.nbytes)
        size = first + places * step
        self.handle = _nameless_file(size) if handle is None else handle
        self._plan = plan
        self._pages = mmap.mmap(self.handle, size)
        self._turn = np.frombuffer(self._pages, _NUMBER, 1)
        self._records = np.frombuffer(
            self._pages, _NUMBER, 2 * (_HEADER + levels), mmap.PAGESIZE
        ).reshape(2, -1)
        self.pictures = [
            np.frombuffer(
                self._pages, plan.dtype, plan.nbytes // plan.dtype.itemsize, first + place * step
            ).reshape(plan.shape)
            for place in range(places)
        ]

    @property
    def position(self) -> tuple[int, int]:
        """Episode and number of its frames that are safe. Costs a microsecond."""
        position = int(self._records[int(self._turn[0]) & 1, 0])  # one load: never half of each
        return position >> _FRAME_BITS, position & ((1 << _FRAME_BITS) - 1)

    def progress(self) -> Progress:
        """Return the last record, whole even while the encoder goes on."""
        while True:
            turn = int(self._turn[0])
            record = self._records[turn & 1].copy()
            if int(self._turn[0]) == turn:
                break
        position, counted = int(record[0]), int(record[1])
        stats = Pictures.counted(record[_HEADER:].reshape(self._plan.levels), counted)
        return Progress(position >> _FRAME_BITS, position & ((1 << _FRAME_BITS) - 1), stats)

    def advance(self, episode: int, frames: int, stats: Pictures) -> None:
        """Note, in one step, that these frames are safe. Only the encoder does."""
        turn = int(self._turn[0]) + 1
        record = self._records[turn & 1]
        record[0] = episode << _FRAME_BITS | frames
        record[1] = stats.count
        record[_HEADER:] = stats.histogram().reshape(-1) if stats.count else 0
        self._turn[0] = turn

    def touch(self, places: int) -> None:
        """Have the system give memory to the first places, so that the first pictures cost less."""
        for picture in self.pictures[:places]:
            picture.reshape(-1)[:: mmap.PAGESIZE // picture.itemsize] = 0

    def close(self) -> None:
        """Let go of the file; the memory goes when nobody looks at it."""
        os.close(self.handle)


def _whole_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _nameless_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("demoreel-frames", os.MFD_CLOEXEC)
    else:
        handle, name = tempfile.mkstemp(prefix="demoreel-frames-")
        os.unlink(name)
    os.ftruncate(handle, size)
    return handle
