"""The files of an episode before its commit, and its packets.

``persisted.py`` reads them. Imports nothing heavy: encoder processes need these names, too.

Packets are a file of records in the order they came: what outlives an encoder. They are appended
one write each, so that a packet is in the page cache, and safe from the death of any process, when
the write returns. A reader says how many frames it trusts; what is behind them is cut off.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from demoreel.errors import VideoError
from demoreel.storage.local import LocalFile

WORKDIR = Path(".demoreel") / "encoding"
"""The folder for them, in the dataset's."""

MANIFEST = "sealed.json"
"""While an episode's folder has this file, the episode is saved and not committed."""

ROWS = "rows.arrow"
"""An episode's rows."""

_FOLDER = "episode-"


def episode_folder(workdir: Path, episode: int) -> Path:
    """The folder of an episode."""
    return workdir / f"{_FOLDER}{episode:06d}"


def episode_folders(workdir: Path) -> list[Path]:
    """The folders of the episodes that are there, oldest first."""
    try:
        names = os.listdir(workdir)  # a glob would keep quiet about what may not be read
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = [path for name in names if _number(path := workdir / name) is not None]
    return sorted(found, key=lambda path: (_number(path) or 0, path.name))


def persisted_folders(root: Path) -> list[Path]:
    """The folders of the episodes of a dataset that are saved and not committed, oldest first.

    Where this user may not look, there may be some: the folder that may not be listed is one.
    """
    try:
        return [path for path in episode_folders(root / WORKDIR) if is_persisted(path)]
    except PermissionError:
        return [root / WORKDIR]


def unsaved(workdir: Path) -> list[Path]:
    """What is left of trials of encoders, and the folders of episodes that were not saved."""
    folders = [path for path in episode_folders(workdir) if path.is_dir() and not path.is_symlink()]
    return [*sorted(workdir.glob(".trial-*.mp4")), *(p for p in folders if not is_persisted(p))]


def is_persisted(folder: Path) -> bool:
    """Whether a folder has a manifest, or may have one that this user may not see."""
    try:
        os.lstat(folder / MANIFEST)
    except PermissionError:
        return True
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def next_episode(workdir: Path) -> int:
    """Return a number that no episode in ``workdir`` has; the first is 1."""
    return 1 + max((_number(path) or 0 for path in episode_folders(workdir)), default=0)


def video_path(base: Path) -> Path:
    """Where the video of an episode's camera is made."""
    return base.with_name(base.name + ".mp4")


def packets_path(base: Path) -> Path:
    """Where its packets are noted."""
    return base.with_name(base.name + ".packets")


def spill_path(base: Path) -> Path:
    """Where its images wait if they must."""
    return base.with_name(base.name + ".raw")


def counts_path(base: Path) -> Path:
    """Where the counts of its images are when it is persisted."""
    return base.with_name(base.name + ".counts.npy")


def _number(folder: Path) -> int | None:
    if not folder.name.startswith(_FOLDER):
        return None
    number = folder.name.removeprefix(_FOLDER)
    return int(number) if number.isascii() and number.isdigit() and len(number) < 16 else None


_MAGIC = b"demoreel packets 1\n"
_HEADER = struct.Struct("<I")
_RECORD = struct.Struct("<IqB")  # bytes, frame, keyframe
_AT_ONCE = 1 << 20
_LONGEST_HEADER = 1 << 20


def rewrite_packets(path: Path, packets: int) -> None:
    """Write the first packets of a file once more, where they are.

    After an fsync that failed the system counts what it could not write as written, and a second
    fsync would not try again. An encoder may note more packets meanwhile.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # no packet was noted yet
    try:
        head = os.pread(handle, len(_MAGIC) + _HEADER.size, 0)
        end = len(head) + (_HEADER.unpack(head[-_HEADER.size :])[0] if packets else 0)
        for _ in range(packets):
            record = os.pread(handle, _RECORD.size, end)
            if len(record) < _RECORD.size:
                break
            end += _RECORD.size + _RECORD.unpack(record)[0]
        for at in range(0, end, _AT_ONCE):
            os.pwrite(handle, os.pread(handle, min(_AT_ONCE, end - at), at), at)
    finally:
        os.close(handle)


@dataclass(frozen=True, slots=True)
class PacketTable:
    """Where the packets in such a file are, in decoding order.

    Attributes:
        header: The codec's header.
        offset: Byte position of each packet.
        size: Bytes of each.
        frame: The frame that each becomes.
        keyframe: Whether decoding may begin with it.
    """

    header: bytes
    offset: np.ndarray
    size: np.ndarray
    frame: np.ndarray
    keyframe: np.ndarray


def read_packets(file: LocalFile, count: int) -> PacketTable:
    """Return where the first packets are, and read none of them; the file may be untrusted."""
    start = len(_MAGIC) + _HEADER.size
    head = file.read(0, start)
    if len(head) < start or not head.startswith(_MAGIC):
        raise VideoError("This is no file of packets.", file=file.path)
    (length,) = _HEADER.unpack(head[len(_MAGIC) :])
    header = file.read(start, length) if length <= _LONGEST_HEADER else b""
    at = start + length
    if len(header) < length or count > (file.size - at) // _RECORD.size:
        raise _ends_after(0, count, file.path)
    columns = np.zeros((4, count), np.int64)
    for number in range(count):
        record = file.read(at, _RECORD.size)
        size, frame, keyframe = (
            _RECORD.unpack(record) if len(record) == _RECORD.size else (0, -1, 0)
        )
        at += _RECORD.size
        if not size or at + size > file.size:
            raise _ends_after(number, count, file.path)
        columns[:, number] = at, size, frame, keyframe
        at += size
    return PacketTable(header, columns[0], columns[1], columns[2], columns[3] != 0)


def _ends_after(number: int, count: int, path: str | Path) -> VideoError:
    return VideoError(f"The file of packets ends after {number} of {count}.", file=path)


class PacketFile:
    """Packets that one encoder notes and another continues with; a ``media.encode.PacketLog``.

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
        """Note the codec's header, or compare it with the one that is there."""
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
        """Yield the packets that are kept, then cut off the rest."""
        for number in range(self._keep):
            head = os.pread(self._handle, _RECORD.size, self._end)
            size, frame, keyframe = (
                _RECORD.unpack(head) if len(head) == _RECORD.size else (0, -1, 0)
            )
            data = os.pread(self._handle, size, self._end + _RECORD.size)
            if not size or len(data) != size:
                raise _ends_after(number, self._keep, self._path)
            yield frame, bool(keyframe), data
            self._end += _RECORD.size + size
        os.ftruncate(self._handle, self._end)

    def append(self, frame: int, keyframe: bool, data: bytes) -> None:
        """Note one more packet."""
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
