"""Writes an mp4 from packets of other videos: copies bytes by range, and builds tables with numpy.

A muxer looks at every packet; here a span of packets that are side by side is one copy. The
table of packets comes first, so that a video can be read while it is fetched. The clock ticks once
a frame, as in ``remux.py``: frame ``i`` is shown at tick ``i``. Audio (``audio.py``) is between
the frames, about a second of each at a time.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np

from demoreel.errors import ArgumentError, VideoError
from demoreel.media.audio import AudioPackets, AudioSpan, audio_packets
from demoreel.media.mp4 import Description
from demoreel.media.mp4_boxes import NARROW, Clock, SampleTables, Sound, box, moov
from demoreel.media.settings import exact_rate
from demoreel.media.video import Video
from demoreel.storage.local import LocalFile, begin_writing_out
from demoreel.storage.store import ReadsNow, StoredFile

_AT_ONCE = 1 << 20
_EARLY = 1 << 25  # bytes after which the disk is asked to begin
_LONG = 1 << 23  # bytes that are worth a call to the kernel
_CANNOT = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF)


@dataclass(frozen=True, slots=True)
class PacketRun:
    """Packets of one video that are carried over together.

    Attributes:
        video: The video.
        packets: Their numbers, ascending.
    """

    video: Video
    packets: np.ndarray

    def shown(self) -> np.ndarray:
        """Return the place of each packet's frame among those of the run, in order of packets.

        Frames that their video never shows come before the others if they are decoded before all of
        them, else after.
        """
        frames = self.video.index.frame_of[self.packets].astype(np.int64)
        hidden = frames < 0
        if hidden.any():
            first = int(np.argmin(hidden))
            places = np.arange(len(frames))
            frames = np.where(
                hidden, np.where(places < first, places - len(frames), 1 << 40), frames
            )
        shown = np.empty(len(frames), np.int64)
        shown[np.argsort(frames, kind="stable")] = np.arange(len(frames))
        return shown

    def frames(self) -> np.ndarray:
        """Return the numbers of the frames as they are shown; -1 where the video shows none."""
        frames = np.empty(len(self.packets), np.int64)
        frames[self.shown()] = self.video.index.frame_of[self.packets]
        return np.maximum(frames, -1)

    def keyframes(self) -> np.ndarray:
        """Return for each packet whether decoding may begin there."""
        return np.asarray(self.video.index.start_of[self.packets] == self.packets)


class SplicedVideo(ReadsNow):
    """An mp4 that is made of other videos' packets: to be read as it is, or written to a file.

    Cost: 40 bytes of memory for a packet; nothing is read before it is asked for.

    Args:
        runs: What it is made of, in order. All must be of the same kind (``signature``).
        description: How the packets are described, from one of the videos.
        fps: Frames per second.
        audio: The audio beside it.

    Attributes:
        frames: How many it has: as many as packets.
        size: Its bytes.
        identity: Changes when the bytes do.
    """

    def __init__(
        self,
        runs: Sequence[PacketRun],
        *,
        description: Description,
        fps: float | Fraction,
        audio: Sequence[AudioSpan] = (),
    ) -> None:
        runs = [run for run in runs if len(run.packets)]
        if not runs:
            raise ArgumentError("There are no packets to write.")
        rate = exact_rate(fps)
        self.frames = sum(len(run.packets) for run in runs)
        heard = audio_packets(audio, seconds=float(self.frames / rate)) if audio else None
        if heard is None:
            self._head = _header(runs, description, rate)
            self._pieces = [(run.video, *span) for run in runs for span in _spans(run)]
        else:
            mixed = _Interleaved(runs, heard, rate)
            self._head = _header(runs, description, rate, mixed)
            self._pieces = mixed.pieces
        lengths = [length for _, _, length in self._pieces]
        self._ends = np.cumsum([len(self._head), *lengths])
        self.size = int(self._ends[-1])
        places = tuple((video.file.identity, *place) for video, *place in self._pieces)
        self.identity = (zlib.crc32(self._head), places)

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes there; fewer than ``length`` only where the video ends."""
        stop = min(offset + length, self.size)
        parts = []
        while 0 <= offset < stop:
            place = int(np.searchsorted(self._ends, offset, side="right"))
            begin = int(self._ends[place - 1]) if place else 0
            wanted = min(stop, int(self._ends[place])) - offset
            if place == 0:
                parts.append(self._head[offset : offset + wanted])
            else:
                video, at, _ = self._pieces[place - 1]
                parts.append(video.file.read(at + offset - begin, wanted))
                if len(parts[-1]) < wanted:
                    raise _cut_off(video, wanted, at + offset - begin)
            offset += wanted
        return b"".join(parts)

    def write_to(self, handle: int) -> None:
        """Write all of it to an open file, from where that stands. It is not synced to disk."""
        output = _Output(handle)
        output.write(self._head)
        for video, offset, length in self._pieces:
            _copy(video, offset, length, output)


