"""A video and its packet index: for every frame, which bytes make it.

With the index a random frame is three steps: read the bytes from a keyframe on, feed them to a
codec, take the frame. No demuxer, no seek, no float seconds. ``mp4.py`` makes the index from a
``moov``, ``remux.py`` from any other container; it is kept while the video does not change.

Where reads wait for a server, a video is indexed by one of them, if it is guessed right where its
table lies: an mp4's ``moov`` stands at its beginning or at its end, and a dataset's videos come
from one tool. So the beginning is read first; where the table turns out to be at the end, the end
of the next video is read first.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from demoreel.errors import VideoError
from demoreel.storage.cache import ByteCache
from demoreel.storage.folder import DatasetFolder
from demoreel.storage.local import FETCH, LocalFile, open_file
from demoreel.storage.store import StoredFile
from demoreel.storage.threads import renew_in_children, transfer

_BY_NAME = "libdav1d h264 hevc vp8 vp9 mpeg4 mpeg2video mjpeg png ffv1"
DECODERS = tuple(_BY_NAME.split())
"""The decoders that a file may ask for: those that recognise their own bytes.

FFmpeg has others that make an image of any bytes (``rawvideo``) or draw text (``ansi``): with one
of them, a packet index that points at a foreign file would show what it says.
"""

_LEAST = 1 << 16
_MOST = 1 << 20
_SHARE = 9  # a table takes about a five-hundredth of its video
_INDEX_BYTES = 64 << 20  # per process: the indices of about two million frames


@dataclass(frozen=True, slots=True)
class Codec:
    """What a decoder must be told before the first packet.

    Attributes:
        name: FFmpeg's name of a software decoder, one of ``DECODERS``.
        extradata: The codec's own header, if it has one.
        width: Coded width in pixels.
        height: Coded height in pixels.
        color_range: The container's word on it, as FFmpeg numbers it; 0 is unknown. The codec's
            own word, if it has one, comes first.
        colorspace: Likewise, the matrix from YUV to RGB; 2 is unknown.
        pix_fmt: The pixel format, of frames that are not compressed: nothing else says it.
    """

    name: str
    extradata: bytes | None
    width: int
    height: int
    color_range: int = 0
    colorspace: int = 2
    pix_fmt: str | None = None

    def require_listed(self, file: str) -> None:
        """Raise VideoError unless the decoder is one of ``DECODERS``."""
        # No file can name a pixel format: raw frames are those that a recorder left.
        is_raw = self.name == "rawvideo" and self.pix_fmt is not None
        if self.name not in DECODERS and not is_raw:
            raise VideoError(
                f"A video of codec {self.name[:40]!r} is not decoded.",
                hint=f"codecs that are: {', '.join(DECODERS)}",
                file=file,
            )


@dataclass(frozen=True)
class PacketIndex:
    """Where each packet of a video lies, and which frame it becomes.

    Packets are numbered in decoding order, frames in presentation order: frame ``k`` is the
    ``k``-th frame that a player would show, whatever the packets' order.

    Attributes:
        codec: How to decode.
        offset: Byte position of each packet.
        size: Bytes of each packet.
        frame_of: Frame that each packet becomes; -1 for packets that are decoded, never shown.
        start_of: For each packet, the keyframe packet where decoding must begin to get it right; -1
            where that lies before the video's first packet.
        packet_of: Packet of each frame.
        seconds: Presentation time of each frame on the file's own clock.
        raw: How to decode the last packets, where they are frames that were never compressed (an
            episode that waits for its encoder); each of them is a keyframe.
        raw_from: The first of those packets.
        nbytes: Memory that the index takes.
        has_leading: Whether any keyframe is followed by frames that lean on the GOP before it.
    """

    codec: Codec
    offset: np.ndarray
    size: np.ndarray
    frame_of: np.ndarray
    start_of: np.ndarray
    packet_of: np.ndarray
    seconds: np.ndarray
    raw: Codec | None = None
    raw_from: int = 0
    nbytes: int = field(init=False, default=0)
    has_leading: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        per_packet = (self.offset, self.size, self.frame_of, self.start_of)
        per_frame = (self.packet_of, self.seconds)
        total = sum(array.nbytes for array in (*per_packet, *per_frame))
        object.__setattr__(self, "nbytes", total + 512)
        object.__setattr__(self, "has_leading", bool((np.diff(self.start_of) < 0).any()))

    @property
    def frames(self) -> int:
        """Frames that the video shows."""
        return len(self.packet_of)

    def codec_at(self, packet: int) -> Codec:
        """Return how to decode what begins with this packet."""
        return self.raw if self.raw is not None and packet >= self.raw_from else self.codec

    def starts(self, frames: np.ndarray | list[int]) -> np.ndarray:
        """Return, for each of these frames, where its decoding begins (see ``start_of``)."""
        return np.asarray(self.start_of[self.packet_of[frames]])

    def decoded_from(self, first: int, stop: int) -> np.ndarray:
        """Return the packets ``first`` to ``stop`` - 1, but those that lean on frames before them.

        Leading frames of the keyframe ``first`` are such: the codec would take them for damaged.
        """
        packets = np.arange(max(first, 0), stop, dtype=np.int32)
        return packets[self.start_of[packets] >= first] if self.has_leading else packets

    @cached_property
    def lies_in_order(self) -> bool:
        """Whether packets lie in the file in the order in which they are decoded."""
        return bool((np.diff(self.offset) > 0).all())

    @cached_property
    def _keyframes(self) -> np.ndarray:
        return np.flatnonzero(self.start_of == np.arange(len(self.start_of)))

    def ends_of_groups(self, packets: np.ndarray) -> np.ndarray:
        """Return where the bytes end of the GOP that each packet is in.

        Only for packets that lie in order.
        """
        following = np.searchsorted(self._keyframes, packets, side="right")
        last = np.append(self._keyframes, len(self.offset))[following] - 1
        return np.asarray(self.offset[last] + self.size[last])

    @property
    def end(self) -> int:
        """One past the last byte of any packet."""
        return int((self.offset + self.size).max(initial=0))


def index_packets(
    *,
    codec: Codec,
    offset: np.ndarray,
    size: np.ndarray,
    pts: np.ndarray,
    keyframe: np.ndarray,
    shown: np.ndarray,
    seconds_per_tick: float,
    origin: int = 0,
    raw: Codec | None = None,
    raw_from: int = 0,
) -> PacketIndex:
    """Derive presentation order and decoding starts from a packet table in decoding order.

    Args:
        codec: How to decode.
        offset: Byte positions.
        size: Byte counts.
        pts: Presentation ticks.
        keyframe: Whether decoding may begin at a packet.
        shown: Whether a packet's frame is presented (edit lists hide some).
        seconds_per_tick: Length of a tick.
        origin: The tick that is second 0.
        raw: See ``PacketIndex``.
        raw_from: See ``PacketIndex``.
    """
    shown_packets = np.flatnonzero(shown)
    order = np.argsort(pts[shown_packets], kind="stable")
    packet_of = shown_packets[order].astype(np.int32)
    frame_of = np.full(len(offset), -1, dtype=np.int32)
    frame_of[packet_of] = np.arange(len(packet_of), dtype=np.int32)
    return PacketIndex(
        codec=codec,
        offset=offset.astype(np.int64),
        size=size.astype(np.int64),
        frame_of=frame_of,
        start_of=_decoding_starts(pts, keyframe),
        packet_of=packet_of,
        seconds=(pts[packet_of] - origin) * seconds_per_tick,
        raw=raw,
        raw_from=raw_from,
    )


def _decoding_starts(pts: np.ndarray, keyframe: np.ndarray) -> np.ndarray:
    """Return, for each packet, the keyframe packet from which it can be decoded.

    A packet that follows a keyframe but is shown before it (a leading frame of an open GOP)
    may refer to the GOP before, so decoding must begin one keyframe earlier. Leading frames of
    the first keyframe (of a video that was cut there) have no GOP before: -1.
    """
    count = len(pts)
    numbers = np.arange(count)
    last_key = np.maximum.accumulate(np.where(keyframe, numbers, 0))
    before = np.concatenate([[-1], last_key[:-1]]) if count else last_key
    key_before_key = before[last_key]  # the keyframe before each packet's own keyframe
    leading = pts < pts[last_key]
    return np.asarray(np.where(leading, key_before_key, last_key), dtype=np.int32)


_indices: ByteCache[object, PacketIndex] = ByteCache(_INDEX_BYTES)

Stored = Callable[[], PacketIndex | None]
"""Returns an index that is kept somewhere, or found in a shorter way; None if there is none."""


@dataclass(frozen=True, slots=True)
class Video:
    """An open video.

    Attributes:
        name: Its path, or what stands for one.
        file: Its bytes.
        index: Its packet index.
    """

    name: str
    file: StoredFile
    index: PacketIndex


@dataclass(frozen=True, slots=True)
class VideoClip:
    """Where one episode's images of one camera lie.

    Attributes:
        video: The video that holds them.
        first: The video's frame that is the episode's frame 0.
        step: Frames of the video from one frame of the episode to the next: more than one where the
            video was filmed at a multiple of the dataset's rate.
    """

    video: Video
    first: int
    step: int = 1

    def frames(self, numbers: np.ndarray) -> np.ndarray:
        """Return which of the video's frames are these frames of the episode."""
        return np.asarray(self.first + self.step * numbers)


