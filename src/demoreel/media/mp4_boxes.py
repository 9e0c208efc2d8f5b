"""The packet tables of an mp4 as bytes: sizes, positions and times of packets."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from demoreel.media.mp4 import Description

NARROW = 0xFFFFFFFF
"""The largest number that 32 bits hold."""

_FINEST_CLOCK = 10_000  # ticks a second, at least: players dislike coarser ones
_LANGUAGE = 0x55C4  # "und", five bits a letter
_UNITY = struct.pack(">9i", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)


@dataclass(frozen=True, slots=True)
class SampleTables:
    """The packets in decoding order.

    Attributes:
        size: Bytes of each.
        key: Whether decoding may begin there.
        shift: Ticks that each is shown after it is decoded; None if there are none.
        counts: Packets in each chunk, that is, side by side in the file.
    """

    size: np.ndarray
    key: np.ndarray
    shift: np.ndarray | None
    counts: np.ndarray


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock of a video.

    Attributes:
        scale: Ticks a second.
        step: Ticks a frame.
        frames: Frames in all.
        delay: Frames that decoding runs ahead of what is shown.
    """

    scale: int
    step: int
    frames: int
    delay: int

    @classmethod
    def at(cls, rate: Fraction, *, frames: int, delay: int) -> Clock:
        """Return the clock that ticks once a frame, or a power of two as often."""
        times = 1
        while rate.numerator * times < _FINEST_CLOCK:
            times *= 2
        return cls(rate.numerator * times, rate.denominator * times, frames, delay)

    @property
    def duration(self) -> int:
        """The whole length in ticks."""
        return self.frames * self.step


def box(kind: bytes, *content: bytes) -> bytes:
    """Return a box of this kind."""
    length = 8 + sum(map(len, content))
    return b"".join((struct.pack(">I4s", length, kind), *content))


def _full(kind: bytes, *content: bytes, version: int = 0, flags: int = 0) -> bytes:
    return box(kind, struct.pack(">I", version << 24 | flags), *content)


@dataclass(frozen=True, slots=True)
class Sound:
    """The audio track beside a video.

    Attributes:
        entry: The sample entry, box and all.
        language: The packed language code.
        scale: Ticks a second.
        begin: The tick of the movie at which its first packet is heard; negative: not all of it.
        size: Bytes of each packet.
        length: Ticks of each packet.
        counts: Packets in each chunk.
    """

    entry: bytes
    language: int
    scale: int
    begin: int
    size: np.ndarray
    length: np.ndarray
    counts: np.ndarray


def moov(
    tables: SampleTables,
    description: Description,
    clock: Clock,
    chunks: np.ndarray,
    wide: bool,
    sound: tuple[Sound, np.ndarray] | None = None,
) -> bytes:
    """Return the box that describes a video, and the audio beside it.

    Args:
        tables: Its packets.
        description: How they are described.
        clock: Its clock.
        chunks: Where each chunk begins in the file.
        wide: Whether places in the file need 64 bits.
        sound: The audio track, and where each of its chunks begins.
    """
    return box(
        b"moov",
        _movie_header(clock, tracks=1 if sound is None else 2),
        box(
            b"trak",
            _track_header(clock, description),
            _edits(clock) if clock.delay else b"",
            box(
                b"mdia",
                _media_header(clock),
                _full(b"hdlr", struct.pack(">I4s12x", 0, b"vide"), b"VideoHandler\0"),
                box(
                    b"minf",
                    _full(b"vmhd", bytes(8), flags=1),
                    _data_information(),
                    _sample_tables(tables, description, clock, chunks, wide),
                ),
            ),
        ),
        b"" if sound is None else _audio_track(*sound, clock=clock, wide=wide),
    )


def _audio_track(sound: Sound, chunks: np.ndarray, *, clock: Clock, wide: bool) -> bytes:
    whole = int(sound.length.sum())
    skipped, delay = max(0, -sound.begin), _scaled(max(0, sound.begin), sound.scale, clock)
    heard = _scaled(whole - skipped, sound.scale, clock)
    version, times = _header_times(delay + heard, ">QQI4xQ", ">III4xI", 2)
    placement = struct.pack(">HHHH", 0, 1, 0x100, 0) + _UNITY + bytes(8)
    header = _full(b"tkhd", times, bytes(8), placement, version=version, flags=3)
    edits = [struct.pack(">Qqi", delay, -1, 1 << 16)] if delay else []
    edits.append(struct.pack(">Qqi", heard, skipped, 1 << 16))
    listed = _full(b"elst", struct.pack(">I", len(edits)), *edits, version=1)
    version, times = _header_times(whole, ">QQIQ", ">IIII", sound.scale)
    return box(
        b"trak",
        header,
        box(b"edts", listed) if skipped or delay else b"",
        box(
            b"mdia",
            _full(b"mdhd", times, struct.pack(">HH", sound.language, 0), version=version),
            _full(b"hdlr", struct.pack(">I4s12x", 0, b"soun"), b"SoundHandler\0"),
            box(
                b"minf",
                _full(b"smhd", bytes(4)),
                _data_information(),
                box(
                    b"stbl",
                    _full(b"stsd", struct.pack(">I", 1), sound.entry),
                    _counted(b"stts", *_run_lengths(sound.length)),
                    *_places(sound.size, sound.counts, chunks, wide),
                ),
            ),
        ),
    )