def write_packets(
    path: str | os.PathLike[str],
    runs: Sequence[PacketRun],
    *,
    description: Description,
    fps: float | Fraction,
    audio: Sequence[AudioSpan] = (),
) -> int:
    """Write the packets of all runs, one after the other, into one mp4. It is not synced to disk.

    Cost: one read and one write of the packets' bytes; 40 bytes of memory for a packet.

    Args:
        path: The file to write; removed again if this fails.
        runs: What to write. All must be of the same kind (``signature``).
        description: How the packets are described, from one of the videos.
        fps: Frames per second.
        audio: The audio beside them.

    Returns:
        Frames in the file: as many as packets.
    """
    video = SplicedVideo(runs, description=description, fps=fps, audio=audio)
    target = Path(path)
    try:
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            video.write_to(handle)
        finally:
            os.close(handle)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return video.frames


def signature(description: Description) -> tuple[object, ...]:
    """Return what descriptions must share for their packets to be in one file.

    Names of encoders and bit rates may differ; so may the sequence header of AV1, which every
    keyframe repeats, as long as frames are of the same format.
    """
    boxes = [(kind, _essence(kind, content)) for kind, content in description.boxes()]
    size = description.head[24:28]
    kept = tuple(sorted((kind, content) for kind, content in boxes if kind != b"btrt"))
    return (description.kind, size, kept)


def _essence(kind: bytes, content: bytes) -> bytes:
    if kind != b"av1C" or len(content) < 4:
        return content
    return bytes([content[1] & 0xE0, content[2] & 0x7F])  # profile; depth and subsampling


def _spans(run: PacketRun) -> Iterator[tuple[int, int]]:
    """Yield (offset, length) of the byte ranges to copy: packets side by side are one."""
    index = run.video.index
    yield from _ranges(index.offset[run.packets], index.size[run.packets])


def _ranges(offset: np.ndarray, size: np.ndarray) -> Iterator[tuple[int, int]]:
    breaks = np.flatnonzero(offset[1:] != offset[:-1] + size[:-1]) + 1
    first = np.concatenate([[0], breaks])
    last = np.concatenate([breaks, [len(offset)]]) - 1
    ends = offset[last] + size[last]
    yield from zip(offset[first].tolist(), (ends - offset[first]).tolist(), strict=True)


