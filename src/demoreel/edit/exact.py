"""Plans clips without foreign packets: where packets are copied, and which frames are encoded.

Decoding can begin at some keyframes only: all that is decoded before one must be shown before it,
all that is decoded after it must be shown after it, and the decoder must begin its counters again.
From the first of them that a clip has, packets are copied. The frames before are encoded; with
B-frames, those after the last one too.

Both must then be in one file, under one header. Every keyframe of AV1 and VP9 says all that a
decoder must know. H.264 keeps that in the file's header, as parameter sets with numbers that slices
name: x264 is told to take a free number, and the header gets the sets of both. x265 cannot be told,
so a clip of HEVC in which frames must be encoded is encoded as a whole, into a file of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from demoreel.errors import VideoError
from demoreel.media.decode import Decoder, GopSpan, begins_anew
from demoreel.media.mp4 import Description, read_description
from demoreel.media.mp4_boxes import box
from demoreel.media.mp4_write import PacketRun
from demoreel.media.settings import LOSSLESS_DEPTH, Codec, VideoSettings
from demoreel.media.video import Video

_CODECS: dict[str, Codec] = {"libdav1d": "av1", "h264": "h264", "hevc": "hevc", "vp9": "vp9"}

# Chosen so that no difference is visible: 46 dB and more on images of robots' cameras.
_CRF: dict[Codec, int] = {"av1": 8, "h264": 10, "hevc": 8, "vp9": 10}
_PRESET: dict[Codec, int | str] = {"av1": 8, "h264": "medium", "hevc": "fast", "vp9": 4}
_GOP = 32

_FORMATS: dict[Codec, frozenset[str]] = {
    "av1": frozenset({"yuv420p", "yuv420p10le"}),
    "h264": frozenset({"yuv420p", "yuvj420p", "yuv422p", "yuv444p", "yuv420p10le", "gray"}),
    "hevc": frozenset({"yuv420p", "yuvj420p", "yuv444p", "yuv420p10le", "gray12le"}),
    "vp9": frozenset({"yuv420p", "yuv444p"}),
}
_LENGTH_OF_FOUR = 3
_MOST_SETS = 31
_PROFILES = {66: "baseline", 77: "main", 100: "high", 110: "high10", 122: "high422"}


@dataclass(frozen=True, slots=True)
class Division:
    """A span of a video, divided.

    Attributes:
        head: Frames to encode, in front.
        first: The first packet that is copied.
        stop: One past the last.
        tail: Frames to encode, behind.
    """

    head: range
    first: int
    stop: int
    tail: range


class Divider:
    """Divides spans of one video; looks at its packet index once."""

    def __init__(self, video: Video) -> None:
        self._video = video
        index = video.index
        frame_of = index.frame_of.astype(np.int64)
        late = np.where(frame_of < 0, np.iinfo(np.int64).max, frame_of)
        before = np.concatenate([[-1], np.maximum.accumulate(frame_of)[:-1]])
        after = np.minimum.accumulate(late[::-1])[::-1]
        numbers = np.arange(len(frame_of))
        clean = (index.start_of == numbers) & (before < frame_of) & (after == frame_of)
        self._packets = numbers[clean]
        self._frames = frame_of[clean]

    def divide(self, first: int, stop: int) -> Division:
        """Divide the frames from ``first`` to ``stop`` - 1.

        Cost: a look at the head of a few packets.
        """
        all_of_it = Division(range(first, stop), 0, 0, range(stop, stop))
        low, high = np.searchsorted(self._frames, [first, stop]).tolist()
        begin = next((n for n in range(low, high) if self._is_clean(n)), None)
        if begin is None:
            return all_of_it
        packet, frame = int(self._packets[begin]), int(self._frames[begin])
        end = int(self._video.index.packet_of[frame:stop].max()) + 1
        if self._holds(packet, end, frame, stop):
            return Division(range(first, frame), packet, end, range(stop, stop))
        last = next(n for n in range(high - 1, begin - 1, -1) if self._is_clean(n))
        end, rest = int(self._packets[last]), int(self._frames[last])
        if last == begin or not self._holds(packet, end, frame, rest):
            return all_of_it
        return Division(range(first, frame), packet, end, range(rest, stop))

    def _is_clean(self, number: int) -> bool:
        return begins_anew(self._video, int(self._packets[number]))

    def _holds(self, packet: int, end: int, frame: int, stop: int) -> bool:
        """Whether packets become these frames, and no others."""
        found = self._video.index.frame_of[packet:end]
        return len(found) == stop - frame and int(found.min()) == frame


def settings_like(video: Video, frame: int) -> VideoSettings:
    """Return how to encode frames like a video's own: in its codec, format and colours.

    Cost: decodes one frame.
    """
    span = GopSpan(video.index, video.file, video.name, (frame,))
    _, image = next(iter(Decoder().frames(span)))
    name = image.format.name
    codec = _CODECS.get(video.index.codec.name)
    if codec is None or name not in _FORMATS[codec]:
        raise VideoError(
            f"Frames cannot be encoded like this video's, {video.index.codec.name} {name}.",
            hint="begin and end clips with GOPs, or re-encode the camera (vcodec)",
            file=video.name,
        )
    if name == LOSSLESS_DEPTH.pix_fmt:
        return LOSSLESS_DEPTH
    options = {
        "color_range": str(int(image.color_range)),
        "colorspace": str(int(image.colorspace)),
        "color_primaries": str(int(image.color_primaries)),
        "color_trc": str(int(image.color_trc)),
    }
    if codec == "hevc":
        # Where a frame is a single block of 64, x265 gives other ones in every run, some of 20 dB.
        options["x265-params"] = "ctu=32"
    return VideoSettings(
        codec=codec,
        pix_fmt=name,
        gop=_GOP,
        crf=_CRF[codec],
        preset=_PRESET[codec],
        options=options,
    )


def settings_beside(settings: VideoSettings, video: Video) -> VideoSettings | None:
    """Return settings whose packets can be in one file with a video's; None if there are none."""
    if settings.codec in ("av1", "vp9"):
        return settings
    if settings.codec != "h264":
        return None
    header = video.index.codec.extradata or b""
    try:
        number = _Avc.read(header).free_number()
    except (ValueError, IndexError, struct.error, StopIteration):
        return None
    if number is None:
        return None
    options = {**settings.options, "x264-params": f"sps-id={number}"}
    if header[1] in _PROFILES:
        options["profile"] = _PROFILES[header[1]]
    return replace(settings, options=options)