def _scaled(ticks: int, scale: int, clock: Clock) -> int:
    """Return a time of another clock in ticks of the movie's."""
    return (2 * ticks * clock.scale + scale) // (2 * scale)


def _data_information() -> bytes:
    return box(b"dinf", _full(b"dref", struct.pack(">I", 1), _full(b"url ", flags=1)))


def _times(clock: Clock, wide: str, narrow: str, *middle: int) -> tuple[int, bytes]:
    """Return a header's version and its times: made, changed (never), ..., the duration."""
    return _header_times(clock.duration, wide, narrow, *middle)


def _header_times(duration: int, wide: str, narrow: str, *middle: int) -> tuple[int, bytes]:
    version = 1 if duration > NARROW else 0
    return version, struct.pack(wide if version else narrow, 0, 0, *middle, duration)


def _movie_header(clock: Clock, *, tracks: int) -> bytes:
    version, times = _times(clock, ">QQIQ", ">IIII", clock.scale)
    following = struct.pack(">I", tracks + 1)
    rest = struct.pack(">IH10x", 1 << 16, 0x100) + _UNITY + bytes(24) + following
    return _full(b"mvhd", times, rest, version=version)


def _track_header(clock: Clock, description: Description) -> bytes:
    version, times = _times(clock, ">QQI4xQ", ">III4xI", 1)
    return _full(b"tkhd", times, bytes(16), description.placement, version=version, flags=3)


def _media_header(clock: Clock) -> bytes:
    version, times = _times(clock, ">QQIQ", ">IIII", clock.scale)
    return _full(b"mdhd", times, struct.pack(">HH", _LANGUAGE, 0), version=version)


def _edits(clock: Clock) -> bytes:
    """The first frame is decoded at tick 0 and shown ``delay`` later; that is when time begins."""
    start = clock.delay * clock.step
    edit = struct.pack(">IQqi", 1, clock.duration, start, 1 << 16)
    return box(b"edts", _full(b"elst", edit, version=1))


def _sample_tables(
    tables: SampleTables, description: Description, clock: Clock, chunks: np.ndarray, wide: bool
) -> bytes:
    count = len(tables.size)
    parts = [_descriptions(description), _full(b"stts", struct.pack(">III", 1, count, clock.step))]
    if tables.shift is not None:
        parts.append(_counted(b"ctts", *_run_lengths(tables.shift * clock.step)))
    if not tables.key.all():
        parts.append(_counted(b"stss", np.flatnonzero(tables.key) + 1))
    return box(b"stbl", *parts, *_places(tables.size, tables.counts, chunks, wide))


def _places(
    size: np.ndarray, counts: np.ndarray, chunks: np.ndarray, wide: bool
) -> tuple[bytes, ...]:
    """Return the tables that say where packets are."""
    repeated, values = _run_lengths(counts)
    first_chunk = np.concatenate([[0], np.cumsum(repeated)[:-1]]) + 1
    kind, number = (b"co64", ">u8") if wide else (b"stco", ">u4")
    return (
        _counted(b"stsc", first_chunk, values, np.ones(len(values))),
        _full(b"stsz", struct.pack(">II", 0, len(size)), size.astype(">u4").tobytes()),
        _full(kind, struct.pack(">I", len(chunks)), chunks.astype(number).tobytes()),
    )


def _descriptions(description: Description) -> bytes:
    boxes = (box(kind, content) for kind, content in description.boxes() if kind != b"btrt")
    entry = box(description.kind, description.head, *boxes)
    return _full(b"stsd", struct.pack(">I", 1), entry)


def _counted(kind: bytes, *columns: np.ndarray) -> bytes:
    """A table of 32-bit numbers, row by row, behind their count."""
    rows = np.stack([np.asarray(column, np.int64) for column in columns], axis=1)
    return _full(kind, struct.pack(">I", len(rows)), rows.astype(">u4").tobytes())


def _run_lengths(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how often values repeat, and the values."""
    first = np.concatenate([[0], np.flatnonzero(np.diff(values)) + 1])
    return np.diff(np.append(first, len(values))), values[first]