def open_video(path: str | Path) -> Video:
    """Open a video and index it; a second call for an unchanged file costs a stat.

    Cost: one or two small reads for an mp4; a full read for containers without a packet table.
    """
    name = os.fspath(path)
    try:
        file = open_file(name)
    except OSError as error:
        is_absent = isinstance(error, FileNotFoundError)
        absent = ": not downloaded, moved or deleted" if is_absent else ""
        raise VideoError(
            f"The video cannot be opened ({error.strerror}){absent}.",
            hint=FETCH,
            file=name,
        ) from error
    return index_video(file, name)


def index_video(file: StoredFile, name: str, *, stored: Stored | None = None) -> Video:
    """Index a video; a second call for the same bytes costs nothing."""
    index = _indices.get((name, file.identity), lambda: _make_index(file, name, stored))
    return Video(name, file, index)


def _make_index(file: StoredFile, name: str, stored: Stored | None) -> tuple[PacketIndex, int]:
    index = stored() if stored is not None else None
    if index is None:
        from demoreel.media import mp4  # it imports this module

        try:
            index = mp4.read_index(file, name=name)
        except OSError as error:
            raise VideoError(f"The video cannot be read ({error.strerror}).", file=name) from error
    if index is None:
        from demoreel.media import remux  # heavy, and rarely needed

        is_the_file = isinstance(file, LocalFile) and file.path == name
        index = remux.read_index(name, None if is_the_file else file)
    return index, index.nbytes


