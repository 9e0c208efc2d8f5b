"""Where a clip can be cut out of a video without a foreign packet, and what is encoded for it.

Decoding can begin at some keyframes only: all that is decoded before one must be shown before it,
all that is decoded after it must be shown after it, and the decoder must begin its counters anew.
From the first of them that a clip has, packets are copied. The frames before are encoded; with
B-frames, those after the last one too.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from demoreel.edit.encode.headers import Avc
from demoreel.errors import VideoError
from demoreel.media.decode import Decoder, Stretch
from demoreel.media.settings import LOSSLESS_DEPTH, Codec, VideoSettings
from demoreel.media.splice import begins_anew
from demoreel.media.video import Video

_CODECS: dict[str, Codec] = {"libdav1d": "av1", "h264": "h264", "hevc": "hevc", "vp9": "vp9"}

# Chosen so that nobody sees the difference: 46 dB and more on pictures of robots' cameras.
_CRF: dict[Codec, int] = {"av1": 8, "h264": 10, "hevc": 10, "vp9": 10}
_PRESET: dict[Codec, int | str] = {"av1": 8, "h264": "medium", "hevc": "fast", "vp9": 4}
_GOP = 32

_FORMATS: dict[Codec, frozenset[str]] = {
    "av1": frozenset({"yuv420p", "yuv420p10le"}),
    "h264": frozenset({"yuv420p", "yuvj420p", "yuv422p", "yuv444p", "yuv420p10le", "gray"}),
    "hevc": frozenset({"yuv420p", "yuvj420p", "yuv444p", "yuv420p10le", "gray12le"}),
    "vp9": frozenset({"yuv420p", "yuv444p"}),
}
_PROFILES = {66: "baseline", 77: "main", 100: "high", 110: "high10", 122: "high422"}


@dataclass(frozen=True, slots=True)
class Division:
    """A stretch of a video, divided.

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
    """Divides stretches of one video; looks at its packet index once."""

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
    """Return how to encode frames so that they can stand beside a video's own packets.

    Cost: decodes one frame.

    Raises:
        VideoError: There is no encoder here for such pictures.
    """
    stretch = Stretch(video.index, video.file, video.name, (frame,))
    _, picture = next(iter(Decoder().frames(stretch)))
    name = picture.format.name
    codec = _CODECS.get(video.index.codec.name)
    if codec is None or name not in _FORMATS[codec]:
        raise VideoError(
            f"Frames cannot be encoded like this video's, {video.index.codec.name} {name}.",
            hint="begin and end clips with groups of pictures, or encode the camera anew (vcodec)",
            file=video.name,
        )
    if name == LOSSLESS_DEPTH.pix_fmt:
        return LOSSLESS_DEPTH
    options = {
        "color_range": str(int(picture.color_range)),
        "colorspace": str(int(picture.colorspace)),
        "color_primaries": str(int(picture.color_primaries)),
        "color_trc": str(int(picture.color_trc)),
    }
    header = video.index.codec.extradata or b""
    if codec == "h264":
        options |= _h264_options(header, video)
    return VideoSettings(
        codec=codec,
        pix_fmt=name,
        gop=_GOP,
        crf=_CRF[codec],
        preset=_PRESET[codec],
        options=options,
    )


def _h264_options(header: bytes, video: Video) -> dict[str, str]:
    """Return what x264 must be told so that its header can be joined with the video's."""
    try:
        own = Avc.read(header)
        number = own.free_number() if own.lengths_have_four_bytes else None
    except (ValueError, IndexError, struct.error, StopIteration):
        number = None
    if number is None:
        raise VideoError(
            "Frames cannot be encoded to stand beside this video's: its header has no room.",
            hint="encode the camera anew (vcodec)",
            file=video.name,
        )
    options = {"x264-params": f"sps-id={number}"}
    if header[1] in _PROFILES:
        options["profile"] = _PROFILES[header[1]]
    return options