def joined_header(description: Description, made: PacketRun) -> Description:
    """Return the header of a file that gets packets encoded with ``settings_beside``, too."""
    own = read_description(made.video.file, name=made.video.name)
    if own is None:
        raise VideoError("What was encoded cannot be read again.", file=made.video.name)
    if description.kind not in (b"avc1", b"avc3"):
        return description
    try:
        ours, theirs = (_Avc.read(dict(d.boxes())[b"avcC"]) for d in (description, own))
    except (ValueError, IndexError, KeyError, struct.error) as error:
        raise VideoError(
            f"A video's header makes no sense ({error}).", file=made.video.name
        ) from error
    content = ours.joined(theirs).to_bytes()
    boxes = (box(k, content if k == b"avcC" else data) for k, data in description.boxes())
    return replace(description, entry=description.head + b"".join(boxes))


@dataclass(frozen=True, slots=True)
class _Avc:
    """An H.264 header (``avcC``), taken apart.

    Attributes:
        head: Version, profile, level, size of lengths.
        sequence: Its sequence parameter sets.
        image: Its image parameter sets.
        rest: What some profiles have behind them.
    """

    head: bytes
    sequence: tuple[bytes, ...]
    image: tuple[bytes, ...]
    rest: bytes

    @classmethod
    def read(cls, content: bytes) -> _Avc:
        """Take a header apart; ValueError, IndexError or struct.error: it is cut off."""
        if len(content) < 7:
            raise ValueError("an H.264 header of no length")
        sequence, at = _sets(content, 6, content[5] & 0x1F)
        image, at = _sets(content, at + 1, content[at])
        return cls(content[:5], sequence, image, content[at:])

    def to_bytes(self) -> bytes:
        """Return it as it is in a file."""
        first = bytes([0xE0 | len(self.sequence)]) + _with_lengths(self.sequence)
        second = bytes([len(self.image)]) + _with_lengths(self.image)
        return self.head + first + second + self.rest

    def free_number(self) -> int | None:
        """Return a number that no parameter set has; None if packets of both cannot be mixed."""
        if self.head[4] & 3 != _LENGTH_OF_FOUR:  # bytes of a unit's length: FFmpeg writes four
            return None
        taken = {_number(unit[4:]) for unit in self.sequence}
        taken |= {_number(unit[1:]) for unit in self.image}
        return next((n for n in range(1, _MOST_SETS + 1) if n not in taken), None)

    def joined(self, other: _Avc) -> _Avc:
        """Return a header with both headers' sets."""
        sequence = dict.fromkeys((*self.sequence, *other.sequence))
        image = dict.fromkeys((*self.image, *other.image))
        level = max(self.head[3], other.head[3])
        head = self.head[:3] + bytes([level]) + self.head[4:]
        return replace(self, head=head, sequence=tuple(sequence), image=tuple(image))


def _sets(content: bytes, at: int, count: int) -> tuple[tuple[bytes, ...], int]:
    found = []
    for _ in range(count):
        (length,) = struct.unpack_from(">H", content, at)
        found.append(content[at + 2 : at + 2 + length])
        at += 2 + length
    if at > len(content):
        raise ValueError("an H.264 header that is cut off")
    return tuple(found), at


def _with_lengths(units: tuple[bytes, ...]) -> bytes:
    return b"".join(struct.pack(">H", len(unit)) + unit for unit in units)


def _number(data: bytes) -> int:
    """Read the number at the beginning of a parameter set (Exp-Golomb)."""
    bits = _bits(data)
    zeros = 0
    while next(bits) == 0:
        zeros += 1
    value = 1
    for _ in range(zeros):
        value = value << 1 | next(bits)
    return value - 1


def _bits(data: bytes) -> Iterator[int]:
    for byte in data:
        yield from (byte >> shift & 1 for shift in range(7, -1, -1))