class Videos:
    """The videos of a dataset's folder."""

    def __init__(self, folder: DatasetFolder) -> None:
        self._folder = folder
        self._table_is_last = False
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Begin anew in a forked child: what is under way will never arrive there."""
        self._opening: dict[str, Future[Video]] = {}
        self._lock = threading.Lock()

    def open(self, name: str) -> Video:
        """Open a video and index it; a second call costs nothing.

        Cost: as ``open_video``. Where reads wait, one ranged read; two for the first video of a
        dataset whose tables are at the end.
        """
        if not self._folder.waits:
            return open_video(os.path.join(self._folder.local, name))  # of a Path: takes longer
        return self._indexed(name) or self._begin(name).result()

    def begin(self, names: Iterable[str]) -> None:
        """Begin to open several videos side by side; those that fail will fail again."""
        for name in dict.fromkeys(names):
            if self._indexed(name) is None:
                self._begin(name)

    def _indexed(self, name: str) -> Video | None:
        """Return a video that was indexed before; None if it was not."""
        if self._folder.known_size(name) is None:
            return None
        file, uri = self._folder.file(name), f"{self._folder.uri}/{name}"
        index = _indices.peek((uri, file.identity))
        return None if index is None else Video(uri, file, index)

    def _begin(self, name: str) -> Future[Video]:
        with self._lock:
            future = self._opening.get(name)
            if future is None:
                future = self._opening[name] = transfer(lambda: self._open(name))
            return future

    def _open(self, name: str) -> Video:
        try:
            file, uri = self._folder.file(name), f"{self._folder.uri}/{name}"
            ends = _Ends(file, self._folder.known_size(name))
            return index_video(file, uri, stored=lambda: self._index(ends, uri))
        finally:
            with self._lock:
                self._opening.pop(name, None)

    def _index(self, ends: _Ends, name: str) -> PacketIndex | None:
        from demoreel.media import mp4  # it imports this module

        if self._table_is_last:
            place = ends.table_at_end()
            if place is not None:
                return mp4.read_index(ends, name=name, moov_at=place)
        index = mp4.read_index(ends, name=name)
        self._table_is_last = ends.went_to_the_end
        return index


class _Ends:
    """A file whose beginning and end are read in one go each, however few are asked for."""

    def __init__(self, file: StoredFile, size: int | None) -> None:
        self._file = file
        self._held: list[tuple[int, bytes]] = []
        self.went_to_the_end = False
        if size is None:
            self._load(0, _LEAST)  # tells the size, too
        self.size = file.size

    def read(self, offset: int, length: int) -> bytes:
        length = min(length, self.size - offset)
        for begin, data in self._held:
            if begin <= offset and offset + length <= begin + len(data):
                return data[offset - begin : offset - begin + length]
        rest = self.size - offset
        if offset == 0:
            return self._load(0, max(length, self._guess()))[:length]
        if rest <= self._guess():
            self.went_to_the_end = True
            return self._load(offset, rest)[:length]
        return self._load(offset, max(length, _LEAST))[:length]

    def _guess(self) -> int:
        return max(_LEAST, min(_MOST, self.size >> _SHARE))

    def _load(self, offset: int, length: int) -> bytes:
        data = self._file.read(offset, length)
        self._held.append((offset, data))
        return data

    def table_at_end(self) -> tuple[int, int] | None:
        """Return offset and size of a ``moov`` that ends where the file does; None if none does."""
        length = min(self._guess(), self.size)
        begin = self.size - length
        data = self.read(begin, length)
        at = data.find(b"moov", 4)
        while at >= 0:
            size = struct.unpack_from(">I", data, at - 4)[0]
            if at - 4 + size == len(data):
                return begin + at - 4, size
            at = data.find(b"moov", at + 1)
        return None
