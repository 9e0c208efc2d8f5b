"""Where in a video other packets may come before, so that players run across the seam in order.

demoreel decodes from keyframe to keyframe and would not mind. But a decoder that runs on from one
clip into the next orders frames by counters in their headers, and only some keyframes begin these
anew: every one of AV1 and VP9, of H.264 and HEVC the IDR frames. A clip that begins with another
one needs a file of its own. (HEVC could say "broken link" there instead, but FFmpeg 8 then takes
frames before and after the seam for one another.)
"""

from __future__ import annotations

from collections.abc import Iterator

from demoreel.media.packets import PacketIndex
from demoreel.media.video import Video

_LENGTH_SIZE_AT = {"h264": 4, "hevc": 21}  # in the codec's header
_H264_SLICES, _H264_IDR = range(1, 6), (5,)
_HEVC_SLICES, _HEVC_IDR = range(32), (19, 20)
_HEAD = 1 << 16
_LEAD_IN = 64  # packets; as in ``decode.py``


def begins_anew(video: Video, packet: int) -> bool:
    """Whether nothing that is decoded before a keyframe matters to what comes after.

    Cost: one read of the packet's head; none for most codecs.

    Args:
        video: The video.
        packet: A keyframe.
    """
    name, index = video.index.codec.name, video.index
    if name not in _LENGTH_SIZE_AT:
        return True
    size = min(int(index.size[packet]), _HEAD)
    data = video.file.read(int(index.offset[packet]), size)
    slices, anew = (_H264_SLICES, _H264_IDR) if name == "h264" else (_HEVC_SLICES, _HEVC_IDR)
    kinds = (kind for kind in _units(video, data) if kind in slices)
    return next(kinds, None) in anew


def with_lead_in(index: PacketIndex, packet: int) -> int:
    """Return where to begin so that a keyframe that is no IDR decodes as in the whole video.

    After such a keyframe, H.264 may ask the decoder to forget frames from before it, which it
    then has to have.
    """
    if index.codec.name != "h264":
        return packet
    return max(0, int(index.start_of[max(0, packet - _LEAD_IN)]))


def _units(video: Video, data: bytes) -> Iterator[int]:
    """Yield the kinds of a packet's units, as far as they can be read."""
    codec = video.index.codec
    header = codec.extradata or b""
    place = _LENGTH_SIZE_AT[codec.name]
    if len(header) <= place or header[0] != 1:
        return  # another way of dividing packets, which mp4 does not have
    width = (header[place] & 3) + 1
    at = 0
    while at + width < len(data):
        first = data[at + width]
        yield first & 0x1F if codec.name == "h264" else first >> 1 & 0x3F
        at += width + int.from_bytes(data[at : at + width], "big")
