"""The packets of an episode, in the order they came: what outlives an encoder.

A file of records, appended one write each, so that a packet is in the page cache, and safe from the
death of any process, when the write returns. A reader says how many frames it trusts; what lies
behind them is cut off.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from demoreel.errors import VideoError

_MAGIC = b"demoreel packets 1\n"
_HEADER = struct.Struct("<I")
_RECORD = struct.Struct("<IqB")  # bytes, frame, keyframe


class PacketFile:
    """Packets that one encoder notes and another goes on with; a ``media.encode.PacketLog``.

    Args:
        path: The file; made if need be.
        keep: How many packets to keep of what is there; the rest is cut off.
    """

    def __init__(self, path: Path, *, keep: int) -> None:
        self._path = path
        self._keep = keep
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._end = 0

    def begin(self, header: bytes) -> None:
        """Note the codec's header, or compare it with the one that is there.

        Raises:
            VideoError: The packets were made with another header: they do not go together.
        """
        head = _MAGIC + _HEADER.pack(len(header)) + header
        if self._keep and os.pread(self._handle, len(head), 0) != head:
            raise VideoError(
                "The encoder writes another header than the one before it, so that their packets "
                "do not go together.",
                file=self._path,
            )
        if not self._keep:
            os.ftruncate(self._handle, 0)
            self._write(head, 0)
        self._end = len(head)

    def replay(self) -> Iterator[tuple[int, bool, bytes]]:
        """Yield the packets that are kept, then cut off the rest.

        Raises:
            VideoError: The file does not hold so many.
        """
        for number in range(self._keep):
            head = os.pread(self._handle, _RECORD.size, self._end)
            size, frame, keyframe = (
                _RECORD.unpack(head) if len(head) == _RECORD.size else (0, -1, 0)
            )
            data = os.pread(self._handle, size, self._end + _RECORD.size)
            if not size or len(data) != size:
                raise VideoError(
                    f"The file of packets ends after {number} of {self._keep}.", file=self._path
                )
            yield frame, bool(keyframe), data
            self._end += _RECORD.size + size
        os.ftruncate(self._handle, self._end)

    def append(self, frame: int, keyframe: bool, data: bytes) -> None:
        """Note one more packet.

        Raises:
            OSError: The disk is full.
        """
        record = _RECORD.pack(len(data), frame, keyframe) + data
        self._write(record, self._end)
        self._end += len(record)

    def close(self) -> None:
        """Close the file, which stays. May be called twice."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _write(self, data: bytes, at: int) -> None:
        written = os.pwrite(self._handle, data, at)
        if written < len(data):  # the disk has just run full
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