class _Output:
    """The file that is being written. The disk is given work early, not only when it is synced."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._at = self._asked = os.lseek(handle, 0, os.SEEK_CUR)

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._handle, view) :]
        self._at += len(data)
        self._begin_writing_out()

    def copy(self, source: LocalFile, offset: int, length: int) -> int:
        """Let the kernel copy a range, and return how much of it was copied: perhaps nothing.

        Not the fastest way where bytes change their place in a page, but for all that time no
        other thread waits for the interpreter.
        """
        if not hasattr(os, "copy_file_range"):
            return 0
        left = length
        handle = os.open(source.path, os.O_RDONLY)
        try:
            while left:
                step = os.copy_file_range(handle, self._handle, min(left, _EARLY), offset)
                if not step:
                    break
                offset, left, self._at = offset + step, left - step, self._at + step
                self._begin_writing_out()
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
        finally:
            os.close(handle)
        return length - left

    def _begin_writing_out(self) -> None:
        if self._at - self._asked >= _EARLY:
            begin_writing_out(self._handle, self._asked, self._at - self._asked)
            self._asked = self._at


def _copy(video: Video, offset: int, length: int, output: _Output) -> None:
    if length >= _LONG and isinstance(video.file, LocalFile):
        done = output.copy(video.file, offset, length)
        offset, length = offset + done, length - done
    # Through memory that serves again, and stays in the processor's cache.
    buffer = memoryview(bytearray(min(length, _AT_ONCE)))
    with _reading(video.file) as read:
        while length:
            part = buffer[: min(length, _AT_ONCE)]
            found = read(part, offset)
            if not found:
                raise _cut_off(video, length, offset)
            output.write(part[:found])
            offset, length = offset + found, length - found


def _cut_off(video: Video, length: int, offset: int) -> VideoError:
    return VideoError(
        f"The video is cut off: {length} bytes from {offset} on are wanted.",
        hint="restore the file from a copy",
        file=video.name,
    )


@contextmanager
def _reading(file: StoredFile) -> Iterator[Callable[[memoryview, int], int]]:
    """Yield a function that fills a buffer from a place of the file, and says how far."""
    if not isinstance(file, LocalFile) or not hasattr(os, "preadv"):

        def read(buffer: memoryview, offset: int) -> int:
            data = file.read(offset, len(buffer))
            buffer[: len(data)] = data
            return len(data)

        yield read
        return
    handle = os.open(file.path, os.O_RDONLY)
    try:
        yield lambda buffer, offset: os.preadv(handle, [buffer], offset)
    finally:
        os.close(handle)


class _Interleaved:
    """Frames and audio in turns: what players read one after the other is side by side.

    Attributes:
        pieces: The byte ranges to copy, in order.
        counts: Packets of video in each chunk.
        sound: The audio track.
        before: Bytes of audio before each chunk of video, and in all at the end.
    """

    def __init__(self, runs: Sequence[PacketRun], heard: AudioPackets, rate: Fraction) -> None:
        step = max(1, round(rate))
        parts = [
            PacketRun(run.video, run.packets[at : at + step])
            for run in runs
            for at in range(0, len(run.packets), step)
        ]
        self.counts = np.array([len(part.packets) for part in parts])
        ends = np.cumsum(self.counts) / float(rate) * heard.track.scale
        ends[-1] = np.inf
        stops = np.searchsorted(heard.begin, ends, side="left")
        self.pieces: list[tuple[Video, int, int]] = []
        first = 0
        for part, stop in zip(parts, stops.tolist(), strict=True):
            self.pieces += [(part.video, *span) for span in _spans(part)]
            self.pieces += _audio_pieces(heard, first, stop)
            first = stop
        counts = np.diff(np.concatenate([[0], stops]))
        ended = np.concatenate([[0], np.cumsum(heard.size)])
        self.before = np.concatenate([[0], ended[stops]])
        self._filled = counts > 0
        self.sound = Sound(
            entry=heard.track.entry,
            language=heard.track.language,
            scale=heard.track.scale,
            begin=int(heard.begin[0]),
            size=heard.size,
            length=heard.length,
            counts=counts[self._filled],
        )

    def places(self, video: np.ndarray, begin: int) -> tuple[np.ndarray, np.ndarray]:
        """Return where chunks are in the file: of video, and of audio.

        Args:
            video: Bytes of video before each chunk, and in all at the end.
            begin: Where the first chunk is.
        """
        chunks = begin + video[:-1] + self.before[:-1]
        sounds = begin + video[1:] + self.before[:-1]
        return chunks, sounds[self._filled]


def _audio_pieces(heard: AudioPackets, first: int, stop: int) -> Iterator[tuple[Video, int, int]]:
    source = heard.source[first:stop]
    edges = np.flatnonzero(np.diff(source)) + 1
    for begin, end in pairwise([0, *edges.tolist(), len(source)]):
        if end > begin:
            some = slice(first + begin, first + end)
            for place in _ranges(heard.offset[some], heard.size[some]):
                yield (heard.videos[int(source[begin])], *place)


def _header(
    runs: Sequence[PacketRun],
    description: Description,
    rate: Fraction,
    mixed: _Interleaved | None = None,
) -> bytes:
    """Return all that stands before the packets."""
    size = np.concatenate([run.video.index.size[run.packets] for run in runs])
    counts = np.array([len(run.packets) for run in runs])
    before = np.cumsum(counts) - counts
    shown = np.concatenate([run.shown() for run in runs]) + np.repeat(before, counts)
    behind = shown - np.arange(len(size))
    delay = -int(behind.min())  # ticks that decoding runs ahead; one delay keeps its times rising
    counts = counts if mixed is None else mixed.counts
    tables = SampleTables(
        size=size,
        key=np.concatenate([run.keyframes() for run in runs]),
        shift=behind + delay if behind.any() else None,
        counts=counts,
    )
    clock = Clock.at(rate, frames=len(size), delay=delay)
    brand = description.kind if description.kind in (b"av01", b"avc1") else b""
    ftyp = box(b"ftyp", b"isom", struct.pack(">I", 0x200), b"isomiso2mp41", brand)
    packets = len(size) + (0 if mixed is None else len(mixed.sound.size))
    total = int(size.sum()) + (0 if mixed is None else int(mixed.before[-1]))
    wide = total + packets * 32 + (1 << 16) > NARROW
    head = struct.pack(">I4sQ", 1, b"mdat", total + 16) if wide else b""
    mdat = head or struct.pack(">I4s", total + 8, b"mdat")
    video = np.concatenate([[0], np.cumsum(size)])[np.concatenate([[0], np.cumsum(counts)])]

    def described(begin: int) -> bytes:
        if mixed is None:
            return moov(tables, description, clock, begin + video[:-1], wide)
        chunks, sounds = mixed.places(video, begin)
        return moov(tables, description, clock, chunks, wide, (mixed.sound, sounds))

    length = len(described(0))
    return ftyp + described(len(ftyp) + length + len(mdat)) + mdat
